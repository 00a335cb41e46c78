#!/usr/bin/env bash
#
# The committed figures anew, and the documents that are made of them.
#
#     scripts/measure.sh           seven rounds of every cell and layer, and of every cell over IPv6: ten minutes
#     scripts/measure.sh 10        ten rounds
#
# Broken off, it goes on where it was. It wants a machine that does nothing else.

set -euo pipefail

cd "$(dirname "$0")/.."
trap 'exit 130' INT

runs=${1:-7}
[[ $runs =~ ^[1-9][0-9]*$ ]] || { printf 'measure: %s is no number of rounds\n' "$runs" >&2 && exit 2; }

cargo build --release --locked
program=target/release/rust-tun-perf
"$program" matrix --baseline --runs "$runs" --out target/linux.jsonl
"$program" matrix --ipv6 on --runs "$runs" --out target/linux-ipv6.jsonl
# Only whole matrices take the old ones' place.
mv target/linux.jsonl target/linux-ipv6.jsonl docs/data/
scripts/document.py --update
