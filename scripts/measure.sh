#!/usr/bin/env bash
#
# The committed figures anew, and the documents that are made of them.
#
#     scripts/measure.sh           ten rounds of every cell and layer over IPv4 and IPv6
#     scripts/measure.sh 5         five rounds
#
# Broken off, it goes on where it was. It wants a machine that does nothing else.

set -euo pipefail

cd "$(dirname "$0")/.."
trap 'exit 130' INT

runs=${1:-10}
data=docs/data/linux.jsonl
fresh=target/linux.jsonl

[[ $runs =~ ^[1-9][0-9]*$ ]] || { printf 'measure: %s is no number of rounds\n' "$runs" >&2 && exit 2; }
cargo build --release --locked
target/release/rust-tun-perf matrix --baseline --ipv6 all --runs "$runs" --out "$fresh"
# Only a whole matrix takes the old one's place.
mv "$fresh" "$data"
scripts/document.py --update
