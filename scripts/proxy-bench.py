#!/usr/bin/env python3
"""The rounds and the table of scripts/proxy-bench.sh, which calls it within its namespaces.

    scripts/proxy-bench.py report FILE     the table of samples that are there

A sample is a line of JSON. gbps is payload as the receiver counts it; cpu_s_per_gb is the user and system time of the
proxy for each 10^9 bytes of that, and rss_bytes the most memory that it occupied. stolen_percent is the part of the
processors' time that a virtual machine's host gave to others meanwhile. What does not apply is null. A sample that failed
has "error", and no figure.
"""

import argparse
import json
import os
import platform
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

SERVER = "10.2.0.2"
LOADS = {
    "tcp": [],
    "reverse": ["--reverse"],
    "parallel": ["--parallel", "8"],
    # As much as goes, in packets that the link takes whole.
    "udp": ["--udp", "--bitrate", "0", "--length", "1400"],
}
DIRECT = "direct"
HEADS = ["load", "path", "offload", "Gbps", "of direct", "of offload off", "CPU s/GB", "MB", "retransmits", "lost %"]
# What is slow to start or to end gets no more than this.
PATIENCE_S = 20


class Failure(Exception):
    """Why a sample has no figure."""


def within(network, *command):
    return ["ip", "netns", "exec", network, *command]


class Proxy:
    """The proxy on a stack, with the client's packets routed into its TUN."""

    def __init__(self, arguments, path, offload):
        words = ["--interface", "to-server", "--netstack", path, "--offload", "on" if offload else "off"]
        command = within("middle", arguments.program, *words, *arguments.options)
        # ip becomes the proxy, so that the number of its process is the proxy's.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        if not ready or not self.process.stdout.readline():
            self.process.kill()
            raise Failure(f"the proxy served no packets, and ended with {self.process.wait()}")

    def __enter__(self):
        subprocess.run("ip -n middle route add default dev utun8 table 200".split(), check=True)
        subprocess.run("ip -n middle rule add iif to-client table 200".split(), check=True)
        return self

    def __exit__(self, *_):
        subprocess.run("ip -n middle rule del iif to-client table 200".split(), check=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code:
            raise Failure(f"the proxy ended with {code}")

    def cpu_s(self):
        """User and system time so far."""
        # proc(5): both are the 12th and 13th field after the name, which is in brackets.
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def peak_rss_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


@contextmanager
def server():
    """A server of its own for each run: it would not get over one that was broken off."""
    process = subprocess.Popen(within("server", "iperf3", "--server"), stdout=subprocess.DEVNULL)
    try:
        # Port 5201, state LISTEN.
        listening = within("server", "grep", "-q", ":1451 .* 0A ", "/proc/net/tcp", "/proc/net/tcp6")
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run(listening).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failure("iperf3 does not listen; see that `iperf3 --server` works")
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def iperf3(load, seconds):
    """What iperf3 says at the end of a run."""
    command = within("client", "iperf3", "--client", SERVER, "--json", "--time", str(seconds), *LOADS[load])
    try:
        with server():
            result = subprocess.run(command, capture_output=True, text=True, timeout=seconds + PATIENCE_S)
        said = json.loads(result.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise Failure(f"iperf3: {error}") from error
    if "error" in said:
        raise Failure(f"iperf3: {said['error']}")
    return said["end"]


def figures(end):
    """The figures of a run that are iperf3's, and the bytes that arrived."""
    received = end["sum_received"]
    bytes_received = received["bytes"]
    if not bytes_received:
        raise Failure("iperf3: nothing arrived")
    return bytes_received, {
        "gbps": received["bits_per_second"] / 1e9,
        "retransmits": end["sum_sent"].get("retransmits"),
        "congestion": end.get("sender_tcp_congestion"),
        "lost_percent": received.get("lost_percent"),
    }


def measured(arguments, path, offload, load):
    """The figures of one sample."""
    if path == DIRECT:
        return figures(iperf3(load, arguments.time))[1] | {"cpu_s_per_gb": None, "rss_bytes": None}
    with Proxy(arguments, path, offload) as proxy:
        before_s = proxy.cpu_s()
        end = iperf3(load, arguments.time)
        used_s = proxy.cpu_s() - before_s
        bytes_received, result = figures(end)
        return result | {"cpu_s_per_gb": used_s / (bytes_received / 1e9), "rss_bytes": proxy.peak_rss_bytes()}


def processor_ticks():
    """The time of all processors so far, and how much of it the host gave to others."""
    # proc(5): user, nice, system, idle, iowait, irq, softirq and steal; what guests take is in the first two.
    ticks = list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]))
    return sum(ticks), ticks[7]


@contextmanager
def theft(sample):
    """Notes what was stolen while the sample was taken."""
    total, stolen = processor_ticks()
    yield
    total_after, stolen_after = processor_ticks()
    sample["stolen_percent"] = 100 * (stolen_after - stolen) / max(total_after - total, 1)


