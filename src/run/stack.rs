//! Starts the stack under test, by its name or by its type.

use std::marker::PhantomData;
use std::sync::Arc;

use netstacks::{Effective, Netstack, StackConfig, StackKind, StartError, Started, Stream, Visitor};
use platform::Link;

use super::RunError;
use super::failure::Failure;
use super::party::Party;
use super::transfer::Lane;
use crate::plan::Scenario;

/// Where the first stream goes; the others go to the ports above. Any would do: the stacks accept
/// them all.
pub(super) const FIRST_PORT: u16 = 5201;

/// A stack's server that is to be started, on a link.
pub(super) struct Start<L> {
    link: L,
    config: StackConfig,
    lanes: Arc<[Lane]>,
}

/// A stack that was started.
pub(super) struct Running {
    pub(super) party: Party,
    pub(super) effective: Effective,
}

impl<L: Link> Start<L> {
    /// Of a server that serves a stream for each lane.
    pub(super) fn new(link: L, scenario: &Scenario, lanes: Arc<[Lane]>) -> Self {
        let config = StackConfig { window: scenario.window_bytes, ..StackConfig::default() };
        Self { link, config, lanes }
    }
}

impl<L: Link> Visitor<L> for Start<L> {
    type Output = Result<Running, StartError>;

    fn visit<S: Netstack<L>>(self) -> Self::Output {
        let Started { listener, driver, effective, .. } = S::start(self.link, &self.config)?;
        let driver = async { Failure::of_driver(driver.await) };
        let party = Party::spawn(listener, driver, self.lanes, lane_of::<S::Stream>);
        Ok(Running { party, effective })
    }
}

/// Which stream of the run a connection is: the client says it by the port.
fn lane_of<S: Stream>(stream: &S) -> Option<usize> {
    stream.local_addr().port().checked_sub(FIRST_PORT).map(usize::from)
}

/// Something that knows the stack to be started on links of the type `L`.
pub(super) trait Starter<L: Link> {
    /// Starts it where a scenario names `kind`.
    fn start(&self, kind: StackKind, start: Start<L>) -> Result<Running, RunError>;
}

/// The stack that the scenario names.
pub(super) struct Named;

impl<L: Link> Starter<L> for Named {
    fn start(&self, kind: StackKind, start: Start<L>) -> Result<Running, RunError> {
        Ok(kind.visit(start)??)
    }
}

/// The stack `S`, whatever the scenario names.
pub(super) struct Only<S>(PhantomData<S>);

impl<S> Only<S> {
    /// There is nothing in it.
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<L: Link, S: Netstack<L>> Starter<L> for Only<S> {
    fn start(&self, _kind: StackKind, start: Start<L>) -> Result<Running, RunError> {
        Ok(start.visit::<S>()?)
    }
}
