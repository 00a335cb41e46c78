#!/usr/bin/env python3
"""Compares the figures of programs with those that iperf3, wrk, ab and curl measure through the same programs.

    scripts/agree.py run FILE                                     our proxy on lwIP, and sing-box where it is installed
    scripts/agree.py run FILE --programs kernel,lwip,./mine.toml  these
    scripts/agree.py run FILE --rounds 5 --time 3                 five rounds of three seconds for each figure
    scripts/agree.py report FILE                                  the table of a file

Only programs that open their connections themselves are asked: a SOCKS5 server would have to relay those to iperf3 and nginx.
The two networks, the addresses, the start of the program and the congestion control of all sockets are as in a run of
`rust-tun-perf --program`. In each round every question is asked twice, one right after the other and in turns first: of the
other client, and of such a run. The first line of a file says where and when it was measured; each other line is a question in a
round. The table has the median of each, and the median of the ratios of the rounds with their range. Then it says whether both
have the programs in the same order, ties apart. curl gets a file of 100 MB; its checksum must be that of the file.

The exit code is 1 if a checksum is wrong. docs/method.md explains the differences. It needs Linux, and a release build. No root is
needed where a user may make namespaces: all networks and processes are in namespaces of the script's own, and end with it.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("AGREE_PROGRAM", ROOT / "target/release/rust-tun-perf"))
TOOLS = ("ip", "iperf3", "wrk", "ab", "curl", "nginx", "unshare", "setpriv")
# The script runs itself again with this variable in namespaces of its own.
INSIDE = "AGREE_INSIDE"

NEAR, FAR, FAR_NETWORK = "to-far", "to-near", "far"
NEAR_ADDRESS, SERVER = "198.18.1.1", "198.18.2.1"
PLACE = {
    "tun": "utun8", "mtu": "1500", "address": "10.10.10.9", "peer": "10.10.10.10", "prefix": "24", "interface": NEAR,
    "server": SERVER,
}
FILE_BYTES = 100_000_000
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
# The requests of wrk and the responses of nginx have about so many bytes.
SIZES = "--request 45 --response 240"
# How long a client may take beyond its time, and a program until it carries.
PATIENCE = 10.0


class Failed(Exception):
    """A client or a program has failed."""


def in_far(words):
    return ["ip", "netns", "exec", FAR_NETWORK, *words]


def call(line):
    subprocess.run(line.split(), check=True, stdout=subprocess.DEVNULL)


def output(words, seconds, may_fail=False):
    """What a client prints. One that does not end in time has failed, and so has one that says so."""
    try:
        end = subprocess.run([*map(str, words)], capture_output=True, timeout=seconds + PATIENCE)
    except subprocess.TimeoutExpired:
        raise Failed("did not end") from None
    if end.returncode != 0 and not may_fail:
        raise Failed((end.stderr or end.stdout).decode(errors="replace").strip().split("\n")[-1][:80])
    return end.stdout


@contextlib.contextmanager
def running(words, **options):
    """A process that ends with this block, or with this script."""
    process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, words)], stderr=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(what, done):
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise Failed(f"no {what}")
        time.sleep(0.02)


# ---------------------------------------------------------------------------------------------- the networks and the program


def make_networks():
    """Both networks, and the veth that joins them, as a run of a program makes them."""
    for setting in ("all/rp_filter", "default/rp_filter"):
        Path("/proc/sys/net/ipv4/conf", setting).write_text("0")
    call("mount -t tmpfs none /run")
    call(f"ip netns add {FAR_NETWORK}")
    for network in ([], in_far([])):
        # A kernel that does not allow it has its own in our runs, too.
        subprocess.run([*network, "sh", "-c", f"echo cubic >{CONGESTION}"], stderr=subprocess.DEVNULL)
    call(f"ip link add {NEAR} mtu {PLACE['mtu']} type veth peer name {FAR} mtu {PLACE['mtu']} netns {FAR_NETWORK}")
    far = f"ip -n {FAR_NETWORK}"
    for line in (
        f"ip address add {NEAR_ADDRESS}/24 dev {NEAR}", "ip link set lo up", f"ip link set {NEAR} up",
        f"{far} address add {SERVER}/24 dev {FAR}", f"{far} link set lo up", f"{far} link set {FAR} up",
        f"ip route add 198.18.2.0/24 dev {NEAR}", f"{far} route add 198.18.1.0/24 dev {FAR}",
    ):
        call(line)


def profile(name):
    """The profile of a program, as rust-tun-perf starts it. The name of a stack is our proxy on it."""
    if name.endswith(".toml"):
        text = Path(name).read_text()
    else:
        text = subprocess.run([PROGRAM, "programs", "show", name], capture_output=True, text=True, check=True).stdout
    profile = tomllib.loads(text)
    if profile.get("role", "proxy") in ("proxy", "route") and profile.get("upstream") != "direct":
        sys.exit(f"agree: {name} asks a SOCKS5 server for its connections")
    # This word means the program itself.
    profile["command"] = [str(PROGRAM) if word == "rust-tun-perf" else word for word in profile.get("command", [])]
    return profile


def fill(template, place):
    return re.sub(r"\{([a-z0-9_]+)\}", lambda name: place.get(name[1], name[0]), template)


@contextlib.contextmanager
def carried(program, folder):
    """The program between the two networks, with a route into it."""
    if program.get("role") == "route":
        yield
        return
    place = {**PLACE, "config": str(folder / "config"), "dir": str(folder)}
    # The words for the MTU stand in the config, or behind the command.
    words_of_mtu = [fill(word, place) for word in program.get("set", {}).get("mtu", [])]
    place["set"] = "\n".join(words_of_mtu)
    has_place = "{set}" in program.get("config", "")
    (folder / "config").write_text(fill(program.get("config", ""), place))
    words = [fill(word, place) for word in program["command"]] + ([] if has_place else words_of_mtu)
    environment = {**os.environ, **{name: fill(value, place) for name, value in program.get("environment", {}).items()}}
    # Not /sys, which shows the network in which it was mounted.
    exists = lambda: PLACE["tun"] in [name for _, name in socket.if_nameindex()]
    with running(words, env=environment, stdout=subprocess.DEVNULL):
        wait_for(f"device of {words[0]}", exists)
        time.sleep(0.2)
        shown = subprocess.run(["ip", "-br", "address", "show", PLACE["tun"]], capture_output=True, text=True).stdout
        if "." not in shown:
            call(f"ip address add {PLACE['address']}/{PLACE['prefix']} dev {PLACE['tun']}")
        call(f"ip link set {PLACE['tun']} mtu {PLACE['mtu']} up")
        call(f"ip route replace {SERVER}/32 dev {PLACE['tun']}")
        probe = ["curl", "--silent", "--max-time", "1", "--output", "/dev/null", f"http://{SERVER}/small"]
        wait_for("answer", lambda: subprocess.run(probe).returncode == 0)
        yield
    wait_for("end of the device", lambda: not exists())


@contextlib.contextmanager
def servers(folder):
    """nginx and iperf3 in the far network."""
    html = folder / "html"
    html.mkdir()
    (html / "small").write_bytes(b".")
    (html / "large").write_bytes(os.urandom(1_000_000) * (FILE_BYTES // 1_000_000))
    (folder / "nginx.conf").write_text(
        f"daemon off; user root; worker_processes 1; pid {folder}/pid; error_log /dev/null crit; events {{ worker_connections 4096; }}\n"
        f"http {{ access_log off; keepalive_requests 1000000000; sendfile on; client_body_temp_path {folder}/body;"
        f" proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;"
        f" scgi_temp_path {folder}/scgi; server {{ listen {SERVER}:80 backlog=4096; root {html}; }} }}\n"
    )
    with contextlib.ExitStack() as stack:
        start = lambda words, **options: stack.enter_context(running(in_far(words), **options))
        start(["nginx", "-c", folder / "nginx.conf"], stdout=subprocess.DEVNULL)
        start(["iperf3", "--server", "--bind", SERVER], stdout=subprocess.DEVNULL)
        yield hashlib.sha256((html / "large").read_bytes()).hexdigest()


def hello(program=PROGRAM):
    """The version of the protocol of a child, and the environment: the machine and the build."""
    greeting = subprocess.run([program, "child"], input='{"protocol":0,"task":"hello"}\n', capture_output=True, text=True)
    return json.loads(greeting.stdout)


# ------------------------------------------------------------------------------------------------------------- the questions


def iperf3(reverse):
    def ask(seconds):
        words = ["iperf3", "--client", SERVER, "--time", str(seconds), "--omit", "1", "--json", *(["--reverse"] if reverse else [])]
        return json.loads(output(words, seconds + 1))["end"]["sum_received"]["bits_per_second"] / 1e9

    return ask


def wrk(connections):
    def ask(seconds):
        words = ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s", f"http://{SERVER}/small"]
        text = output(words, seconds).decode()
        if errors := re.search(r"Socket errors: .*|Non-2xx.*", text):
            raise Failed(errors[0])
        return float(re.search(r"Requests/sec: +([0-9.]+)", text)[1])

    return ask


def ab(seconds):
    # It stops after 50,000 requests, however long it may take.
    words = ["ab", "-q", "-c", "50", "-t", str(seconds), "-n", "10000000", f"http://{SERVER}/small"]
    text = output(words, seconds).decode()
    failed = int(re.search(r"Failed requests: +(\d+)", text)[1])
    if failed:
        raise Failed(f"{failed} requests failed")
    return float(re.search(r"Requests per second: +([0-9.]+)", text)[1])


def ours(options, figure):
    def ask(name, seconds):
        timeout = seconds + PATIENCE
        words = [PROGRAM, *options.split(), "--time", str(seconds), "--program", name, "--mtu", PLACE["mtu"], "--timeout", str(timeout), "--json"]
        try:
            sample = json.loads(output(words, timeout + 30, may_fail=True))
        except json.JSONDecodeError:
            raise Failed("no sample") from None
        if sample["status"] != "ok":
            raise Failed(sample["status"])
        if sample["congestion"] != congestion():
            raise Failed(f"congestion control {sample['congestion']}")
        return figure(sample)

    return ask


def congestion():
    """The congestion control of this network's sockets."""
    return Path(CONGESTION).read_text().strip()


