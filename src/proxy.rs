//! A transparent proxy. It takes the connections and datagrams that routes lead into a TUN device, and forwards them
//! over kernel sockets.
//!
//! ```text
//! client ── route ──► TUN ──► gate ──► stack ── relay ──► kernel socket, bound to an interface ──► server
//! ```
//!
//! The sockets are bound to one interface, so their packets do not return to the device. The gate holds a client's SYN
//! until the server has replied. The client then gets the same reply: connected, refused, unreachable or none. The
//! proxy forwards TCP and UDP, over IPv4 and IPv6, to any address and port.
//!
//! The command `proxy` serves with it. `--program STACK` measures it.

mod limits;
mod relay;
mod tcp;
mod udp;
mod upstream;

use std::fmt;
use std::io;
use std::iter;
use std::sync::Arc;

use futures_util::FutureExt;
use netstacks::{
    Effective, Gate, Gated, Netstack, NotCompiledIn, PassedOn, Spread, StackConfig, StackKind, StartError, Started,
    Steered, Visitor, steer,
};
use platform::{Counted, FaultCounter, Faulty, Traffic, TunDevice};
use tokio::task::JoinSet;

use self::limits::Limits;
use self::upstream::Upstream;
pub use crate::plan::ProxyConfig as Config;

/// Why a proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This build does not have the stack.
    #[error(transparent)]
    NotCompiledIn(#[from] NotCompiledIn),
    /// The stack refused to start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// A proxy with a checked interface, but without a device yet.
#[derive(Debug)]
pub struct Proxy(Upstream);

impl Proxy {
    /// Checks that the interface exists and may be used.
    pub fn new(config: Config) -> Result<Self, platform::Error> {
        // Each connection has buffers of hundreds of kilobytes, which most connections use little of.
        platform::return_large_buffers();
        Upstream::new(config).map(Self)
    }

    /// Starts the stack on the device, and the proxy on the stack. Must be called within a tokio runtime. Each link of the
    /// device gets an instance of the stack; see [`TunDevice::open_shards`]. The limits hold for all together.
    pub fn start(self, first: TunDevice, others: Vec<TunDevice>, stack: StackKind) -> Result<Running, Error> {
        let devices: Vec<_> = iter::once(first).chain(others).map(Counted::new).collect();
        let traffic = devices.iter().map(Counted::traffic).collect();
        let (devices, passed_on) = steer(&Spread::default(), devices);
        let devices = Faulty::of_shards(devices, self.0.config.impairments, self.0.config.link_seed);
        let faults = devices[0].faults();
        let backlog = self.0.config.max_flows.div_ceil(devices.len());
        let links = devices.into_iter().map(|device| netstacks::gate(device, backlog)).collect();
        let (effective, tasks) = stack.visit(Start { links, upstream: Arc::new(self.0) })??;
        Ok(Running { effective, traffic, passed_on, faults, tasks })
    }
}

/// A running proxy. Dropping it aborts the tasks of the stack and the proxy; open connections make no more progress.
pub struct Running {
    effective: Effective,
    traffic: Vec<Arc<Traffic>>,
    passed_on: PassedOn,
    faults: Arc<FaultCounter>,
    tasks: JoinSet<io::Result<()>>,
}

impl Running {
    /// The configuration that the stack really uses.
    pub fn effective(&self) -> &Effective {
        &self.effective
    }

    /// The counts of the packets that cross each link of the device.
    pub fn traffic(&self) -> Vec<Arc<Traffic>> {
        self.traffic.clone()
    }

    /// The count of the packets that instances of the stack have passed on to each other.
    pub fn passed_on(&self) -> PassedOn {
        self.passed_on.clone()
    }

    /// The counts of the packets that the conditions of the link have hit.
    pub fn faults(&self) -> Arc<FaultCounter> {
        Arc::clone(&self.faults)
    }

    /// Waits until the device or the stack fails. Safe to cancel and call again.
    pub async fn ended(&mut self) -> io::Result<()> {
        self.tasks.join_next().await.unwrap_or(Ok(Ok(())))?
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("effective", &self.effective).finish_non_exhaustive()
    }
}

struct Start {
    /// One for each instance.
    links: Vec<(ShardLink, Gate)>,
    upstream: Arc<Upstream>,
}

/// The link between the device and an instance of the stack.
type ShardLink = Gated<Faulty<Steered<Counted<TunDevice>>>>;

impl Visitor<ShardLink> for Start {
    type Output = Result<(Effective, JoinSet<io::Result<()>>), StartError>;

    fn visit<S: Netstack<ShardLink>>(self) -> Self::Output {
        let Self { links, upstream } = self;
        // Each instance may have all places of the proxy, which admits no more than these.
        let config = StackConfig {
            window: upstream.config.window,
            backlog: upstream.config.max_flows,
            workarounds: upstream.config.workarounds,
            congestion: upstream.config.stack_congestion,
            ..StackConfig::default()
        };
        let start = |(link, gate)| Ok((S::start(link, &config)?, gate));
        let started = links.into_iter().map(start).collect::<Result<Vec<_>, StartError>>()?;
        let effective = Effective { shards: started.len(), ..started[0].0.effective.clone() };
        let (limits, flows) = (Arc::new(Limits::new(&upstream.config, &effective)), udp::Flows::default());
        let mut tasks = JoinSet::new();
        for (Started { listener, datagrams, driver, .. }, gate) in started {
            let answers = gate.answers();
            tasks.spawn(driver);
            let (upstream, limits) = (|| Arc::clone(&upstream), || Arc::clone(&limits));
            tasks.spawn(tcp::serve(gate, listener, upstream(), limits()).boxed());
            tasks.spawn(udp::serve(datagrams, answers, flows.clone(), upstream(), limits()).boxed());
        }
        Ok((effective, tasks))
    }
}
