#!/usr/bin/env bash
#
# Runs the Windows program end to end under Wine: its adapter is a TUN device of Linux, and its clients are sockets of Linux.
#
#     scripts/wine.sh PROGRAM.exe
#
# A wintun.dll for tests (scripts/wine/wintun.c) replaces the driver's. tun.py opens the device, and sets its address and MTU, because
# Wine 8 cannot (iphlpapi.c). All of this runs in a network namespace of its own, which needs root. docs/windows.md says what this
# shows and what it cannot show.

set -euo pipefail

program=$(realpath "${1:?usage: scripts/wine.sh PROGRAM.exe}")
sources=$(realpath "$(dirname "$0")/wine")
if [[ -z ${IN_NAMESPACE:-} ]]; then
    IN_NAMESPACE=yes exec unshare --net --kill-child "$0" "$program"
fi

# Wine remembers the names of interfaces that are gone, so each run has a new name.
adapters=0
scratch=$(mktemp -d)
helper=
clean_up() {
    [[ -z $helper ]] || kill "$helper" || true
    WINEPREFIX="$scratch/wine" wineserver -k || true
    rm -rf "$scratch" || true
}
trap clean_up EXIT

fail() {
    printf 'wine: %s\n' "$*" >&2
    for file in out err; do
        [[ ! -s $scratch/$file ]] || tail -n 20 "$scratch/$file" >&2
    done
    exit 1
}

compile() {
    x86_64-w64-mingw32-gcc -Wall -Wextra -Werror -O2 -shared -o "$scratch/$1.dll" "$sources/$1.c" "${@:2}"
}
compile wintun -lws2_32
compile iphlpapi "$sources/iphlpapi.def"
compile bcryptprimitives -ladvapi32
cp "$program" "$scratch/rust-tun-perf.exe"

ip link set lo up
coproc "$sources/tun.py" 10.10.10.9/24 1500
helper=$COPROC_PID
read -r RTP_TUN_PORT <&"${COPROC[0]}"
export RTP_TUN_PORT WINEPREFIX="$scratch/wine" WINEDEBUG=-all WINEDLLOVERRIDES="iphlpapi=n,b;mscoree,mshtml="

# Runs the program with these arguments. Its output is in out and err, its exit code in code. Then the adapter must be gone.
run() {
    code=0 adapters=$((adapters + 1))
    timeout 120 wine "$scratch/rust-tun-perf.exe" --tun-name "wine$adapters" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || code=$?
    for ((i = 0; i < 50; i++)); do
        ip link show "wine$adapters" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    fail "$*: the adapter is still there"
}

# Prints a count from the line that wintun.dll writes at the end of a session.
count() {
    sed -n "s/^wintun:.* \\([0-9]*\\) $1.*/\\1/p" "$scratch/err"
}

# Waits until this adapter exists and the run has begun. At its time limit it returns, and the run fails.
under_way() {
    for ((i = 0; i < 300; i++)); do
        ! ip link show "$1" >/dev/null 2>&1 || break
        sleep 0.2
    done
    sleep 2
}

say() { printf '%s\n' "$*"; }

# Every byte of every cell is compared with the pattern.
for stack in lwip ipstack smoltcp; do
    for runtime in current-thread multi-thread; do
        for mode in reader writer; do
            flag=()
            [[ $runtime == multi-thread ]] || flag=(--current-thread)
            run --mode "$mode" --netstack "$stack" "${flag[@]}" --bytes 10MB --warmup 1MB --verify full --timeout 90
            if [[ $code -ne 0 ]] || ! grep -q Gbps "$scratch/out"; then fail "$stack $runtime $mode: exit code $code"; fi
            say "$stack, $runtime: $(<"$scratch/out")"
        done
    done
done

run --mode rr --netstack smoltcp --time 1
[[ $code -eq 0 ]] || fail "requests: exit code $code"
say "requests: $(<"$scratch/out")"

run --mode idle --netstack smoltcp --parallel 100 --time 1
if [[ $code -ne 0 ]] || grep -q unknown "$scratch/out"; then fail "idle connections: exit code $code"; fi
say "idle connections: $(<"$scratch/out")"

# A full ring from the stack makes the stack wait. A full ring to the stack drops packets, which happens with a ring of one packet.
RTP_TUN_RING=131072 run --mode reader --netstack smoltcp --bytes 10MB --warmup 0 --verify full --timeout 90
if [[ $code -ne 0 || $(count refused) -eq 0 ]]; then fail "a full ring from the stack: exit code $code"; fi
say "a full ring from the stack: $(count refused) times no room; $(<"$scratch/out")"
RTP_TUN_RING=2048 run --mode writer --netstack smoltcp --bytes 500KB --warmup 0 --verify full --timeout 90
if [[ $code -ne 0 || $(count dropped) -eq 0 ]]; then fail "a full ring to the stack: exit code $code"; fi
say "a full ring to the stack: $(count dropped) packets dropped; $(<"$scratch/out")"

# The adapter goes away during the run.
(under_way "wine$((adapters + 1))" && kill -USR1 "$helper") &
run --mode reader --netstack smoltcp --time 30
wait $!
if [[ $code -ne 1 ]] || ! grep -q device-lost "$scratch/err"; then fail "the adapter went away: exit code $code"; fi
say "the adapter went away: $(grep error: "$scratch/err")"

# A terminal sends Ctrl-C.
(under_way terminal && printf '\003') | timeout 60 script -qec \
    "wine $scratch/rust-tun-perf.exe --tun-name terminal --mode reader --netstack smoltcp --time 30" "$scratch/out" >/dev/null && code=0 || code=$?
if [[ $code -ne 130 ]]; then fail "Ctrl-C: exit code $code"; fi
ip link show terminal >/dev/null 2>&1 && fail "Ctrl-C: the adapter is still there"
say "Ctrl-C: exit code $code"

rm "$scratch/wintun.dll"
run --mode reader --netstack smoltcp
if [[ $code -ne 3 ]] || ! grep -q wintun.dll "$scratch/err"; then fail "without the driver: exit code $code"; fi
say "without the driver: $(grep error: "$scratch/err")"
