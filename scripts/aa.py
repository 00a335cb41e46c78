#!/usr/bin/env python3
"""Shows how much the figures of one build differ from themselves (A/A), and whether a planted change is found.

    scripts/aa.py measure FILE    makes files one after the other and compares each two; plants a change; writes FILE. About 20 minutes
    scripts/aa.py report FILE     a table of it

Twelve files of one matrix are made one after the other, the last four beside a busy process for each processor, and `compare` judges
each two of them: whatever it finds is a false alarm. Then
`matrix --against` compares the build with itself ten times, while one of its cells is slowed down: its process is stopped for a part of
each few milliseconds, and that of the other side is not. That is to be found, and a change of another cell is a false alarm.

The samples stay in target/aa. After an interruption, run it again: it continues.
"""

import contextlib
import itertools
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target/release/rust-tun-perf"
FOLDER = ROOT / "target/aa"
ALONE = "--layer loopback,path -n kernel,lwip,smoltcp -m reader,writer,rr --runtime current-thread --offload on --runs 10 --time 0.5"
PAIRS = "-n lwip,smoltcp -m reader --runtime current-thread --offload on"
FILES, BUSY, TIMES = 8, 4, 10
# The cell that is slowed down, and for how many milliseconds it runs and stops.
PLANTED, RUNS, STOPS = ("--netstack=smoltcp", "--mode=reader"), 4.0, 1.6
# The first word of the other side's command line, which is not slowed down.
OTHER = "other-build"


def matrix(name, words):
    """Makes a file of samples, or completes it. The output and the exit code are kept beside it."""
    file, kept = FOLDER / f"{name}.jsonl", FOLDER / f"{name}.txt"
    if not kept.exists():
        print(name, flush=True)
        done = subprocess.run([PROGRAM, "matrix", *words.split(), "--out", file], stdout=subprocess.PIPE, text=True)
        kept.write_text(done.stdout)
    return file, kept.read_text()


@contextlib.contextmanager
def busy(processes):
    """So many processes that do nothing but fill a processor."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def planted_children():
    """The processes of the planted cell."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid, words = int(entry.name), (entry / "cmdline").read_text().split("\0")
            if words[0] != OTHER and all(word in words for word in PLANTED):
                yield pid


def slow_down(ended):
    """Stops the processes of the planted cell again and again, until the matrix has ended."""
    while not ended.is_set():
        for pid in planted_children():
            with contextlib.suppress(ProcessLookupError):
                while True:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(STOPS / 1000)
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(RUNS / 1000)
        time.sleep(0.002)


def planted(number):
    other = FOLDER / "other"
    other.write_text(f'#!/usr/bin/env bash\nexec -a {OTHER} "{PROGRAM}" "$@"\n')
    other.chmod(0o755)
    ended = threading.Event()
    thread = threading.Thread(target=slow_down, args=[ended])
    thread.start()
    try:
        return matrix(f"planted-{number}", f"{PAIRS} --against {other}")
    finally:
        ended.set()
        thread.join()


def cells(file):
    """The rates of each cell of a file, round by round: of this build, and of the other one in the same rounds."""
    sides = {}
    for sample in map(json.loads, file.open()):
        if sample["kind"] == "sample" and sample["status"] == "ok":
            name = " ".join(sample[key] for key in ("layer", "netstack", "mode") if key in sample)
            work = sample["requests"]["answered"] if sample["mode"] == "rr" else sample["bytes"]
            side = sides.setdefault(name, {"new": {}, "old": {}})["old" if sample.get("against") else "new"]
            side[sample["round"]] = float(f"{work / sample['elapsed_ns']:.5g}")
    for name, side in sides.items():
        rounds = [round for round in side["new"] if round in side["old"] or not side["old"]]
        yield {"cell": name, **{key: [rates[round] for round in rounds] for key, rates in side.items() if rates}}


