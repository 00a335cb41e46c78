//! Checks the conditions of the link.

use std::num::NonZeroU16;

use super::PlanError;
use super::devices::check_mtu;
use crate::cli::list::One;
use crate::cli::{Axes, Switch};
use crate::scenario::{Amount, Impairments, Outage, Scenario};

/// The conditions of a link behind a device with this MTU.
pub(super) fn impairments(axes: &Axes, mtu: u16, ipv6: bool) -> Result<Impairments, PlanError> {
    let impairments = Impairments {
        delay: axes.delay.one().unwrap_or_default(),
        jitter: axes.jitter.one().unwrap_or_default(),
        loss: axes.loss.one().unwrap_or_default(),
        reorder: axes.reorder.one().unwrap_or_default(),
        duplicate: axes.duplicate.one().unwrap_or_default(),
        corrupt: axes.corrupt.one().unwrap_or_default(),
        rate_limit: axes.rate_limit.one(),
        path_mtu: axes.path_mtu.one().and_then(NonZeroU16::new),
        no_icmp: axes.no_icmp.one() == Some(Switch::On),
        outage: axes.outage.one(),
    };
    if impairments.path_mtu.is_some_and(|path| path.get() >= mtu) {
        return Err(PlanError::new("--path-mtu", format!("must be less than the device's MTU, {mtu}")));
    }
    impairments.path_mtu.map_or(Ok(()), |path| check_mtu("--path-mtu", path.get(), ipv6))?;
    if impairments.no_icmp && impairments.path_mtu.is_none() {
        return Err(PlanError::new("--no-icmp", "there is nothing to tell without --path-mtu"));
    }
    if impairments.jitter > impairments.delay {
        return Err(PlanError::new("--jitter", "must not be more than --delay"));
    }
    if impairments.corrupt > 0 && axes.offload.one() == Some(platform::Offload::On) {
        let reason = "needs --offload off: nobody verifies the checksum of a super-packet";
        return Err(PlanError::new("--corrupt", reason));
    }
    Ok(impairments)
}

/// Refuses an outage that does not end within the timed window.
pub(super) fn check_outage(run: &Scenario) -> Result<(), PlanError> {
    let Some(Outage { at, lasts }) = run.impairments.outage else { return Ok(()) };
    let end = at.saturating_add(lasts);
    match run.amount {
        Amount::Time { time, .. } if time > end => Ok(()),
        _ => {
            let reason = format!("must end within the timed window; use a --time of more than {} s", end.as_secs_f64());
            Err(PlanError::new("--outage", reason))
        }
    }
}
