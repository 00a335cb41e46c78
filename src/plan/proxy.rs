//! The proxy as a program.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netstacks::{NotCompiledIn, StackConfig, StackCongestion, StackKind, Workarounds};
use platform::{Napi, Network, Offload, TunConfig, Tuning, network_of};

use super::PlanError;
use super::devices;
use crate::cell::Runtime;
use crate::cli::{self, Nat};
use crate::plural;

/// Packets that can wait for the stack: a few full windows, in packets without offload.
const TX_QUEUE_LEN: u32 = 16 << 10;

/// Each packet that the proxy sends to its own device would come back to it.
pub(crate) const OWN_DEVICE: &str = "it is the proxy's own device; name the interface that leads to the servers";

/// The settings of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// The interface that the sockets are bound to.
    pub interface: String,
    /// A SOCKS5 server, without authentication, that gets all connections and datagrams in place of the servers.
    pub socks5: Option<SocketAddr>,
    /// Receive buffer and send buffer of each connection at the stack, in bytes.
    pub window: usize,
    /// What the adapter does in the stack's place.
    pub workarounds: Workarounds,
    /// Congestion control of the stack, if it has a choice.
    pub stack_congestion: StackCongestion,
    /// Most connections at a time, and most UDP flows. Only half as many connections may be unfinished. Beyond that the oldest
    /// unfinished one gives way, and of UDP flows the one that has been unused for longest, those without an answer first.
    pub max_flows: usize,
    /// Most memory of all connections and UDP flows, in bytes. Each is counted with the most that it can take: a connection
    /// with its buffers at the stack and two of 256 KiB, a UDP flow with the two buffers of its socket and a list of
    /// addresses. The kernel's buffers of TCP sockets are not counted. New ones beyond the limit are refused, unless
    /// another can give way.
    pub max_memory: Option<usize>,
    /// How long to wait for the reply of a server.
    pub connect_timeout: Duration,
    /// A connection that carries no byte for this time is reset.
    pub tcp_idle: Duration,
    /// After this time without a byte of the server, it gets keepalive probes (RFC 1122, 4.2.3.6), and after as long
    /// without an answer the connection is reset. `None`: it gets none.
    pub keepalive: Option<Duration>,
    /// What a UDP flow is.
    pub nat: Nat,
    /// A UDP flow that carries no datagram for this time is forgotten.
    pub udp_idle: Duration,
    /// Receives the text of each error that no message can report to the client.
    pub report: fn(&str),
}

impl ProxyConfig {
    /// The defaults, with sockets bound to this interface.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            socks5: None,
            window: 512 << 10,
            workarounds: Workarounds::ALL,
            stack_congestion: StackCongestion::default(),
            // A thousand clients that connect at once are unfinished connections, of which there may be half as many.
            max_flows: 4096,
            max_memory: None,
            connect_timeout: Duration::from_mins(1),
            // RFC 5382, 5: at least two hours and four minutes.
            tcp_idle: Duration::from_mins(124),
            // NATs forget a connection after five minutes, some after four.
            keepalive: Some(Duration::from_mins(2)),
            nat: Nat::EndpointIndependent,
            // RFC 4787, 4.3 recommends five minutes.
            udp_idle: Duration::from_mins(5),
            report: |_| {},
        }
    }
}

/// A proxy that runs until the user ends it.
#[derive(Clone, Debug)]
pub struct ProxyPlan {
    /// The settings of the proxy.
    pub config: ProxyConfig,
    /// Its device.
    pub device: TunConfig,
    /// The port for the connections of TPROXY, in place of a device and a stack.
    pub tproxy: Option<u16>,
    /// Its stack.
    pub stack: StackKind,
    /// How many instances of it there are.
    pub shards: usize,
    /// The queues of the device; `None` for one for each instance where it can have several.
    pub queues: Option<usize>,
    /// The workers of its runtime; `None` for the current thread.
    pub workers: Option<usize>,
}

impl TryFrom<cli::Proxy> for ProxyPlan {
    type Error = PlanError;

    fn try_from(proxy: cli::Proxy) -> Result<Self, PlanError> {
        let stack = proxy.netstack;
        if !stack.compiled_in() {
            return Err(PlanError::new("--netstack", NotCompiledIn(stack).to_string()));
        }
        if proxy.napi != Napi::Off && matches!(proxy.offload, Offload::On | Offload::Tso) {
            let reason = "needs --offload off: super-packets are joined already";
            return Err(PlanError::new("--napi", reason.to_owned()));
        }
        proxy.workarounds.check(stack).map_err(|reason| PlanError::new("--workarounds", reason))?;
        if proxy.shards > 1 && !stack.can_shard() {
            return Err(PlanError::new("--shards", format!("{stack} has one instance a process")));
        }
        if let Some(queues) = proxy.queues.filter(|queues| *queues > 1 && *queues != proxy.shards) {
            let reason = format!("{queues} queues for {}; there is one for each, or 1", plural(proxy.shards, "shard"));
            return Err(PlanError::new("--queues", reason));
        }
        let (name, or_next) = devices::tun_name(proxy.tun_name.as_deref(), proxy.tun_fd)?;
        if proxy.tun_fd.is_none() && proxy.interface == name {
            return Err(PlanError::new("--interface", OWN_DEVICE));
        }
        let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let is_one = proxy.current_thread || proxy.runtime == Runtime::CurrentThread;
        Ok(Self {
            device: TunConfig {
                name,
                or_next,
                network: network(&proxy)?,
                mtu: proxy.mtu,
                tx_queue_len: TX_QUEUE_LEN,
                offload: proxy.offload,
                fd: devices::descriptor(proxy.tun_fd)?,
                tuning: Tuning { napi: proxy.napi, qdisc: None },
            },
            tproxy: proxy.tproxy,
            config: ProxyConfig {
                socks5: proxy.socks5,
                window: bytes(proxy.window).clamp(StackConfig::MIN_WINDOW, StackConfig::MAX_WINDOW),
                workarounds: proxy.workarounds,
                stack_congestion: proxy.stack_congestion,
                max_flows: proxy.max_flows.get().into(),
                max_memory: proxy.max_memory.map(bytes),
                connect_timeout: proxy.connect_timeout,
                tcp_idle: proxy.tcp_idle,
                keepalive: proxy.keepalive.0,
                nat: proxy.nat,
                udp_idle: proxy.udp_idle,
                ..ProxyConfig::new(proxy.interface)
            },
            stack,
            shards: proxy.shards.into(),
            queues: proxy.queues.map(usize::from),
            workers: (!is_one).then(|| platform::parallelism().unwrap_or(1)),
        })
    }
}

fn network(proxy: &cli::Proxy) -> Result<Network, PlanError> {
    let (usual, ones): (_, IpAddr) = match proxy.tun_addr {
        IpAddr::V4(_) => (30, [0xff; 4].into()),
        IpAddr::V6(_) => (64, [0xff; 16].into()),
    };
    let mask = network_of(ones, proxy.tun_prefix.unwrap_or(usual));
    Network::new(proxy.tun_addr, proxy.tun_dest, mask)
        .map_err(|error| PlanError::new("--tun-addr, --tun-dest, --tun-prefix", error))
}

#[cfg(test)]
mod tests {
    use super::ProxyConfig;

    /// Half of the connections may be unfinished.
    #[test]
    fn a_thousand_clients_may_connect_at_once() {
        assert!(ProxyConfig::new("eth0").max_flows / 2 >= 1000);
    }
}
