#!/usr/bin/env python3
"""Answers what people asked in public about such programs, each question by one command; scripts/questions.toml has the list.

    scripts/questions.py measure FILE         runs every command, and writes the answers
    scripts/questions.py measure FILE WORD    only commands with this word; the file keeps its other answers
    scripts/questions.py report FILE          docs/questions.md's part: each question, its command and its answer
    scripts/questions.py check [WORD]         runs every command for a short time, and says which gave no answer

A program that is not installed has no answer in `measure`. In `check` one of the same kind stands in for it, so that the options
of each command are tried; without one the line has SKIP. The exit code is 1 if an answer is missing that could be had. Both
need Linux, and a release build.
"""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from datetime import datetime, timezone
from pathlib import Path

from agree import hello

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("QUESTIONS_PROGRAM", str(ROOT / "target/release/rust-tun-perf"))
QUESTIONS = tomllib.loads((ROOT / "scripts/questions.toml").read_text())["question"]
# What stands in for a program of the same kind that is not installed.
STAND_INS = {"a tunnel": ["fastd", "tinc", "openvpn"], "for another namespace": ["pasta", "slirp4netns"], "": ["smoltcp"]}
WORDS = {"reader": "download", "writer": "upload", "rr": "requests", "crr": "new connections", "idle": "at rest"}
SHORT = {"--time": "0.4", "--runs": "2", "--rest": "0.3", "--release": "0.3", "--delay": "1ms"}


def call(words, **options):
    return subprocess.run([PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, **options)


def programs():
    """The profiles: what each is, and whether it is installed."""
    rows = [re.split(r"  +", line) for line in call(["programs", "list"]).stdout.splitlines()]
    return {name: (kind, state == "installed") for name, kind, state, *_ in rows}


def profile(folder):
    """The profile of another release of pasta: the same, with the path of its file."""
    text = call(["programs", "show", "pasta"]).stdout
    path = subprocess.run(["sh", "-c", "command -v pasta"], capture_output=True, text=True).stdout.strip() or "pasta"
    text = re.sub(r'^name = .*', 'name = "other-pasta"', text, flags=re.MULTILINE)
    (folder / "other-pasta.toml").write_text(text.replace('"pasta", "--f', f'"{path}", "--f'))


def stand_in(name, known):
    kind = next(kind for kind in STAND_INS if kind in known.get(name, ("", False))[0])
    return next((other for other in STAND_INS[kind] if known.get(other, ("", False))[1]), None)


def shortened(words, known):
    """The words of a check: less time, and programs that are there. None if there is no other of the kind."""
    words = [SHORT.get(before, word) for before, word in zip([None, *words], words)]
    for place, word in enumerate(words):
        if words[place - 1] == "--program" and place:
            names = [name if name not in known or known[name][1] else stand_in(name, known) for name in word.split(",")]
            # Those that stand in for a tunnel have one peer.
            if "--peers" in words and names != word.split(","):
                return None
            if None in names:
                return None
            words[place] = ",".join(dict.fromkeys(names))
    return words


def rows(question, words, folder):
    """The chosen columns of a matrix, and why there is none."""
    out = folder / "samples.jsonl"
    out.unlink(missing_ok=True)
    ran = call([*words, "--out", str(out)])
    if not out.exists():
        return [], ran.stderr
    cells = list(csv.DictReader(io.StringIO(call(["report", str(out), "--format", "csv"]).stdout)))
    # The column has "2 of 3 stalled"; an answer needs a run that did not fail.
    failed = lambda cell: sum(map(int, re.findall(r"(\d+) of", cell["failures"])))
    if all(failed(cell) >= int(cell["runs"]) for cell in cells):
        return [], ran.stderr
    columns = question["columns"]
    if unknown := [name for name, *_ in columns if name not in cells[0]]:
        return [], f"the report has no column {', '.join(unknown)}"
    made = [{head: amount(cell[name], *scale) for name, head, *scale in columns} for cell in cells]
    return made, ""


def amount(text, scale=None):
    """A figure with three digits; other words as they are."""
    if not re.fullmatch(r"-?[\d.]+(e-?\d+)?", text):
        return text or "–"
    number = float(text) * float(scale or 1)
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"


def answer(question, words, folder):
    """The lines or the rows that answer, and what went wrong."""
    words = [word.replace("{folder}", str(folder)) for word in words]
    if "columns" in question:
        return rows(question, words, folder)
    # A failed case is an answer; a failed run is none, although it prints lines.
    is_run = words[0] != "conform"
    ran = call([*words, *(["-v"] if is_run else [])])
    text = (ran.stdout + ran.stderr).replace(str(folder), "/tmp").splitlines()
    if ran.returncode not in ([0] if is_run else [0, 1]):
        return [], ran.stderr
    return [line.rstrip() for line in text if line.strip() and line.startswith(tuple(question["lines"]))], ran.stderr


def answers(is_short=False, only=""):
    """Each question with its answer, and what went wrong; None for one that cannot be tried here."""
    known = programs()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        profile(folder)
        for question in QUESTIONS:
            words = shlex.split(question.get("words", ""))
            if only and only not in words:
                continue
            words = shortened(words, known) if is_short else words
            found, wrong = answer(question, words, folder) if words else (None, None)
            if found == []:
                # A busy machine may stop a run. What cannot be, cannot be the second time either.
                found, wrong = answer(question, words, folder)
            yield question, found, wrong


def head():
    written = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"kind": "questions", **hello(PROGRAM)["environment"], "written": written}


