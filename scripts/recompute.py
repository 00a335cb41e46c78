#!/usr/bin/env python3
"""Recomputes the cells of generated tables from their data, without the program (scripts/samples.py), by the rules of docs/method.md.

It prints each difference and how many cells it checked. It exits with 1 if there is a difference, or if a table of the README,
docs/choosing.md or docs/programs.md has no cells or an unknown column. Figures must agree to their last digit, but for the ends of
bootstrapped intervals, which are random: the share of 2000 draws below one has a standard error of √(0.025 × 0.975 / 2000) =
0.0035, so two bootstraps differ by 0.005. An end has to lie between our quantiles four of these errors, 0.02, to both sides."""

import itertools
import re
import sys
from collections import Counter

from samples import METRICS, PROPERTIES, QUANTILES, REFERENCES, REPORT, ROOT, Cell, answer, asked, best, cells, musts, relative
from samples import of_subject, role, settings, shipped, shown, times, version

WHOLE = ["README.md", "docs/choosing.md", "docs/programs.md"]


def agrees(text, pieces):
    """Whether a text has these words and numbers; a number is the bounds of it, and has to agree as far as its digits tell."""
    found = re.fullmatch("".join(re.escape(piece) if isinstance(piece, str) else r"([\d.,]+)" for piece in pieces), text)
    bounds = [piece for piece in pieces if not isinstance(piece, str)]
    slack = lambda number: 0.5000001 * 10.0 ** -len(number.partition(".")[2])
    fits = lambda number, low, high: low - slack(number) <= float(number.replace(",", "")) <= high + slack(number)
    return bool(found) and all(fits(number, min(ends), max(ends)) for number, ends in zip(found.groups(), bounds))


def figures(cell, style="", shown=lambda speed: speed, times=None):
    """The possible texts of a figure: failures first, then the median with its ends, and the ratio to the reference."""
    failed = itertools.permutations(f"{count} of {len(cell.runs)} {word}" for word, count in cell.failed.items())
    value, notes, texts = cell.value(cell.speed), [] if times is None else [[(times, times)]], []
    if cell.median is None:
        figure = lambda order: [order or "–"] if value is None else [order + "; " * bool(order), (value, value)]
        return [figure(", ".join(order)) for order in failed]
    value, (is_range, ends) = shown(cell.median), cell.ends
    lows, highs = sorted(sorted(map(shown, end)) for end in ends)
    with_ends = [["range " * is_range, lows, " to ", highs], *notes]
    if style == "" or len(cell.rounds) < 2:
        texts.append(([], notes))
    if len(cell.rounds) > 1 and style == "all":
        texts.append(([], with_ends))
    in_brackets = lambda notes: [" (", *itertools.chain(*([*note, "; "] for note in notes))][:-1] + [")"] if notes else []
    texts = [[(value, value), *behind, *in_brackets(notes), " †" * cell.is_limited] for behind, notes in texts]
    return [[", ".join(order) + "; " * bool(order), *text] for order, text in itertools.product(failed, texts)]


