//! The profiles that are part of this program.

use netstacks::StackKind;

use super::{Profile, ProgramName, Role, Upstream};

/// The profiles of this program, but for our proxy: the name, the text, and the word that stands for STACK in the text.
static BUILT_IN: [(&str, &str, &str); 30] = [
    ("kernel", include_str!("profiles/kernel.toml"), ""),
    ("socks5", include_str!("profiles/socks5.toml"), ""),
    ("tun2proxy", include_str!("profiles/tun2proxy.toml"), ""),
    ("hev-socks5-tunnel", include_str!("profiles/hev-socks5-tunnel.toml"), ""),
    ("xray", include_str!("profiles/xray.toml"), ""),
    ("xray-vless", include_str!("profiles/xray-vless.toml"), ""),
    ("shadowsocks-rust", include_str!("profiles/shadowsocks-rust.toml"), ""),
    ("sing-box-gvisor", SING_BOX, "gvisor"),
    ("sing-box-system", SING_BOX, "system"),
    ("sing-box-mixed", SING_BOX, "mixed"),
    ("sing-box", include_str!("profiles/sing-box-1.15.toml"), ""),
    ("sing-box-gvisor-direct", SING_BOX_DIRECT, "gvisor"),
    ("sing-box-system-direct", SING_BOX_DIRECT, "system"),
    ("mihomo", include_str!("profiles/mihomo.toml"), ""),
    ("tun2socks", include_str!("profiles/tun2socks.toml"), ""),
    ("zeptun", include_str!("profiles/zeptun.toml"), ""),
    ("leaf", include_str!("profiles/leaf.toml"), ""),
    ("wireguard-go", include_str!("profiles/wireguard-go.toml"), ""),
    ("boringtun", include_str!("profiles/boringtun.toml"), ""),
    ("gotatun", include_str!("profiles/gotatun.toml"), ""),
    ("wireguard-kernel", include_str!("profiles/wireguard-kernel.toml"), ""),
    ("openvpn", include_str!("profiles/openvpn.toml"), ""),
    ("nebula", include_str!("profiles/nebula.toml"), ""),
    ("tinc", include_str!("profiles/tinc.toml"), ""),
    ("fastd", include_str!("profiles/fastd.toml"), ""),
    ("vpncloud", include_str!("profiles/vpncloud.toml"), ""),
    ("quincy", include_str!("profiles/quincy.toml"), ""),
    ("slirp4netns", include_str!("profiles/slirp4netns.toml"), ""),
    ("pasta", include_str!("profiles/pasta.toml"), ""),
    ("gvisor-tap-vsock", include_str!("profiles/gvisor-tap-vsock.toml"), ""),
];

const SING_BOX: &str = include_str!("profiles/sing-box.toml");
const SING_BOX_DIRECT: &str = include_str!("profiles/sing-box-direct.toml");

const OWN: &str = include_str!("profiles/own.toml");

/// All profiles of this program: those of stacks that this build has are our proxy.
fn built_in() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let stacks = StackKind::ALL.into_iter().filter(|stack| stack.compiled_in());
    BUILT_IN.into_iter().chain(stacks.map(|stack| (stack.name(), OWN, stack.name())))
}

/// The client alone through the SOCKS5 server, which limits the programs that send their connections to it.
pub(crate) const SOCKS5: &str = "socks5";

/// The profiles without a program, with which the others are compared.
const BASELINES: [&str; 2] = ["kernel", SOCKS5];

pub(crate) fn is_baseline(name: ProgramName) -> bool {
    BASELINES.contains(&name.as_str())
}

/// The names of the profiles that are part of this program.
pub fn names() -> impl Iterator<Item = &'static str> {
    built_in().map(|(name, ..)| name)
}

/// The role of a program, as a run says or else as its profile of ours does. Older runs do not say it.
pub(crate) fn role(name: ProgramName, of_runs: impl IntoIterator<Item = Option<Role>>) -> Option<Role> {
    of_runs.into_iter().flatten().next().or_else(|| Some(of_ours(name)?.role))
}

/// Where a program sends its connections, as a run says or else as its profile of ours does.
pub(crate) fn upstream(name: ProgramName, of_runs: impl IntoIterator<Item = Option<Upstream>>) -> Option<Upstream> {
    of_runs.into_iter().flatten().next().or_else(|| of_ours(name)?.upstream())
}

fn of_ours(name: ProgramName) -> Option<Profile> {
    Profile::named(names().find(|known| *known == name.as_str())?).ok()
}

/// The text of a profile that is part of this program.
pub fn text(name: &str) -> Option<String> {
    built_in().find(|(of, ..)| *of == name).map(|(_, text, stack)| text.replace("STACK", stack))
}
