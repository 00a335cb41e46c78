//! UDP of all stacks: which packets are datagrams, which may be sent, and where they wait. A stack does not get
//! datagrams that it would have to refuse: some do not check the length, or whether the checksum is missing.

mod arrival;
mod mailbox;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::task::{Context, Waker};

pub(crate) use self::arrival::Arrival;
pub(crate) use self::mailbox::{Deliveries, Mailbox, mailbox};
use platform::packet::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, UDP, UDP_HEADER_LEN, write_ip, write_partial_udp_checksum};

use crate::{Datagram, DatagramBatch, MAX_WAITING_BYTES, MAX_WAITING_DATAGRAMS, is_host};

/// The largest payload of a datagram over IPv4, in bytes: the largest total length, less the headers.
pub(crate) const MAX_PAYLOAD_V4: usize = 65_535 - IPV4_HEADER_LEN - UDP_HEADER_LEN;

#[derive(Debug)]
pub struct Inbox {
    /// Whether datagrams may still be received. A closed inbox takes none.
    open: bool,
    waiting: VecDeque<DatagramBatch>,
    /// Their payloads, one behind the other: no allocation for each.
    payloads: VecDeque<u8>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { open: true, waiting: VecDeque::new(), payloads: VecDeque::new() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Drops all datagrams, and all further ones.
    pub(crate) fn close(&mut self) {
        *self = Self { open: false, ..Self::new() };
    }

    /// Takes in the datagrams of a packet, or drops them. `segment_len` is `None` for a packet that is one datagram.
    pub(crate) fn push(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
        payloads: &[u8],
        segment_len: Option<NonZeroU16>,
    ) {
        let full = self.waiting.len() >= MAX_WAITING_DATAGRAMS;
        if !self.open || full || self.payloads.len() + payloads.len() > MAX_WAITING_BYTES {
            return;
        }
        self.payloads.extend(payloads);
        let segment_len = segment_len.map_or(payloads.len(), |len| len.get().into());
        self.waiting.push_back(DatagramBatch { len: payloads.len(), segment_len, local, peer });
    }

    /// The oldest datagram. Copies its payload into `buffer`, as far as it fits.
    pub(crate) fn pop(&mut self, buffer: &mut [u8]) -> Option<Datagram> {
        let batch = self.waiting.front_mut()?;
        let DatagramBatch { local, peer, .. } = *batch;
        let len = batch.segment_len.min(batch.len);
        batch.len -= len;
        if batch.len == 0 {
            self.waiting.pop_front();
        }
        Some(Datagram { len: self.take(len, buffer), local, peer })
    }

    /// The same for all datagrams of the oldest packet.
    pub(crate) fn pop_batch(&mut self, buffer: &mut [u8]) -> Option<DatagramBatch> {
        let batch = self.waiting.pop_front()?;
        Some(DatagramBatch { len: self.take(batch.len, buffer), ..batch })
    }

    /// Removes the oldest bytes, and copies them into `buffer`, as far as they fit. Returns how many it copied.
    fn take(&mut self, len: usize, buffer: &mut [u8]) -> usize {
        let copied = len.min(buffer.len());
        let (front, back) = self.payloads.as_slices();
        let of_front = copied.min(front.len());
        buffer[..of_front].copy_from_slice(&front[..of_front]);
        buffer[of_front..copied].copy_from_slice(&back[..copied - of_front]);
        self.payloads.drain(..len);
        copied
    }
}

/// Largest number of tasks that wait for a datagram. With one more, all are woken: some have lost interest.
const MAX_RECEIVERS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Receivers(Vec<Waker>);

impl Receivers {
    pub(crate) fn wake(&mut self) {
        self.drain().for_each(Waker::wake);
    }

    /// Takes the wakers of all, for a caller that holds a lock.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Waker> {
        self.0.drain(..)
    }

    pub(crate) fn park(&mut self, cx: &Context<'_>) {
        if self.0.iter().any(|waker| waker.will_wake(cx.waker())) {
            return;
        }
        if self.0.len() >= MAX_RECEIVERS {
            self.wake();
        }
        self.0.push(cx.waker().clone());
    }
}

/// Whether a datagram may be sent; else [`io::ErrorKind::InvalidInput`]. Over IPv6 none fragments.
pub(crate) fn check(
    local: SocketAddr,
    peer: SocketAddr,
    payload_len: usize,
    max_payload_v4: usize,
    mtu: usize,
) -> io::Result<()> {
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    if local.is_ipv4() != peer.is_ipv4() {
        return refuse(format!("send a datagram from {local} to {peer}: these are of two IP versions"));
    }
    if !is_end(local) || !is_end(peer) {
        return refuse(format!("send a datagram from {local} to {peer}: each has to be a host's address and port"));
    }
    let most = if local.is_ipv4() { max_payload_v4 } else { max_payload(mtu, true) };
    if payload_len > most {
        return refuse(format!("send a datagram of {payload_len} bytes from {local}: the stack takes {most} at most"));
    }
    Ok(())
}

/// The largest payload, in bytes, of a datagram in one packet of the MTU.
pub(crate) fn max_payload(mtu: usize, ipv6: bool) -> usize {
    let ip_header_len = if ipv6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
    mtu.min(65_535).saturating_sub(ip_header_len + UDP_HEADER_LEN)
}

/// A datagram as a packet, with a partial checksum. `None` if the ends are of two IP versions.
pub(crate) fn packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let udp_len = UDP_HEADER_LEN + payload.len();
    let mut packet = vec![0; IPV6_HEADER_LEN + udp_len];
    let udp_at = write_ip(&mut packet, from.ip(), to.ip(), UDP, udp_len)?;
    packet.truncate(udp_at + udp_len);
    for (field, value) in [from.port(), to.port(), udp_len as u16].into_iter().enumerate() {
        packet[udp_at + 2 * field..][..2].copy_from_slice(&value.to_be_bytes());
    }
    packet[udp_at + UDP_HEADER_LEN..].copy_from_slice(payload);
    let len = packet.len();
    write_partial_udp_checksum(&mut packet, len);
    Some(packet)
}

fn is_end(end: SocketAddr) -> bool {
    end.port() != 0 && is_host(end.ip())
}

#[cfg(test)]
mod tests;
