"""The loads of endure.py. Each has start(), which returns the process whose memory is read, runs(), finish() and stop().

finish() returns what is kept: for each client its work in so many equal parts of the time, and its failures.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target" / "release" / "rust-tun-perf"
# The program that serves as the proxy.
PROXY = ROOT / os.environ.get("ENDURE_PROXY", "target/release/rust-tun-perf")
STACKS = ("lwip", "ipstack", "smoltcp")
PARTS = 30
# Connections that are opened and closed, and so many of them at once; see docs/reliability.md for the differences.
CONNECTIONS = {
    "lwip": "--parallel 10000",
    "ipstack": "--parallel 1000 --rate 2000",
    "smoltcp": "--parallel 10000 --window 128KiB",
}

# The server of the proxy's lab, the size of its file, and how long the servers are down in the middle.
SERVER, LARGE_BYTES, DOWN = "10.2.0.2", 32 << 20, 1.0
# A client may fail until so long after the servers are back, and none of its rounds takes longer than this.
SETTLE, LONGEST_ROUND = 2.0, 20.0
# Requests of a round of redis-benchmark, for each of its two commands.
REDIS_REQUESTS = 5000

# Any run tells where it was made.
SHORT_RUN = "--layer stack --mode reader --netstack smoltcp --bytes 1MB --json".split()


def spawn(words, **options):
    """Starts a program that ends with the thread that started it."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, words)], **options)


def call(line):
    subprocess.run(line.split(), check=True)


def end(process):
    if process is not None and process.poll() is None:
        process.kill()
    if process is not None:
        process.wait()


def spread(parts, part, since, until, work):
    """Adds work that took this time to the parts of the time, evenly."""
    for k in range(PARTS):
        overlap = min(until, (k + 1) * part) - max(since, k * part)
        if overlap > 0:
            parts[k] += work * overlap / (until - since)


def environment(sample):
    """Where a run was made."""
    fields = sample.get("environment") or {}
    return {key: fields.get(key) for key in ("version", "commit", "cpu", "kernel")}


