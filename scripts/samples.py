"""The runs of a data file and their figures, by the rules of docs/method.md and without the program: for scripts/recompute.py and
scripts/claims.py."""

import base64
import functools
import itertools
import json
import math
import random
import re
import sys
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median, pvariance, stdev

ROOT = Path(__file__).resolve().parent.parent
REPORT = re.compile(r"<!-- report (\S+): ([^>]+?) -->\n(.*?)<!-- end report -->", re.DOTALL)
PROPERTIES = {name: name for name in ("layer", "program", "mode", "runtime", "offload")}
PROPERTIES |= {"stack": "netstack", "MTU": "mtu", "connections": "parallel", "client threads": "client_threads", "rate /s": "rate",
               "stack's congestion control": "stack_congestion", "delay ms": "delay_ns", "loss %": "loss_ppm"}  # fmt: skip
SCALES = {"delay_ns": 1e6, "loss_ppm": 1e4}
MODES = {"reader": "download", "writer": "upload", "rr": "requests", "crr": "new connections", "idle": "at rest"}
REFERENCES = ("the kernel", "kernel", "socks5", "loopback, the upper bound")
# What a question leaves open: the subject with its settings, and what all cells of a table have in common.
OPEN = set("layer netstack program workarounds stack_congestion runtime worker_threads shards queues max_flows offload".split())
COMMON = set("mtu window_bytes buffer_bytes depth request_bytes response_bytes rest_ns".split())
QUANTILES = {"p50 µs": 0.5, "p99 µs": 0.99, "p99.9 µs": 0.999}
# By the head of the column, without the name of the subject: of one run, of its fields.
METRICS = {
    "Gbps": "bytes * 8 / elapsed_ns", "requests /s": "requests_answered / seconds", "connections /MB": "1e6 / each(5)",
    "cores/Gbit": "(cpu_client_seconds + cpu_subject_seconds) / gbit", "subject cores/Gbit": "mode and cpu_subject_seconds / gbit",
    "memory each KiB": "each(5) / 1024", "memory each, 1 s KiB": "each(1) / 1024", "memory each, 30 s KiB": "each(30) / 1024",
    "released": "100 * min(max(last - idle_rss_closed_bytes, 0) / (last - idle_rss_before_bytes), 1)",
    "wake-ups /s": "idle_wakeups / seconds", "CPU idle %": "100 * cpu_subject_seconds / seconds",
    "beside Gbps": "background_bytes * 8 / elapsed_ns", "arrived /s": "bytes // datagram_bytes / seconds",
    "lost %": "100 * max(1 - datagrams_arrived / datagrams_sent, 0)", "reordered": "datagrams_reordered",
    "duplicated": "datagrams_duplicated", "client µs/req.": "1e6 * cpu_client_seconds / requests_answered",
    "subject µs/req.": "1e6 * cpu_subject_seconds / requests_answered", "peak MB": "peak_rss_bytes / 1e6",
    "subject wake-ups /req.": "switches_subject_waits / requests_answered",
    "switches/req.": "(switches_client_waits + switches_client_preemptions + switches_subject_waits + switches_subject_preemptions)"
                     " / requests_answered",
    "bytes/packet": "way('_bytes') / way('')", "retrans.": "retransmits", "drops": "device_drops",
    "ready after ms": "program_facts_start_seconds * 1e3", "MB at rest": "program_facts_at_rest_pss_bytes / 1e6",
}  # fmt: skip


def flat(fields, before=""):
    for name, value in fields.items():
        yield from flat(value, f"{before}{name}_") if isinstance(value, dict) else [(before + name, value)]


def each(facts, rest):
    """The memory of each connection after a rest, but for the first."""
    taken = max(rest["rss_bytes"] - facts["idle_rss_before_bytes"], 0) + rest["kernel_bytes"]
    return (taken or facts.get("idle_page_bytes", 4096)) / (facts["idle_connections"] - 1)


