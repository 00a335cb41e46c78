#!/usr/bin/env python3
"""Measures the figures of the documents again, all with one build, and updates the documents.

    scripts/measure.py                    every file of the list below but those that take hours
    scripts/measure.py --only FILE...     these files of docs/data
    scripts/measure.py --list             the files and their commands
    scripts/measure.py --slim             drops from the files of docs/data what no document needs; the others do so themselves

It refuses to measure while there are changes that are not committed, because a build of them has no name. It prints the time that
each file takes. After an interruption, run it again: it continues. Only complete files replace the old ones. Use a machine that
does nothing else.

The documents print these commands, and `scripts/document.py --check` compares them with the files: a command that is changed here
needs its file measured again.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "target/release/rust-tun-perf"

# The arguments of the program that make each file, without --out.
COMMANDS = {
    "docs/data/stacks.jsonl": "matrix --preset stacks --netstack all,gvisor --runs 7",
    "docs/data/cores.jsonl": "matrix --preset cores --netstack lwip,ipstack,smoltcp --time 0.3 --runs 6",
    "docs/data/requests.jsonl": "matrix --preset requests --netstack all,gvisor --runs 7 --timeout 15",
    "docs/data/datagrams.jsonl": "matrix --preset datagrams --netstack all,gvisor --runs 7",
    "docs/data/connections.jsonl": "matrix --preset connections --netstack all,gvisor --runs 7",
    "docs/data/networks.jsonl": "matrix --preset networks --netstack all,gvisor --runs 4 --timeout 15",
    "docs/data/linux.jsonl": "matrix --baseline --netstack all,gvisor --runs 7 --time 0.3 --timeout 8",
    "docs/data/linux-ipv6.jsonl": "matrix --ipv6 on --netstack all,gvisor --runs 7 --time 0.3 --timeout 8",
    "docs/data/proxy.jsonl": "matrix --program kernel,lwip,ipstack,smoltcp,tcp_ip,netstack-smoltcp --mtu 1500 --runtime multi-thread --window 4MiB "
    "--parallel 1,4 --runs 7",
    "docs/data/udp-offload.jsonl": "matrix --protocol udp --datagram 1400 --netstack lwip,smoltcp --runtime multi-thread --time 0.3 --runs 3",
    "docs/data/udp-proxy.jsonl": "matrix --protocol udp --datagram 1400 --program lwip,smoltcp --mtu 1500 --runtime multi-thread --window 4MiB "
    "--time 0.3 --runs 3",
    # The limit of the client, and requests at a rate that does not divide a second evenly.
    "docs/data/client.jsonl": "matrix --layer loopback -m rr --runtime multi-thread --parallel 100,1000 --client-threads 1,2 --runs 7",
    "docs/data/schedule.jsonl": "matrix -m rr -n lwip --runtime multi-thread --offload on --rate 97,150,199,333,1000,4999 --runs 7 --time 1",
    "docs/data/programs.jsonl": "matrix --preset programs --program kernel,socks5,lwip,smoltcp,ipstack,tun2proxy,sing-box-gvisor,"
    "sing-box-system,sing-box-gvisor-direct,sing-box-system-direct,wireguard-go,boringtun,gotatun,slirp4netns,pasta --runs 2",
    "docs/data/programs-mtu.jsonl": "matrix -m reader,writer --program kernel,slirp4netns,pasta --mtu 1500,9000,65520 --time 1 --warmup 1MB "
    "--timeout 10 --runs 4",
    "docs/data/napi.jsonl": "matrix -n lwip,smoltcp,ipstack -m reader,writer,rr --offload off --napi off,on,threaded --runtime multi-thread "
    "--time 0.3 --runs 10",
    "docs/data/napi-forward.jsonl": "matrix --forwarder rust,go --io sync,async,uring --offload off --napi off,on,threaded --time 0.5 --runs 10",
    "docs/data/forward.jsonl": "forward --all --time 3 --runs 7",
    "docs/data/conformance.jsonl": "conform --netstack all,gvisor,kernel --workarounds all,none",
    "docs/data/manners.jsonl": "conform --program kernel,lwip,smoltcp,ipstack,tcp_ip,netstack-smoltcp,tun2proxy,sing-box-gvisor,sing-box-system,"
    "sing-box-mixed,sing-box-gvisor-direct,sing-box-system-direct,wireguard-go,boringtun,gotatun,slirp4netns,pasta",
}

# Files that other commands make; {} stands for the file. A run with a flame graph has no figure.
OTHERS = {
    "docs/data/clients/agree.jsonl": "scripts/agree.py run {} --rounds 3 --time 2 --programs kernel,lwip,smoltcp,"
    "sing-box-gvisor-direct,sing-box-system-direct",
    "docs/data/questions.jsonl": "scripts/questions.py measure {}",
    "docs/data/offload/wire.jsonl": "cargo bench --quiet --locked --bench wire && scripts/wire.py collect {}",
    **{
        f"docs/figures/flame-{offload}.svg": f"{PROGRAM} forward --offload {offload} --time 3 --profile {{}}"
        for offload in ["off", "on", "whole"]
    },
}

# The same of what takes hours.
LONG = {
    "docs/data/reliability/streams.jsonl": "scripts/endure.py run 600 {} streams",
    "docs/data/reliability/connections.jsonl": "scripts/endure.py run --together 600 {} connections",
    "docs/data/reliability/proxy.jsonl": "scripts/endure.py run --together 600 {} proxy",
}


# Documents show the processor and the memory of forwarders by the intervals of their runs, and percentiles of requests by their
# histograms: of those at a rate, and of these.
WITH_INTERVALS = {"forward.jsonl", "napi-forward.jsonl"}
WITH_HISTOGRAMS = {"client.jsonl"}


def slim(file, text):
    """The lines of a file as docs/data has them: without what the program makes again when it reads them, and what no document draws."""
    return "\n".join(slim_line(Path(file).name, line) if line else line for line in text.split("\n"))


def slim_line(name, line):
    fields = json.loads(line)
    match fields.get("kind"):
        case "sample":
            gone = [(fields, "warnings"), (fields.get("effective"), "workarounds")]
            if name not in WITH_INTERVALS:
                gone.append((fields, "intervals"))
            if name not in WITH_HISTOGRAMS and not {"rate", "think_ns"} & set(fields):
                gone.append(((fields.get("requests") or {}).get("latency"), "histogram"))
        case "score" | "manner":
            gone = [(fields, word) for word in ("subject", "title", "level", "rfc", "expects")]
        case _:
            gone = []
    removed = [owner.pop(word) for owner, word in gone if owner and word in owner]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) if removed else line


def full():
    """The committed files that are not slim, each with the text that it should have."""
    for path in sorted((ROOT / "docs" / "data").glob("*.jsonl")):
        text = path.read_text()
        if (short := slim(path, text)) != text:
            yield path, short


def build():
    """The commit, after a build of it."""
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    if changes := git("status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"measure: commit these changes first, or take them back:\n{changes}")
    subprocess.run(["cargo", "build", "--release", "--locked", "--features", "quic"], cwd=ROOT, check=True)
    return git("rev-parse", "--short=12", "HEAD")


def command(file, out):
    """The command line that writes a file elsewhere."""
    if file in COMMANDS:
        return f"{PROGRAM} {COMMANDS[file]} --out {shlex.quote(str(out))}"
    return (OTHERS | LONG)[file].format(shlex.quote(str(out)))


def run(line):
    """The exit code of a command, and the last line of its standard error, which is shown."""
    with subprocess.Popen(line, shell=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        last = ""
        for last in process.stderr:
            sys.stderr.write(last)
    return process.returncode, last


def measure(files):
    # Each build has a folder of its own, because a matrix does not continue the file of another build.
    folder = ROOT / "target" / "measure" / build()
    made = {file: folder / file for file in files}
    for file, out in made.items():
        out.parent.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        code, last = run(command(file, out))
        # Runs of a stack failed, or results are not the known ones: the tables show them. Other errors have the code 1, too.
        is_judged = code == 1 and re.match(r"error: \d+ of \d+ ", last)
        if (code and not is_judged) or not out.exists():
            sys.exit(f"measure: {file}: exit code {code}; run it again to continue")
        print(f"{file}: {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
    for file, out in made.items():
        (ROOT / file).write_text(slim(file, out.read_text()) if out.suffix == ".jsonl" else out.read_text())
    subprocess.run(["scripts/document.py", "--update"], cwd=ROOT, check=True)


def main():
    usual = [*COMMANDS, *OTHERS]
    match sys.argv[1:]:
        case []:
            measure(usual)
        case ["--only", *files] if files and set(files) <= {*usual, *LONG}:
            measure(files)
        case ["--list"]:
            for file in [*usual, *LONG]:
                print(command(file, file))
        case ["--slim"]:
            for path, text in full():
                path.write_text(text)
        case ["-h" | "--help"]:
            print(__doc__)
        case ["--only", *files]:
            sys.exit(f"measure: no files of the list: {', '.join(files) or 'none given'}; see --list")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
