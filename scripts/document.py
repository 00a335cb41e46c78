#!/usr/bin/env python3
"""Makes the tables and pictures of the documents from their data files, with the program's own report.

    scripts/document.py --update     write them again
    scripts/document.py --check      fail if one of them does not match its data
    scripts/document.py --sources    only check where the data come from, and that named tests exist; this is part of the others

A document has a part of a report between two comments, which name the file and the part's heading:

    <!-- report docs/data/linux.jsonl: Overview -->
    <!-- end report -->

A part that a report has for each of several things, such as the failures of each stack, is shown for all of them, with links. Or a
document has the output of a script in this folder:

    <!-- output scripts/wire.py report docs/data/offload/wire.jsonl sums -->
    <!-- end output -->

The command that makes a file is from the list in scripts/measure.py, and has to be the one that made it:

    <!-- command docs/data/linux.jsonl -->
    <!-- end command -->

All data that a document shows were measured with one build on one machine. Data of another build or machine are named, so that the
document says so beside them:

    <!-- measured docs/data/linux.jsonl -->
    <!-- end measured -->

The table of the stacks gets a column of docs/data/conformance.jsonl: the causes in each stack itself that break a MUST.

Every docs/data/NAME.jsonl has its picture in docs/figures/NAME.svg, but for those of scripts/aa.py and scripts/questions.py, whose lines are their own.
"""

import json
import re
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

from measure import COMMANDS, full

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PICTURED = sorted(path for path in (ROOT / "docs" / "data").glob("*.jsonl") if path.stem not in ("aa", "questions"))
PART = re.compile(r"(<!-- report (\S+): ([^>]+?) -->\n).*?(<!-- end report -->)", re.DOTALL)
OUTPUT = re.compile(r"(<!-- output (scripts/[^>]+?) -->\n).*?(<!-- end output -->)", re.DOTALL)
COMMAND = re.compile(r"(<!-- command (\S+) -->\n).*?(<!-- end command -->)", re.DOTALL)
MEASURED = re.compile(r"(<!-- measured (\S+) -->\n).*?(<!-- end measured -->)", re.DOTALL)
TEST = re.compile(r"`[^`]*?cargo test ([^`]+)`")
PICTURE = re.compile(r"\]\((?:docs/)?figures/([\w-]+)\.svg\)")
HEADING = "### "
SCORES = ROOT / "docs" / "data" / "conformance.jsonl"


@cache
def output(*command):
    """The output of a command."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def report(data, form):
    """A report of a data file, as text."""
    return output("cargo", "run", "--quiet", "--release", "--locked", "--", "report", data, "--format", form)


def part(data, title):
    """The part of a report under a heading."""
    parts = re.split(rf"^{HEADING}", report(data, "markdown"), flags=re.MULTILINE)[1:]
    bodies = {head.strip(): body.strip() for head, _, body in (part.partition("\n") for part in parts)}
    of_each = {head.removeprefix(f"{title}: "): body for head, body in bodies.items() if head.startswith(f"{title}: ")}
    if of_each:
        return with_links(of_each) + "\n"
    if title not in bodies:
        sys.exit(f"the report of {data} has no part {title!r}; it has {', '.join(bodies)}")
    body = bodies[title]
    return (with_musts(body) if title == "Stacks" else body) + "\n"


def with_links(parts):
    """Parts under headings of their own, and links to them."""
    anchor = lambda name: re.sub(r"[^\w -]", "", name).lower().replace(" ", "-")
    links = ", ".join(f"[{name}](#{anchor(name)})" for name in parts)
    return "\n\n".join([f"{links}.", *(f"{HEADING}{name}\n\n{body}" for name, body in parts.items())])


def with_musts(body):
    """The table of the stacks with one more column. The kernel is no rival."""
    table, _, rest = body.partition("\n\n")
    scored = json.loads(report(str(SCORES.relative_to(ROOT)), "bmf")).items()
    counts = {name.removesuffix(" conformance"): int(of["must_causes"]["value"]) for name, of in scored}
    names = [row.split("|")[1].strip().replace("\\", "") for row in table.splitlines()]
    best = min(counts[name] for name in names if name in counts)
    column = [str(counts.get(name.removeprefix("the "), "–")) for name in names]
    column = [f"**{cell}**" if counts.get(name) == best else cell for name, cell in zip(names, column)]
    column[:2] = ["MUST failures", ""]
    width = max(map(len, column))
    column[1] = ":".rjust(width + 2, "-")
    cells = [cell if index == 1 else f" {cell:>{width}} " for index, cell in enumerate(column)]
    rows = [f"{row}{cell}|" for row, cell in zip(table.splitlines(), cells)]
    about = "MUST failures: distinct faults of the stack itself that break a MUST of a standard, by `conform`."
    note, _, rest = rest.partition("\n")
    return "\n".join(rows) + f"\n\n{note} {about}\n{rest}"


@cache
def head(data):
    """The first line of a data file."""
    with open(ROOT / data) as lines:
        return json.loads(lines.readline())


def source(data):
    """The build and the machine that made a file."""
    return head(data).get("commit"), head(data).get("machine")


def shown(text):
    """The data that a document shows, in tables and pictures."""
    files = [match[2] for match in PART.finditer(text)]
    files += [word for match in OUTPUT.finditer(text) for word in match[2].split() if word.endswith(".jsonl")]
    files += [f"docs/data/{match[1]}.jsonl" for match in PICTURE.finditer(text)]
    files += [str(SCORES.relative_to(ROOT)) for match in PART.finditer(text) if match[3] == "Stacks"]
    return {file for file in files if (ROOT / file).exists()}


def faults(name, text):
    """What is wrong with the sources of a document's data."""
    named = {match[2] for match in MEASURED.finditer(text)}
    usual = sorted(shown(text) - named)
    others = [file for file in usual if source(file) != source(usual[0])]
    if others:
        yield (
            f"{name} shows {usual[0]} beside {', '.join(others)}, of another build or machine; measure them together with "
            f"scripts/measure.py, or add <!-- measured {others[0]} -->"
        )
    for file in sorted(named):
        if file not in shown(text) or any(source(file) == source(one) for one in usual):
            yield f"{name}: <!-- measured {file} --> is not needed; take it away"
    for file in sorted({match[2] for match in COMMAND.finditer(text)}):
        words = head(file)["arguments"]
        place = next((index for index, word in enumerate(words) if word in ("-o", "--out")), len(words))
        if words[:place] + words[place + 2 :] != shlex.split(COMMANDS.get(file, "")):
            yield f"{name}: {file} was made by {shlex.join(words)}, and not by its command in scripts/measure.py; measure it again"


