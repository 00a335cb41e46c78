//! The client's side of a SOCKS5 handshake (RFC 1928), over a socket that does not block.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;

/// The longest answers: the method, and the reply with an IPv6 address.
const MAX_ANSWERS: usize = METHOD_LEN + 4 + 16 + 2;

/// The length of the answer that chooses a method.
const METHOD_LEN: usize = 2;

/// No authentication.
const OFFER: [u8; 3] = [5, 1, 0];

/// What a server is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Connect = 1,
    UdpAssociate = 3,
}

/// A handshake without authentication.
pub(crate) struct Handshake {
    offer_and_request: ArrayVec<u8, { OFFER.len() + MAX_ANSWERS - METHOD_LEN }>,
    /// How much of them goes out before the method is there.
    at_first: usize,
    asked: usize,
    answers: ArrayVec<u8, MAX_ANSWERS>,
}

impl Handshake {
    /// For a connection to a target. It asks for it with its offer, which saves a round trip, and which our own server allows.
    pub(crate) fn at_once(target: SocketAddr) -> Self {
        let handshake = Self::of(Command::Connect, target);
        Self { at_first: handshake.offer_and_request.len(), ..handshake }
    }

    /// For any server: some lose a request that comes with the offer.
    pub(crate) fn of(command: Command, target: SocketAddr) -> Self {
        let mut questions: ArrayVec<_, _> = OFFER.into_iter().chain([5, command as u8, 0]).collect();
        match target.ip() {
            IpAddr::V4(address) => questions.extend([1].into_iter().chain(address.octets())),
            IpAddr::V6(address) => questions.extend([4].into_iter().chain(address.octets())),
        }
        questions.extend(target.port().to_be_bytes());
        Self { offer_and_request: questions, at_first: OFFER.len(), asked: 0, answers: ArrayVec::new() }
    }

