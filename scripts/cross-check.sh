#!/usr/bin/env bash
#
# Type-checks the whole workspace with its tests for Windows and macOS on a Linux machine, and compiles
# lwIP's C for them. Type-checks everything but lwIP for FreeBSD, as an example of the systems that have
# no file of their own. So the code for systems that we do not run on is at least checked.
#
#     scripts/cross-check.sh          type-check for x86_64-pc-windows-gnu and aarch64-apple-darwin
#     scripts/cross-check.sh --run    then also run the tests of platform and netstacks, and the program, under Wine
#     scripts/cross-check.sh --run-if-changed   the same, unless it has passed for these files before
#     scripts/cross-check.sh --emulate   run tests of platform, netstacks and conformance for other processors, under qemu-user
#
# A --run that passes in a clean working tree writes the hashes of the files on which the result depends to
# .ci/cross-checked. Commit that file.
#
# The standard library is built from source, so Debian's packages are enough and rustup is not needed.
# MinGW compiles the C for Windows. zig, which has the headers of macOS, compiles the C for macOS.
# Linking for macOS would need Apple's SDK, but a check needs no linker. Under Wine the tests run with
# the calling convention, sizes and events of Windows, but without Wintun's driver. The program runs
# with a library for tests in its place: see scripts/wine.sh.
#
# The other processors are aarch64, and powerpc: it has 32 bits, big-endian order, and no 64-bit atomics. An emulated
# processor is about ten times slower, and qemu-user hands some system calls on as they are, in the order of its own bytes.
# So these tests run: everything over links in memory, and the scorecard of lwIP and smoltcp with more patience. Each other
# one has its line with SKIP.
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
# Each processor: its name in Rust, in qemu, and in Debian's packages.
readonly EMULATED=(aarch64:aarch64:arm64 powerpc:ppc:powerpc)
readonly PASSED=.ci/cross-checked

cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="$PWD/target/cross"
export RUSTC=/usr/bin/rustc
# build-std is unstable. With this variable a stable compiler accepts it.
export RUSTC_BOOTSTRAP=1
readonly TOOLS="$CARGO_TARGET_DIR/tools"

scratch=$(mktemp -d)
clean_up() {
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

# Runs the tests of a package for TARGET under qemu-user. The other arguments are those of cargo test.
emulated() {
    local target=$1 package=$2
    shift 2
    say "testing $package for $target"
    timeout 1500 "$CARGO" test --locked -Zbuild-std=std,panic_unwind --target "$target" --package "rust-tun-perf-$package" "$@" </dev/null
}

emulate() {
    local name qemu debian target tools missing=() failed=()
    command -v qemu-ppc-static >/dev/null || missing+=(qemu-user-static)
    for processor in "${EMULATED[@]}"; do
        IFS=: read -r name qemu debian <<<"$processor"
        command -v "$name-linux-gnu-gcc" >/dev/null || missing+=("gcc-$name-linux-gnu" "libc6-dev-$debian-cross")
    done
    if [[ ${#missing[@]} -gt 0 ]]; then
        install "${missing[@]}"
    fi
    # Optimised code is emulated faster. Overflows still panic.
    export CARGO_PROFILE_DEV_OPT_LEVEL=1 CONFORMANCE_PATIENCE=10
    echo "SKIP under qemu-user: TUN devices, namespaces, options of kernel sockets and profiles, for it does not translate their" \
        "system calls; the counts of work.snap, which are those of 64-bit systems; the scorecard of stacks that are not ours"
    for processor in "${EMULATED[@]}"; do
        IFS=: read -r name qemu debian <<<"$processor"
        target=$name-unknown-linux-gnu tools=$name-linux-gnu
        export "CC_${target//-/_}=$tools-gcc" "AR_${target//-/_}=$tools-ar"
        export "CARGO_TARGET_${name^^}_UNKNOWN_LINUX_GNU_LINKER=$tools-gcc"
        export "CARGO_TARGET_${name^^}_UNKNOWN_LINUX_GNU_RUNNER=qemu-$qemu-static -L /usr/$tools"
        emulated "$target" platform --lib --test it -- --skip namespace:: --skip socket:: --skip sampled:: ||
            failed+=("platform for $name")
        emulated "$target" netstacks --lib --test it -- --skip kernel:: || failed+=("netstacks for $name")
        emulated "$target" conformance --lib --test scorecard -- --test-threads=1 --exact --show-output lwip smoltcp ||
            failed+=("the scorecard for $name")
    done
    [[ ${#failed[@]} -eq 0 ]] || fail "tests failed: ${failed[*]}"
}

# The hashes of the committed sources.
sources() {
    git ls-tree HEAD -- "${SOURCES[@]}"
}

# Whether the sources in the working tree are the committed ones.
is_clean() {
    git diff --quiet HEAD -- "${SOURCES[@]}"
}

case ${1:-} in
"" | --run | --emulate) ;;
--run-if-changed)
    if is_clean && [[ -f $PASSED && $(sources) == "$(<"$PASSED")" ]]; then
        say "these files have passed before; --run checks them again"
        exit 0
    fi
    ;;
-h | --help) sed -n '3,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
*) fail "unknown argument $1; there are --run, --run-if-changed and --emulate" ;;
esac
install_tools
if [[ ${1:-} == --emulate ]]; then
    emulate
    say "all good"
    exit 0
fi
write_compilers
check
if [[ ${1:-} == --run* ]]; then
    run_tests
    if [[ -z ${PACKAGES:-} ]] && is_clean; then
        sources >"$PASSED"
        say "commit $PASSED"
    fi
fi
say "all good"
