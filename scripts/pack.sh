#!/usr/bin/env bash
#
# Packs the release build of a target as target/packed/rust-tun-perf-TARGET-vVERSION.tgz (.zip for Windows): the program, its
# licence, the manual page and the completions. cargo binstall finds it by this name.
#
#     cargo build --release --locked --target x86_64-unknown-linux-gnu
#     scripts/pack.sh x86_64-unknown-linux-gnu

set -euo pipefail

cd "$(dirname "$0")/.."
target=${1:?usage: scripts/pack.sh TARGET}
version=$(grep -m 1 '^version = ' Cargo.toml | cut -d '"' -f 2)
name=rust-tun-perf-$target-v$version
built=${CARGO_TARGET_DIR:-target}/$target/release
folder=target/packed/$name

suffix=
if [[ $target == *windows* ]]; then suffix=.exe; fi
rm -rf "$folder"
mkdir -p "$folder/completions"
cp "$built/rust-tun-perf$suffix" LICENSE README.md CHANGELOG.md "$folder"
if [[ $target == *windows* ]]; then cp "$built/wintun.dll" "$folder"; fi
program=$folder/rust-tun-perf$suffix
"$program" man >"$folder/rust-tun-perf.1"
for shell in bash zsh fish powershell elvish; do
    "$program" completions "$shell" >"$folder/completions/rust-tun-perf.$shell"
done

cd target/packed
if [[ $target == *windows* ]]; then
    rm -f "$name.zip"
    if command -v 7z >/dev/null; then 7z a -bso0 "$name.zip" "$name"; else zip -qr "$name.zip" "$name"; fi
else
    tar -czf "$name.tgz" "$name"
fi
rm -r "$name"