class Program:
    """A run of the program: its clients, the stack and its servers are one process."""

    def __init__(self, options, seconds):
        self.options, self.seconds, self.process = options, seconds, None

    def start(self):
        times = f"--time {self.seconds} --interval {self.seconds / PARTS} --timeout {self.seconds + 60}"
        options = f"{self.options} {times} --json"
        # A network of its own: several have devices of one name and the same addresses.
        command = ["unshare", "--net", "--", PROGRAM, *options.split()]
        self.process = spawn(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return self.process.pid

    def runs(self):
        return self.process.poll() is None

    def finish(self):
        end(self.process)
        sample = json.loads(self.process.stdout.read() or "{}")
        requests = (sample.get("requests") or {}).get("answered")
        intervals = sample.get("intervals", [])
        total = sum(interval["bytes"] for interval in intervals)
        # Each request has as many bytes.
        work = requests / total if requests and total else 8e-9
        client = {"name": "requests" if requests else "streams", "unit": "requests" if requests else "Gb"}
        # A busy machine may let an interval be longer than a part.
        parts, since, part = [0.0] * PARTS, 0, sample.get("elapsed_ns", 0) / PARTS
        for until, size in ((interval["end_ns"], interval["bytes"]) for interval in intervals):
            spread(parts, part, since, until, size * work)
            since = until
        return {
            "status": sample.get("status", "no result"),
            "detail": sample.get("detail"),
            "restart": None,
            "clients": [{**client, "parts": parts, "failures": 0, "first_failure": None, "allowed": 0}],
            **environment(sample),
        }

    def stop(self):
        end(self.process)


class Client:
    """Makes one round after the other in a thread, until there is an end."""

    def __init__(self, name, unit, command, work):
        # `work` returns what a round has done, and how many of its requests failed; it gets the process.
        self.name, self.unit, self.command, self.work = name, unit, command, work
        self.rounds, self.process, self.since = [], None, None

    def run(self, lab, until):
        while (begin := time.monotonic()) < until:
            process = lab.spawn("client", self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.process, self.since = process, begin
            timer = threading.Timer(LONGEST_ROUND, process.kill)
            timer.start()
            done, failed, reason = self.work(process)
            timer.cancel()
            self.rounds.append((begin, time.monotonic(), done, failed, reason))
            if failed:
                # Else a server that is down would be asked as often as a processor can.
                time.sleep(0.1)

    def end_round(self, before):
        """Ends a round that began before this time. redis-benchmark waits for ever once a connection was refused."""
        if self.since < before:
            self.process.kill()

    def kept(self, begin, seconds, down, up):
        """The work of each part, where that of a round is spread evenly, and the failures outside the restart."""
        parts, part = [0.0] * PARTS, seconds / PARTS
        failures, allowed, first = 0, 0, None
        for since, until, done, failed, reason in self.rounds:
            spread(parts, part, since - begin, until - begin, done)
            # A download that was changed on its way is never right.
            if failed and until >= down and since <= up and reason != "corrupt":
                allowed += failed
            elif failed:
                failures, first = failures + failed, first or f"{reason} at {since - begin:.1f} s"
        return {"name": self.name, "unit": self.unit, "parts": parts, "failures": failures, "first_failure": first, "allowed": allowed}


def of_wrk(process):
    out, err = process.communicate()
    text = out.decode()
    done = re.search(r"(\d+) requests in", text)
    if process.returncode or not done:
        return 0, 1, (err.decode() or text or f"status {process.returncode}").strip().replace("\n", " ")
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    failed = sum(map(int, errors.groups() if errors else [])) + int(wrong[1] if wrong else 0)
    return int(done[1]), failed, " ".join(found[0] for found in (errors, wrong) if found)


def of_redis(process):
    out, err = process.communicate()
    rates = re.findall(r"[\d.]+ requests per second", out.decode())
    if process.returncode or len(rates) != 2:
        return 0, 1, (err.decode() or out.decode()[-200:]).strip().replace("\n", " ") or f"status {process.returncode}"
    return 2 * REDIS_REQUESTS, 0, ""


def of_curl(sum_of_file):
    def of_curl(process):
        digest, size = hashlib.sha256(), 0
        while chunk := process.stdout.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
        reason = process.stderr.read().decode().strip()
        if process.wait():
            return 0, 1, f"{reason or process.returncode} after {size} bytes"
        if digest.digest() != sum_of_file:
            return 0, 1, "corrupt"
        return size * 8e-9, 0, ""

    return of_curl


class Proxy:
    """The proxy between a client and a server, in three networks of which it is the middle one."""

    def __init__(self, stack, seconds):
        self.stack, self.seconds = stack, seconds
        self.folder = Path(tempfile.mkdtemp(dir="/run"))
        self.proxy, self.servers, self.threads = None, {}, []
        # When the restart began, and when its consequences are over.
        self.restart, self.up, self.is_settled = None, None, False

    def spawn(self, host, words, **options):
        return spawn(["ip", "netns", "exec", f"{self.stack}-{host}", *words], **options)

    def start(self):
        self.join()
        large = os.urandom(LARGE_BYTES)
        (self.folder / "large").write_bytes(large)
        (self.folder / "small").write_bytes(large[:1000])
        (self.folder / "nginx.conf").write_text(self.nginx())
        self.serve()
        words = [PROXY, "proxy", "--interface", "to-server", "--netstack", self.stack]
        self.proxy = self.spawn("middle", words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if not self.proxy.stdout.readline():
            raise SystemExit(f"the proxy on {self.stack} did not start")
        middle = f"ip -n {self.stack}-middle"
        call(f"{middle} route add default dev utun8 table 200")
        call(f"{middle} rule add iif to-client table 200")
        self.clients = [
            Client("wrk", "requests", ["wrk", "-t1", "-c20", "-d1", "--timeout", "10", f"http://{SERVER}/small"], of_wrk),
            Client("redis", "requests",
                   ["redis-benchmark", "-h", SERVER, "-t", "set,get", "-n", str(REDIS_REQUESTS), "-c", "20", "-q"], of_redis),
            Client("curl", "Gb", ["curl", "--silent", "--show-error", "--fail", f"http://{SERVER}/large"],
                   of_curl(hashlib.sha256(large).digest())),
        ]  # fmt: skip
        self.begin = time.monotonic()
        self.threads = [threading.Thread(target=client.run, args=[self, self.begin + self.seconds]) for client in self.clients]
        for thread in self.threads:
            thread.start()
        return self.proxy.pid

    def join(self):
        """Makes the networks."""
        hosts = {host: f"{self.stack}-{host}" for host in ("client", "middle", "server")}
        for name in hosts.values():
            call(f"ip netns add {name}")
            call(f"ip -n {name} link set lo up")
        for host, network in (("client", 1), ("server", 2)):
            call(f"ip -n {hosts['middle']} link add to-{host} type veth peer name eth0 netns {hosts[host]}")
            for name, device, last in ((hosts["middle"], f"to-{host}", 1), (hosts[host], "eth0", 2)):
                call(f"ip -n {name} address add 10.{network}.0.{last}/24 dev {device}")
                call(f"ip -n {name} link set {device} up")
            call(f"ip -n {hosts[host]} route add default via 10.{network}.0.1")
        call(f"ip netns exec {hosts['middle']} sysctl -q net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0")

    def nginx(self):
        folder = self.folder
        temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        return (
            f"daemon off; master_process off; error_log /dev/null; pid {folder}/pid; events {{ worker_connections 1000; }}"
            f" http {{ access_log off; sendfile on; keepalive_requests 1000000; {temporary}"
            f" server {{ listen {SERVER}:80 backlog=4096; root {folder}; }} }}\n"
        )

    def serve(self):
        """Starts the servers, and waits until they can be reached."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        nginx = ["nginx", "-p", self.folder, "-c", self.folder / "nginx.conf", "-e", "/dev/null"]
        redis = ["redis-server", "--bind", SERVER, "--protected-mode", "no", "--save", "", "--dir", self.folder]
        self.servers = {80: self.spawn("server", nginx, **quiet), 6379: self.spawn("server", redis, **quiet)}
        deadline = time.monotonic() + 20
        for port, server in self.servers.items():
            probe = ["ip", "netns", "exec", f"{self.stack}-server", "ss", "-Hltn", f"sport = :{port}"]
            while not subprocess.run(probe, capture_output=True, check=True).stdout:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server of port {port} did not start")
                time.sleep(0.02)

    def start_anew(self):
        """Ends the servers, and starts them again."""
        down = time.monotonic()
        for server in self.servers.values():
            server.terminate()
        for server in self.servers.values():
            server.wait()
        time.sleep(DOWN)
        self.serve()
        self.up = time.monotonic()
        self.restart = (down, self.up + SETTLE)

    def runs(self):
        now = time.monotonic() - self.begin
        if self.restart is None and now >= self.seconds / 2:
            self.start_anew()
        if self.restart and time.monotonic() > self.restart[1] and not self.is_settled:
            self.is_settled = True
            for client in self.clients:
                client.end_round(self.up)
        return now < self.seconds and self.proxy.poll() is None

    def finish(self):
        lives = self.proxy.poll() is None
        for thread in self.threads:
            thread.join()
        down, up = self.restart or (0, 0)
        return {
            "status": "ok" if lives else "ended",
            "detail": None if lives else f"the proxy ended with {self.proxy.returncode}",
            "restart": [(down - self.begin) / self.seconds, (up - self.begin) / self.seconds],
            "clients": [client.kept(self.begin, self.seconds, down, up) for client in self.clients],
            **environment(json.loads(subprocess.check_output([PROGRAM, *SHORT_RUN]))),
        }

    def stop(self):
        for process in (self.proxy, *self.servers.values()):
            end(process)
        for host in ("client", "middle", "server"):
            subprocess.run(["ip", "netns", "delete", f"{self.stack}-{host}"], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)


LOADS = {
    **{f"{stack}, streams": partial(Program, f"--mode both --netstack {stack}") for stack in STACKS},
    **{f"{stack}, connections": partial(Program, f"--mode crr --netstack {stack} {options}") for stack, options in CONNECTIONS.items()},
    **{f"{stack}, proxy": partial(Proxy, stack) for stack in STACKS},
}
