//! Packets that no honest client sends, or more of them than any does. Other connections must go on.
//!
//! All floods are bounded in packets. They go in steps, so that the queue of a device can hold them.

pub(super) mod acknowledged;
pub(super) mod crowds;
pub(super) mod guesses;
pub(super) mod malformed;
pub(super) mod received;
pub(super) mod reuse;
pub(super) mod syns;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::link::ip;
use crate::wire::Segment;
use crate::{Client, Lab, Offer, Step, Stop};

/// The port of all strangers. Their answers can be told from those of other clients by it.
const STRANGE_PORT: u16 = 1000;

/// How many packets of a flood are sent without a pause.
const AT_ONCE: usize = 64;

/// Returns a client with an address of its own in the peer's network.
fn stranger(lab: &Lab, number: u16) -> Client {
    let address = ip(lab.server().is_ipv6(), 1, 0x100 + number);
    lab.client_from(SocketAddr::new(address, STRANGE_PORT), lab.server())
}

/// Sends many packets.
pub(super) fn flood(lab: &Lab, packets: impl IntoIterator<Item = Vec<u8>>) -> Step {
    for (index, packet) in packets.into_iter().enumerate() {
        lab.send_packet(&packet)?;
        if index % AT_ONCE == AT_ONCE - 1 {
            thread::sleep(Duration::from_millis(1));
            while lab.wire().take()? {}
        }
    }
    Ok(())
}

/// Connects again from the port of a client, with a number that is higher than all before.
fn again(client: &mut Client) -> Step<Segment> {
    client.begin_at(client.next.wrapping_add(0x0001_0000));
    client.open(&Offer::default())
}

/// Says in the failure of a step which step it was.
pub(super) fn named<T>(step: Step<T>, name: impl FnOnce() -> String) -> Step<T> {
    step.map_err(|stop| match stop {
        Stop::Fail(seen) => Stop::Fail(format!("{}: {seen}", name())),
        other => other,
    })
}
