#!/usr/bin/env python3
"""Makes tables from samples, and keeps the documents' tables equal to their data.

    scripts/table.py FILE.jsonl        the table of all cells, in Markdown
    scripts/table.py --update          rewrites the tables of README.md and docs/ from docs/data/
    scripts/table.py --check           fails where one of them is not what its data say

A document has its table between two comments:

    <!-- table docs/data/linux.jsonl -->
    <!-- end table -->

"summary docs/data/linux.jsonl" in place of "table …" gives the table of stacks and modes alone.
"""

import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLE = re.compile(r"(<!-- (table|summary) (\S+) -->\n).*?(<!-- end table -->)", re.DOTALL)
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
                cell = sample["netstack"], sample["mode"], sample["runtime"], sample["offload"], sample["ipv6"]
                cells[cell].append((sample, before))
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


def good(runs):
    return [(sample, before) for sample, before in runs if sample["status"] == "ok"]


def ratio(runs):
    return median([sample["gbps"] / before for sample, before in good(runs) if before])


def row(cell, runs):
    stack, mode, runtime, offload, ipv6 = cell
    name = [stack, mode, runtime, "on" if offload else "off", "IPv6" if ipv6 else "IPv4"]
    failed = sorted(sample["status"] for sample, _ in runs if sample["status"] != "ok")
    samples = [sample for sample, _ in good(runs)]
    if not samples:
        return f"| {' | '.join(name)} | {', '.join(failed)} | | | | | | | |"
    figures = [sample["gbps"] for sample in samples]
    columns = [
        *name,
        text(median(figures), 2) + (f" ({len(failed)} failed: {', '.join(failed)})" if failed else ""),
        f"{min(figures):.2f}–{max(figures):.2f}",
        text(ratio(runs), 3),
        text(median([per_gigabyte(sample, "client_seconds") for sample in samples]), 2),
        text(median([per_gigabyte(sample, "stack_seconds") for sample in samples]), 2),
        text(median([sample["bytes_per_packet"] for sample in samples]), 0),
        text(max((mebibytes(sample) or 0 for sample in samples), default=None), 1),
        text(median([sample["retransmits"] for sample in samples]) if mode == "writer" else None, 0),
    ]
    return f"| {' | '.join(columns)} |"


def note(cells, loopback):
    """What holds for all rows. Where samples differ in it, all values are named."""
    samples = [sample for runs in cells.values() for sample, _ in runs]
    machine = samples[0]["environment"]
    rounds = max(len(runs) for runs in cells.values())
    seconds = median([sample["elapsed_ns"] / 1e9 for sample in samples])

    def values(key):
        return " and ".join(sorted({str(sample[key]) for sample in samples}))

    line = (
        f"Medians of {rounds} interleaved runs of about {seconds:.1f} s each at MTU {values('mtu')}, "
        f"window {samples[0]['window_bytes'] / 2**20:g} MiB, client with {values('congestion')}; "
        f"{machine['cpu']}, {machine['cpus']} processors, {machine['system']} {machine['kernel']}"
        + (", virtual machine" if machine["virtual_machine"] else "")
        + "."
    )
    if loopback:
        line += f" Loopback under iperf3 in the same run: {median(loopback):.1f} Gbps ({min(loopback):.1f}–{max(loopback):.1f})."
    return line


def table(path):
    cells, loopback = read(path)
    lines = [
        "| stack | mode | runtime | offload | IP | Gbps | min–max | of loopback | client CPU s/GB | stack CPU s/GB "
        "| bytes a packet | max peak MiB | kernel retransmits |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = sorted(cells, key=lambda cell: (not cell[3], cell[4], STACKS.index(cell[0]), MODES.index(cell[1]), cell[2]))
    lines += [row(cell, cells[cell]) for cell in order]
    return "\n".join([*lines, "", note(cells, loopback)]) + "\n"


def summary(path):
    """Gbps and the ratio to loopback over IPv4, a line for each stack and mode."""
    cells, loopback = read(path)
    shown = {cell: runs for cell, runs in cells.items() if not cell[4]}

    def entry(stack, mode, runtime, offload):
        runs = shown.get((stack, mode, runtime, offload, False), [])
        figures = [sample["gbps"] for sample, _ in good(runs)]
        return f"{text(median(figures), 1)} ({text(ratio(runs), 2)})"

    lines = [
        "| Gbps (of loopback) | offload, current-thread | offload, multi-thread | without, current-thread | without, multi-thread |",
        "|---|---|---|---|---|",
    ]
    for stack in STACKS:
        for mode in MODES:
            entries = [
                entry(stack, mode, runtime, offload)
                for offload in (True, False)
                for runtime in ("current-thread", "multi-thread")
            ]
            lines.append(f"| {stack} {mode} | {' | '.join(entries)} |")
    return "\n".join([*lines, "", note(shown, loopback)]) + "\n"


KINDS = {"table": table, "summary": summary}


def rewrite(document):
    """The document with its tables made anew."""
    return TABLE.sub(lambda match: match[1] + KINDS[match[2]](ROOT / match[3]) + match[4], document.read_text())


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
