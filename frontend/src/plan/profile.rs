//! Checks a run of a program against its profile.

use super::PlanError;
use super::devices::MIN_MTU_V6;
use crate::program::{Profile, Role, Upstream};
use crate::scenario::{MIN_MTU, Protocol, Scenario};

/// The MTU of the device over a link with this one.
pub(super) fn device_mtu(profile: Option<&Profile>, mtu: u16, ipv6: bool) -> Result<u16, PlanError> {
    let Some(profile) = profile else { return Ok(mtu) };
    let (device, overhead) = (profile.device_mtu(mtu), profile.overhead());
    let least = if ipv6 { MIN_MTU_V6 } else { MIN_MTU };
    if overhead > 0 && device < least {
        let reason = format!(
            "{mtu} bytes less the {overhead} of {} are {device} for its device, which needs at least {least}",
            profile.name
        );
        return Err(PlanError::new("--mtu", reason));
    }
    Ok(device)
}

/// Refuses a run that the program of a profile cannot make.
pub(super) fn check_program(run: &Scenario, asked: Option<Upstream>) -> Result<(), PlanError> {
    let Some(profile) = &run.program else { return Ok(()) };
    let name = profile.name;
    if asked.is_some() && asked != profile.upstream() {
        let does = match profile.upstream() {
            None => "has no upstream",
            Some(Upstream::Socks5) => "sends its connections to the SOCKS5 server",
            Some(Upstream::Direct) => "opens its connections itself",
        };
        return Err(PlanError::new("--upstream", format!("{name} {does}; choose another profile")));
    }
    if !profile.udp && run.workload.protocol() == Some(Protocol::Udp) {
        return Err(PlanError::new("--protocol", format!("{name} carries TCP alone")));
    }
    if profile.role == Role::Attach && run.impairments.has_link() {
        let reason = format!("{name} runs in the servers' network: there is no link that could have conditions");
        return Err(PlanError::new("--program", reason));
    }
    Ok(())
}
