#!/usr/bin/env python3
"""Makes tables from samples, and keeps the documents' tables equal to their data.

    scripts/table.py FILE.jsonl        the table, in Markdown
    scripts/table.py --update          rewrites the tables of README.md and docs/ from docs/data/
    scripts/table.py --check           fails where one of them is not what its data say

A document has its table between two comments:

    <!-- table docs/data/linux.jsonl -->
    <!-- end table -->
"""

import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLE = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end table -->)", re.DOTALL)
STACKS = ["smoltcp", "lwip", "ipstack"]
MODES = ["reader", "writer"]


def read(path):
    """The cells' samples, each with the iperf3 run before it, and all iperf3 runs."""
    cells, loopback, before = defaultdict(list), [], None
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        sys.exit(f"read {path}: {error.strerror}")
    for number, line in enumerate(lines, 1):
        try:
            sample = json.loads(line)
            if sample["kind"] == "iperf3":
                before = sample["gbps"]
                loopback.append(before)
            elif sample["kind"] == "throughput":
                cells[sample["netstack"], sample["mode"], sample["runtime"]].append((sample, before))
        except (ValueError, KeyError) as error:
            sys.exit(f"{path}:{number}: not a sample: {error!r}")
    if not cells:
        sys.exit(f"{path}: no samples")
    return cells, loopback


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def text(value, digits):
    return "–" if value is None else f"{value:.{digits}f}"


def per_gigabyte(sample, side):
    seconds = sample["cpu"][side]
    return None if seconds is None or not sample["bytes"] else seconds / (sample["bytes"] / 1e9)


def mebibytes(sample):
    return None if sample["peak_rss_bytes"] is None else sample["peak_rss_bytes"] / 2**20


def row(cell, runs):
    stack, mode, runtime = cell
    good = [(sample, before) for sample, before in runs if sample["status"] == "ok"]
    failed = sorted(sample["status"] for sample, _ in runs if sample["status"] != "ok")
    if not good:
        return f"| {stack} | {mode} | {runtime} | {', '.join(failed)} | | | | | | |"
    figures = [sample["gbps"] for sample, _ in good]
    ratio = median([sample["gbps"] / before for sample, before in good if before])
    samples = [sample for sample, _ in good]
    columns = [
        stack,
        mode,
        runtime,
        text(median(figures), 2) + (f" ({len(failed)} failed: {', '.join(failed)})" if failed else ""),
        f"{min(figures):.2f}–{max(figures):.2f}",
        text(ratio, 3),
        text(median([per_gigabyte(sample, "client_seconds") for sample in samples]), 2),
        text(median([per_gigabyte(sample, "stack_seconds") for sample in samples]), 2),
        text(max((mebibytes(sample) or 0 for sample in samples), default=None), 1),
        text(median([sample["retransmits"] for sample in samples]) if mode == "writer" else None, 0),
    ]
    return f"| {' | '.join(columns)} |"


def table(path):
    cells, loopback = read(path)
    lines = [
        "| stack | mode | runtime | Gbps | min–max | of loopback | client CPU s/GB | stack CPU s/GB | max peak MiB | kernel retransmits |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = sorted(cells, key=lambda cell: (STACKS.index(cell[0]), MODES.index(cell[1]), cell[2]))
    lines += [row(cell, cells[cell]) for cell in order]
    sample = cells[order[0]][0][0]
    machine = sample["environment"]
    rounds = max(len(runs) for runs in cells.values())
    seconds = median([sample["elapsed_ns"] / 1e9 for runs in cells.values() for sample, _ in runs])
    note = (
        f"Medians of {rounds} interleaved runs of about {seconds:.1f} s each at MTU {sample['mtu']}, "
        f"offload {'on' if sample['offload'] else 'off'}, window {sample['window_bytes'] / 2**20:g} MiB, "
        f"client with {sample['congestion']}; {machine['cpu']}, {machine['cpus']} processors, "
        f"{machine['system']} {machine['kernel']}"
        + (", virtual machine" if machine["virtual_machine"] else "")
        + "."
    )
    if loopback:
        note += f" Loopback under iperf3 in the same run: {median(loopback):.1f} Gbps ({min(loopback):.1f}–{max(loopback):.1f})."
    return "\n".join([*lines, "", note]) + "\n"


def rewrite(document):
    """The document with its tables made anew."""
    return TABLE.sub(lambda match: match[1] + table(ROOT / match[2]) + match[3], document.read_text())


def main():
    match sys.argv[1:]:
        case ["--update"]:
            for document in DOCUMENTS:
                document.write_text(rewrite(document))
        case ["--check"]:
            stale = [str(document.relative_to(ROOT)) for document in DOCUMENTS if rewrite(document) != document.read_text()]
            if stale:
                sys.exit(f"not what their data say: {', '.join(stale)}; run scripts/table.py --update")
        case [file] if not file.startswith("-"):
            print(table(Path(file)), end="")
        case _:
            sys.exit(__doc__)


main()
