#!/usr/bin/env bash
#
# iperf3 through the proxy on every stack, with offload and without, beside the same path without a proxy.
#
#     scripts/proxy-bench.sh                          five rounds of 3 s a run: ten minutes
#     scripts/proxy-bench.sh --runs 7 --time 10       seven rounds of 10 s a run
#     scripts/proxy-bench.sh --netstack smoltcp       one stack
#     scripts/proxy-bench.sh --out FILE               append the samples to this file, target/proxy.jsonl else
#     scripts/proxy-bench.sh -- --current-thread      what follows -- goes to every proxy
#
# Three networks in a row, joined by veth:
#
#     client                 middle                      server
#     eth0 -------- to-client      to-server ----------- eth0
#     10.1.0.2   10.1.0.1 |            ^ 10.2.0.1    10.2.0.2
#                         `-- utun8 -- proxy
#
# Every socket uses cubic, the proxy's too. Every round goes through all cells in a new order; the table at the end sets
# each sample against the direct one of its round. Linux only, as root. Nothing is left behind, however it ends: the
# networks go with the processes in them.

set -euo pipefail

cd "$(dirname "$0")/.."
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    printf 'proxy-bench: %s\n' "$*" >&2
    exit 2
}

number() {
    [[ ${2:-} =~ ^[1-9][0-9]{0,3}$ ]] || fail "$1 ${2:-} is no number from 1 to 9999"
    printf '%s' "$2"
}

# In namespaces of our own: the networks, the load, the table.
inside() {
    # ip keeps the names of networks here; this place is seen by nobody else.
    mount -t tmpfs none /run
    local network
    for network in client middle server; do
        ip netns add "$network"
        ip -n "$network" link set lo up
        ip netns exec "$network" sh -c 'cd /proc/sys/net/ipv4; echo 1 >ip_forward
            echo 0 >conf/all/rp_filter; echo 0 >conf/default/rp_filter'
    done
    join client to-client 10.1.0
    join server to-server 10.2.0
    exec python3 scripts/proxy-bench.py "$@"
}

# One end network, the interface to it in the middle, and the network that both are in.
join() {
    ip -n middle link add "$2" type veth peer name eth0 netns "$1"
    attach middle "$2" "$3" 1
    attach "$1" eth0 "$3" 2
    ip -n "$1" route add default via "$3.1" congctl cubic
}

# The routes name the congestion control: a namespace may not make any but the machine's own its default.
attach() {
    ip -n "$1" address add "$3.$4/24" dev "$2"
    ip -n "$1" link set "$2" up
    ip -n "$1" route replace "$3.0/24" dev "$2" proto kernel scope link src "$3.$4" congctl cubic
}

if [[ ${1:-} == inside ]]; then
    shift
    inside "$@"
fi

stacks=(lwip ipstack smoltcp)
runs=5
seconds=3
out=target/proxy.jsonl
while [[ $# -gt 0 ]]; do
    case $1 in
    -h | --help) sed -n '3,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    --netstack) stacks=("${2:?--netstack wants a name}") && shift 2 ;;
    --runs) runs=$(number "$1" "${2:-}") && shift 2 ;;
    --time) seconds=$(number "$1" "${2:-}") && shift 2 ;;
    --out) out=${2:?--out wants a file} && shift 2 ;;
    --) shift && break ;;
    *) fail "unknown argument $1; see --help" ;;
    esac
done
[[ ${stacks[*]} =~ ^(lwip|ipstack|smoltcp|lwip ipstack smoltcp)$ ]] || fail "--netstack is lwip, ipstack or smoltcp"

[[ $(uname -s) == Linux ]] || fail "network namespaces are Linux's"
missing=()
for tool in ip:iproute2 iperf3:iperf3 unshare:util-linux setpriv:util-linux mount:mount python3:python3; do
    command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
[[ ${#missing[@]} -eq 0 ]] || fail "missing: ${missing[*]}; install them with: apt-get install ${missing[*]}"
[[ -c /dev/net/tun ]] || fail "there is no /dev/net/tun; load it with: modprobe tun"
build="cargo build --release --example proxy"
[[ $(id -u) -eq 0 ]] || fail "networks take root: run it with sudo, after a build as yourself: $build"

# Under sudo a build would leave files of root's behind.
if [[ -z ${SUDO_USER:-} ]]; then
    cargo build --release --quiet --locked --example proxy
fi
program=${CARGO_TARGET_DIR:-target}/release/examples/proxy
[[ -x $program ]] || fail "there is nothing to run; build it first, as yourself: $build"

mkdir -p "$(dirname "$out")"
commit=$(git describe --always --dirty 2>/dev/null || printf 'unknown')
# The first process of the namespaces takes all others along when it ends, which it does with this one.
setpriv --pdeathsig KILL unshare --mount --net --pid --fork --kill-child --mount-proc \
    scripts/proxy-bench.sh inside run --program "$program" --commit "$commit" \
    --runs "$runs" --time "$seconds" --out "$out" --netstack "${stacks[@]}" -- "$@" &
namespaces=$!
trap 'kill -KILL "$namespaces" 2>/dev/null || true' EXIT
wait "$namespaces"
