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

mod intercepted;
mod limits;
mod own;
mod relay;
mod reports;
mod tcp;
mod udp;
mod upstream;

use std::io;
use std::iter;
use std::sync::Arc;

use futures_util::FutureExt;
use netstacks::{
    Effective, Gate, Gated, Netstack, Spread, StackConfig, StackKind, StartError, Started, Steered, Visitor, steer,
};
use platform::{Class, Error, TunDevice};
use tokio::task::JoinSet;

use self::limits::Limits;
use self::upstream::Upstream;
use crate::error::RunError;
use crate::plan::OWN_DEVICE;
pub use crate::plan::{Nat, ProxyConfig as Config};

/// A proxy with a checked interface, but without a device yet.
#[derive(Debug)]
pub struct Proxy(Upstream);

impl Proxy {
    /// Checks that the interface exists and may be used.
    pub fn new(config: Config) -> Result<Self, Error> {
        // Each connection has buffers of hundreds of kilobytes, which most connections use little of.
        platform::return_large_buffers();
        Upstream::new(config).map(Self)
    }

    /// Starts the stack on the device, and the proxy on the stack. Must be called within a tokio runtime. Each link of the
    /// device gets an instance of the stack; see [`TunDevice::open_shards`]. The limits hold for all together.
    pub fn start(self, first: TunDevice, others: Vec<TunDevice>, stack: StackKind) -> Result<Running, RunError> {
        if first.name() == self.0.config.interface {
            let source = io::Error::new(io::ErrorKind::InvalidInput, OWN_DEVICE);
            return Err(Error::new(Class::Invalid, "send packets to", first.name(), source).into());
        }
        let spread = Spread::default();
        let (devices, _) = steer(&spread, iter::once(first).chain(others).collect());
        let backlog = self.0.config.max_flows.div_ceil(devices.len());
        let links = devices.into_iter().map(|device| netstacks::gate(device, backlog)).collect();
        let (effective, tasks) = stack.visit(Start { links, spread, upstream: Arc::new(self.0) })??;
        Ok(Running { effective, tasks })
    }

    /// Listens at this port for the TCP connections that the kernel leads there (TPROXY), and returns what serves them until it
    /// fails. Must be called within a tokio runtime.
    pub fn intercept(self, port: u16) -> Result<impl Future<Output = io::Result<()>>, RunError> {
        Ok(intercepted::serve(intercepted::listen(port)?, Arc::new(self.0)))
    }
}

/// A running proxy. Dropping it aborts the tasks of the stack and the proxy; open connections make no more progress.
#[derive(Debug)]
pub struct Running {
    effective: Effective,
    tasks: JoinSet<io::Result<()>>,
}

impl Running {
    /// The configuration that the stack really uses.
    pub fn effective(&self) -> &Effective {
        &self.effective
    }

    /// Waits until the device or the stack fails. Safe to cancel and call again.
    pub async fn ended(&mut self) -> io::Result<()> {
        self.tasks.join_next().await.unwrap_or(Ok(Ok(())))?
    }
}

struct Start {
    /// One for each instance.
    links: Vec<(ShardLink, Gate)>,
    /// Where the packets of each flow go.
    spread: Spread,
    upstream: Arc<Upstream>,
}

/// The link between the device and an instance of the stack.
type ShardLink = Gated<Steered<TunDevice>>;

impl Visitor<ShardLink> for Start {
    type Output = Result<(Effective, JoinSet<io::Result<()>>), StartError>;

    fn visit<S: Netstack<ShardLink>>(self) -> Self::Output {
        let Self { links, spread, upstream } = self;
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
        let limits = Arc::new(Limits::new(&upstream.config, &effective));
        let (mut instances, mut tasks) = (Vec::new(), JoinSet::new());
        for (Started { listener, datagrams, driver, .. }, gate) in started {
            instances.push(udp::Instance { datagrams, answers: gate.answers() });
            tasks.spawn(driver);
            tasks.spawn(tcp::serve(gate, listener, Arc::clone(&upstream), Arc::clone(&limits)).boxed());
        }
        let exchange = Arc::new(udp::Exchange { instances, spread, flows: udp::Flows::default(), upstream, limits });
        for instance in 0..exchange.instances.len() {
            tasks.spawn(udp::serve(Arc::clone(&exchange), instance).boxed());
        }
        Ok((effective, tasks))
    }
}
