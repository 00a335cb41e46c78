#!/usr/bin/env python3
"""Runs loads for a long time, and says whether memory grows or speed decays.

    scripts/endure.py run [--together] SECONDS FILE [LOAD...]   each load for so long; a line of FILE for each
    scripts/endure.py report FILE...                            the table of files
    scripts/endure.py check                                     faults are put into a good run, and each must be found

Without a LOAD all are run, one after the other, or at once with --together. A part of a name, such as `proxy`, names all loads
that have it in their names.
The exit code is 1 if a load is not good. docs/reliability.md says what is judged, and why. Linux only; no root is needed where a
user may make namespaces. All processes of a run are in namespaces of their own, and end with it.
"""

import copy
import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from endure_loads import LOADS, PARTS

# Seconds of a run whose every figure means something. In a shorter one caches still fill, and a busy machine may leave a load
# little time: each of the limits below is one for long runs and one for shorter runs.
LONG = 300
# Memory of the last tenth over that of the second, as a share, and in bytes: it has to be beyond both. The least of a tenth's
# readings counts: memory rises with the connections that are open and falls with them, but what is lost is in every reading.
MOST_GROWTH, MOST_GROWTH_BYTES = (0.02, 0), (1e6, 16e6)
# The bytes for short runs of loads that open thousands of connections: those of 15 seconds on a busy machine grew by 86 MB.
MOST_GROWTH_OF_CONNECTIONS_BYTES = 160e6
# Speed of the last third over that of the first, both by the processor time that was to be had. On a busy machine the ratio of
# 5 seconds was 0.8 or more.
LEAST_SPEED = (0.7, 0.3)
# In each of so many periods of equal length a client has to make progress. A restart takes 4 seconds: a run of 30 has one period
# that does not count.
PERIODS = (10, 6)
# The script runs itself again with this variable in namespaces of its own.
INSIDE = "ENDURE_INSIDE"


