#!/usr/bin/env bash
#
# Type-checks the whole workspace with its tests for Windows and macOS on a Linux machine, and compiles
# lwIP's C for them. Type-checks everything but lwIP for FreeBSD, as an example of the systems that have
# no file of their own. So the code for systems that we do not run on is at least checked.
#
#     scripts/cross-check.sh          type-check for x86_64-pc-windows-gnu and aarch64-apple-darwin
#     scripts/cross-check.sh --run    then also run the tests of platform and netstacks, and the program, under Wine
#     scripts/cross-check.sh --run-if-changed   the same, unless it has passed for these files before
#     scripts/cross-check.sh --emulate          run tests of platform, netstacks and conformance for other processors, under qemu-user
#     scripts/cross-check.sh --emulate-if-changed   the same, unless it has passed for these files before
#
# A --run that passes in a clean working tree writes the hashes of the files on which the result depends to
# .ci/cross-checked, and an --emulate to .ci/emulated. Commit these files.
#
# The standard library is built from source, so Debian's packages are enough and rustup is not needed.
# MinGW compiles the C for Windows. zig, which has the headers of macOS, compiles the C for macOS.
# Linking for macOS would need Apple's SDK, but a check needs no linker. Under Wine the tests run with
# the calling convention, sizes and events of Windows, but without Wintun's driver. The program runs
# with a library for tests in its place: see scripts/wine.sh.
#
# The other processors are aarch64, and powerpc: it has 32 bits, big-endian order, and no 64-bit atomics. An emulated
# processor is about ten times slower, so the cases of the scorecard have more patience. The scorecard runs for lwIP and
# smoltcp, over both kinds of links: failures of the other stacks are mostly those of their crates. A test may be in
# NOT_EMULATED only if the reason lies in qemu-user. Each has its line with SKIP.
#
# PACKAGES="rust-tun-perf-platform rust-tun-perf-netstacks" limits the check to these packages.

set -euo pipefail

readonly WINDOWS=x86_64-pc-windows-gnu
readonly MACOS=aarch64-apple-darwin
readonly OTHER=x86_64-unknown-freebsd
readonly CARGO=/usr/bin/cargo
readonly ZIG_VERSION=0.17.0
# The result depends on these. The other packages leave the differences between systems to platform.
readonly SOURCES=(Cargo.toml Cargo.lock platform netstacks conformance forwarders scripts/cross-check.sh scripts/wine.sh scripts/wine)
readonly PASSED=.ci/cross-checked
# The same for other processors. The tests call the bodies of the fuzz targets.
readonly EMULATED_SOURCES=(Cargo.toml Cargo.lock platform netstacks conformance fuzz scripts/cross-check.sh)
readonly EMULATED_PASSED=.ci/emulated
# Each processor: its name in Rust, in qemu, and in Debian's packages.
readonly EMULATED=(aarch64:aarch64:arm64 powerpc:ppc:powerpc)
# Tests that fail by the emulator: the processor in Rust or "all", the beginning of their names, and the reason.
readonly NOT_EMULATED=(
    "powerpc namespace::tests::joined_networks: qemu-user passes on the messages that make a veth interface with its own order of bytes"
    "powerpc socket::tests::datagrams_arrive: qemu-user does not translate the control messages of UDP_GRO"
    "all socket::tests::a_connection_knows_reno: qemu-user does not have TCP_INFO"
    "powerpc sampled::: libgcc aborts when it unwinds the signal frames of qemu-user, in a program in C too"
    "all lwip::tests::fault::a_failed: each starts itself as another process, without the emulator; these processes run one by one"
)

cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="$PWD/target/cross"
export RUSTC=/usr/bin/rustc
# build-std is unstable. With this variable a stable compiler accepts it.
export RUSTC_BOOTSTRAP=1
readonly TOOLS="$CARGO_TARGET_DIR/tools"

