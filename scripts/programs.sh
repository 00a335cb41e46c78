#!/usr/bin/env bash
#
# Installs the programs that have a profile and can be built from the package registries: tun2proxy with cargo, sing-box with go.
# A program that is there already is left alone.
#
#     scripts/programs.sh

set -euo pipefail

has() { command -v "$1" >/dev/null || [[ -x $(go env GOPATH 2>/dev/null)/bin/$1 ]]; }

has tun2proxy-bin || cargo install tun2proxy --version 0.8.7 --locked
has sing-box || go install -tags with_gvisor github.com/sagernet/sing-box/cmd/sing-box@v1.14.1
printf 'installed; the folder of go is %s/bin, which must be in PATH\n' "$(go env GOPATH)"
