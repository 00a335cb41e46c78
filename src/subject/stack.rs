//! Starts the stack under test.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use netstacks::{
    Datagrams, Effective, Listener, Netstack, Spread, StackConfig, StackKind, StartError, Started, Visitor, sharded,
};
use platform::Link;

use crate::cell::Cell;
use crate::error::RunError;
use crate::failure::Failure;
use crate::plan::scenario::Scenario;

/// The server of a load. It ends when it has done its work, or with a failure.
pub(crate) type Server = BoxFuture<'static, Result<(), Failure>>;

/// What serves the connections and the datagrams that come to a stack.
pub(crate) trait Serve {
    /// The server of what comes from here.
    fn serve<Li: Listener>(self, listener: Li, datagrams: impl Datagrams) -> Server;
}

struct Start<L, V> {
    link: L,
    /// The links of the other shards, and how flows are spread over all.
    others: Vec<L>,
    spread: Spread,
    config: StackConfig,
    serve: V,
}

pub(super) struct StartedStack {
    pub(super) server: Server,
    pub(super) driver: BoxFuture<'static, Failure>,
    pub(super) effective: Effective,
}

/// Starts a stack on a link, with more instances on the `others`.
pub(super) fn start<L: Link>(
    kind: StackKind,
    scenario: &Scenario,
    (link, others, spread): (L, Vec<L>, Spread),
    serve: impl Serve,
) -> Result<StartedStack, RunError> {
    Ok(kind.visit(Start { link, others, spread, config: config(scenario), serve })??)
}

pub(super) fn config(scenario: &Scenario) -> StackConfig {
    let Cell { workarounds, stack_congestion: congestion, stack_recovery: recovery, .. } = scenario.cell;
    StackConfig {
        window: scenario.cell.window_len(),
        backlog: backlog(scenario),
        workarounds,
        congestion,
        recovery,
        ..StackConfig::default()
    }
}

/// Connections that may wait to be accepted, by a stack or by the kernel: all may be opened at once, behind some that are
/// being closed. If a SYN is dropped, the scripted client waits for ever.
pub(crate) fn backlog(scenario: &Scenario) -> usize {
    StackConfig::default().backlog.max(2 * usize::from(scenario.cell.parallel.get()))
}

impl<L: Link, V: Serve> Visitor<L> for Start<L, V> {
    type Output = Result<StartedStack, StartError>;

    fn visit<S: Netstack<L>>(self) -> Self::Output {
        let Self { link, others, spread, config, serve } = self;
        let Started { listener, datagrams, driver, effective } = sharded::<S, _>(&spread, link, others, &config)?;
        let driver = driver.map(Failure::of_driver).boxed();
        Ok(StartedStack { server: serve.serve(listener, datagrams), driver, effective })
    }
}

#[cfg(test)]
mod tests {
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
