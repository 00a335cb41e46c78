//! The sockets of a client thread: many, by number, driven by readiness.

pub(crate) mod kernel;
pub(crate) mod memory;

use std::io;
use std::net::SocketAddr;
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