def environment(arguments):
    version = subprocess.run(["iperf3", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    cpus = (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").open() if line.startswith("model name"))
    return {
        "iperf3": version,
        "kernel": platform.release(),
        "cpu": next(cpus, platform.machine()),
        "cpus": os.cpu_count(),
        "commit": arguments.commit,
        "options": " ".join(arguments.options),
        "time_s": arguments.time,
        "begun": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def run(arguments):
    """Every round of every cell. How many samples failed."""
    paths = [(DIRECT, None)] + [(stack, offload) for stack in arguments.netstack for offload in (True, False)]
    cells = [(path, offload, load) for path, offload in paths for load in LOADS]
    common = environment(arguments)
    failures = 0
    with open(arguments.out, "a", encoding="utf-8") as out:
        for number in range(arguments.runs):
            for path, offload, load in random.sample(cells, len(cells)):
                sample = {"kind": "proxy", "path": path, "offload": offload, "load": load, "round": number}
                try:
                    with theft(sample):
                        sample |= measured(arguments, path, offload, load)
                    news = f"{sample['gbps']:.2f} Gbps"
                except Failure as failure:
                    sample |= {"gbps": None, "error": str(failure)}
                    news = f"failed: {failure}"
                    failures += 1
                print(f"round {number + 1}, {path}, offload {offload}, {load}: {news}", file=sys.stderr)
                print(json.dumps(sample | common), file=out, flush=True)
    return failures


def spread(values, form):
    """Median, least and most."""
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    middle, least, most = (form.format(value) for value in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least} to {most})"


def ratios(samples, others):
    """The figures of a cell over those of another in the same rounds."""
    by_round = {(other["begun"], other["round"]): other["gbps"] for other in others}
    pairs = ((sample["gbps"], by_round.get((sample["begun"], sample["round"]))) for sample in samples)
    return [figure / other for figure, other in pairs if other]


def table(samples):
    """The lines of a table in Markdown."""
    cells = {}
    failed = 0
    for sample in samples:
        if sample["gbps"] is None:
            failed += 1
        else:
            cells.setdefault((sample["load"], sample["path"], sample["offload"]), []).append(sample)
    yield f"| {' | '.join(HEADS)} |"
    yield "|" + " --- |" * 3 + " ---: |" * (len(HEADS) - 3)
    # By load, the direct path first, then by stack, with offload first.
    order = lambda cell: (list(LOADS).index(cell[0]), cell[1] != DIRECT, cell[1], not cell[2])  # noqa: E731
    for (load, path, offload), rows in sorted(cells.items(), key=lambda cell: order(cell[0])):
        column = lambda name: [row.get(name) for row in rows]  # noqa: E731
        plain = cells.get((load, path, False), []) if offload else []
        megabytes = [size / 1e6 for size in column("rss_bytes") if size]
        direct = cells.get((load, DIRECT, None), []) if path != DIRECT else []
        yield "| " + " | ".join([
            load,
            path,
            {True: "on", False: "off", None: "-"}[offload],
            spread(column("gbps"), "{:.2f}"),
            spread(ratios(rows, direct), "{:.2f}"),
            spread(ratios(rows, plain), "{:.1f}"),
            spread(column("cpu_s_per_gb"), "{:.2f}"),
            spread(megabytes, "{:.0f}"),
            spread(column("retransmits"), "{:.0f}"),
            spread(column("lost_percent"), "{:.1f}"),
        ]) + " |"
    if failed:
        yield f"\n{failed} samples failed."
    first = samples[0]
    rounds = len({(sample["begun"], sample["round"]) for sample in samples})
    yield (
        f"\nMedian (least to most) of {rounds} rounds, {first['time_s']} s a run; {first['cpu']}, {first['cpus']} processors, "
        f"Linux {first['kernel']}, iperf3 {first['iperf3']}, cubic, commit {first['commit']}."
    )
    stolen = spread([sample.get("stolen_percent") for sample in samples], "{:.0f}")
    if stolen != "-":
        yield f"\nOf the processors' time its host gave {stolen} % to others in a run."
    for name in ("commit", "cpu", "kernel", "options", "time_s"):
        values = sorted({str(sample[name]) for sample in samples})
        if len(values) > 1:
            yield f"\nThe samples are of more than one {name}: {', '.join(values)}."


def report(path):
    with open(path, encoding="utf-8") as file:
        print("\n".join(table([json.loads(line) for line in file])))


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("report").add_argument("file")
    runs = commands.add_parser("run")
    for name, kind in (("program", str), ("commit", str), ("runs", int), ("time", int), ("out", str)):
        runs.add_argument(f"--{name}", type=kind, required=True)
    runs.add_argument("--netstack", nargs="+", required=True)
    runs.add_argument("options", nargs="*")
    return parser.parse_args(words)


def main():
    arguments = arguments_of(sys.argv[1:])
    if arguments.command == "report":
        report(arguments.file)
        return
    failures = run(arguments)
    report(arguments.out)
    if failures:
        sys.exit(f"proxy-bench: {failures} samples failed")


main()