def expected(cell, head, everything, style):
    """The possible texts of a column of a cell; None if the column is not known."""
    head = re.sub("^(stack|server|program|device) (?=cores|µs|wake)", "subject ", head).replace(", 5 s", "")
    if head in ("95 % interval", cell.speed):
        ends = [["range " if cell.ends[0] else "", cell.ends[1][0], " to ", cell.ends[1][1]]] if len(cell.rounds) > 1 else [["–"]]
        return figures(cell, style) if head == cell.speed else ends
    if head in ("runs", "slower by the end"):
        slower = sum(run["thirds"][2] < run["thirds"][0] // 2 for run in cell.runs if run.get("thirds"))
        return [[str(len(cell.good))]] if head == "runs" else [[f"{slower} of {len(cell.rounds)}" if slower else "–"]]
    if head not in METRICS and head not in QUANTILES and not head.startswith("of "):
        return None
    value = relative(cell, head, everything) if head.startswith("of ") else cell.value(head)
    scale, unit = (100, [" %"]) if head.startswith("of ") else (1, [" %"] if head == "released" else [])
    return [["–"]] if value is None else [[(value * scale, value * scale), *unit]]


def plain(cell, published, scale):
    """The possible texts of a figure without its interval, behind the one as published. Without one, how the runs failed."""
    if cell is None:
        own = [["–"]]
    elif cell.median is None:
        own = [[word] for word in cell.failed] or [["–"]]
    elif scale(cell.median) < 0.05:
        own = [["under ", (0.1, 0.1)]]
    else:
        own = [[(scale(cell.median), scale(cell.median)), " †" * cell.is_limited]]
    if published in (None, cell):
        return own
    return [[*before, " → ", *text] for before in plain(published, None, scale) for text in own]


def of_questions(heads, rows, everything, mode):
    """Of each column whose head asks a question: the possible texts of its rows, and which of them are bold."""
    rows, is_plain = [row[0] for row in rows], heads[0] != "subject"
    for head in heads[1:]:
        of = [[run for cell in everything if cell.work.get("program") == name for run in cell.runs] for name in rows]
        if head == "MUST failures":
            scores = [musts(name) for name in rows]
            fewest = min(score[0] for name, score in zip(rows, scores) if name not in REFERENCES)
            bold = [name not in REFERENCES and score[0] == fewest for name, score in zip(rows, scores)]
            yield head, [[[(score[0], score[0])]] if score else [["–"]] for score in scores], bold
        elif head in METRICS or head in ("version", "settings", "kind"):
            words = {"version": version, "settings": settings, "kind": role}
            values = [words[head](runs) if head in words else Cell({}, runs).value(head, runs) or "–" for runs in of]
            yield head, [[[value if isinstance(value, str) else (value, value)]] for value in values], [False] * len(rows)
        elif head in PROPERTIES or asked(f"{mode} {head}")["mode"] is None:
            yield head, [of_subject(everything, name, head) for name in rows] if head in PROPERTIES else None, [False] * len(rows)
        else:
            found = [answer(everything, asked(f"{mode} {head}"), name, bool(mode)) for name in rows]
            found = [cell if cell and (name != "the kernel" or cell.work["layer"] != "loopback") else None for name, cell in zip(rows, found)]
            reference = next((cell for name, cell in zip(rows, found) if name == "the kernel"), None)
            is_memory, scale = "KiB" in head, 1000 if "Mbit" in head else 1
            speed = (lambda speed: 1e6 / speed / 1024) if is_memory else (lambda speed: speed * scale)
            bold = best([cell for name, cell in zip(rows, found) if cell and name not in REFERENCES]) if is_plain else []
            if is_plain:
                both = "load" in head and heads[0] == "stack"
                published = [answer(everything, asked(head), f"{name}, as published", False) if both and name not in REFERENCES else None for name in rows]
                texts = [plain(*cells, speed) for cells in zip(found, published)]
            else:
                ratios = [times(cell, reference) if cell and name not in REFERENCES else None for name, cell in zip(rows, found)]
                texts = [figures(cell, "", speed, ratio) if cell else [["–"]] for cell, ratio in zip(found, ratios)]
            yield head, texts, [cell in bold for cell in found]


def of_cells(heads, rows, everything, _):
    """The same of a table whose rows are cells; a row must have exactly one."""
    has = lambda row, cell: all(text in shown(cell.work, head) for head, text in zip(heads, row) if head in PROPERTIES)
    found = [[cell for cell in everything if has(row, cell)] for row in rows]
    style = "" if "runs" in heads else "all"
    for head in (head for head in heads if head not in PROPERTIES):
        texts = [expected(of[0], head, everything, style) if len(of) == 1 else [[f"{len(of)} cells"]] for of in found]
        yield head, None if None in texts else texts, [False] * len(rows)


def tables():
    """The generated tables: the document, the heading of the part, the file, the mode above the table, and its lines of texts."""
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name = str(document.relative_to(ROOT))
        for file, title, body in REPORT.findall(document.read_text()):
            for mode, table in re.findall(r"(?:Mode (\w+):\n\n)?((?:^\|.*\n)+)", body, re.MULTILINE):
                lines = [[cell.strip().replace("\\", "") for cell in line[1:-1].split("|")] for line in table.splitlines()]
                if name in WHOLE or title.startswith("Cells"):
                    yield name, title, file, mode, [lines[0], *lines[2:]]


def main():
    wrong, counts = [], Counter()
    for name, title, file, mode, (heads, *rows) in tables():
        everything = cells(file, any(", 5 s" in head or "KiB" in head and "at rest" in head for head in heads))
        everything = [cell for cell in everything if ": " not in title or cell.kind == title.split(", ")[-1]]
        everything = shipped(everything, title.endswith(", all alike"))
        is_asked = heads[0] in ("stack", "program", "subject") and not {"runs", "mode"} & set(heads)
        place, before = f"{name}, {title}", counts.total()
        for head, texts, bold in (of_questions if is_asked else of_cells)(heads, rows, everything, mode):
            wrong += [f"{place}: the column {head!r} is not known"] * (texts is None and name in WHOLE)
            for row, options, is_bold in zip(rows, texts or (), bold):
                said = row[heads.index(head)]
                counts[place] += 1
                # A check that cannot fail is worth nothing.
                text = said.replace("**", "")
                other = re.sub(r"\d", lambda digit: str((int(digit[0]) + 5) % 10), text, count=1)
                is_told = other == text or not any(agrees(other, option) for option in options)
                wrong += [] if is_told else [f"{place}: it cannot tell {said} from {other}"]
                if not any(agrees(text, option) for option in options) or is_bold != ("**" in said):
                    write = lambda piece: piece if isinstance(piece, str) else "{:g}…{:g}".format(*piece)
                    words = "bold " * is_bold + " or ".join("".join(map(write, option)) for option in options)
                    row = " ".join(text for text, of in zip(row, heads) if of in PROPERTIES or of == heads[0])
                    wrong.append(f"{place}: {row}: {head}: it says {said}, and not {words}")
        rest = {cell.work.get("netstack", "kernel") for cell in everything} - {row[0].removeprefix("the ") for row in rows}
        if heads[0] == "stack" and is_asked and rest or not is_asked and len(rows) != len(everything):
            wrong.append(f"{place}: it has {len(rows)} rows, and not all cells of {file}")
        wrong += [f"{place}: no cell of a table is known"] * (counts.total() == before)
    wrong += [f"{name}: it has no table" for name in WHOLE if not any(place.startswith(name) for place in counts)]
    print("\n".join(f"{count:5d} cells checked in {place}" for place, count in counts.items()))
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
