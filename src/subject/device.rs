//! The TUN device alone: packets that the kernel routes back into it.
//!
//! ```text
//! task ── write ──► TUN ──► the kernel forwards ──► TUN ── read ──► task
//! ```
//!
//! There are no connections and no client, so all CPU time of the process is the device's.

use std::future;
use std::io;

use futures_util::FutureExt;
use platform::{Class, Counted, TunDevice};

use super::{Parts, Prepared, tun};
use crate::error::RunError;
use crate::meter::LinkMeter;
use crate::plan::scenario::{Scenario, Tun};
use crate::remedy::WithRemedy;

pub(crate) fn prepare(scenario: &Scenario, tun: &Tun) -> Result<(Prepared, Counted<TunDevice>), RunError> {
    if !scenario.isolated {
        let source = io::Error::new(io::ErrorKind::Unsupported, "it would make a router of this host");
        return Err(platform::Error::new(Class::Unavailable, "forward packets in", "the host's network", source)
            .remedy("only Linux has networks of a run's own; on Linux leave out --netns host and --tun-fd")
            .into());
    }
    let (device, facts) = tun::open(scenario, tun)?;
    platform::enable_forwarding(&facts.name, tun.network.address.is_ipv6())?;
    let drops = device.drop_counter();
    let link = Counted::new(device);
    let meter = LinkMeter::new([link.traffic()], move || drops.read());
    let parts = Parts { device: Some(facts), ..Parts::default() };
    Ok((Prepared::new(meter, future::pending().boxed(), parts), link))
}
