#!/usr/bin/env bash
#
# Measures the committed figures again, and updates the documents that are made from them.
#
#     scripts/measure.sh           seven rounds of every cell and layer, of every cell over IPv6, of the proxy, of
#                                  every forwarder, and of the presets, and the checksum benchmarks
#     scripts/measure.sh 10        ten rounds
#
# After an interruption, run it again: it continues. Use a machine that does nothing else.

set -euo pipefail

cd "$(dirname "$0")/.."
trap 'exit 130' INT

case ${1:-} in
-h | --help) sed -n '3,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
esac
runs=${1:-7}
[[ $runs =~ ^[1-9][0-9]*$ ]] || { printf 'measure: %s is no number of rounds; see --help\n' "$runs" >&2 && exit 2; }

cargo build --release --locked
program=target/release/rust-tun-perf
"$program" matrix --baseline --runs "$runs" --out target/linux.jsonl
"$program" matrix --ipv6 on --runs "$runs" --out target/linux-ipv6.jsonl
"$program" matrix --layer loopback,proxy --runtime multi-thread --parallel 1,4 --runs "$runs" --out target/proxy.jsonl
"$program" forward --all --time 3 --runs "$runs" --out target/forward.jsonl
for preset in stacks requests connections datagrams networks; do
    "$program" matrix --preset "$preset" --netstack all,gvisor --runs "$runs" --out "target/$preset.jsonl"
done
"$program" matrix --preset repairs --netstack all,gvisor --out target/repairs.jsonl
# The limit of the client.
"$program" matrix --layer loopback -m rr --runtime multi-thread --parallel 100,1000 --client-threads 1,2 --runs "$runs" --out target/client.jsonl
"$program" conform --netstack all,gvisor,kernel --repairs all,none --out target/conformance.jsonl >/dev/null
# Only complete files replace the old ones.
mv target/{client,conformance,linux,linux-ipv6,proxy,forward,requests,connections,datagrams,networks,stacks,repairs}.jsonl docs/data/
# Flame graphs of three forwarders, in runs that are not scored.
"$program" forward --offload off --time 3 --profile docs/figures/flame-off.svg
"$program" forward --offload on --time 3 --profile docs/figures/flame-on.svg
"$program" forward --offload whole --time 3 --profile docs/figures/flame-whole.svg
cargo bench --locked --bench wire
scripts/wire.py collect docs/data/offload/wire.jsonl
scripts/document.py --update
