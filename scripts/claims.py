#!/usr/bin/env python3
"""Checks that the data still say what the documents say of them.

A sentence that compares figures has a comment behind it, which names the cells and the relation:

    lwIP makes twice as many connections as ipstack. <!-- claim
    requests.jsonl mode=crr parallel=50: lwip > 2 * ipstack -->
    Its p99 is shorter than the kernel's. <!-- claim
    requests.jsonl mode=rr parallel=1000, p99 µs: lwip < kernel -->

A comment at the start of a line would end the paragraph. First comes the file in docs/data and the fields of the cells, then the head of
a column of scripts/samples.py, by default that of the speed, and at last an expression of names of stacks and programs: a name is the
figure of its cell. lwip[mode=writer] has another field. delay_ns=* is any delay, delay_ns= is none. The column "failed" is the share of
runs that failed.

In the README, docs/choosing.md and docs/programs.md each paragraph has a claim for each sentence that compares or has a figure. A
sentence with numbers that are settings has the comment <!-- setting --> instead."""

import re
import sys

from samples import ROOT, cells

PAGES = ["README.md", "docs/choosing.md", "docs/programs.md"]
CLAIM = re.compile(r"<!-- claim\s+(\S+) ([^,:>]*?)(?:, ([^:>]+))?:\s+(.+?) -->")
NAME = re.compile(r"\b(?!and\b|max\b|min\b)([a-z][\w-]*\w)(?:\[([^\]]*)\])?")
# Generated parts, code, tables and headings.
NO_PROSE = re.compile(r"<!-- (report|command|output|measured) .*?<!-- end \1 -->|^(?: {4}|\||#|!\[)[^\n]*$", re.DOTALL | re.MULTILINE)
COMPARES = re.compile(
    r"\b(faster|slower|fastest|slowest|fewest|soonest|shorter|twice|half(?!-)|third|several times|times as|times the|as many|as much|as fast|"
    r"the most|the least|more (?:than|requests|bytes)|fewer|hardly)\b|\d[\d.,]* ?(?:Gbps|Gbit|Mbit|KiB|KB|MB|GB|ms|times)\b|\d ?(?:%|µs)"
)


def figure(file, fields, head, name):
    """The figure of the only cell of a subject that has these fields, and no impairment, rate or stream beside it but for them."""
    work = dict(word.split("=") for word in fields.split())
    unasked = {key for key in {"loss_ppm", "delay_ns", "rate", "background", *work} if not work.get(key)}
    is_name = lambda one: name in (one.get("program"), one.get("netstack"), one.get("layer"))
    is_its = lambda one: all(value in ("*", "", str(one.get(key))) and bool(value) == (key in one) for key, value in work.items())
    asked = [cell for cell in cells(f"docs/data/{file}") if is_its(cell.work) and not unasked & set(cell.work)]
    found = [cell for cell in asked if is_name(cell.work)]
    # A file without the kernel behind a device has it over loopback.
    found = found or [cell for cell in asked if name == "kernel" and cell.work.get("layer") == "loopback"]
    for key, value in {"workarounds": "all", "stack_congestion": "cubic", "protocol": "tcp", "mtu": None, "max_flows": None}.items():
        found = [cell for cell in found if cell.work.get(key) == value] or found
    if len(found) != 1:
        sys.exit(f"{len(found)} cells of {file} are {name} with {fields}")
    cell = found[0]
    return sum(cell.failed.values()) / len(cell.runs) if head == "failed" else cell.value(head or cell.speed)


def refuted(text):
    """The claims of a page that its data refute."""
    for claim in CLAIM.finditer(text):
        known = {name[0]: figure(claim[1], f"{claim[2]} {name[2] or ''}", claim[3], name[1]) for name in NAME.finditer(claim[4])}
        words = NAME.sub(lambda name: str(known[name[0]]), claim[4])
        if None in known.values() or not eval(words):
            yield f"{claim[0]}: " + ", ".join(f"{name} has {value if value is None else f'{value:.4g}'}" for name, value in known.items())


def unbound(text):
    """Paragraphs with more sentences that compare than claims."""
    for part in re.split(r"\n\s*\n|\n(?=- )", NO_PROSE.sub("\n\n", text)):
        bound = len(re.findall(r"<!-- (?:claim|setting)", part))
        sentences = re.split(r"(?<=[.:;]) ", " ".join(re.sub(r"<!--.*?-->", "", part, flags=re.DOTALL).split()))
        compare = [sentence for sentence in sentences if COMPARES.search(sentence)]
        if len(compare) > bound:
            yield f"{len(compare)} sentences compare, and {bound} have a claim: " + " ".join(compare)


def main():
    wrong, count = [], 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name, text = str(page.relative_to(ROOT)), page.read_text()
        count += len(CLAIM.findall(text))
        faults = [*refuted(text), *(unbound(text) if name in PAGES else ())]
        if text.count("<!-- claim") != len(CLAIM.findall(text)):
            faults.append("a claim is not written as scripts/claims.py reads them")
        wrong += [f"{name}: {fault}" for fault in faults]
    print(f"{count} claims checked")
    sys.exit("\n".join(wrong) or (None if count else "there are no claims"))


if __name__ == "__main__":
    main()
