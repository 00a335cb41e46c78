//! The placeholders of profiles.

use super::Role;

/// A name, without braces, that stands for a value in profiles of a role, or of all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placeholder {
    pub(crate) name: &'static str,
    pub(crate) role: Option<Role>,
    pub(crate) meaning: &'static str,
}

const fn placeholder(name: &'static str, role: Option<Role>, meaning: &'static str) -> Placeholder {
    Placeholder { name, role, meaning }
}

pub(crate) const PLACEHOLDERS: [Placeholder; 30] = [
    placeholder("tun", None, "name of the device that the program must make"),
    placeholder("mtu", None, "MTU of the device, in bytes; 1500 less the headers of a tunnel if the run has none"),
    placeholder("max_flows", None, "most connections and flows, in the words of set.max_flows"),
    placeholder(
        "set",
        None,
        "the words of set that the run has; in the config, without it they are added to the command",
    ),
    placeholder("address", None, "address of the device at this end"),
    placeholder("peer", None, "the address on the other side of the device"),
    placeholder("prefix", None, "prefix length of the device's network, in bits"),
    placeholder("interface", None, "interface for the program's own connections"),
    placeholder("socks5", Some(Role::Proxy), "address and port of the SOCKS5 server"),
    placeholder("socks5_host", Some(Role::Proxy), "its address"),
    placeholder("socks5_port", Some(Role::Proxy), "its port"),
    placeholder("far", Some(Role::Proxy), "address and port for the far_command to listen on"),
    placeholder("far_host", Some(Role::Proxy), "its address"),
    placeholder("far_port", Some(Role::Proxy), "its port"),
    placeholder("server", None, "address of the servers"),
    placeholder("port", Some(Role::Tunnel), "port of this end for the packets of the tunnel"),
    placeholder("peer_endpoint", Some(Role::Tunnel), "address and port of the other end"),
    placeholder("peer_host", Some(Role::Tunnel), "the address alone"),
    placeholder("end", Some(Role::Tunnel), "near or far: this end, for names of what prepare makes"),
    placeholder("other_end", Some(Role::Tunnel), "the same for the other end"),
    placeholder("key", Some(Role::Tunnel), "private key of this end: X25519, in base64, made for the run"),
    placeholder("key_file", Some(Role::Tunnel), "path of a file with this key"),
    placeholder("peer_key", Some(Role::Tunnel), "public key of the other end"),
    placeholder("netns", Some(Role::Attach), "path of the clients' network namespace, which the program must join"),
    placeholder("pid", Some(Role::Attach), "number of a thread in it"),
    placeholder(
        "first_port",
        Some(Role::Attach),
        "the first port to forward to the clients' network, in the words of set.inbound",
    ),
    placeholder("last_port", Some(Role::Attach), "the last one"),
    placeholder("config", None, "path of the configuration"),
    placeholder("dir", None, "a folder for the program's files, its working directory; it is deleted after the run"),
    placeholder("shared", None, "a folder that both ends have; the commands of prepare run in it"),
];

/// The role that a placeholder is for, if it is for one.
pub(super) fn role_of(placeholder: &str) -> Option<Role> {
    PLACEHOLDERS.iter().find(|known| known.name == placeholder)?.role
}
