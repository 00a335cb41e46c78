#!/usr/bin/env bash
#
# Every cell as a ratio to the kernel's own loopback under iperf3, measured side by side.
#
#     scripts/ratio.sh                    five rounds, the table on standard output
#     scripts/ratio.sh 3                  three rounds
#     scripts/ratio.sh 5 FILE.jsonl       and the samples, with the machine's description, in a file
#     scripts/ratio.sh 3 "" 'lwip.*v4'    only the cells whose arguments match
#
# A cell is a stack, a mode, a runtime, with offload or without, over IPv4 or IPv6. All 48 take about
# two and a half minutes a round.
#
# Each round runs every cell once, and before each cell iperf3: absolute times drift on a shared
# machine, ratios of neighbours do not. A cell's figure is the median over the rounds of its Gbps,
# and of its ratio to the iperf3 run beside it.
#
#         ┌── a network namespace ──┐      ┌── a namespace of the run's own ──┐
#         │ iperf3 -c ◄─ lo ─► -s   │      │ client ◄─ kernel ─ TUN ─► stack  │
#         └─────────────────────────┘      └──────────────────────────────────┘
#
# Wants iperf3, ip and python3, and root or user namespaces.

set -euo pipefail

cd "$(dirname "$0")/.."
trap 'exit 130' INT

rounds=${1:-5}
file=${2:-}
only=${3:-}
program=${CARGO_TARGET_DIR:-target}/release/rust-tun-perf

fail() {
    printf 'ratio: %s\n' "$*" >&2
    exit 2
}
[[ $rounds =~ ^[1-9][0-9]*$ ]] || fail "$rounds is no number of rounds"
for tool in iperf3 ip python3 unshare; do
    command -v "$tool" >/dev/null || fail "missing: $tool; install it with: apt-get install iperf3 iproute2 python3 util-linux"
done
cargo build --release --quiet --locked

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
samples=$scratch/samples.jsonl

namespace=(unshare -n)
if [[ $(id -u) -ne 0 ]]; then
    namespace=(unshare -rn)
fi

# One iperf3 run over loopback, as a line of JSON.
loopback() {
    # 1451 is port 5201: the server is asked for only when it listens.
    # shellcheck disable=SC2016 # the inner shell expands
    "${namespace[@]}" bash -c '
        ip link set lo up
        iperf3 -s -1 >/dev/null & server=$!
        for ((tries = 0; tries < 200; tries++)); do
            grep -q ":1451 " /proc/net/tcp /proc/net/tcp6 && break
            sleep 0.02
        done
        timeout 30 iperf3 -c 127.0.0.1 -C cubic -l 128K -t 1 --json
        wait $server
    ' | python3 -c '
import json, sys
end = json.load(sys.stdin)["end"]
print(json.dumps({"kind": "iperf3", "gbps": end["sum_received"]["bits_per_second"] / 1e9,
                  "retransmits": end["sum_sent"].get("retransmits")}))'
}

cells=()
for offload in on off; do
    for version in v4 v6; do
        for stack in smoltcp lwip ipstack; do
            for mode in reader writer; do
                for runtime in current-thread multi-thread; do
                    cell="$stack $mode $runtime $offload $version"
                    [[ $cell =~ $only ]] && cells+=("$cell")
                done
            done
        done
    done
done
[[ ${#cells[@]} -gt 0 ]] || fail "no cell matches $only"

for ((round = 1; round <= rounds; round++)); do
    for cell in "${cells[@]}"; do
        read -r stack mode runtime offload version <<<"$cell"
        arguments=(--mode "$mode" --netstack "$stack" --offload "$offload" --time 1 --json)
        [[ $runtime == multi-thread ]] || arguments+=(--current-thread)
        [[ $version == v4 ]] || arguments+=(--ipv6)
        loopback >>"$samples"
        "$program" "${arguments[@]}" >>"$samples" 2>"$scratch/news" || cat "$scratch/news" >&2
        printf 'round %s of %s: %s\n' "$round" "$rounds" "$cell" >&2
    done
done

if [[ -n $file ]]; then
    cp "$samples" "$file"
fi
python3 scripts/table.py "$samples"
