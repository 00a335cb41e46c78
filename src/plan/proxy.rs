//! The proxy as a program.

use std::net::IpAddr;

use netstacks::{NotCompiledIn, StackConfig, StackKind};
use platform::{Network, TunConfig, network_of};

use super::PlanError;
use super::devices;
use super::threads::check_queues;
use crate::cli;
use crate::proxy::Config;
use crate::scenario::RuntimeKind;

/// Packets that can wait for the stack: a few full windows, in packets without offload.
const TX_QUEUE_LEN: u32 = 16 << 10;

/// A proxy that runs until the user ends it.
#[derive(Clone, Debug)]
pub struct ProxyPlan {
    /// The settings of the proxy.
    pub config: Config,
    /// Its device.
    pub device: TunConfig,
    /// Its stack.
    pub stack: StackKind,
    /// How many instances of it there are.
    pub shards: usize,
    /// The queues of the device; `None` for one for each instance where it can have several.
    pub queues: Option<usize>,
    /// Its runtime.
    pub runtime: RuntimeKind,
}

impl TryFrom<cli::Proxy> for ProxyPlan {
    type Error = PlanError;

    fn try_from(proxy: cli::Proxy) -> Result<Self, PlanError> {
        let stack = proxy.netstack;
        if !stack.compiled_in() {
            return Err(PlanError::new("--netstack", NotCompiledIn(stack).to_string()));
        }
        if proxy.shards > 1 && !stack.can_shard() {
            return Err(PlanError::new("--shards", format!("{stack} has one instance a process")));
        }
        check_queues(proxy.queues, proxy.shards)?;
        let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let runtime = if proxy.current_thread { RuntimeKind::CurrentThread } else { RuntimeKind::MultiThread(None) };
        Ok(Self {
            device: TunConfig {
                name: devices::name("--tun-name", &proxy.tun_name)?,
                network: network(&proxy)?,
                mtu: proxy.mtu,
                tx_queue_len: TX_QUEUE_LEN,
                offload: proxy.offload,
                fd: None,
            },
            config: Config {
                window: bytes(proxy.window).clamp(StackConfig::MIN_WINDOW, StackConfig::MAX_WINDOW),
                max_flows: proxy.max_flows.get().into(),
                max_memory: proxy.max_memory.map(bytes),
                connect_timeout: proxy.connect_timeout,
                tcp_idle: proxy.tcp_idle,
                udp_idle: proxy.udp_idle,
                ..Config::new(proxy.interface)
            },
            stack,
            shards: proxy.shards.into(),
            queues: proxy.queues.map(usize::from),
            runtime,
        })
    }
}

/// The network of the device.
fn network(proxy: &cli::Proxy) -> Result<Network, PlanError> {
    let (usual, ones): (_, IpAddr) = match proxy.tun_addr {
        IpAddr::V4(_) => (30, [0xff; 4].into()),
        IpAddr::V6(_) => (64, [0xff; 16].into()),
    };
    let mask = network_of(ones, proxy.tun_prefix.unwrap_or(usual));
    Network::new(proxy.tun_addr, proxy.tun_dest, mask)
        .map_err(|error| PlanError::new("--tun-addr, --tun-dest, --tun-prefix", error.to_string()))
}
