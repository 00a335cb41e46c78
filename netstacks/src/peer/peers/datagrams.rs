//! UDP on the same link.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use platform::packet::{Transport, UDP, UDP_HEADER_LEN, UdpHeader, addresses};
use platform::vnet::complete_checksum;
use platform::{Checksum, Link, PacketBuffer, PacketMeta};

use super::Peers;
use crate::Datagram;
use crate::datagrams::{Inbox, max_payload, packet};

impl<L: Link> Peers<L> {
    /// Sends a datagram; the next wait flushes it. [`io::ErrorKind::WouldBlock`] if the link is full.
    pub fn send_datagram(&mut self, local_port: u16, remote: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let invalid = |reason| io::Error::new(io::ErrorKind::InvalidInput, reason);
        let capabilities = self.wire.capabilities;
        if payload.len() > max_payload(capabilities.mtu, remote.is_ipv6()) {
            return Err(invalid("the datagram does not fit into a packet of the link's MTU"));
        }
        let mut packet = packet(SocketAddr::new(self.local, local_port), remote, payload)
            .ok_or_else(|| invalid("the ends of the datagram are of two IP versions"))?;
        let mut meta = PacketMeta::default();
        if capabilities.checksum.tx {
            meta.checksum = Checksum::Partial;
        } else {
            complete_checksum(&mut packet).map_err(io::Error::other)?;
        }
        let sent = self.wire.link.try_send(meta, &[IoSlice::new(&packet)]);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.wire.is_full = true;
        }
        sent
    }

    /// Takes the oldest waiting datagram, to any port, as far as it fits. The queue is that of [`crate::Datagrams`].
    pub fn receive_datagram(&mut self, buffer: &mut [u8]) -> Option<Datagram> {
        self.inbox.pop(buffer)
    }
}

/// Takes a packet that may be a datagram, or a super-packet of them.
pub(super) fn take(buffer: &PacketBuffer, inbox: &mut Inbox) {
    let packet = buffer.packet();
    let Some(Transport { protocol: UDP, at, .. }) = Transport::parse(packet) else { return };
    let (Some(udp), Some((source, destination))) = (packet.get(at..), addresses(packet)) else { return };
    let Some(header) = UdpHeader::parse(udp) else { return };
    let Some(payload) = udp.get(UDP_HEADER_LEN..header.len.into()) else { return };
    let local = SocketAddr::new(destination, header.destination_port);
    inbox.push(local, SocketAddr::new(source, header.source_port), payload, buffer.meta().gso_size);
}
