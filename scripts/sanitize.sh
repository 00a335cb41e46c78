#!/usr/bin/env bash
#
# Runs the code with `unsafe` in it under the address sanitizer, and lwIP's C also under the one for undefined behaviour: the
# tests of platform with real TUN devices, those of lwip-sys and netstacks, and the cases of conformance. Ends with 1 if one
# finds something. Says SKIP where a tool is missing.
#
# Not Miri: it runs neither C nor most of these system calls.
#
#     scripts/sanitize.sh              run
#     scripts/sanitize.sh --cflags     print the flags for lwIP's C

set -euo pipefail

cd "$(dirname "$0")/.."

# An error ends the process.
cflags="-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
if [[ ${1:-} == --cflags ]]; then
    printf '%s\n' "$cflags"
    exit
fi
[[ $# -eq 0 ]] || { printf '%s: unknown argument %s\n' "$0" "$1" >&2 && exit 2; }

skip() {
    printf 'SKIP sanitizers: %s\n' "$1"
    exit 0
}
cargo +nightly --version >/dev/null 2>&1 || skip "there is no nightly compiler (rustup toolchain install nightly)"
command -v clang >/dev/null || skip "there is no clang"

host=$(rustc -vV | sed -n 's/^host: //p')
export CC=clang
export "CFLAGS_${host//-/_}=$cflags"
export RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes"
export CARGO_TARGET_DIR=target/sanitize CARGO_INCREMENTAL=0

# Only lwIP has much `unsafe` code. The one block for smoltcp runs under the sanitizer in its fuzz target. The cases of the
# other stacks could only fail by their time, which the sanitizer stretches; those of lwIP have their retries
# (`conformance/tests/scorecard.rs`).
cargo +nightly test --locked --target "$host" --no-fail-fast -p rust-tun-perf-lwip-sys -p rust-tun-perf-platform \
    -p rust-tun-perf-netstacks -p rust-tun-perf-conformance --lib --tests \
    --no-default-features --features rust-tun-perf-netstacks/lwip,rust-tun-perf-conformance/lwip \
    -- --skip buffers_of_connections_do_not_stay_in_the_heap # The allocator is the sanitizer's here, and not glibc's.