def missing_tests(name, text):
    """The tests that a document names in the command that runs them, and that the command's package does not have."""
    for line in (" ".join(match[1].split()) for match in TEST.finditer(text)):
        package = re.search(r"-p rust-tun-perf-(\S+)", line)
        folders = [package[1]] if package else ["src", "tests"]
        sources = [source.read_text() for folder in folders for source in (ROOT / folder).rglob("*.rs")]
        for test in re.findall(r"(?<!\S)\w+_\w+", line):
            if not any(re.search(rf"\bfn \w*{test}", source) for source in sources):
                yield f"{name}: no test of {' and '.join(folders)} has {test} in its name"


def check_sources():
    wrong = []
    for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        name, text = path.relative_to(ROOT), path.read_text()
        wrong += [*faults(name, text), *missing_tests(name, text)]
    wrong += [f"{path.relative_to(ROOT)} has what no document needs; run scripts/measure.py --slim" for path, _ in full()]
    if wrong:
        sys.exit("\n".join(wrong))


def measured(data):
    """Says with which build a file was measured, and when. The seed of a matrix is the second in which it began."""
    commit, dirty, _ = (source(data)[0] or "unknown").partition("-dirty")
    seconds = head(data).get("seed", 0)
    day = f" on {datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d}" if seconds > 1e9 else ""
    day = f" on {head(data)['written'][:10]}" if "written" in head(data) else day
    changes = " with changes" if dirty else ""
    return f"`{data}` was measured at another time, with build {commit}{changes}{day}; compare with other tables with care.\n"


def command(data):
    """The command that makes a file, in lines of at most 120 columns."""
    lines = [f"    rust-tun-perf {COMMANDS[data]}"]
    while len(lines[-1]) > 120 and " -" in lines[-1][8:118]:
        place = lines[-1].rindex(" -", 8, 118)
        lines[-1:] = [f"{lines[-1][:place]} \\", f"        {lines[-1][place + 1 :]}"]
    return "\n".join(lines) + "\n"


def made():
    """Every generated file, with its text."""
    for document in DOCUMENTS:
        text = PART.sub(lambda match: match[1] + part(match[2], match[3]) + match[4], document.read_text())
        text = COMMAND.sub(lambda match: match[1] + command(match[2]) + match[3], text)
        text = MEASURED.sub(lambda match: match[1] + measured(match[2]) + match[3], text)
        yield document, OUTPUT.sub(lambda match: match[1] + output(*match[2].split()) + match[3], text)
    for data in PICTURED:
        yield ROOT / "docs" / "figures" / f"{data.stem}.svg", report(str(data.relative_to(ROOT)), "svg")


def main():
    if sys.argv[1:]:
        check_sources()
    match sys.argv[1:]:
        case ["--sources"]:
            pass
        case ["--update"]:
            for path, text in made():
                path.write_text(text)
        case ["--check"]:
            stale = [path for path, text in made() if not path.exists() or path.read_text() != text]
            if stale:
                names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
                sys.exit(f"not what their data say: {names}; run scripts/document.py --update")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
