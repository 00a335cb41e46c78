//! Checks a run of a program against its profile.

use super::PlanError;
use crate::program::{Role, Upstream};
use crate::scenario::{Conditions, Protocol, Scenario};

/// Refuses what the program of a profile does not do.
pub(super) fn check_program(run: &Scenario, asked: Option<Upstream>) -> Result<(), PlanError> {
    let Some(profile) = &run.program else { return Ok(()) };
    let name = profile.name;
    if asked.is_some_and(|asked| asked != profile.upstream || matches!(profile.role, Role::Tunnel | Role::Attach)) {
        let does = match (profile.role, profile.upstream) {
            (Role::Tunnel, _) => "has no upstream",
            (Role::Proxy | Role::Route, Upstream::Socks5) => "sends its connections to the SOCKS5 server",
            _ => "opens its connections itself",
        };
        return Err(PlanError::new("--upstream", format!("{name} {does}; choose another profile")));
    }
    if !profile.udp && run.workload.protocol() == Some(Protocol::Udp) {
        return Err(PlanError::new("--protocol", format!("{name} carries TCP alone")));
    }
    let link = Conditions { outage: None, ..run.conditions };
    if profile.role == Role::Attach && link != Conditions::default() {
        let reason = format!("{name} runs in the servers' network: there is no link that could have conditions");
        return Err(PlanError::new("--program", reason));
    }
    Ok(())
}
