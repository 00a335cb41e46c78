//! The client's side of a SOCKS5 handshake (RFC 1928), over a socket that does not block.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;

/// The longest answers: the method, and the reply with an IPv6 address.
const MAX_ANSWERS: usize = 2 + 4 + 16 + 2;

/// A handshake without authentication, for a connection to a target.
pub(super) struct Handshake {
    target: SocketAddr,
    has_asked: bool,
    answers: ArrayVec<u8, MAX_ANSWERS>,
}

impl Handshake {
    pub(super) fn new(target: SocketAddr) -> Self {
        Self { target, has_asked: false, answers: ArrayVec::new() }
    }

    /// Goes on with the handshake as far as that is possible now. Returns whether the connection to the target is there.
    pub(super) fn go_on(&mut self, server: &mut (impl Read + Write)) -> io::Result<bool> {
        if !self.has_asked {
            // It fits into the buffer of a new socket.
            server.write_all(&self.questions())?;
            self.has_asked = true;
        }
        loop {
            let mut bytes = [0; MAX_ANSWERS];
            let missing = self.missing()?;
            if missing == 0 {
                return Ok(true);
            }
            match server.read(&mut bytes[..missing]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.answers.extend(bytes[..len].iter().copied()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// The offer of no authentication, and CONNECT. The server reads them one after the other.
    fn questions(&self) -> Vec<u8> {
        let mut questions = vec![5, 1, 0, 5, 1, 0];
        match self.target.ip() {
            IpAddr::V4(address) => {
                questions.push(1);
                questions.extend(address.octets());
            }
            IpAddr::V6(address) => {
                questions.push(4);
                questions.extend(address.octets());
            }
        }
        questions.extend(self.target.port().to_be_bytes());
        questions
    }

    /// How many bytes are known to be missing of the answers.
    fn missing(&self) -> io::Result<usize> {
        let expected = [5, 0, 5, 0];
        if self.answers.iter().zip(expected).any(|(byte, expected)| *byte != expected) {
            let reason = format!("the SOCKS5 server refused it, with {:?}", self.answers.as_slice());
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, reason));
        }
        // Two bytes, and four with the kind of the address that follows.
        let len = match self.answers.get(5) {
            None => 6,
            Some(1) => 6 + 4 + 2,
            Some(4) => 6 + 16 + 2,
            Some(kind) => {
                let reason = format!("the SOCKS5 server answered with an address of the kind {kind}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
        };
        Ok(len - self.answers.len())
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
        let mut handshake = Handshake::new(target.parse().unwrap());
        for (index, byte) in answers.iter().enumerate() {
            let mut server = Server { answers: &[*byte], asked: Vec::new() };
            if handshake.go_on(&mut server)? {
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
        assert!(!Handshake::new("10.0.0.2:80".parse().unwrap()).go_on(&mut server).unwrap());
        assert_eq!(server.asked, [5, 1, 0, 5, 1, 0, 1, 10, 0, 0, 2, 0, 80]);
    }

    #[test]
    fn a_refusal_and_nonsense_are_errors() {
        for (answers, kind) in [
            (&[5, 0xff][..], io::ErrorKind::ConnectionRefused),
            (&[5, 0, 5, 5], io::ErrorKind::ConnectionRefused),
            (b"HTTP", io::ErrorKind::ConnectionRefused),
            (&[5, 0, 5, 0, 0, 3], io::ErrorKind::InvalidData),
        ] {
            assert_eq!(connected_after("10.0.0.2:80", answers).unwrap_err().kind(), kind, "{answers:?}");
        }
    }
}
