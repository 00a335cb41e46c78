//! A run that is prepared, and the one way to run it.

use std::sync::Arc;

use netstacks::Effective;
use platform::Interrupts;

use super::carrier::Carrier;
use super::error::RunError;
use super::failure::Failure;
use super::outage::{Cut, Interruption};
use super::program::running::Running;
use super::server_side::ServerSide;
use super::supervise::{Outcome, Supervisor};
use crate::load::Load;
use crate::load::engine::Client;
use crate::load::window::Window;
use crate::sample::{DeviceFacts, ProgramFacts, Status};
use crate::scenario::Scenario;

/// A run that is prepared: every layer makes one.
pub(super) struct Prepared {
    pub(super) load: Load,
    /// Holds the load until all clients are warm, and reads the meters then.
    pub(super) window: Arc<Window>,
    pub(super) server: ServerSide,
    /// The client threads. Empty if the server makes the whole load.
    pub(super) clients: Vec<Client>,
    /// The clients' congestion control.
    pub(super) congestion: Option<String>,
    pub(super) device: Option<DeviceFacts>,
    /// The settings that the stack really uses.
    pub(super) effective: Option<Effective>,
    /// The process that carries the bytes, if it is not this one.
    pub(super) carrier: Option<Carrier>,
    /// The program that carries them, if the run is of one as it is.
    pub(super) program: Option<Running>,
    /// Cuts the path for an outage.
    pub(super) cut: Option<Cut>,
}

/// A run that was made.
pub(super) struct RunOutput {
    pub(super) outcome: Outcome,
    pub(super) congestion: Option<String>,
    pub(super) device: Option<DeviceFacts>,
    pub(super) effective: Option<Effective>,
    pub(super) program: Option<ProgramFacts>,
}

impl Prepared {
    /// A run without clients, device and carrier: the layer adds them.
    pub(super) fn new(load: Load, window: impl Into<Arc<Window>>, server: ServerSide) -> Self {
        Self {
            load,
            window: window.into(),
            server,
            clients: Vec::new(),
            congestion: None,
            device: None,
            effective: None,
            carrier: None,
            program: None,
            cut: None,
        }
    }

    /// Starts, times, supervises and ends the run.
    pub(super) async fn run(self, scenario: &Scenario, interrupts: Interrupts) -> Result<RunOutput, RunError> {
        let Self { load, window, server, clients, congestion, device, effective, carrier, program, cut } = self;
        let clients = match &scenario.pin {
            Some(pin) => (0..).zip(clients).map(|(thread, client)| client.pinned(pin.of_client(thread))).collect(),
            None => clients,
        };
        let counted = load.clone();
        let outage = scenario.impairments.outage.zip(cut).map(|(outage, cut)| Interruption::new(outage, cut));
        let supervisor = Supervisor::new(scenario.timeout, scenario.interval, load, window).with_outage(outage);
        let mut outcome = supervisor.supervise(server, clients, interrupts).await;
        let program = match program {
            Some(program) => Some(program.finish(outcome.as_ref().ok().map(|made| &made.counters)).await),
            None => None,
        };
        let Some(carrier) = carrier else {
            return Ok(RunOutput { outcome: outcome?, congestion, device, effective, program });
        };
        let name = carrier.name();
        if let Ok(made) = &mut outcome
            && made.status == Status::Ok
            && scenario.subject.has_process()
            && let Err(Failure { status, detail }) = carrier.check(&counted).await
        {
            (made.status, made.detail) = (status, Some(detail));
        }
        carrier.finish(outcome.as_ref().is_ok_and(|outcome| outcome.status == Status::Ok)).await?;
        let mut outcome = outcome?;
        if outcome.status == Status::Ok && outcome.counters.packets.is_none() {
            outcome.status = Status::Stalled;
            outcome.detail = Some(format!("the {name} did not report how much it carried"));
        }
        Ok(RunOutput { outcome, congestion, device, effective, program })
    }
}
