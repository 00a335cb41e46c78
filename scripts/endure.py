#!/usr/bin/env python3
"""Runs loads for a long time, and says whether memory grows or speed decays.

    scripts/endure.py run SECONDS FILE [LOAD...]    each load for so long; a line of FILE for each
    scripts/endure.py report FILE                   the table of a file

A load is good if its run is, and if the memory of the last tenth is at most 2 %, or 1 MB, above that of the second tenth. How much
speed was lost from the first third to the last is shown and not judged, because a shared machine loses some, too. A tenth's memory is the median of the resident set (VmRSS), which is read
each second or ten times a tenth. The exit code is 1 if a load is not good. Linux only.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target" / "release" / "rust-tun-perf"
# Streams each way, and connections that are opened and closed, 1,000 of them at a time.
LOADS = {
    **{f"{stack}, streams": f"--mode both --netstack {stack}" for stack in ("lwip", "ipstack", "smoltcp")},
    **{f"{stack}, connections": f"--mode crr --netstack {stack} --parallel 1000" for stack in ("lwip", "ipstack", "smoltcp")},
}
MOST_GROWTH, MOST_GROWTH_BYTES = 0.02, 1e6


def resident(process):
    """The resident set of a process in bytes, or None if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) * 1024 if sizes else None


def endure(name, seconds):
    """Runs a load, and returns what is kept of it."""
    options = f"{LOADS[name]} --time {seconds} --interval {seconds / 30} --json"
    command = [str(PROGRAM), *options.split()]
    begin = time.monotonic()
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    sizes = []
    # Setting up and the warm-up come before the timed window; the clock of the memory begins with the first answer of /proc.
    while run.poll() is None and time.monotonic() - begin < 2 * seconds + 120:
        if (size := resident(run.pid)) is not None:
            sizes.append((time.monotonic() - begin, size))
        time.sleep(min(1, seconds / 100))
    run.kill()
    sample = json.loads(run.stdout.read() or "{}")
    end = sizes[-1][0]
    start = end - seconds
    tenths = [[size for at, size in sizes if k <= (at - start) / seconds * 10 < k + 1] for k in range(10)]
    return {
        "load": name,
        "seconds": seconds,
        "status": sample.get("status", "no result"),
        "detail": sample.get("detail"),
        "gbps": sample.get("gbps"),
        "requests": (sample.get("requests") or {}).get("answered"),
        "bytes": [interval["bytes"] for interval in sample.get("intervals", [])],
        "resident_bytes": [statistics.median(tenth) if tenth else None for tenth in tenths],
        "peak_rss_bytes": sample.get("peak_rss_bytes"),
        "version": (sample.get("environment") or {}).get("version"),
        "commit": (sample.get("environment") or {}).get("commit"),
        "cpu": (sample.get("environment") or {}).get("cpu"),
        "kernel": (sample.get("environment") or {}).get("kernel"),
    }


def growth(kept):
    """The share by which memory grew from the second tenth to the last."""
    second, last = kept["resident_bytes"][1], kept["resident_bytes"][9]
    return last / second - 1 if second and last else None


def decay(kept):
    """The share of the speed that was lost from the first third to the last."""
    parts = kept["bytes"]
    third = len(parts) // 3
    first, last = sum(parts[:third]), sum(parts[-third:])
    return 1 - last / first if third and first else None


def faults(kept):
    """What is not good about a load."""
    if kept["status"] != "ok":
        return [f"{kept['status']}: {kept['detail']}"]
    found = []
    grown = growth(kept)
    if grown is None:
        found.append("memory unknown")
    elif grown > MOST_GROWTH and grown * kept["resident_bytes"][1] > MOST_GROWTH_BYTES:
        found.append(f"memory grew by {grown:.1%}")
    return found


def run(seconds, path, names):
    for name in names:
        if name not in LOADS:
            sys.exit(f"there is no load {name!r}; there are: {'; '.join(LOADS)}")
    is_good = True
    with open(path, "w") as file:
        for name in names:
            kept = endure(name, seconds)
            print(json.dumps(kept), file=file, flush=True)
            found = faults(kept)
            is_good &= not found
            print(f"{name}: {'; '.join(found) or 'good'}", flush=True)
    sys.exit(not is_good)


def report(path):
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    print("| load | seconds | Gbps | requests | memory, second tenth | last tenth | growth | speed lost | result |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    megabytes = lambda size: "–" if size is None else f"{size / 1e6:.1f} MB"
    share = lambda value: "–" if value is None else f"{value:+.1%}"
    for kept in lines:
        requests = "–" if kept["requests"] is None else f"{kept['requests']:,}"
        gbps = f"{kept['gbps']:.2f}" if kept["requests"] is None and kept["gbps"] is not None else "–"
        second, last = kept["resident_bytes"][1], kept["resident_bytes"][9]
        cells = [kept["load"], f"{kept['seconds']:g}", gbps, requests, megabytes(second), megabytes(last)]
        cells += [share(growth(kept)), share(decay(kept)), "; ".join(faults(kept)) or "good"]
        print("| " + " | ".join(cells) + " |")
    first = lines[0]
    print(f"\nOn {first['cpu']}, Linux {first['kernel']}; version {first['version']}, commit {first['commit']}.")


def main():
    match sys.argv[1:]:
        case ["run", seconds, path, *names]:
            run(float(seconds), path, names or list(LOADS))
        case ["report", path]:
            report(path)
        case _:
            sys.exit(__doc__)


main()
