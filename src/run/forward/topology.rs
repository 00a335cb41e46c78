//! The two networks, and the devices in them.

use std::net::IpAddr;
use std::path::PathBuf;

use platform::{Interface, Namespace};

use crate::plan::{End, ForwardScenario};

/// The near network, which is the calling thread's, and the far one. They vanish with this value and with the
/// thread.
pub(super) struct Topology {
    /// The calling thread's folder under `/proc`.
    near: PathBuf,
    far: Namespace,
}

impl Topology {
    /// Makes both. The calling thread stays in the near one.
    pub(super) fn new() -> Result<Self, platform::Error> {
        platform::enter_netns()?;
        Ok(Self { near: platform::folder_of_thread(), far: Namespace::new()? })
    }

    /// The far network.
    pub(super) fn far(&self) -> &Namespace {
        &self.far
    }

    /// Sets the devices up, which are there: addresses, routes to each other's network, MTU and queue.
    pub(super) fn set_up(&self, scenario: &ForwardScenario) -> Result<(), platform::Error> {
        let interface = |end: &End, other: IpAddr| Interface {
            name: end.name.clone(),
            address: end.address,
            prefix_len: end.prefix_len(),
            route_to: other,
            mtu: scenario.mtu,
            tx_queue_len: scenario.queue_packets,
        };
        interface(&scenario.near, scenario.far.address).set_up()?;
        let far = interface(&scenario.far, scenario.near.address);
        self.far.run(move || far.set_up())?
    }

    /// Reads how many packets both devices have dropped, from any thread.
    pub(super) fn drops(&self, scenario: &ForwardScenario) -> Box<dyn Fn() -> Option<u64> + Send + Sync> {
        let ends = [
            (self.near.clone(), scenario.near.name.clone()),
            (self.far.folder().to_owned(), scenario.far.name.clone()),
        ];
        Box::new(move || ends.iter().map(|(folder, name)| platform::dropped_packets(folder, name)).sum())
    }
}
