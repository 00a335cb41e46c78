//! Datagrams and ICMP messages between the peer and the server.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use netstacks::Datagram;
use tokio::time::timeout;

use super::{Lab, SOON, patient};
use crate::wire::{Arrived, Message};
use crate::{Step, link, packets, same};

/// The port of the peer's datagrams.
const PORT: u16 = 50_000;

impl Lab {
    pub(crate) fn peer(&self) -> SocketAddr {
        SocketAddr::new(link::peer_ip(self.ipv6), PORT)
    }

    pub(crate) fn to_server(&self, payload: &[u8]) -> Vec<u8> {
        packets::datagram(self.peer(), self.server(), payload)
    }

    /// Sends a datagram to the server, which must receive it.
    pub(crate) fn arrives(&self, payload: &[u8]) -> Step {
        self.arrives_at(self.peer(), self.server(), payload)
    }

    /// The same with other addresses.
    pub(crate) fn arrives_at(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Step {
        self.send_packet(&packets::datagram(from, to, payload))?;
        self.receives(from, to, payload)
    }

    /// The server must receive this datagram next.
    pub(crate) fn receives(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Step {
        let Some((bytes, addresses)) = self.received(SOON)? else {
            return fail!(Data, "a datagram of {} bytes was not received", payload.len());
        };
        same(&bytes, payload)?;
        check!(addresses == [to, from], Data, "it has the addresses {addresses:?}")
    }

    /// The server must receive these bytes next.
    pub(crate) fn receives_next(&self, payload: &[u8]) -> Step {
        match self.received(SOON)? {
            Some((bytes, _)) => same(&bytes, payload),
            None => fail!(Data, "it was not received"),
        }
    }

    /// Sends a datagram from the server, which must arrive.
    pub(crate) fn answers(&self, payload: &[u8]) -> Step {
        self.answers_to(self.server(), self.peer(), payload)
    }

    /// The same with other addresses.
    pub(crate) fn answers_to(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Step {
        if let Err(error) = self.send_datagram(from, to, payload) {
            return fail!("sending {} bytes failed: {error}", payload.len());
        }
        self.comes(from, payload)
    }

    pub(crate) fn comes(&self, from: SocketAddr, payload: &[u8]) -> Step {
        let Some(arrived) = self.datagram(SOON)? else {
            return fail!(Data, "a datagram of {} bytes did not arrive", payload.len());
        };
        same(&arrived.payload, payload)?;
        let source = SocketAddr::new(arrived.source, arrived.source_port);
        check!(source == from, "it came from {source}")
    }

    pub(crate) fn datagram(&self, within: Duration) -> Step<Option<Arrived>> {
        self.wire().datagram(Instant::now() + patient(within))
    }

    pub(crate) fn message(&self, within: Duration) -> Step<Option<Message>> {
        self.wire().message(Instant::now() + patient(within))
    }

    /// Drops the server's datagrams: it has no open port any more.
    pub(crate) fn drop_datagrams(&mut self) {
        self.datagrams = None;
    }

    /// Returns the next datagram that the server receives in time, with its destination and its sender.
    pub(crate) fn received(&self, within: Duration) -> Step<Option<(Vec<u8>, [SocketAddr; 2])>> {
        let Some(datagrams) = &self.datagrams else { return Ok(None) };
        let mut buffer = vec![0; 65_535];
        match self.runtime.block_on(async { timeout(patient(within), datagrams.recv(&mut buffer)).await }) {
            Ok(Ok(Datagram { len, local, peer })) => {
                buffer.truncate(len);
                Ok(Some((buffer, [local, peer])))
            }
            Ok(Err(error)) => fail!(Hang, "the datagrams failed: {error}"),
            Err(_) => Ok(None),
        }
    }

    /// The server receives datagrams until none comes for this long. Returns how many.
    pub(crate) fn drain(&self, pause: Duration) -> Step<usize> {
        let mut count = 0;
        while self.received(pause)?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    pub(crate) fn send_datagram(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        self.send_datagrams([local, peer], payload, payload.len()).map(drop)
    }

    /// Sends datagrams of `len` bytes each from the server. Returns the bytes of those that were sent.
    pub(crate) fn send_datagrams(&self, ends: [SocketAddr; 2], payloads: &[u8], len: usize) -> io::Result<usize> {
        self.datagrams.as_ref().map_or(Ok(0), |datagrams| datagrams.send(ends, payloads, len))
    }
}
