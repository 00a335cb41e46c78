//! One connection as a blocking client.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use platform::Link;

use super::Peers;

/// A connection of [`Peers`] for a thread: each call blocks, for the client's patience at most.
#[derive(Debug)]
pub struct Client<L> {
    peers: Peers<L>,
    patience: Duration,
}

const SLOT: usize = 0;

impl<L: Link> Client<L> {
    /// Connects from the address `local` to `remote`.
    pub fn connect(link: L, local: IpAddr, remote: SocketAddr, patience: Duration) -> io::Result<Self> {
        let mut client = Self { peers: Peers::new(link, local), patience };
        client.peers.connect(SLOT, remote)?;
        client.wait(|peers| if peers.is_connected(SLOT) { Ok(()) } else { peers.read(SLOT, &mut [0]).map(drop) })?;
        // Some stacks ignore data that comes with the acknowledgement of their SYN-ACK.
        client.flush()?;
        Ok(client)
    }

    /// Ends the sending half. Reads still work.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        self.peers.end_writing(SLOT);
        self.peers.wait(Duration::ZERO, &mut Vec::new())
    }

    fn wait<T>(&mut self, mut attempt: impl FnMut(&mut Peers<L>) -> io::Result<T>) -> io::Result<T> {
        let begin = Instant::now();
        loop {
            match attempt(&mut self.peers) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            let left = self.patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.peers.wait(left, &mut Vec::new())?;
        }
    }
}

impl<L: Link> Read for Client<L> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|peers| peers.read(SLOT, buffer))
    }
}

impl<L: Link> Write for Client<L> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.wait(|peers| peers.write(SLOT, bytes))?;
        self.flush().map(|()| len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.peers.wait(Duration::ZERO, &mut Vec::new())
    }
}