    /// Goes on with the handshake as far as that is possible now. Returns the address of the reply once it is there: for
    /// datagrams it is that of the relay.
    pub(crate) fn go_on(&mut self, server: &mut (impl Read + Write)) -> io::Result<Option<SocketAddr>> {
        loop {
            let is_chosen = self.answers.len() >= METHOD_LEN;
            let due = if is_chosen { self.offer_and_request.len() } else { self.at_first };
            if self.asked < due {
                // It fits into the buffer of a new socket.
                server.write_all(&self.offer_and_request[self.asked..due])?;
                self.asked = due;
            }
            let missing = self.missing()?;
            if missing == 0 {
                return Ok(self.address());
            }
            let mut bytes = [0; MAX_ANSWERS];
            match server.read(&mut bytes[..missing]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.answers.extend(bytes[..len].iter().copied()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// How many bytes are known to be missing of the answers.
    fn missing(&self) -> io::Result<usize> {
        let expected = [5, 0, 5, 0];
        if let Some(wrong) = self.answers.iter().zip(expected).position(|(byte, expected)| *byte != expected) {
            let reason = format!("the SOCKS5 server refused it, with {:?}", self.answers.as_slice());
            let kind = if wrong == 3 { reply(self.answers[wrong]) } else { io::ErrorKind::InvalidData };
            return Err(io::Error::new(kind, reason));
        }
        // The method; the reply with the kind of the address that follows.
        let len = match self.answers.get(5) {
            None if self.answers.len() < METHOD_LEN && self.at_first == OFFER.len() => METHOD_LEN,
            None => METHOD_LEN + 4,
            Some(1) => METHOD_LEN + 4 + 4 + 2,
            Some(4) => METHOD_LEN + 4 + 16 + 2,
            Some(kind) => {
                let reason = format!("the SOCKS5 server answered with an address of the kind {kind}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
        };
        Ok(len - self.answers.len())
    }

    fn address(&self) -> Option<SocketAddr> {
        let (host, port) = self.answers.get(METHOD_LEN + 4..)?.split_last_chunk()?;
        let v4 = |host| <[u8; 4]>::try_from(host).map(IpAddr::from);
        let host = v4(host).or_else(|_| <[u8; 16]>::try_from(host).map(IpAddr::from)).ok()?;
        Some(SocketAddr::new(host, u16::from_be_bytes(*port)))
    }
}

/// The error of a reply (RFC 1928, 6).
fn reply(code: u8) -> io::ErrorKind {
    match code {
        2 => io::ErrorKind::PermissionDenied,
        3 => io::ErrorKind::NetworkUnreachable,
        // Servers answer a general failure for what has no code of its own, such as an address without a route.
        1 | 4 => io::ErrorKind::HostUnreachable,
        5 => io::ErrorKind::ConnectionRefused,
        6 => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that has answered so much, and no more yet.
    struct Server<'a> {
        answers: &'a [u8],
        asked: Vec<u8>,
    }

    impl Read for Server<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            // A byte at a time is the worst that a network can do.
            let Some((first, rest)) = self.answers.split_first() else { return Err(io::ErrorKind::WouldBlock.into()) };
            (buffer[0], self.answers) = (*first, rest);
            Ok(1)
        }
    }

    impl Write for Server<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns after how many bytes of the answers the connection is there.
    fn connected_after(target: &str, answers: &[u8]) -> io::Result<Option<usize>> {
        let mut handshake = Handshake::at_once(target.parse().unwrap());
        for (index, byte) in answers.iter().enumerate() {
            let mut server = Server { answers: &[*byte], asked: Vec::new() };
            if handshake.go_on(&mut server)?.is_some() {
                return Ok(Some(index + 1));
            }
            assert_eq!(server.asked.is_empty(), index > 0, "it asks once");
        }
        Ok(None)
    }

    #[test]
    fn a_connection_is_there_when_the_whole_reply_has_come() {
        let reply = [&[5, 0, 5, 0, 0, 1, 10, 0, 0, 1, 0, 80][..], b"the target's first bytes"].concat();
        assert_eq!(connected_after("10.0.0.2:80", &reply).unwrap(), Some(12));
        let reply = [&[5, 0, 5, 0, 0, 4][..], &[0; 20]].concat();
        assert_eq!(connected_after("[fd00::2]:80", &reply).unwrap(), Some(24));
        assert_eq!(connected_after("10.0.0.2:80", &reply[..23]).unwrap(), None);
        let mut server = Server { answers: &[], asked: Vec::new() };
        assert_eq!(Handshake::at_once("10.0.0.2:80".parse().unwrap()).go_on(&mut server).unwrap(), None);
        assert_eq!(server.asked, [5, 1, 0, 5, 1, 0, 1, 10, 0, 0, 2, 0, 80]);
    }

    #[test]
    fn a_relay_is_asked_for_after_the_method_and_its_address_is_returned() {
        let mut handshake = Handshake::of(Command::UdpAssociate, "[::]:0".parse().unwrap());
        for (answers, asked, relay) in [
            (&[][..], &[5, 1, 0][..], None),
            (&[5], &[], None),
            (&[0], &[&[5, 3, 0, 4][..], &[0; 18]].concat(), None),
            (&[5, 0, 0, 1, 10, 0, 0, 7, 4], &[], None),
            (&[56], &[], Some("10.0.0.7:1080")),
        ] {
            let mut server = Server { answers, asked: Vec::new() };
            let relay = relay.map(|relay| relay.parse().unwrap());
            assert_eq!((handshake.go_on(&mut server).unwrap(), server.asked.as_slice()), (relay, asked));
        }
    }

    #[test]
    fn a_refusal_and_nonsense_are_errors() {
        for (answers, kind) in [
            (&[5, 0xff][..], io::ErrorKind::InvalidData),
            (&[5, 0, 5, 1], io::ErrorKind::HostUnreachable),
            (&[5, 0, 5, 4], io::ErrorKind::HostUnreachable),
            (&[5, 0, 5, 5], io::ErrorKind::ConnectionRefused),
            (&[5, 0, 5, 99], io::ErrorKind::Other),
            (b"HTTP", io::ErrorKind::InvalidData),
            (&[5, 0, 5, 0, 0, 3], io::ErrorKind::InvalidData),
        ] {
            assert_eq!(connected_after("10.0.0.2:80", answers).unwrap_err().kind(), kind, "{answers:?}");
        }
    }
}