def resident(process):
    """The resident set of a process in bytes, or None if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) * 1024 if sizes else None


def available():
    """Seconds of processor time since boot that were to be had by the loads: they took them, or nobody did.

    What other processes of the machine took, or its host, is not in it. /proc lists the processes of these namespaces alone.
    """
    hertz = os.sysconf("SC_CLK_TCK")
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    _user, _nice, _system, idle, iowait, irq, softirq, *_rest = fields
    own = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # proc_pid_stat(5): user, system, and those of children that have ended, behind the name in parentheses.
            own += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return (idle + iowait + irq + softirq + own) / hertz


def endure(name, seconds, together):
    """Runs a load, and returns what is kept of it."""
    load = LOADS[name](seconds)
    samples = []
    try:
        process = load.start()
        begin = time.monotonic()
        while load.runs() and time.monotonic() - begin < 2 * seconds + 120:
            if (size := resident(process)) is not None:
                samples.append((time.monotonic(), size, available()))
            time.sleep(min(1, seconds / 100))
        kept = load.finish()
    finally:
        load.stop()
    # A program sets up and warms up before its timed window; the clock ends with the last sample.
    end = samples[-1][0] if samples else time.monotonic()
    shares = [((at - end) / seconds + 1, size, cpu) for at, size, cpu in samples]
    tenths = [[size for share, size, _ in shares if k <= share * 10 < k + 1] for k in range(10)]
    marks = [next((cpu for share, _, cpu in shares if share >= third / 3), None) for third in range(3)]
    marks.append(shares[-1][2] if shares else None)
    return {
        "load": name,
        "seconds": seconds,
        "together": together,
        **kept,
        "resident_bytes": [min(tenth, default=None) for tenth in tenths],
        "available_cpu_seconds": [b - a if None not in (a, b) else None for a, b in zip(marks, marks[1:])],
    }


def growth(kept):
    """The share by which memory grew from the second tenth to the last."""
    second, last = kept["resident_bytes"][1], kept["resident_bytes"][9]
    return last / second - 1 if second and last else None


def thirds(parts):
    """The sums of the first and the last third."""
    third = len(parts) // 3
    return sum(parts[:third]), sum(parts[-third:])


def speed(kept, parts):
    """The speed of the last third over that of the first, both by the processor time that was to be had."""
    (first, last), cpu = thirds(parts), kept["available_cpu_seconds"]
    return last / first / (cpu[2] / cpu[0]) if first and cpu[0] and cpu[2] else None


def faults(kept):
    """Everything that is not good about a load."""
    if kept["status"] != "ok":
        return [f"{kept['status']}: {kept['detail']}"]
    found = []
    short = kept["seconds"] < LONG
    most, bytes, least, periods = (limit[short] for limit in (MOST_GROWTH, MOST_GROWTH_BYTES, LEAST_SPEED, PERIODS))
    if short and kept["load"].endswith("connections"):
        bytes = MOST_GROWTH_OF_CONNECTIONS_BYTES
    grown = growth(kept)
    if grown is None:
        found.append("memory unknown")
    elif grown > most and grown * kept["resident_bytes"][1] > bytes:
        found.append(f"memory grew by {grown:.1%}")
    down, up = kept["restart"] or (2, 2)
    for client in kept["clients"]:
        parts, name = client["parts"], client["name"]
        ratio = speed(kept, parts)
        if len(parts) != PARTS or ratio is None:
            found.append(f"{name}: speed unknown")
        elif ratio < least:
            found.append(f"{name}: speed fell to {ratio:.0%}")
        size = PARTS // periods
        stalled = [k for k in range(periods) if not sum(parts[k * size : (k + 1) * size])]
        # The periods that the restart touches do not count.
        stalled = [k for k in stalled if (k + 1) / periods <= down or k / periods >= up]
        if stalled:
            found.append(f"{name}: no progress in {', '.join(str(k + 1) for k in stalled)} of {periods} periods")
        if client["failures"]:
            found.append(f"{name}: {client['failures']} failed, first: {client['first_failure']}")
    return found


def run(seconds, path, names, together):
    wanted = [name for name in LOADS if not names or any(part in name for part in names)]
    for part in names:
        if not any(part in name for name in LOADS):
            sys.exit(f"there is no load {part!r}; there are: {'; '.join(LOADS)}")
    # The names of networks and the files of servers are in memory that is gone with the namespace.
    subprocess.run(["mount", "-t", "tmpfs", "endure", "/run"], check=True)
    results = {}
    with open(path, "w") as file:

        def one(name):
            kept = endure(name, seconds, len(wanted) if together else 1)
            results[name] = faults(kept)
            print(json.dumps(kept), file=file, flush=True)
            print(f"{name}: {'; '.join(results[name]) or 'good'}", flush=True)

        if together:
            threads = [threading.Thread(target=one, args=[name]) for name in wanted]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            for name in wanted:
                one(name)
    if broken := [name for name in wanted if name not in results]:
        sys.exit(f"broke off: {'; '.join(broken)}")
    if bad := [name for name in wanted if results[name]]:
        sys.exit(f"error: {len(bad)} of {len(wanted)} loads are not good: {'; '.join(bad)}")


def run_inside(arguments):
    """Runs this script again in namespaces of its own: the kernel removes them and ends all that is in them with it."""
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [*unshare, *user, "--", sys.executable, __file__, *arguments]
    os.execvpe(command[0], command, {**os.environ, INSIDE: "yes"})


def report(paths):
    lines = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    lines.sort(key=lambda kept: list(LOADS).index(kept["load"]))
    print("| load | at once | seconds | speed, first third | last third | by CPU | memory, second tenth | last tenth | growth | result |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    megabytes = lambda size: "–" if size is None else f"{size / 1e6:.1f} MB"
    share = lambda value: "–" if value is None else f"{value:+.1%}"
    for kept in lines:
        third = kept["seconds"] / 3
        rates = {0: [], 1: [], "ratio": []}
        for client in kept["clients"]:
            form = "{:.2f} Gbps" if client["unit"] == "Gb" else "{:,.0f}/s"
            name = f"{client['name']} " if len(kept["clients"]) > 1 else ""
            for which, amount in enumerate(thirds(client["parts"])):
                rates[which].append(name + form.format(amount / third))
            ratio = speed(kept, client["parts"])
            rates["ratio"].append("–" if ratio is None else f"{ratio:.0%}")
        second, last = kept["resident_bytes"][1], kept["resident_bytes"][9]
        allowed = [f"{client['allowed']} {client['name']}" for client in kept["clients"] if client["allowed"]]
        result = "; ".join(faults(kept)) or "good"
        result += f"; failed in the restart: {', '.join(allowed)}" if allowed else ""
        cells = [kept["load"], str(kept["together"]), f"{kept['seconds']:g}"]
        cells += ["<br>".join(rates[0]), "<br>".join(rates[1]), "<br>".join(rates["ratio"])]
        cells += [megabytes(second), megabytes(last), share(growth(kept)), result]
        print("| " + " | ".join(cells) + " |")
    places = sorted({f"On {kept['cpu']}, Linux {kept['kernel']}; version {kept['version']}, commit {kept['commit']}." for kept in lines})
    print("\n" + "\n".join(places))


def check():
    """Puts one fault at a time into a good run. A judge that cannot find it is worth nothing."""
    client = {"name": "curl", "unit": "Gb", "parts": [1] * PARTS, "failures": 0, "first_failure": None, "allowed": 3}
    good = {"load": "lwip, proxy", "status": "ok", "detail": None, "seconds": 600, "restart": [0.5, 0.51], "clients": [client],
            "resident_bytes": [100e6] * 10, "available_cpu_seconds": [100, 100, 100]}  # fmt: skip

    def leak(kept):
        kept["resident_bytes"][9] *= 1.03 if kept["seconds"] >= LONG else 1.2

    def decay(kept):
        kept["clients"][0]["parts"] = [4] * 20 + [1] * 10

    def stall(kept, first, size):
        kept["clients"][0]["parts"][first : first + size] = [0] * size

    def failure(kept):
        kept["clients"][0].update(failures=1, first_failure="truncated")

    def death(kept):
        kept["status"] = "ended"

    def allowed(kept):
        # Half of the processors was somebody else's; the servers were down in the sixth tenth.
        kept["clients"][0]["parts"] = [2] * 15 + [0] * 3 + [1] * 12
        kept["available_cpu_seconds"][2] = 50
        kept["resident_bytes"][9] *= 1.01

    # A long run, and one as the gate has it.
    for seconds, restart in (600, [0.5, 0.51]), (30, [0.5, 0.62]):
        # In each period but that of the restart, one at a time.
        size = PARTS // PERIODS[seconds < LONG]
        stalls = [partial(stall, first=first, size=size) for first in range(0, PARTS, size) if first != PARTS // 2]
        plants = [(leak, 1), (decay, 1), (failure, 1), (death, 1), (allowed, 0), *((each, 1) for each in stalls)]
        for change, count in plants:
            kept = copy.deepcopy({**good, "seconds": seconds, "restart": restart})
            change(kept)
            found = faults(kept)
            assert min(len(found), 1) == count, (change, seconds, found)
    # A load that opens thousands of connections leaks more before it counts.
    kept = copy.deepcopy({**good, "load": "lwip, connections", "seconds": 15, "restart": None})
    kept["resident_bytes"][9] *= 3
    assert faults(kept), kept


def main():
    match sys.argv[1:]:
        case ["run", *arguments] if INSIDE not in os.environ:
            run_inside(["run", *arguments])
        case ["run", "--together", seconds, path, *names]:
            run(float(seconds), path, names, True)
        case ["run", seconds, path, *names]:
            run(float(seconds), path, names, False)
        case ["report", *paths]:
            report(paths)
        case ["check"]:
            check()
        case _:
            sys.exit(__doc__)


main()