def of_run(head, run):
    """A figure of a run; None if the run does not have it."""
    facts = dict(flat(run))
    ends = {"reader": ["tx"], "writer": ["rx"], None: []}.get(run.get("mode"), ["rx", "tx"])
    facts["way"] = lambda of: sum(facts[f"packets_{end}{of}"] for end in ends)
    # Files of before have the memory at the end of the window alone.
    rests = facts.get("idle_rest") or [{"after_ns": 5e9, "rss_bytes": facts.get("idle_rss_idle_bytes"), "kernel_bytes": 0}]
    facts["each"] = lambda seconds: each(facts, next((rest for rest in rests if rest["after_ns"] == seconds * 1e9), {}))
    facts["last"] = rests[-1]["rss_bytes"]
    try:
        facts["seconds"], facts["gbit"] = run.get("elapsed_ns", 0) / 1e9, run.get("bytes", 0) * 8 / 1e9
        return eval(METRICS[head], {"max": max, "min": min}, facts) + 0
    except (NameError, KeyError, TypeError, ZeroDivisionError):
        return None


def status(run):
    """A rate that a search found does not count if its window loses more than 0.1 %. Late datagrams are lost."""
    facts, length = run.get("datagrams"), run.get("datagram_bytes")
    if run["status"] != "ok" or not facts or not length or "bitrate" in run:
        return run["status"]
    return "lossy" if facts["sent"] - min(facts["arrived"], run["bytes"] // length) > 0.001 * facts["sent"] else "ok"


def quantile(ordered, share):
    """Hyndman and Fan's eighth."""
    place = min(max((len(ordered) + 1 / 3) * share - 2 / 3, 0), len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + place % 1 * (high - low)


def quantile_us(runs, share):
    """Of all requests, by the HdrHistograms of the runs: zigzag LEB128, where -n is n zeros. Ten have to be slower."""
    counts = Counter()
    for text in filter(None, (run["requests"]["latency"].get("histogram") for run in runs)):
        index = number = shift = 0
        for byte in zlib.decompress(base64.b64decode(text)[8:])[40:]:
            number, shift = number | (byte & 127) << shift, shift + 7
            if byte < 128:
                count = number >> 1 ^ -(number & 1)
                counts[index] += max(count, 0)
                index, number, shift = index + max(-count, 1), 0, 0
    total = sum(counts.values())
    wanted = math.ceil(share * total)
    for index in sorted(counts) if (1 - share) * total > 10 - 1e-6 else ():
        wanted -= counts[index]
        if wanted <= 0:
            shift = max((index >> 10) - 1, 0)
            return ((index - (shift << 10) + 1 << shift) - 1) / 1000
    return None


class Cell:
    """The runs of a cell. `work` are the fields that come before the status."""

    def __init__(self, work, runs):
        self.work, self.runs, self.good = work, runs, [run for run in runs if status(run) == "ok"]
        self.failed = Counter(status(run) for run in runs if status(run) != "ok")
        kinds = {"rr": "requests", "crr": "requests", "idle": "connections"}
        self.kind = kinds.get(work.get("mode"), "datagrams" if "datagram_bytes" in work else "streams")
        self.kind += " at a rate" if self.kind == "requests" and ("rate" in work or "think_ns" in work) else ""
        speeds = {"requests": "requests /s", "requests at a rate": "p99 µs", "connections": "connections /MB"}
        self.speed = speeds.get(self.kind, "Gbps")
        speeds = {run.get("round", place): self.value(self.speed, [run]) for place, run in enumerate(self.good)}
        self.rounds = {place: speed for place, speed in speeds.items() if speed is not None}
        self.median = median(self.rounds.values()) if self.rounds else None
        self.ranked = None if self.failed else self.median

    def value(self, head, runs=None):
        runs = self.good if runs is None else runs
        if head in QUANTILES:
            return quantile_us(runs, QUANTILES[head])
        values = [value for value in (of_run(head, run) for run in runs) if value is not None]
        return (max if head == "peak MB" else median)(values) if values else None

    @functools.cached_property
    def ends(self):
        """Whether they are a range, and the least and the greatest value that each end may have: a smoothed bootstrap of the
        median on a logarithmic scale, or the range of fewer than six runs, or of two modes."""
        speeds = sorted(self.rounds.values())
        n, logs = len(speeds), [math.log(speed) if speed > 0 else -math.inf for speed in speeds]
        fewest = max(2, math.ceil(n / 5))
        between = [k * (n - k) / n * (sum(logs[:k]) / k - sum(logs[k:]) / (n - k)) ** 2 for k in range(fewest, n - fewest + 1)]
        has_few = n < 6 or speeds[0] <= 0
        if has_few or speeds[0] < speeds[-1] and max(between) > (2 / math.pi + 0.73 / math.sqrt(n)) * pvariance(logs) * n:
            return True, [(speeds[0], speeds[0]), (speeds[-1], speeds[-1])]
        iqr = (quantile(logs, 0.75) - quantile(logs, 0.25)) / 1.34
        width = 0.9 * (min(stdev(logs), iqr) if iqr > 0 else stdev(logs)) * n**-0.2 * math.sqrt(3)
        dice = random.Random(1)
        draws = sorted(median(log + dice.uniform(-width, width) for log in dice.choices(logs, k=n)) for _ in range(2000))
        return False, [tuple(math.exp(quantile(draws, end + by)) for by in (-0.02, 0.02)) for end in (0.025, 0.975)]


def walsh(one, other):
    """Wilcoxon: the means of all pairs of the logarithms of the ratios of the same rounds, and the number of rounds."""
    logs = [math.log(one.rounds[place] / other.rounds[place]) for place in one.rounds if place in other.rounds]
    return [(first + second) / 2 for first, second in itertools.combinations_with_replacement(logs, 2)], len(logs)


def times(cell, other):
    """The median of the ratios of the same rounds; none of cells that failed."""
    if other is None or cell.ranked is None or other.ranked is None:
        return None
    ratios = sorted(walsh(cell, other)[0])
    return math.exp((ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2)


def best(rivals):
    """Hsu: the best that never failed, and those within a tenth that a one-sided test does not tell apart at 5 %."""
    ranked = [cell for cell in rivals if cell.ranked is not None]
    if len(rivals) < 2 or not ranked or any(len(cell.rounds) < 6 for cell in ranked):
        return []
    top = max(ranked, key=lambda cell: cell.median)

    def is_near(cell):
        changes, rounds = walsh(cell, top)
        add = lambda ways, rank: ways + Counter({total + rank: count for total, count in ways.items()})
        ways = functools.reduce(add, range(1, rounds + 1), Counter([0]))
        chance = sum(ways[count] for count in range(sum(change >= 0 for change in changes) + 1)) / 2**rounds
        return cell.median >= 0.9 * top.median and chance * max(len(ranked) - 1, 1) > 0.05 and not cell.is_limited

    return [cell for cell in ranked if is_near(cell)]


@functools.cache
def cells(file, has_rest=False):
    """The cells of a file. Tables of memory after a rest have no figure of runs that did not read it then."""
    groups = defaultdict(list)
    for line in (ROOT / file).read_text().splitlines():
        run = json.loads(line)
        if run["kind"] == "sample" and not run.get("against"):
            if has_rest and run.get("idle"):
                run["idle"].pop("rss_idle_bytes", None)
            names = list(run)[2 : list(run).index("status")]
            groups[json.dumps({name: run[name] for name in names}, sort_keys=True)].append(run)
    found = [Cell(json.loads(work), runs) for work, runs in groups.items()]
    for cell in found:
        cell.is_limited = is_limited(cell, found)
    return found


def is_limited(cell, everything):
    """Whether a program is within a tenth of the SOCKS5 server that it uses, so that the figure may be the server's."""
    uses = any((run.get("program_facts") or {}).get("upstream") == "socks5" for run in cell.runs)
    uses = uses and cell.kind != "connections" and cell.work.get("program") != "socks5"
    work = lambda one: {name: value for name, value in one.work.items() if name not in OPEN}
    alone = [one.median for one in everything if uses and one.work.get("program") == "socks5" and work(one) == work(cell) and one.median]
    return bool(alone and cell.median) and (alone[0] / cell.median if cell.speed == "p99 µs" else cell.median / alone[0]) >= 0.9


def musts(name):
    """The causes in the stack itself that break a MUST, and how many of those that apply it does not meet."""
    stack, bare = name.removeprefix("the ").removesuffix(", as published"), name.endswith(", as published")
    known = json.loads((ROOT / "conformance/known.json").read_text()).get(stack)
    if known is None:
        return None
    lists = [cases for name, cases in known.items() if name not in ("causes", "seen")]
    cause_of = {case: cause for cases in lists for case, cause in cases.items()}
    table = REPORT.findall((ROOT / "docs/scorecard.md").read_text())
    rows = [line.split(" | ") for file, title, text in table if title == "Cases" for line in text.splitlines()]
    level_of = {row[0].strip("| "): row[rows[0].index("level")] for row in rows if len(row) == len(rows[0])}
    listed = [row[0].removeprefix("- ").rpartition(": ") for row in rows if row[0].startswith("- ")]
    level_of |= {case: level for level, _, cases in listed for case in cases.split(", ")}
    applied, broken, causes = set(), set(), set()
    for line in (ROOT / "docs/data/conformance.jsonl").read_text().splitlines():
        score = json.loads(line)
        is_its = score.get("netstack") == stack and score.get("workarounds", "all") == ("none" if bare else "all")
        if not is_its or "stack_congestion" in score or score["outcome"] not in ("pass", "fail"):
            continue
        has_failed = score["outcome"] == "fail"
        cause = cause_of.get(score["case"], score["case"])
        why = known["causes"].get(cause, {}) if has_failed else {}
        level = why.get("breaks", level_of[score["case"]])
        if level.startswith("MUST"):
            applied.add(level)
            if has_failed and why.get("whose", "stack") == "stack":
                broken.add(level), causes.add(cause)
    return len(causes), len(broken), len(applied)


def relative(cell, head, everything):
    """The median by that of the fastest with the same work, or of the same cell in the other mode."""
    if cell.work.get("program") in REFERENCES:
        return None
    roles = lambda one: {run["program_facts"]["role"] for run in one.runs if run.get("program_facts")}
    role = lambda one: (one.work.get("layer"), one.work.get("netstack") == "kernel", roles(one))
    settings = OPEN - {"offload"} if head == "of fastest" else {"mode"}
    work = lambda one: {name: value for name, value in one.work.items() if name not in settings}
    rivals = [one for one in everything if work(one) == work(cell) and role(one) == role(cell)]
    if head == "of other mode":
        rivals = [one for one in rivals if one is not cell and cell.work.get("mode") in ("reader", "writer")]
    rivals = [one.ranked for one in rivals if one.ranked]
    if not rivals or cell.ranked is None:
        return None
    return min(rivals) / cell.ranked if cell.speed == "p99 µs" else cell.ranked / max(rivals)


def shown(work, head):
    """A property as a table may show it; one that is not set is – or 0."""
    name, value = PROPERTIES[head], work.get(PROPERTIES[head])
    value = MODES.get(value, value) if head == "mode" else value
    return ("–", "0") if value in (None, "auto") else (f"{value / SCALES[name]:g}" if name in SCALES else str(value),)


def asked(question):
    """The work that the head of a column asks for."""
    modes = {"download": "reader", "upload": "writer", "read": "reader", "write": "writer", "KiB": "idle", "new": "crr", "request": "rr"}
    modes |= {"on ": "rr", "loss": "reader"}
    mode = next((mode for word, mode in modes.items() if word in question), None)
    number = lambda pattern: next((float(found.replace(",", "")) for found in re.findall(pattern, question)), 0)
    work = {"parallel": number(r"on ([\d,]+) connections") or {"crr": 50, "idle": 1000}.get(mode, 1)}
    work["loss_ppm"] = (number(r"([\d.]+) % loss") or number(r"loss ([\d.]+) %")) * 1e4
    work["delay_ns"] = number(r"delay ([\d.]+) ms") * 1e6 or number(r"at ([\d.]+) ms") * 5e5  # Of a round trip.
    work["mtu"] = number(r"MTU (\d+)")
    return {"mode": mode, "protocol": "udp" if "UDP" in question else "tcp"} | {name: value for name, value in work.items() if value}


def answer(everything, work, name, is_settled):
    """The cell of a subject that answers a question; "as published", without workarounds if it has any."""
    name, _, kind = name.removeprefix("the ").partition(", ")
    has = lambda one: name in (one.get("netstack"), one.get("program")) and one.get("layer", "path") == "path"
    is_its = lambda one: has(one) or one.get("layer") == "loopback" and name in ("kernel", "loopback")
    asked_for = lambda one: {key: value for key, value in one.items() if key not in OPEN | (COMMON - set(work))}
    left = [cell for cell in everything if is_its(cell.work) and asked_for(cell.work) == work]
    control = "cubic" if is_settled or "loss_ppm" in work or "delay_ns" in work else "none"
    if is_settled:
        left = [cell for cell in left if cell.work.get("stack_congestion", control) == control]
    wanted = {"layer": "path", "workarounds": "none" if kind == "as published" else "all", "stack_congestion": control, "offload": "on"}
    for key, value in wanted.items():
        left = [cell for cell in left if cell.work.get(key) == value] or left
    if len(left) > 1:
        sys.exit(f"{len(left)} cells of {name} answer {work}")
    return left[0] if left else None


def of_subject(everything, name, head):
    """The texts of a property of a subject's cells."""
    own = [cell for cell in everything if name in (cell.work.get("netstack"), cell.work.get("program"))]
    return [[text] for cell in own for text in shown(cell.work, head)]


def settings(runs):
    """The MTU of the device of a program, and what the runs have set."""
    mtus, others = {}, set()
    for run in runs:
        made = ((run.get("program_facts") or {}).get("device") or {}).get("mtu")
        if run.get("device"):
            mtu = run["device"]["mtu"]
            mtus[mtu] = mtus.get(mtu) or "mtu" in run or made not in (None, mtu)
        others |= {f"{run['max_flows']} flows set"} if "max_flows" in run else set()
        others |= {f"queue {run['queue_packets']} set"} if "queue_packets" in run else set()
    return ", ".join([f"MTU {mtu}{' set' * is_set}" for mtu, is_set in sorted(mtus.items())] + sorted(others)) or "–"


def shipped(everything, is_alike):
    """The cells of programs as they are shipped, or of all alike; all of a file that does not tell them apart."""
    if "program" not in everything[0].work or all("mtu" in cell.work for cell in everything):
        return everything
    return [cell for cell in everything if bool({"mtu", "max_flows"} & set(cell.work)) == is_alike]


def role(runs):
    """What a program is; the client alone is none."""
    roles = {run["program_facts"]["role"] for run in runs if run.get("program_facts")}
    return {"attach": "container network", "route": "–"}.get(role := roles.pop(), role) if roles else "–"


def version(runs):
    """The first version that a run knows, or the beginning of the hash of its file."""
    facts = [run["program_facts"] for run in runs if run.get("program_facts")]
    hashes = [f"sha256 {one['sha256'][:12]}" for one in facts if one.get("sha256")]
    return ([" ".join(one["version"].split()) for one in facts if one.get("version")] + hashes + ["–"])[0]
