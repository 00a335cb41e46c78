#!/usr/bin/env bash
#
# The published loops: ten runs of each of the twelve cells, a line with the Gbps of each run.
#
#     scripts/bench.sh                                every cell
#     scripts/bench.sh --netstack smoltcp             one stack
#     scripts/bench.sh --mode reader --runs 3         one direction, three runs
#     scripts/bench.sh -- --mtu 9000 --bytes 4GB      options after -- go to every run
#
# On macOS a utun device needs root: build as yourself, then run this script with sudo.

set -euo pipefail

cd "$(dirname "$0")/.."
# After Ctrl-C the program cleans up and exits. The loops must end too.
trap 'exit 130' INT

stacks=(lwip ipstack smoltcp)
modes=(reader writer)
runs=10

fail() {
    printf 'bench: %s\n' "$*" >&2
    exit 2
}

while [[ $# -gt 0 ]]; do
    case $1 in
    -h | --help) sed -n '3,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    --netstack) stacks=("${2:?--netstack wants a name}") && shift 2 ;;
    --mode) modes=("${2:?--mode wants a name}") && shift 2 ;;
    --runs) runs=${2:?--runs wants a number} && shift 2 ;;
    --) shift && break ;;
    *) fail "unknown argument $1; see --help" ;;
    esac
done
[[ $runs =~ ^[1-9][0-9]*$ ]] || fail "--runs $runs is no number above 0"
case ${stacks[*]} in lwip | ipstack | smoltcp | "lwip ipstack smoltcp") ;; *) fail "--netstack is lwip, ipstack or smoltcp" ;; esac
case ${modes[*]} in reader | writer | "reader writer") ;; *) fail "--mode is reader or writer" ;; esac

# Under sudo a build would leave files that belong to root.
if [[ -z ${SUDO_USER:-} ]]; then
    cargo build --release --quiet --locked
fi
program=${CARGO_TARGET_DIR:-target}/release/rust-tun-perf
[[ -x $program ]] || fail "there is nothing to run; build it first, as yourself: cargo build --release"

news=$(mktemp)
trap 'rm -f "$news"' EXIT
failures=0
for stack in "${stacks[@]}"; do
    for runtime in "current-thread" "multi-thread"; do
        for mode in "${modes[@]}"; do
            arguments=(--mode "$mode" --netstack "$stack")
            if [[ $runtime == current-thread ]]; then
                arguments+=(--current-thread)
            fi
            printf '\n%s, %s, %s\n' "$stack" "$runtime" "$mode"
            for ((run = 0; run < runs; run++)); do
                # A failed run has printed its reason. The others continue.
                "$program" "${arguments[@]}" "$@" 2>"$news" | grep Gbps || {
                    grep error: "$news" >&2 || true
                    failures=$((failures + 1))
                }
            done
        done
    done
done
[[ $failures -eq 0 ]] || { printf '%s runs failed\n' "$failures" >&2 && exit 1; }