def gbps(sample):
    return sample["bytes"] * 8 / sample["elapsed_ns"]


def per_second(sample):
    return sample["requests"]["answered"] / sample["elapsed_ns"] * 1e9


# The question and its unit, the other client, and ours.
QUESTIONS = (
    ("from the client, Gbps", "iperf3", iperf3(False), ours("-m writer", gbps)),
    ("to the client, Gbps", "iperf3 -R", iperf3(True), ours("-m reader", gbps)),
    ("requests/s, 1 connection", "wrk -c1", wrk(1), ours(f"-m rr {SIZES}", per_second)),
    ("requests/s, 100 connections", "wrk -c100", wrk(100), ours(f"-m rr --parallel 100 {SIZES}", per_second)),
    ("connections/s, 50 at once", "ab -c 50", ab, ours(f"-m crr --parallel 50 {SIZES}", per_second)),
)


def curl(expected):
    """Whether a file arrives as it is."""
    try:
        body = output(["curl", "--silent", "--show-error", "--fail", f"http://{SERVER}/large"], 30)
    except Failed as failure:
        return str(failure)
    return "the same bytes" if hashlib.sha256(body).hexdigest() == expected else "WRONG BYTES"


def ask(asked, *arguments):
    """A figure, or why there is none."""
    try:
        return asked(*arguments)
    except Failed as failure:
        return str(failure)


