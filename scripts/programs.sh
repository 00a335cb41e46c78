#!/usr/bin/env bash
#
# Installs the programs that have a profile: with cargo tun2proxy, boringtun and gotatun, with go sing-box and wireguard-go, and on
# Debian, as root, slirp4netns, pasta and wg. A program that is there already is left alone.
#
#     scripts/programs.sh

set -euo pipefail

has() { command -v "$1" >/dev/null || [[ -x $(go env GOPATH 2>/dev/null)/bin/$1 ]]; }

has tun2proxy-bin || cargo install tun2proxy --version 0.8.7 --locked
has boringtun-cli || cargo install boringtun-cli --version 0.7.1 --locked
has gotatun || cargo install gotatun-cli --version 0.10.2 --locked
has sing-box || go install -tags with_gvisor github.com/sagernet/sing-box/cmd/sing-box@v1.14.1
has wireguard || go install golang.zx2c4.com/wireguard@v0.0.0-20260522210424-ecfc5a8d5446
missing=()
for program in slirp4netns:slirp4netns pasta:passt wg:wireguard-tools; do
    has "${program%%:*}" || missing+=("${program##*:}")
done
if [[ ${#missing[@]} -gt 0 ]]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
printf 'installed; the folder of go is %s/bin, which must be in PATH\n' "$(go env GOPATH)"
