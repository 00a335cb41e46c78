#!/usr/bin/env bash
#
# Runs the fuzz targets, as many at once as there are processors, with the address sanitizer in Rust and C, and the one for
# undefined behaviour in lwIP's C. Each begins with its committed seeds and with what earlier runs have found. Ends with 1 if
# a target fails, and names the input. Says SKIP where a tool is missing.
#
#     scripts/fuzz.sh [SECONDS] [TARGET...]      60 seconds for every target

set -euo pipefail

cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[0-9]+$ ]] || { printf '%s: %s is no number of seconds\n' "$0" "$seconds" >&2 && exit 2; }
shift || true

skip() {
    printf 'SKIP fuzz targets: %s\n' "$1"
    exit 0
}
cargo +nightly --version >/dev/null 2>&1 || skip "there is no nightly compiler (rustup toolchain install nightly)"
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz --version 0.13.2
command -v clang >/dev/null || skip "there is no clang, which instruments lwIP"

# `fuzzer-no-link` counts the edges of lwIP's C, too.
host=$(rustc -vV | sed -n 's/^host: //p')
export CC=clang
export "CFLAGS_${host//-/_}=$(scripts/sanitize.sh --cflags) -fsanitize=fuzzer-no-link"
# The release profile with debug assertions, which cargo-fuzz adds, and without what makes a build slow: all optimisations
# took more than ten minutes.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_INCREMENTAL=0

mapfile -t targets < <(cargo +nightly fuzz list)
[[ $# -eq 0 ]] || targets=("$@")
printf 'building %s targets\n' "${#targets[@]}"
cargo +nightly fuzz build --no-cfg-fuzzing --codegen-units 16 --target "$host"

# The seeds of a target, or of its kind, as bytes.
plant() {
    local folder=fuzz/seeds/$1 corpus=fuzz/corpus/$1 seed
    [[ -d $folder ]] || folder=fuzz/seeds/${1%%_*}
    mkdir -p "$corpus" "fuzz/artifacts/$1"
    for seed in "$folder"/*; do
        case $seed in
        *.txt) cp "$seed" "$corpus/" ;;
        *.hex) sed 's/#.*//' "$seed" |
            python3 -c 'import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read()))' >"$corpus/${seed##*/}" ;;
        esac
    done
}

# Runs one target, and prints a line about it, or all that it said if it failed.
run() {
    local log=fuzz/artifacts/$1.log
    # A target that hangs, or takes all memory, has failed.
    if timeout --kill-after=10 $(($2 + 120)) "fuzz/target/$3/release/$1" "fuzz/corpus/$1" -max_total_time="$2" \
        -timeout=20 -rss_limit_mb=2048 -max_len=4096 -len_control=0 -artifact_prefix="fuzz/artifacts/$1/" \
        -print_final_stats=1 >"$log" 2>&1; then
        printf '%-24s %10s executions %8s edges\n' "$1" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
            "$(grep -o ' cov: [0-9]*' "$log" | tail -n 1 | grep -o '[0-9]*')"
    else
        tail -n 60 "$log"
        printf '%s FAILED; run it again with: cargo +nightly fuzz run %s INPUT, by the artifact above\n' "$1" "$1"
        return 1
    fi
}
export -f run

for target in "${targets[@]}"; do
    plant "$target"
done
printf '%s\0' "${targets[@]}" | xargs -0 -P "$(nproc)" -I '{}' bash -c 'run "$@"' run '{}' "$seconds" "$host" || exit 1