def figures(values):
    numbers = [value for value in values if not isinstance(value, str)]
    if not numbers:
        return values[0]
    failed = f", {len(values) - len(numbers)} failed" if len(numbers) < len(values) else ""
    return f"{statistics.median(numbers):,.{2 if max(numbers) < 1000 else 0}f}{failed}"


def ratio(pairs):
    ratios = [mine / other for other, mine in pairs if not isinstance(other, str) and not isinstance(mine, str)]
    if not ratios:
        return "both failed" if all(isinstance(value, str) for pair in pairs for value in pair) else "one failed"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def contradictions(table, question):
    """The pairs of programs that both clients tell apart, with ranges that do not touch, and order differently."""
    ranges = {}
    for name, asked in table.items():
        pairs = [pair for pair in asked[question] if not any(isinstance(value, str) for value in pair)]
        if pairs:
            ranges[name] = [(min(values), max(values)) for values in zip(*pairs)]
    is_faster = lambda one, other, side: ranges[one][side][0] > ranges[other][side][1]
    return [
        f"{one} and {other}" for one, other in itertools.permutations(ranges, 2)
        if is_faster(one, other, 0) and is_faster(other, one, 1)
    ]


def measure(path, names, rounds, seconds):
    head = {
        **hello()["environment"], "congestion": congestion(), "seconds": seconds,
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    with open(path, "w") as file, tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as expected:
        print(json.dumps(head), file=file)
        for turn in range(rounds):
            for name in names:
                print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr)
                for index, (question, _, other, mine) in enumerate(QUESTIONS):
                    pair, line = [None, None], {"program": name, "question": question}
                    # In turns, because the second of two may find a warmer machine.
                    for side in (0, 1) if (turn + index) % 2 == 0 else (1, 0):
                        if side == 1:
                            pair[1] = ask(mine, name, seconds)
                            continue
                        with tempfile.TemporaryDirectory() as own:
                            try:
                                with carried(profile(name), Path(own)):
                                    pair[0] = ask(other, seconds)
                                    if index == 0:
                                        line["curl"] = curl(expected)
                            except Failed as failure:
                                pair[0] = pair[0] or str(failure)
                    print(json.dumps({**line, "other": pair[0], "own": pair[1]}), file=file, flush=True)


