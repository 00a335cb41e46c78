//! The command `proxy`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use netstacks::{StackCongestion, StackKind, Workarounds};
use platform::{Napi, Offload};

use crate::cell::Runtime;
use crate::units;

/// When an idle server gets keepalive probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive(pub Option<Duration>);

fn keepalive(text: &str) -> Result<Keepalive, String> {
    match text {
        "off" => Ok(Keepalive(None)),
        // The most that Linux takes (`MAX_TCP_KEEPIDLE`, include/net/tcp.h).
        _ => match units::time(text)? {
            time if (1.0..=32_767.0).contains(&time.as_secs_f64()) => Ok(Keepalive(Some(time))),
            _ => Err("must be from 1 to 32767 seconds, or off".to_owned()),
        },
    }
}

/// The stacks that run in this process.
fn in_process() -> impl TypedValueParser<Value = StackKind> {
    let is_here = |stack: &StackKind| !stack.is_process() && *stack != StackKind::Kernel;
    let names = StackKind::ALL.into_iter().filter(is_here).map(StackKind::name);
    PossibleValuesParser::new(names).try_map(|name| StackKind::from_str(&name, false))
}
/// The options of a device, of a stack, and of datagrams.
const OF_DEVICE: [&str; 17] = [
    "netstack",
    "shards",
    "queues",
    "offload",
    "napi",
    "tun_name",
    "tun_addr",
    "tun_dest",
    "tun_prefix",
    "tun_fd",
    "mtu",
    "window",
    "max_memory",
    "nat",
    "udp_idle",
    "workarounds",
    "stack_congestion",
];

/// How the ports of clients are mapped to ports of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Nat {
    /// A port for each port of a client, whatever its servers (RFC 4787, REQ-1)
    EndpointIndependent,
    /// A port for each port of a client and each server
    Symmetric,
}

/// A transparent TUN proxy on a userspace stack.
#[derive(Clone, Debug, Args)]
pub struct Proxy {
    /// The interface for outgoing connections and datagrams
    #[arg(short, long, value_name = "IFACE",
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub interface: String,

    /// A SOCKS5 server, reached through the interface, that gets all connections and datagrams; without authentication
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub socks5: Option<SocketAddr>,

    /// Without a device and a stack: forward the TCP connections that a rule of nftables or iptables (TPROXY) leads to this port.
    /// Only on Linux
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), conflicts_with_all = OF_DEVICE)]
    pub tproxy: Option<u16>,

    /// The stack
    #[arg(short, long, value_name = "STACK", value_parser = in_process(), default_value = StackKind::Smoltcp.name())]
    pub netstack: StackKind,

    /// Instances of the stack side by side, to 256; not for lwip, which has one in a process
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: u16,

    /// Queues of the device: one for each shard, or 1, which one shard reads and passes on the packets of the others
    /// [default: one for each shard where the device can have several]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub queues: Option<u16>,

    /// Whether super-packets with partial checksums cross the device
    #[arg(long, value_enum, default_value_t = Offload::Auto)]
    pub offload: Offload,

    /// How the kernel takes the packets of the proxy, without offload; only on Linux
    #[arg(long, value_name = "NAPI", default_value = "off")]
    pub napi: Napi,

    /// Name of the device [default: utun8, on macOS the next free unit]
    #[arg(long, value_name = "NAME")]
    pub tun_name: Option<String>,

    /// The kernel's address on the device
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::new(198, 18, 0, 1).into())]
    pub tun_addr: IpAddr,

    /// The address on the other side of the device
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::new(198, 18, 0, 2).into())]
    pub tun_dest: IpAddr,

    /// Prefix length of the device's network, in bits [default: 30, of IPv6 64]
    #[arg(long, value_name = "BITS", value_parser = clap::value_parser!(u8).range(1..=128))]
    pub tun_prefix: Option<u8>,

    /// Take over an open TUN device, set up by its owner, by the number of its file descriptor
    #[arg(long, value_name = "FD", conflicts_with_all = ["tun_name", "tun_addr", "tun_dest", "tun_prefix", "mtu"])]
    pub tun_fd: Option<i32>,

    /// MTU of the device, 1280 or more, as IPv6 needs
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
    pub mtu: u16,

    /// Size of the receive buffer and of the send buffer of each connection at the stack
    #[arg(long, value_name = "SIZE", default_value = "512KiB", value_parser = units::size)]
    pub window: u64,

    /// Most connections at a time, and most UDP flows at a time
    #[arg(long, value_name = "N", default_value = "4096")]
    pub max_flows: NonZeroU16,

    /// Most memory of all connections and UDP flows, counted with their full buffers; new ones beyond it are refused
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub max_memory: Option<u64>,

    /// Time after which an attempt to connect to a server fails
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = units::patience)]
    pub connect_timeout: Duration,

    /// Time after which an idle connection is reset
    #[arg(long, value_name = "TIME", default_value = "7440", value_parser = units::patience)]
    pub tcp_idle: Duration,

    /// Time after which an idle server gets keepalive probes, and time for it to answer one; or off
    #[arg(long, value_name = "TIME|off", default_value = "120", value_parser = keepalive)]
    pub keepalive: Keepalive,

    /// The ports of datagrams on the interface, as servers see them
    #[arg(long, value_enum, default_value_t = Nat::EndpointIndependent)]
    pub nat: Nat,

    /// Time after which an idle UDP flow is forgotten
    #[arg(long, value_name = "TIME", default_value = "300", value_parser = units::patience)]
    pub udp_idle: Duration,

    /// What our adapter does in the stack's place: all, none, the names of workarounds, or -NAME for all but these
    #[arg(long, alias = "repairs", value_name = "WORKAROUNDS", default_value_t = Workarounds::ALL, allow_hyphen_values = true)]
    pub workarounds: Workarounds,

    /// The congestion control of the stack smoltcp
    #[arg(long, value_name = "NAME", default_value = "none")]
    pub stack_congestion: StackCongestion,

    /// The runtime
    #[arg(long, value_name = "RUNTIME", default_value_t = Runtime::MultiThread)]
    pub runtime: Runtime,

    /// Run on one thread: --runtime current-thread
    #[arg(short, long, conflicts_with = "runtime")]
    pub current_thread: bool,
}
