#!/usr/bin/env bash
#
# Installs the programs that have a profile: with cargo tun2proxy, boringtun and gotatun, with go sing-box and wireguard-go, and on
# Debian, as root, slirp4netns, pasta and wg. A program that is there already is left alone.
#
#     scripts/programs.sh           # those of docs/programs.md
#     scripts/programs.sh --all     # and all others that have a tested profile

set -euo pipefail

all=${1:-}
if [[ -n $all && $all != --all ]]; then
    printf 'usage: scripts/programs.sh [--all]\n' >&2
    exit 2
fi

bin=$(go env GOPATH)/bin

has() { command -v "$1" >/dev/null || [[ -x $bin/$1 ]]; }

# hev-socks5-tunnel is a library in its crate.
install_hev() {
    local folder
    folder=$(mktemp -d)
    mkdir "$folder/src"
    cat >"$folder/Cargo.toml" <<'END'
[package]
name = "hev-socks5-tunnel"
version = "0.1.11"
edition = "2024"

[dependencies]
tun2socks = "=0.1.11"
END
    cat >"$folder/src/main.rs" <<'END'
fn main() {
    let argument = std::env::args_os().nth(1).expect("usage: hev-socks5-tunnel CONFIG");
    if argument == "--version" {
        return println!("hev-socks5-tunnel 2.19.3 of tun2socks 0.1.11");
    }
    if let Err(code) = tun2socks::main_from_file(argument.as_ref(), -1) {
        std::process::exit(code);
    }
}
END
    cargo install --path "$folder"
    rm -r "$folder"
}

install_xray() {
    go install github.com/xtls/xray-core/main@v1.260327.0
    mv "$bin/main" "$bin/xray"
}

has tun2proxy-bin || cargo install tun2proxy --version 0.8.7 --locked
has boringtun-cli || cargo install boringtun-cli --version 0.7.1 --locked
has gotatun || cargo install gotatun-cli --version 0.10.2 --locked
has sing-box || go install -tags with_gvisor github.com/sagernet/sing-box/cmd/sing-box@v1.14.1
has wireguard || go install golang.zx2c4.com/wireguard@v0.0.0-20260522210424-ecfc5a8d5446
packages=(slirp4netns:slirp4netns pasta:passt wg:wireguard-tools)
if [[ $all == --all ]]; then
    has hev-socks5-tunnel || install_hev
    has sslocal || cargo install shadowsocks-rust --version 1.25.0 --locked
    has xray || install_xray
    has vpncloud || cargo install vpncloud --version 2.3.0 --locked
    has quincy-client || cargo install quincy-client --version 3.1.1 --locked
    has quincy-server || cargo install quincy-server --version 3.1.1 --locked
    nebula=github.com/slackhq/nebula/cmd
    has nebula || go install $nebula/nebula@v1.10.3
    has nebula-cert || go install $nebula/nebula-cert@v1.10.3
    gvisor=github.com/containers/gvisor-tap-vsock/cmd
    has gvproxy || go install $gvisor/gvproxy@v0.8.9
    has vm || go install $gvisor/vm@v0.8.9
    packages+=(openvpn:openvpn tincd:tinc fastd:fastd openssl:openssl)
fi
missing=()
for program in "${packages[@]}"; do
    has "${program%%:*}" || missing+=("${program##*:}")
done
if [[ ${#missing[@]} -gt 0 ]]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
printf 'installed; the folder of go is %s, which must be in PATH\n' "$bin"
