//! Datagrams on their way through the bridge.

use platform::{Link, PacketMeta};
use tokio::io::ReadBuf;

use super::super::segment::{MAX_DATAGRAM_HEADER, empty_datagram};
use super::{Bridge, Place};
use crate::FlowKey;
use crate::datagrams::Arrival;

/// Where datagrams stand.
#[derive(Debug, Default)]
pub(super) struct UdpHandoff {
    /// The one that ipstack gets next.
    next: Option<(Place, FlowKey)>,
    /// The flow of the one that it got last. Once it asks for another packet, that lies in its stream.
    handed: Option<FlowKey>,
    /// The exchange may have empty datagrams for ipstack.
    pub(super) stream_requested: bool,
}

impl UdpHandoff {
    /// The stack has ended: what was to be handed on is no more.
    pub(super) fn stop(&mut self) {
        self.next = None;
    }
}

impl<L: Link> Bridge<L> {
    /// A packet that has arrived and is not TCP.
    pub(super) fn inbound_datagram(&mut self, place: Place) {
        // ipstack puts no fragments together, and gets none.
        let Some(Arrival::Whole { local, peer }) = Arrival::parse(self.packet(place)) else { return };
        let key = FlowKey { local, peer };
        if self.hub.exchange().admit(key, self.now) {
            self.handoff.next = Some((place, key));
        }
    }

    /// Gives ipstack a datagram, if there is one.
    pub(super) fn emit_datagram(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if let Some(key) = self.handoff.handed.take() {
            self.hub.exchange().collect(key);
        }
        if let Some((place, key)) = self.handoff.next.take() {
            let packet = self.packet(place);
            if packet.len() > buf.remaining() {
                return false;
            }
            buf.put_slice(packet);
            self.handoff.handed = Some(key);
            return true;
        }
        if !self.handoff.stream_requested {
            return false;
        }
        let Some(key) = self.hub.exchange().next_forged() else {
            self.handoff.stream_requested = false;
            return false;
        };
        let mut packet = [0; MAX_DATAGRAM_HEADER];
        let len = empty_datagram(key, &mut packet);
        buf.put_slice(&packet[..len]);
        self.handoff.handed = Some(key);
        true
    }

    /// A packet from ipstack that is not TCP.
    pub(super) fn outbound_datagram(&mut self, packet: &[u8]) {
        self.hub.exchange().left();
        if let Err(error) = self.port.send(PacketMeta::default(), packet, &[]) {
            self.hub.fail(&error);
        }
    }
}
