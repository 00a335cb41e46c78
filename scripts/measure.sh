#!/usr/bin/env bash
#
# The committed figures anew, and the documents that are made of them.
#
#     scripts/measure.sh           seven rounds of every cell and layer, of every cell over IPv6, and of every
#                                  forwarder, the checksum benchmarks, and, as root, the proxy: forty minutes
#     scripts/measure.sh 10        ten rounds
#
# Broken off, it goes on where it was. It wants a machine that does nothing else.

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
"$program" forward --all --time 3 --runs "$runs" --out target/forward.jsonl
# Only whole matrices take the old ones' place.
mv target/linux.jsonl target/linux-ipv6.jsonl target/forward.jsonl docs/data/
# Where three telling forwarders spend their time, in runs that nobody scores.
"$program" forward --offload off --time 3 --profile docs/flame-off.svg
"$program" forward --offload on --time 3 --profile docs/flame-on.svg
"$program" forward --offload whole --time 3 --profile docs/flame-whole.svg
cargo bench --locked --bench wire
scripts/wire.py collect docs/data/offload/wire.jsonl
# Networks joined by veth take root.
if [[ $(id -u) -eq 0 ]]; then
    rm -f target/proxy.jsonl
    scripts/proxy-bench.sh --runs "$runs" --out target/proxy.jsonl
    mv target/proxy.jsonl docs/data/offload/
fi
scripts/document.py --update