def verdicts(text):
    """The verdict of each row of a comparison, by the words of its cell."""
    rows = (re.split(r" {2,}", line.strip()) for line in text.splitlines())
    return {row[0]: row[-1] for row in rows if len(row) > 6 and row[0] != "cell"}


def measure(out):
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = [matrix(f"alone-{number}", ALONE)[0] for number in range(FILES)]
    with busy(os.cpu_count()):
        files += [matrix(f"busy-{number}", ALONE)[0] for number in range(BUSY)]
    head = json.loads(files[0].open().readline())
    lines = [{"kind": "aa", **{key: head[key] for key in ("commit", "machine", "cpu", "cpus", "kernel", "seed")}}]
    for file in files:
        lines += [{"file": file.stem, **cell} for cell in cells(file)]
    for one, other in itertools.combinations(files, 2):
        code = subprocess.run([PROGRAM, "compare", one, other], capture_output=True).returncode
        lines.append({"pair": [one.stem, other.stem], "exit": code})
    for number in range(TIMES):
        file, text = planted(number)
        detectable = re.search(r"detectable here: (\S+) %", text)
        for cell in cells(file):
            words = cell["cell"].split()[1:]
            found = [verdict for name, verdict in verdicts(text).items() if name.split()[:2] == words]
            lines.append({"planted": number, "planted_here": all(word.split("=")[1] in words for word in PLANTED), **cell})
            lines[-1] |= {"verdict": found[0], "detectable_percent": float(detectable[1])}
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def spread(ratios):
    """The standard deviation of logarithms, in percent."""
    return 100 * statistics.stdev(map(math.log, ratios))


def report(file):
    head, *lines = map(json.loads, file.open())
    busy = lambda line: sum("busy" in name for name in line["pair"])
    alone = [line["new"] for line in lines if "alone" in line.get("file", "")]
    pairs = [line for line in lines if "old" in line]
    changed = [line for line in pairs if line.get("planted_here")]
    change = lambda cell: 1 - statistics.median(new / old for new, old in zip(cell["new"], cell["old"]))
    said = lambda cells, *words: sum(cell.get("verdict") in words for cell in cells)
    print("| one build compared with itself | how often | false alarms | found |")
    print("|---|---:|---:|---:|")
    for count, machine in enumerate(["at rest", "at rest, then busy", "busy"]):
        exits = [line["exit"] for line in lines if "pair" in line and busy(line) == count]
        print(f"| `compare`, two files, the machine {machine} | {len(exits)} | {exits.count(1)} | |")
    if changed:
        others = [line for line in pairs if "verdict" in line and line not in changed]
        print(f"| `matrix --against`, cells that nothing was done to | {len(others)} | {said(others, 'slower', 'faster')} | |")
        print(f"| `matrix --against`, the cell that was slowed down | {len(changed)} | | {said(changed, 'slower')} |")
    print(
        f"\nOn {head['cpu']}, {head['cpus']} processors, kernel {head['kernel']}, on {datetime.fromtimestamp(head['seed'], timezone.utc):%Y-%m-%d}, "
        f"with build {head['commit']}. Standard deviation of the logarithm: of a run within a file {statistics.median(map(spread, alone)):.0f} %, and of "
        f"the ratio of a pair {statistics.median(spread([new / old for new, old in zip(cell['new'], cell['old'])]) for cell in pairs):.0f} % (medians of the cells)."
    )
    if changed:
        losses, found = sorted(100 * change(cell) for cell in changed), [cell["detectable_percent"] for cell in changed]
        print(
            f"\nThe slowed cell lost {losses[0]:.0f} to {losses[-1]:.0f} % of its speed; "
            f'"detectable here" said {min(found):.0f} to {max(found):.0f} %.'
        )


match sys.argv[1:]:
    case ["measure", file]:
        measure(Path(file))
    case ["report", file]:
        report(Path(file))
    case _:
        sys.exit(__doc__)
