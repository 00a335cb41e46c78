//! Starts the stack under test.

use std::net::{IpAddr, SocketAddr};

use futures_util::FutureExt;
use netstacks::{
    Effective, Netstack, Spread, StackConfig, StackKind, StartError, Started, Stream as _, Visitor, sharded,
};
use platform::Link;

use super::error::RunError;
use super::failure::Failure;
use super::server_side::ServerSide;
use crate::cell::Cell;
use crate::load::{Load, Targets};
use crate::plan::scenario::Scenario;

/// The port of the first stream; the others have the ports above it. Any port would do: the stacks accept all ports.
pub(super) const FIRST_PORT: u16 = 5201;

/// Server ports for connections that carry one request. The stack keeps each connection for a while after its end
/// (TIME-WAIT), and the client reuses its own ports. With a prime number of server ports, no pair of ports returns
/// soon.
const PORTS: usize = 61;

/// The targets of a load at a stack, which accepts connections to all ports.
pub(super) fn targets(stack: IpAddr, load: &Load) -> Vec<SocketAddr> {
    let Targets { tcp, spreads, udp, .. } = load.targets();
    let ports = tcp + usize::from(udp) + if spreads { PORTS - 1 } else { 0 };
    (FIRST_PORT..).take(ports).map(|port| SocketAddr::new(stack, port)).collect()
}

/// A stack that is to be started, with a server for the load.
pub(super) struct Start<L> {
    link: L,
    /// The links of the other shards, and how flows are spread over all.
    others: Vec<L>,
    spread: Spread,
    config: StackConfig,
    load: Load,
}

/// A stack that was started.
pub(super) struct StartedStack {
    pub(super) server: ServerSide,
    pub(super) effective: Effective,
}

impl<L: Link> Start<L> {
    pub(super) fn new(link: L, scenario: &Scenario, load: &Load) -> Self {
        let (others, spread) = (Vec::new(), Spread::default());
        Self { link, others, spread, config: config(scenario), load: load.clone() }
    }

    /// Starts the stack of this kind.
    pub(super) fn start(self, kind: StackKind) -> Result<StartedStack, RunError> {
        Ok(kind.visit(self)??)
    }

    /// The same with more instances, on these links.
    pub(super) fn with_shards(self, others: Vec<L>, spread: Spread) -> Self {
        Self { others, spread, ..self }
    }
}

fn config(scenario: &Scenario) -> StackConfig {
    let Cell { repairs, stack_congestion: congestion, .. } = scenario.cell;
    StackConfig {
        window: scenario.cell.window_len(),
        backlog: backlog(scenario),
        workarounds: repairs,
        congestion,
        ..StackConfig::default()
    }
}

/// Connections that may wait to be accepted, by a stack or by the kernel. All may be opened at once, behind some that are being
/// closed. If a SYN is dropped, its client waits for a second or more, and the scripted client for ever.
pub(super) fn backlog(scenario: &Scenario) -> usize {
    StackConfig::default().backlog.max(2 * usize::from(scenario.cell.parallel.get()))
}

impl<L: Link> Visitor<L> for Start<L> {
    type Output = Result<StartedStack, StartError>;

    fn visit<S: Netstack<L>>(self) -> Self::Output {
        let Self { link, others, spread, config, load } = self;
        let Started { listener, datagrams, driver, effective } = sharded::<S, _>(&spread, link, others, &config)?;
        let driver = driver.map(Failure::of_driver).boxed();
        let target_of =
            |connection: &S::Stream| connection.local_addr().port().checked_sub(FIRST_PORT).map(usize::from);
        let server = ServerSide::spawn(listener, datagrams, driver, &load, target_of);
        Ok(StartedStack { server, effective })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn all_connections_of_a_run_fit_in_the_backlog() {
        for layer in ["path --netstack smoltcp", "stack --netstack smoltcp", "loopback"] {
            let arguments = format!("x --mode crr --parallel 10000 --layer {layer}");
            let cli = Cli::try_parse_from(arguments.split_whitespace()).unwrap();
            let scenario = Scenario::try_from(cli.run).unwrap();
            assert!(config(&scenario).backlog >= 10_000 && backlog(&scenario) >= 10_000, "{layer}");
        }
    }
}
