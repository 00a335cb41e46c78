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
coproc "$sources/tun.py" 10.10.10.9/24 1500 2>"$scratch/devices"
helper=$COPROC_PID
read -r RTP_TUN_PORT <&"${COPROC[0]}"
export RTP_TUN_PORT WINEPREFIX="$scratch/wine" WINEDEBUG=-all WINEDLLOVERRIDES="iphlpapi=n,b;mscoree,mshtml="

# Runs the program with these arguments. Its output is in out and err, its exit code in code.
try() {
    code=0
    timeout 120 wine "$scratch/rust-tun-perf.exe" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || code=$?
}

# Runs it with a new adapter. Then the adapter must be gone.
run() {
    adapters=$((adapters + 1))
    try "$@" --tun-name "wine$adapters"
    gone "wine$adapters" "$*"
}

gone() {
    for ((i = 0; i < 50; i++)); do
        ip link show "$1" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    fail "$2: the adapter is still there"
}

# The last run must have ended with this exit code: CASE CODE TEXT... All texts must be in its error.
ended() {
    local case=$1 expected=$2 text
    shift 2
    for text in "$@"; do
        grep error: "$scratch/err" | grep -qF -- "$text" || fail "$case: no \"$text\" in the error"
    done
    [[ $code -eq $expected ]] || fail "$case: exit code $code"
    say "$case: exit code $code; $(grep error: "$scratch/err" || tail -n 1 "$scratch/out")"
}

# How many lines of a file are this one: FILE LINE
lines() {
    grep -cE "^$2" "$scratch/$1" || true
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

# Wintun fails now and then. The last try has another GUID.
quick=(--mode reader --netstack smoltcp --bytes 1MB --warmup 0 --timeout 60)
for error in 183 2 258 1168 4319; do
    RTP_TUN_FAIL=2:$error run "${quick[@]}"
    tries=$(sed -n 's/^wintun: creation with //p' "$scratch/err" | uniq | wc -l)
    [[ $tries -eq 2 && $(lines err "wintun: creation") -eq 3 ]] || fail "two failures with $error: wrong tries"
    ended "two failures with $error" 0
done
RTP_TUN_FAIL=3:1168 run "${quick[@]}"
ended "three failures" 1 "create Wintun adapter wine$adapters" "os error 1168" "Failed to set up the adapter" "run again"
RTP_TUN_FAIL=1:5 run "${quick[@]}"
[[ $(lines err "wintun: creation") -eq 1 ]] || fail "no administrator: it was tried again"
ended "no administrator" 3 "create Wintun adapter wine$adapters" "run as administrator"

# A deleted adapter keeps its name for a while.
RTP_TUN_LINGER=3000 try "${quick[@]}" --tun-name lingers
ip link show lingers >/dev/null 2>&1 || fail "a deletion that lingers: the adapter is gone"
try "${quick[@]}" --tun-name lingers
ended "an adapter that is going away" 0
gone lingers "a deletion that lingers"

# A matrix makes one adapter. Each run opens it: a check and two runs of each cell.
try matrix --netstack smoltcp --mode reader --runs 2 --bytes 1MB --warmup 0 --tun-name matrix
[[ $(lines devices "made matrix") -eq 1 && $(lines devices "opened matrix") -eq 6 ]] || fail "the matrix made other adapters"
ended "a matrix with one adapter" 0
gone matrix "a matrix"

# The name and the address.
ip tuntap add dev other mode tap
try "${quick[@]}" --tun-name other
ended "the name of another kind of adapter" 2 "create Wintun adapter other" "choose another one"
ip link delete other
try "${quick[@]}" --tun-name a/b
ended "a name with a slash" 2 "name the device" "must not"
ip address add 10.10.10.9/32 dev lo
run "${quick[@]}"
ended "an address in use" 2 "use the address 10.10.10.9" "--tun-addr"
ip address delete 10.10.10.9/32 dev lo
timeout 120 wine "$scratch/rust-tun-perf.exe" --mode reader --netstack smoltcp --time 20 --tun-name both >"$scratch/first" 2>&1 </dev/null &
first=$!
under_way both
try "${quick[@]}" --tun-name both
ended "two runs at once, the second" 2 "create Wintun adapter both" "choose another one"
wait "$first" || fail "two runs at once: the first failed: $(<"$scratch/first")"
gone both "two runs at once"

RTP_TUN_CORRUPT=1000 run --mode writer --netstack smoltcp --time 30
ended "a corrupt ring" 1 "corrupt" "wine$adapters" "lower the rate"

# The adapter goes away during the run.
(under_way "wine$((adapters + 1))" && kill -USR1 "$helper") &
run --mode reader --netstack smoltcp --time 30
wait $!
ended "the adapter went away" 1 device-lost "wine$adapters was removed"

# A terminal sends Ctrl-C.
(under_way terminal && printf '\003') | timeout 60 script -qec \
    "wine $scratch/rust-tun-perf.exe --tun-name terminal --mode reader --netstack smoltcp --time 30" "$scratch/out" >/dev/null && code=0 || code=$?
if [[ $code -ne 130 ]]; then fail "Ctrl-C: exit code $code"; fi
ip link show terminal >/dev/null 2>&1 && fail "Ctrl-C: the adapter is still there"
say "Ctrl-C: exit code $code"

# A library that is of no use: of another architecture, and a part of one.
python3 - "$scratch/wintun.dll" "$scratch" <<'PYTHON'
import struct, sys
library = bytearray(open(sys.argv[1], "rb").read())
open(sys.argv[2] + "/part", "wb").write(library[:2000])
struct.pack_into("<H", library, struct.unpack_from("<I", library, 60)[0] + 4, 0xAA64)
open(sys.argv[2] + "/other", "wb").write(library)
PYTHON
for file in other part; do
    cp "$scratch/$file" "$scratch/wintun.dll"
    run "${quick[@]}"
    ended "a library that does not load" 3 "wintun.dll: it is damaged, or for another kind of processor" "remove it"
done

# Without one, the program writes its own. Wine has no drivers for it.
rm "$scratch/wintun.dll"
own=$(printf '%s/wine/drive_c/users/%s/AppData/Local/rust-tun-perf' "$scratch" "$(id -un)")
run "${quick[@]}"
[[ $(find "$own" -type f | wc -l) -eq 1 && -s $(echo "$own"/*/wintun.dll) ]] || fail "the program did not write its library"
ended "the library of the program" 1 "create Wintun adapter wine$adapters"
rm -r "$own"
touch "$own"
run "${quick[@]}"
ended "a folder that cannot be written" 3 "write C:" "wintun.dll" "let the folder be writable"
