//! Two devices in two networks of the run's own, and a link with impairments between them.
//!
//! A task on the runtime under test passes packets from one to the other unchanged, super-packets too. The impairments are on
//! the near device.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use platform::{Counted, FaultCounter, Link, PacketBuffer, Traffic, TunDevice};
use tokio::runtime::Handle;

use super::impairments::{Cut, with_impairments};
use super::networks::Networks;
use super::tun;
use crate::error::RunError;
use crate::failure::Failure;
use crate::plan::scenario::{Scenario, Tun};
use crate::sample::DeviceFacts;

/// The device in the network of the server.
pub(crate) const FAR: &str = "far";

pub(crate) struct Between {
    pub(crate) device: DeviceFacts,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) faults: Arc<FaultCounter>,
    pub(crate) cut: Option<Cut>,
    /// Passes the packets until a device fails.
    pub(crate) driver: BoxFuture<'static, Failure>,
}

/// Joins the networks with a link that has the impairments of a scenario.
pub(crate) fn join(scenario: &Scenario, near: &Tun, far: Tun, networks: &Networks) -> Result<Between, RunError> {
    let (mut device, facts) = tun::open(scenario, near)?;
    let mut far = open_far(scenario, far, networks)?;
    // Both are devices of one kernel, so both have it or neither.
    let _has_udp = far.enable_udp_segmentation() && device.enable_udp_segmentation();
    let counted = Counted::new(device);
    let traffic = counted.traffic();
    let (link, cut) = with_impairments(counted, scenario);
    let faults = link.faults();
    let driver = async move { Failure::of_driver(pass(link, far).await) }.boxed();
    Ok(Between { device: facts, traffic, faults, cut, driver })
}

pub(crate) fn open_far(scenario: &Scenario, far: Tun, networks: &Networks) -> Result<TunDevice, RunError> {
    let (scenario, runtime) = (scenario.clone(), Handle::current());
    let opened = networks.far().run(move || {
        let _entered = runtime.enter();
        tun::open(&scenario, &far)
    })?;
    Ok(opened?.0)
}

/// Passes packets both ways until one of the links fails.
pub(crate) async fn pass(mut near: impl Link, mut far: impl Link) -> io::Result<()> {
    let [mut to_far, mut to_near] = [Direction::of(&near), Direction::of(&far)];
    poll_fn(|cx| {
        // Poll both: neither direction waits for the other.
        let (there, back) = (to_far.poll(&mut near, &mut far, cx)?, to_near.poll(&mut far, &mut near, cx)?);
        debug_assert!(there.is_pending() && back.is_pending(), "neither way ends by itself");
        Poll::Pending
    })
    .await
}

/// Batches that one direction passes before the other is polled.
const TURN: usize = 4;

struct Direction {
    batch: Vec<PacketBuffer>,
    /// How many packets of the batch were received, and how many of these have been sent.
    come: usize,
    sent: usize,
}

impl Direction {
    fn of(from: &impl Link) -> Self {
        let capabilities = from.capabilities();
        let batch = (0..capabilities.batch).map(|_| PacketBuffer::new(capabilities.max_packet_len)).collect();
        Self { batch, come: 0, sent: 0 }
    }

    /// Passes packets until a link would block or the turn is over. Returns pending, or the failure of a link.
    fn poll(&mut self, from: &mut impl Link, to: &mut impl Link, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..TURN {
            while self.sent < self.come {
                let packet = &self.batch[self.sent];
                match to.try_send(packet.meta(), &[IoSlice::new(packet.packet())]) {
                    Ok(()) => self.sent += 1,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if to.poll_writable(cx)?.is_pending() {
                            return Poll::Pending;
                        }
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            to.flush()?;
            match from.try_recv(&mut self.batch) {
                Ok(count) => (self.come, self.sent) = (count, 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if from.poll_readable(cx)?.is_pending() {
                        return Poll::Pending;
                    }
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use platform::{MemoryLink, PacketMeta};

    use super::*;

    /// More packets than a full link holds, both ways at once.
    #[tokio::test]
    async fn every_packet_passes_in_order_both_ways() {
        const PACKETS: u8 = 200;
        let [(near, mut client), (far, mut server)] = [0, 1].map(|_| MemoryLink::pair(100, 8));
        let passing = tokio::spawn(pass(near, far));
        let mut buffers = [PacketBuffer::new(100)];
        let (mut sent, mut got) = ([0_u8; 2], [0_u8; 2]);
        while got != [PACKETS; 2] {
            for (index, link) in [&mut client, &mut server].into_iter().enumerate() {
                while sent[index] < PACKETS
                    && link.try_send(PacketMeta::default(), &[IoSlice::new(&[sent[index]])]).is_ok()
                {
                    sent[index] += 1;
                }
                link.flush().unwrap();
                while link.try_recv(&mut buffers).is_ok() {
                    assert_eq!(buffers[0].packet(), [got[1 - index]]);
                    got[1 - index] += 1;
                }
            }
            tokio::task::yield_now().await;
        }
        drop((client, server));
        assert!(passing.await.unwrap().is_err(), "a link that has gone is the end");
    }
}
