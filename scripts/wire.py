#!/usr/bin/env python3
"""Keeps the results of `cargo bench --bench wire`, and makes tables of them.

    scripts/wire.py collect FILE           write criterion's estimates, from target/criterion, to FILE
    scripts/wire.py report FILE packets    smoltcp's packets with their checksums and without
    scripts/wire.py report FILE sums       implementations of the checksum, by length, in the cache and not
    scripts/wire.py report FILE cost       what a checksum costs for each gigabyte, and the whole path

The first line of a file says where and when it was measured; each other line is one benchmark: `ns` is the median of an
iteration, `low` and `high` its 95 % interval. An iteration of `path` carries 10^8 bytes.
"""

import json
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRITERION = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "criterion"
KINDS = ("wire::", "checksum/", "path/")
PATH_BYTES = 1e8
GIGABYTE = 1e9


def estimates():
    """Every benchmark of the bench with its median, by its name."""
    for file in sorted(CRITERION.glob("**/new/benchmark.json")):
        name = json.loads(file.read_text())["full_id"]
        if not name.startswith(KINDS):
            continue
        median = json.loads((file.parent / "estimates.json").read_text())["median"]
        interval = median["confidence_interval"]
        yield {
            "id": name,
            "ns": median["point_estimate"],
            "low": interval["lower_bound"],
            "high": interval["upper_bound"],
        }


def machine():
    """The hash of this machine's id that samples have, as platform/src/environment.rs makes it (FNV-1a)."""
    try:
        identity = Path("/etc/machine-id").read_text().strip()
    except OSError:
        return None
    value = 0xCBF29CE484222325
    for byte in f"rust-tun-perf machine {identity}".encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value >> 16:012x}"


def commit():
    """The commit of the checkout, with as many digits as samples have, and whether there are changes."""
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    changes = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changes else "")


def environment():
    cpus = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").open() if line.startswith("model name")]
    caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return {
        "kernel": platform.release(),
        "cpu": cpus[0] if cpus else platform.machine(),
        "cpus": os.cpu_count(),
        "caches": [size.read_text().strip() for size in sorted(caches)],
        "commit": commit(),
        "machine": machine(),
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def collect(path):
    found = list(estimates())
    if not found:
        sys.exit(f"there is nothing in {CRITERION}; run cargo bench --bench wire first")
    with open(path, "w", encoding="utf-8") as out:
        for line in [environment(), *found]:
            print(json.dumps(line), file=out)


def read(path):
    """The environment of a file, and its benchmarks by name."""
    with open(path, encoding="utf-8") as file:
        head, *lines = map(json.loads, file)
    return head, {line["id"]: line for line in lines}


def row(*cells):
    return f"| {' | '.join(cells)} |"


def header(first, *others):
    return [row(first, *others), "|---|" + "---:|" * len(others)]


def figure(line, per, form):
    """A figure and its interval, in units of `per` nanoseconds."""
    if line is None:
        return "–"
    return "{0} ({1} to {2})".format(*(form.format(line[name] / per) for name in ("ns", "low", "high")))


def packets(benches):
    yield from header("benchmark", "ns with the checksum", "ns without", "with, over without")
    for operation in ("emit_tcp", "emit_udp", "parse_tcp", "parse_udp"):
        done = benches.get(f"wire::bench_{operation}")
        left = benches.get(f"wire::bench_{operation}_offload")
        if done or left:
            ratio = f"{done['ns'] / left['ns']:.1f}" if done and left else "–"
            yield row(f"`wire::bench_{operation}`", figure(done, 1, "{:.1f}"), figure(left, 1, "{:.1f}"), ratio)


def axes(benches):
    """The implementations, the fastest first, and the lengths in ascending order."""
    found = [name.split("/")[1:] for name in benches if name.startswith("checksum/")]
    lengths = sorted({int(length) for *_, length in found})
    longest = str(lengths[-1])
    fastest = lambda name: benches[f"checksum/{name}/warm/{longest}"]["ns"]  # noqa: E731
    return sorted({name for name, *_ in found}, key=fastest), lengths


def sums(benches):
    names, lengths = axes(benches)
    for cache, where in (("warm", "in the cache"), ("cold", "in memory")):
        yield from header(f"{where}, ns", *(f"{length} bytes" for length in lengths))
        for name in names:
            cells = (benches.get(f"checksum/{name}/{cache}/{length}") for length in lengths)
            yield row(name, *(f"{cell['ns']:,.1f}" if cell else "–" for cell in cells))
        yield ""


def cost(benches):
    names, _ = axes(benches)
    columns = [(cache, length) for length in (1500, 65535) for cache in ("warm", "cold")]
    yield from header("seconds for each gigabyte", *(f"{length} bytes, {cache}" for cache, length in columns))
    for name in names:
        lines = (benches.get(f"checksum/{name}/{cache}/{length}") for cache, length in columns)
        cells = (f"{line['ns'] / length:.3f}" if line else "–" for line, (_, length) in zip(lines, columns))
        yield row(name, *cells)
    yield ""
    kinds = ("1500-done", "1500-left-out", "65535-done", "65535-left-out", "super-packets")
    heads = ("1500, done", "1500, left out", "65,535, done", "65,535, left out", "1500, super-packets")
    yield from header("the whole path, seconds for each gigabyte", *heads)
    per = PATH_BYTES / GIGABYTE * 1e9
    paths = {"/".join(name.split("/")[1:3]) for name in benches if name.startswith("path/")}
    for path in sorted(paths):
        yield row(path.replace("/", ", "), *(figure(benches.get(f"path/{path}/{kind}"), per, "{:.3f}") for kind in kinds))


def report(path, table):
    head, benches = read(path)
    print("\n".join({"packets": packets, "sums": sums, "cost": cost}[table](benches)))
    print(f"\n{head['cpu']}, {head['cpus']} processors, caches {', '.join(head['caches'])}, Linux {head['kernel']}.")


def main():
    match sys.argv[1:]:
        case ["collect", path]:
            collect(path)
        case ["report", path, ("packets" | "sums" | "cost") as table]:
            report(path, table)
        case _:
            sys.exit(__doc__)


main()
