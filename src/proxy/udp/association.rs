//! A client's datagrams at a SOCKS5 server (RFC 1928, 7): each has a header with the address of its server.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{new_udp_header, parse_udp_request};
use futures_util::FutureExt;
use socket2::{SockRef, Socket};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UdpSocket};

use super::send;

/// So many bytes of datagrams wait for the server's relay. More are lost.
const MAX_WAITING_BYTES: usize = 64 << 10;

/// The association of a flow, which may not be there yet.
pub(super) struct Association(Mutex<State>);

enum State {
    /// Datagrams with their headers, and the length of each.
    Waiting(Vec<(Vec<u8>, usize)>),
    /// Where the relay is.
    With(SocketAddr),
}

impl Default for Association {
    fn default() -> Self {
        Self(Mutex::new(State::Waiting(Vec::new())))
    }
}

impl Association {
    /// Whether this is the relay.
    pub(super) fn is_with(&self, from: SocketAddr) -> bool {
        matches!(&*self.0.lock().unwrap_or_else(PoisonError::into_inner), State::With(relay) if *relay == from)
    }

    /// Sends datagrams of `segment_len` bytes each to a server, once there is a relay.
    pub(super) fn send(
        &self,
        socket: &Socket,
        server: SocketAddr,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<()> {
        let (datagrams, len) = wrapped(server, payloads, segment_len)?;
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::With(relay) => send(socket, *relay, &datagrams, len),
            State::Waiting(waiting) => {
                let bytes: usize = waiting.iter().map(|(datagrams, _)| datagrams.len()).sum();
                if bytes + datagrams.len() <= MAX_WAITING_BYTES {
                    waiting.push((datagrams, len));
                }
                Ok(())
            }
        }
    }

    /// Sends what has waited when the relay is there, and waits for the end of the association. Returns why it has ended.
    pub(super) async fn keep(
        &self,
        socket: &UdpSocket,
        associating: impl Future<Output = io::Result<(TcpStream, SocketAddr)>>,
    ) -> io::Error {
        let kept = async {
            let (mut control, relay) = associating.await?;
            let begun = {
                let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *state, State::With(relay))
            };
            if let State::Waiting(waiting) = begun {
                waiting.iter().try_for_each(|(datagrams, len)| send(&SockRef::from(socket), relay, datagrams, *len))?;
            }
            // The server says nothing more.
            while control.read(&mut [0; 64]).await? > 0 {}
            Err::<Infallible, _>(io::Error::other("the SOCKS5 server has ended its association"))
        };
        kept.await.map_or_else(|error| error, |never| match never {})
    }
}

/// Datagrams with a header each, and the length of each.
fn wrapped(server: SocketAddr, payloads: &[u8], segment_len: usize) -> io::Result<(Vec<u8>, usize)> {
    let header = new_udp_header(server).map_err(io::Error::other)?;
    let count = payloads.len().div_ceil(segment_len.max(1)).max(1);
    let mut datagrams = Vec::with_capacity(payloads.len() + count * header.len());
    let mut left = payloads;
    loop {
        let (payload, rest) = left.split_at(segment_len.min(left.len()));
        datagrams.extend_from_slice(&header);
        datagrams.extend_from_slice(payload);
        left = rest;
        if left.is_empty() || segment_len == 0 {
            return Ok((datagrams, header.len() + segment_len));
        }
    }
}

/// Takes the headers from datagrams of `segment_len` bytes. `pass` gets the server, the payloads back to back, and their length.
/// Datagrams with a wrong header are lost, and so are fragments, as a client may choose.
pub(super) fn unwrapped(mut datagrams: &mut [u8], segment_len: usize, mut pass: impl FnMut(SocketAddr, &[u8], usize)) {
    while !datagrams.is_empty() {
        let first = &datagrams[..segment_len.min(datagrams.len())];
        // It reads from memory, so it is ready.
        let request = parse_udp_request(first).now_or_never();
        let Some(Ok((0, TargetAddr::Ip(server), payload))) = request else {
            datagrams = datagrams.split_at_mut(first.len()).1;
            continue;
        };
        let (header_len, mut read, mut written) = (first.len() - payload.len(), 0, 0);
        // Those that follow with the same header are moved beside it.
        while read < datagrams.len() {
            let len = segment_len.min(datagrams.len() - read);
            let (before, next) = datagrams.split_at(read);
            if read > 0 && next.get(..header_len) != before.get(..header_len) {
                break;
            }
            datagrams.copy_within(read + header_len..read + len, header_len + written);
            (read, written) = (read + len, written + len - header_len);
        }
        let (passed, rest) = datagrams.split_at_mut(read);
        pass(server, &passed[header_len..header_len + written], segment_len - header_len);
        datagrams = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn datagrams_are_the_same_after_the_way_through_their_headers() {
        for (payloads, segment_len) in
            [(&b""[..], 0), (b"one", 3), (b"one", 9), (b"onetwo", 3), (b"onetwot", 3), (&[7; 16_000], 1000)]
        {
            for to in ["10.0.0.1:53", "[fd00::1]:4000"].map(server) {
                let (mut datagrams, len) = wrapped(to, payloads, segment_len).unwrap();
                let mut found = Vec::new();
                // The kernel says how long the only one is.
                let len = len.min(datagrams.len());
                unwrapped(&mut datagrams, len, |from, payloads, len| found.push((from, payloads.to_vec(), len)));
                assert_eq!(found, [(to, payloads.to_vec(), segment_len.min(payloads.len()))]);
            }
        }
    }

    #[test]
    fn servers_are_told_apart_and_wrong_headers_are_lost() {
        let datagram = |to: &str, payload: &[u8]| wrapped(server(to), payload, 3).unwrap().0;
        let (one, other) = ("10.0.0.1:53", "10.0.0.1:54");
        let mut fragment = datagram(one, b"bad");
        fragment[2] = 1;
        let of_a_name = b"\0\0\0\x03\x01x\0\x35bad..";
        let parts =
            [datagram(one, b"one"), datagram(one, b"two"), fragment, of_a_name.to_vec(), datagram(other, b"end")];
        let mut found = Vec::new();
        unwrapped(&mut parts.concat(), 13, |from, payloads, len| found.push((from, payloads.to_vec(), len)));
        let expected = [(server(one), b"onetwo".to_vec(), 3), (server(other), b"end".to_vec(), 3)];
        assert_eq!(found, expected);
        for garbage in [&b"x"[..], b"\0\0\0\x01\x0a", &[0xff; 40]] {
            unwrapped(&mut garbage.to_vec(), garbage.len(), |_, _, _| unreachable!("it is no datagram of a relay"));
        }
    }
}
