//! The sockets of a client thread: many, by number, driven by readiness.

pub(crate) mod kernel;
pub(crate) mod memory;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use platform::TcpStatistics;

/// Ends a call that another thread waits in.
pub(crate) type Cancel = Box<dyn Fn() + Send>;

/// The sockets of one thread, by number. Each number has at most one socket.
pub(crate) trait Sockets: Send + 'static {
    fn connect(&mut self, index: usize, target: SocketAddr) -> io::Result<()>;

    /// Whether the socket is connected. An error means that it never will be.
    fn is_connected(&mut self, index: usize) -> io::Result<bool>;

    /// Reads the bytes that have arrived, or one datagram. Returns 0 at the end of a stream, and
    /// [`io::ErrorKind::WouldBlock`] if there is nothing.
    fn read(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes as much as there is room for, over UDP as one datagram; else returns [`io::ErrorKind::WouldBlock`].
    fn write(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize>;

    /// Receives a datagram, or several that have arrived together. Returns the length of all, and of each but the last.
    fn read_datagrams(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
        self.read(index, buffer).map(|len| (len, len))
    }

    /// Sends datagrams that lie back to back, each of `segment_len` bytes. Returns the bytes of those that it sent.
    fn write_datagrams(&mut self, index: usize, datagrams: &[u8], segment_len: usize) -> io::Result<usize> {
        self.write(index, &datagrams[..segment_len.min(datagrams.len())])
    }

    fn end_writing(&mut self, index: usize) -> io::Result<()>;

    fn close(&mut self, index: usize);

    /// Ends a connection by a RST.
    fn reset(&mut self, index: usize) {
        self.close(index);
    }

    /// From now on reads and writes of socket 0, which is connected, may block: the thread has no other socket.
    fn block(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Reads and writes do not block any longer.
    fn unblock(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The kernel's statistics of a connection, or quinn's; all unknown over memory.
    fn statistics(&self, index: usize) -> TcpStatistics;

    /// Waits for events, until about `end` or exactly `due`, or until it is cancelled. Appends the numbers of the sockets
    /// that became ready to `ready` (edge-triggered).
    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()>;

    /// The time of the clock by which it waits.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Returns a function that ends a wait, and a read or write that blocks.
    fn canceller(&self) -> Cancel;
}

/// The servers that the sockets of a thread connect to. Socket after socket of the load takes the next of them.
#[derive(Clone)]
pub(crate) struct Turns {
    servers: Vec<IpAddr>,
    /// The sockets of the load before the first of these.
    before: usize,
}

impl Turns {
    pub(crate) fn new(servers: Vec<IpAddr>) -> Self {
        Self { servers, before: 0 }
    }

    /// Those of the next sockets, so many of them.
    pub(crate) fn take(&mut self, count: usize) -> Self {
        let taken = self.clone();
        self.before += count;
        taken
    }

    /// The target of a socket: the same port, at the server whose turn it is.
    pub(crate) fn target_of(&self, index: usize, target: SocketAddr) -> SocketAddr {
        let turn = (self.before + index) % self.servers.len().max(1);
        SocketAddr::new(self.servers.get(turn).copied().unwrap_or(target.ip()), target.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scenario::Scenario;

    /// The load's sockets are counted across its threads.
    #[test]
    fn socket_after_socket_connects_to_the_servers_in_turn() {
        for (words, first, before, expected) in [
            ("--program lwip", "198.18.2.1", 7, ["198.18.2.1", "198.18.2.1", "198.18.2.1"]),
            ("--program gotatun --peers 2", "10.10.10.1", 0, ["10.10.10.1", "10.10.11.1", "10.10.10.1"]),
            ("--program gotatun --peers 3", "10.10.10.1", 2, ["10.10.12.1", "10.10.10.1", "10.10.11.1"]),
            ("--program gotatun --peers 2 --inbound", "10.10.10.9", 0, ["10.10.10.9", "10.10.11.9", "10.10.10.9"]),
            ("--program gotatun --peers 2 --ipv6", "fd10::1", 1, ["fd10:10:10:1::1", "fd10::1", "fd10:10:10:1::1"]),
        ] {
            let words = format!("-m rr --parallel 4 {words}").split(' ').map(ToOwned::to_owned).collect();
            let servers = Scenario::of_words(words).unwrap().servers(first.parse().unwrap());
            let mut turns = Turns::new(servers);
            turns.take(before);
            let target = SocketAddr::new(first.parse().unwrap(), 5201);
            let made = [0, 1, 2].map(|index| turns.target_of(index, target));
            assert_eq!(made, expected.map(|address| SocketAddr::new(address.parse().unwrap(), 5201)));
        }
    }
}