scratch=$(mktemp -d)
clean_up() {
    # A job in the background takes no interrupt from the terminal.
    local job
    for job in $(jobs -p); do
        kill "$job" 2>/dev/null || true
    done
    # Wine's server runs longer than its programs, and would still write to the folder.
    if [[ -d $scratch/wine ]]; then
        WINEPREFIX="$scratch/wine" wineserver -k || true
    fi
    # A program that is just ending may still write. Then a temporary folder is left.
    rm -rf "$scratch" || true
}
trap clean_up EXIT

say() { printf '== %s\n' "$*" >&2; }
fail() {
    printf 'cross-check: %s\n' "$*" >&2
    exit 1
}

# Installs Debian packages, or says which ones are missing.
install() {
    if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
        fail "missing: $*; install them with: apt-get install $*"
    fi
    say "installing $*"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_tools() {
    local missing=()
    [[ -x $RUSTC ]] || missing+=(rustc-web)
    [[ -x $CARGO ]] || missing+=(cargo-web)
    [[ -x $RUSTC && -e $("$RUSTC" --print sysroot)/lib/rustlib/src/rust/library/std ]] || missing+=(rust-web-src)
    command -v x86_64-w64-mingw32-gcc >/dev/null || missing+=(gcc-mingw-w64-x86-64)
    if [[ ${#missing[@]} -gt 0 ]]; then
        install "${missing[@]}"
    fi
    if ! PYTHONPATH="$TOOLS/python" python3 -c 'import ziglang' 2>/dev/null; then
        python3 -m pip --version >/dev/null 2>&1 || install python3-pip
        say "fetching zig $ZIG_VERSION"
        python3 -m pip install --quiet --no-cache-dir --target "$TOOLS/python" "ziglang==$ZIG_VERSION" ||
            fail "no ziglang from PyPI; see that python3 and pip are installed and PyPI within reach"
    fi
}

# zig as a compiler for macOS. It has its own target and SDK, so the options of the cc crate for these are removed.
write_compilers() {
    mkdir -p "$TOOLS/bin" "$TOOLS/no-sdk"
    cat >"$TOOLS/bin/macos-cc" <<'WRAPPER'
#!/usr/bin/env bash
set -euo pipefail
export PYTHONPATH="${BASH_SOURCE[0]%/bin/*}/python"
# When the cc crate asks for the version, zig leaves an empty a.o in the current folder, which must not be the sources.
case $* in
*'-?'* | *--version*) cd "$(dirname "${BASH_SOURCE[0]}")" ;;
esac
arguments=()
while [[ $# -gt 0 ]]; do
    case $1 in
    --target=* | -mmacosx-version-min=* | -mmacos-version-min=*) ;;
    -arch | -target | -isysroot) shift ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
exec python3 -m ziglang cc -target aarch64-macos "${arguments[@]}"
WRAPPER
    cat >"$TOOLS/bin/macos-ar" <<'WRAPPER'
#!/usr/bin/env bash
set -euo pipefail
export PYTHONPATH="${BASH_SOURCE[0]%/bin/*}/python"
exec python3 -m ziglang ar "$@"
WRAPPER
    chmod +x "$TOOLS/bin/macos-cc" "$TOOLS/bin/macos-ar"
    export CC_aarch64_apple_darwin="$TOOLS/bin/macos-cc"
    export AR_aarch64_apple_darwin="$TOOLS/bin/macos-ar"
    export CC_x86_64_pc_windows_gnu=x86_64-w64-mingw32-gcc
    export AR_x86_64_pc_windows_gnu=x86_64-w64-mingw32-ar
    # Otherwise the cc crate asks xcrun for the path of Apple's SDK.
    export SDKROOT="$TOOLS/no-sdk"
}

# Runs cargo COMMAND with the other arguments.
cross() {
    local command=$1
    shift
    local locked=()
    if [[ -f Cargo.lock ]]; then
        locked=(--locked)
    fi
    "$CARGO" "$command" "${locked[@]}" -Zbuild-std=std,panic_unwind "$@"
}

check() {
    local package selection=(--workspace) failed=()
    if [[ -n ${PACKAGES:-} ]]; then
        selection=()
        for package in $PACKAGES; do
            selection+=(--package "$package")
        done
    fi
    # Warnings of the workspace are errors here. One call for both systems uses the processors better.
    say "checking for $WINDOWS and $MACOS"
    CARGO_BUILD_WARNINGS=deny cross check --target "$WINDOWS" --target "$MACOS" "${selection[@]}" --all-targets -Zwarnings ||
        failed+=("$WINDOWS or $MACOS")
    if [[ -z ${PACKAGES:-} ]]; then
        say "checking for $OTHER"
        # Its tests are the same as on macOS.
        CARGO_BUILD_WARNINGS=deny cross check --target "$OTHER" --workspace --exclude rust-tun-perf-lwip-sys -Zwarnings \
            --no-default-features --features smoltcp,ipstack || failed+=("$OTHER")
    fi
    [[ ${#failed[@]} -eq 0 ]] || fail "the check failed for ${failed[*]}"
}

run_tests() {
    local package executables executable selection=() status=0
    command -v wine >/dev/null || install wine wine64
    export WINEPREFIX="$scratch/wine" WINEDEBUG=-all
    for package in ${PACKAGES:-rust-tun-perf-platform rust-tun-perf-netstacks}; do
        selection+=(--package "$package")
    done
    say "building the tests for $WINDOWS"
    cross test --target "$WINDOWS" "${selection[@]}" --no-run --message-format=json >"$scratch/messages"
    executables=$(python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"]:
        print(message["executable"])' <"$scratch/messages")
    [[ -n $executables ]] || fail "there are no tests for $WINDOWS"
    while read -r executable; do
        x86_64-w64-mingw32-gcc -shared -O2 -o "$(dirname "$executable")/bcryptprimitives.dll" \
            scripts/wine/bcryptprimitives.c -ladvapi32
        say "running $(basename "$executable") under Wine"
        # Most tests wait for timers, so there are more threads than processors.
        timeout 1500 wine "$executable" --show-output --test-threads=$((2 * $(nproc))) </dev/null || status=1
    done <<<"$executables"
    [[ $status -eq 0 ]] || fail "tests failed under Wine"
    if [[ -z ${PACKAGES:-} ]]; then
        say "running the program under Wine"
        cross build --target "$WINDOWS"
        scripts/wine.sh "$CARGO_TARGET_DIR/$WINDOWS/debug/rust-tun-perf.exe"
    fi
}

# Runs tests of TARGET under qemu-user. The other arguments are those of cargo test. The packages are always the same, so
# nothing is built twice.
emulated() {
    local target=$1
    shift
    "$CARGO" test --locked -Zbuild-std=std,panic_unwind --target "$target" --no-fail-fast \
        --package rust-tun-perf-platform --package rust-tun-perf-netstacks --package rust-tun-perf-conformance "$@" </dev/null
}

# Runs the tests for a processor: NAME, TARGET. Starts its scorecard, which writes to a file and waits most of the time.
emulate_one() {
    local name=$1 target=$2 entry where test skip=() status=0
    for entry in "${NOT_EMULATED[@]}"; do
        where=${entry%% *} entry=${entry#* }
        if [[ $where == all || $where == "$name" ]]; then
            printf 'SKIP under qemu-user for %s: %s\n' "$name" "$entry"
            skip+=(--skip "${entry%%: *}")
        fi
    done
    say "building the tests for $name"
    emulated "$target" --lib --test it --test scorecard --no-run || return 1
    emulated "$target" --test scorecard -- --nocapture --exact lwip smoltcp >"$scratch/scorecard-$name" 2>&1 &
    scorecards[$name]=$!
    say "testing platform, netstacks and conformance for $name"
    emulated "$target" --lib --test it -- "${skip[@]}" || status=1
    say "testing, one by one, failed assertions of lwIP for $name"
    emulated "$target" --lib -- --ignored --list lwip::tests::fault:: >"$scratch/alone" && grep -q ': test$' "$scratch/alone" || status=1
    while read -r test; do
        emulated "$target" --quiet --lib -- --ignored --exact "$test" || status=1
    done < <(sed -n 's/: test$//p' "$scratch/alone")
    return "$status"
}

emulate() {
    local processor name qemu debian target missing=() failed=()
    local -A scorecards=()
    for processor in "${EMULATED[@]}"; do
        IFS=: read -r name qemu debian <<<"$processor"
        command -v "qemu-$qemu-static" >/dev/null || missing+=(qemu-user-static)
        command -v "$name-linux-gnu-gcc" >/dev/null || missing+=("gcc-$name-linux-gnu" "libc6-dev-$debian-cross")
    done
    if [[ ${#missing[@]} -gt 0 ]]; then
        install "${missing[@]}"
    fi
    # Optimised code is emulated faster. Overflows still panic.
    export CARGO_PROFILE_DEV_OPT_LEVEL=1 CONFORMANCE_PATIENCE=10
    for processor in "${EMULATED[@]}"; do
        IFS=: read -r name qemu debian <<<"$processor"
        target=$name-unknown-linux-gnu
        export "CC_${target//-/_}=$name-linux-gnu-gcc" "AR_${target//-/_}=$name-linux-gnu-ar"
        export "CARGO_TARGET_${name^^}_UNKNOWN_LINUX_GNU_LINKER=$name-linux-gnu-gcc"
        export "CARGO_TARGET_${name^^}_UNKNOWN_LINUX_GNU_RUNNER=timeout 1500 qemu-$qemu-static -L /usr/$name-linux-gnu"
        emulate_one "$name" "$target" || failed+=("$name")
    done
    for name in "${!scorecards[@]}"; do
        wait "${scorecards[$name]}" || failed+=("the scorecard for $name")
        say "the scorecard of lwIP and smoltcp for $name"
        cat "$scratch/scorecard-$name"
    done
    [[ ${#failed[@]} -eq 0 ]] || fail "tests failed for ${failed[*]}"
    keep "$EMULATED_PASSED" "${EMULATED_SOURCES[@]}"
}

# The hashes of these committed sources.
sources() {
    git ls-tree HEAD -- "$@"
}

# Whether these sources in the working tree are the committed ones, and have passed before.
has_passed() {
    local file=$1
    shift
    is_clean "$@" && [[ -f $file && $(sources "$@") == "$(<"$file")" ]]
}

is_clean() {
    git diff --quiet HEAD -- "$@"
}

# Notes that these sources have passed.
keep() {
    local file=$1
    shift
    if [[ -z ${PACKAGES:-} ]] && is_clean "$@"; then
        sources "$@" >"$file"
        say "commit $file"
    fi
}

readonly BEFORE="these files have passed before"
case ${1:-} in
"" | --run | --emulate) ;;
--run-if-changed)
    if has_passed "$PASSED" "${SOURCES[@]}"; then
        say "$BEFORE; --run checks them again"
        exit 0
    fi
    ;;
--emulate-if-changed)
    if has_passed "$EMULATED_PASSED" "${EMULATED_SOURCES[@]}"; then
        say "$BEFORE; --emulate checks them again"
        exit 0
    fi
    ;;
-h | --help) sed -n '3,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
*) fail "unknown argument $1; see --help" ;;
esac
install_tools
if [[ ${1:-} == --emulate* ]]; then
    emulate
    say "all good"
    exit 0
fi
write_compilers
check
if [[ ${1:-} == --run* ]]; then
    run_tests
    keep "$PASSED" "${SOURCES[@]}"
fi
say "all good"
