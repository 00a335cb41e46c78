//! The profiles that are part of this program.

use netstacks::StackKind;

use super::{Profile, ProgramName, Role, Upstream};

/// The profiles of this program, but for our proxy: the name, the text, and the word that stands for STACK in the text.
static BUILT_IN: [(&str, &str, &str); 31] = [
    ("kernel", include_str!("profiles/kernel.toml"), ""),
    ("socks5", include_str!("profiles/socks5.toml"), ""),
    (TPROXY, include_str!("profiles/tproxy.toml"), ""),
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
const OWN_SOCKS5: &str = include_str!("profiles/own-socks5.toml");

/// Our proxy through the SOCKS5 server, which does the work of others that send their connections there.
const THROUGH_SOCKS5: [(&str, StackKind); 2] =
    [("lwip-socks5", StackKind::Lwip), ("smoltcp-socks5", StackKind::Smoltcp)];

/// All profiles of this program: those of stacks that this build has are our proxy.
fn built_in() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let direct = StackKind::ALL.into_iter().map(|stack| (stack.name(), OWN, stack));
    let own = direct.chain(THROUGH_SOCKS5.map(|(name, stack)| (name, OWN_SOCKS5, stack)));
    BUILT_IN
        .into_iter()
        .chain(own.filter(|own| own.2.compiled_in()).map(|(name, text, stack)| (name, text, stack.name())))
}

/// The stack of our proxy, if this is the name of a profile of it.
pub(super) fn stack(name: &str) -> Option<StackKind> {
    let stacks = StackKind::ALL.into_iter().map(|stack| (stack.name(), stack));
    stacks.chain(THROUGH_SOCKS5).find(|(of, _)| *of == name).map(|(_, stack)| stack)
}

/// The client alone through the SOCKS5 server, which limits the programs that send their connections to it.
pub(crate) const SOCKS5: &str = "socks5";

/// Our proxy without a device and a stack, which says what these cost.
const TPROXY: &str = "tproxy";

/// The profiles with which the others are compared.
const BASELINES: [&str; 3] = ["kernel", SOCKS5, TPROXY];

/// Whether the client and the kernel carry the bytes without a program.
pub(crate) fn has_no_program(name: ProgramName) -> bool {
    is_baseline(name) && name.as_str() != TPROXY
}

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
