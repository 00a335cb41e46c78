#!/usr/bin/env bash
#
# Packs the release build of a target as target/packed/rust-tun-perf-TARGET-vVERSION.tgz (.zip for Windows): the program, its
# licences, the manual page and the completions. cargo binstall finds it by this name.
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
# The program for Windows contains Wintun's library, which is under a licence of its own: it lies in the package of the wintun crate.
if [[ $target == *windows* ]]; then
    metadata=$(cargo metadata --format-version 1 --locked --filter-platform "$target" | grep -oE '"[^"]*[/\\]wintun(-[0-9.]+)?[/\\]+Cargo.toml"')
    package=$(dirname "$(head -n 1 <<<"$metadata" | tr -d '"' | tr -s '\134' /)")
    cp "$package/wintun/LICENSE.txt" "$folder/LICENSE-wintun.txt"
fi
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