def report(path):
    with open(path) as file:
        head, *lines = map(json.loads, file)
    table, checksums = {}, {}
    for line in lines:
        of_name = table.setdefault(line["program"], {question: [] for question, *_ in QUESTIONS})
        of_name[line["question"]].append((line["other"], line["own"]))
        checksums.setdefault(line["program"], set()).update([line["curl"]] if "curl" in line else [])
    rows = [("program", "question", "other client", "its figure", "rust-tun-perf", "ratio (range)")]
    for name, asked in table.items():
        for question, client, *_ in QUESTIONS:
            pairs = asked[question]
            if not pairs:
                continue
            other, mine = zip(*pairs)
            rows.append((name, question, client, figures(other), figures(mine), ratio(pairs)))
    show(rows)
    orders = {question: contradictions(table, question) for question, *_ in QUESTIONS}
    for question, wrong in orders.items():
        if wrong:
            print(f"- {question}: another order of {'; '.join(wrong)}")
    if same := [question for question, wrong in orders.items() if not wrong]:
        print(f"- {'; '.join(same)}: the same order, where the ranges of two programs do not touch")
    for said in sorted({", ".join(sorted(said)) for said in checksums.values()}):
        names = [name for name, its in checksums.items() if ", ".join(sorted(its)) == said]
        print(f"- curl through {', '.join(names)}: {said}")
    rounds = max(len(pairs) for asked in table.values() for pairs in asked.values())
    made = f"{rounds} round{'s' * (rounds > 1)} of {head['seconds']} s, congestion control {head['congestion']}"
    machine = f"{head['cpu']}, {head['cpus']} processors, {head['system']} {head['kernel']}"
    print(f"\nMedians of {made}, measured on {head['written'][:10]}, {machine}.")
    return 1 if any("WRONG BYTES" in said for said in checksums.values()) else 0


def show(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows.insert(1, tuple("-" * width for width in widths))
    for row in rows:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |")
    print()


def usual():
    """Our proxy, and of the others those that are installed."""
    listed = subprocess.run([PROGRAM, "programs", "list"], capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = ("sing-box-gvisor-direct", "sing-box-system-direct")
    return ["lwip", *(line.split()[0] for line in listed if line.split()[0] in wanted and line.endswith(" installed"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("run", "report"))
    parser.add_argument("file")
    parser.add_argument("--programs", help="names and paths, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--time", type=int, default=3, help="seconds of each figure")
    arguments = parser.parse_args()
    if arguments.task == "report":
        sys.exit(report(arguments.file))
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        sys.exit(f"agree: there is no {', '.join(missing)}; apt-get install apache2-utils curl iperf3 iproute2 nginx wrk util-linux")
    if not PROGRAM.exists():
        sys.exit(f"agree: there is no {PROGRAM}; cargo build --release")
    if INSIDE not in os.environ:
        flags = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", *(["--map-root-user"] if os.geteuid() else [])]
        os.execvpe("unshare", ["unshare", *flags, "--", sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
    make_networks()
    names = arguments.programs.split(",") if arguments.programs else usual()
    measure(arguments.file, names, max(1, arguments.rounds), max(1, arguments.time))
    sys.exit(report(arguments.file))


if __name__ == "__main__":
    main()