def measure(path, only=""):
    """Each answer has the build that gave it."""
    file, environment = Path(path), head()
    old = [json.loads(line) for line in file.read_text().splitlines()[1:]] if only else []
    lines = {line["words"]: line for line in old}
    for question, found, wrong in answers(only=only):
        if words := question.get("words"):
            lines[words] = {"words": words, "commit": environment["commit"], "answer": found}
            print(f"{words}: " + ("answered" if found else f"no answer\n{wrong}"), file=sys.stderr, flush=True)
    kept = [environment, *(lines[words] for question in QUESTIONS if (words := question.get("words")) in lines)]
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))
    sys.exit(any(not line["answer"] for line in lines.values()))


def check(only=""):
    failed = 0
    for question, found, wrong in answers(is_short=True, only=only):
        if "words" not in question:
            continue
        if found is None:
            print(f"SKIP question: no program of the kind is installed for {question['words']}")
        elif not found and ": unavailable: " in wrong:
            print(f"SKIP question: {wrong.strip().splitlines()[-1]}")
        elif not found:
            failed += 1
            print(f"no answer: {question['words']}\n{wrong}")
    print(f"{len(QUESTIONS)} questions, {failed} without the answer that they should have")
    sys.exit(failed > 0)


def table(found):
    is_text = [all(re.fullmatch(r"[a-z].*", row[head]) for row in found) for head in found[0]]
    rule = ["---" if text else "---:" for text in is_text]
    rows = [[WORDS.get(cell, cell) for cell in row.values()] for row in found]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(found[0]), rule, *rows])


def text(found):
    """The lines of a run; of cases, those before the failures in full."""
    found = found[: found.index("Failures:")] if "Failures:" in found else found
    return "\n".join(f"    {line}" for line in found)


def report(path):
    environment, *lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    found = {line["words"]: line["answer"] for line in lines}
    count = sum(bool(found.get(question.get("words"))) for question in QUESTIONS)
    print(f"{count} of {len(QUESTIONS)} questions have an answer, on {environment['cpu']}, {environment['cpus']} processors,")
    print(f"{environment['system']} {environment['kernel']}, on {environment['written'][:10]}.")
    for question in QUESTIONS:
        print(f"\n## {question['asks']}\n\n{', '.join(question['threads'])}\n")
        made = found.get(question.get("words"))
        if "words" in question:
            words = question["words"].replace("{folder}", "/tmp")
            print(f"    rust-tun-perf {words}\n")
        if not made:
            print(question.get("missing", "The program was not installed on the machine that answered."))
        else:
            print(table(made) if isinstance(made[0], dict) else text(made))


def main():
    match sys.argv[1:]:
        case ["measure", path, *only] if len(only) < 2:
            measure(path, *only)
        case ["check", *only] if len(only) < 2:
            check(*only)
        case ["report", path] if Path(path).exists():
            report(path)
        case _:
            sys.exit(__doc__)


main()
