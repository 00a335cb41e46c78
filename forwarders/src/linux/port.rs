//! A TUN device, as the loops see it: calls that come back when they are done.
//!
//! There is one shape of loop for threads and for tasks: an `async` one. A thread polls it once, and since
//! its calls block instead of being pending, that poll lasts as long as the loop.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::BytesMut;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tun_rs::{AsyncDevice, GROTable, SyncDevice, VIRTIO_NET_HDR_LEN};

/// A device that any number of loops read and write.
pub(super) trait Port: Clone + Send + Sync + 'static {
    /// The interface's name.
    fn name(&self) -> &str;

    /// Receives a packet.
    fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;

    /// Receives a packet that is there already, else fails with [`io::ErrorKind::WouldBlock`].
    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends a packet.
    fn send(&self, packet: &[u8]) -> impl Future<Output = io::Result<usize>> + Send;

    /// Receives a super-packet into `whole`, and cuts it into packets, with room for a header before each.
    fn recv_multiple(
        &self,
        whole: &mut [u8],
        packets: &mut [BytesMut],
        sizes: &mut [usize],
    ) -> impl Future<Output = io::Result<usize>> + Send;

    /// Sends packets with room for a header before each, joined to super-packets where that can be.
    fn send_multiple(
        &self,
        table: &mut GROTable,
        packets: &mut [BytesMut],
    ) -> impl Future<Output = io::Result<usize>> + Send;
}

/// The error of a call that was given up because the forwarder stops.
pub(super) fn stopped() -> io::Error {
    io::ErrorKind::Interrupted.into()
}

/// Tells threads to stop, also those that wait for a packet.
pub(super) struct Stop {
    stopped: AtomicBool,
    /// While both ends are open, there is nothing to read.
    asleep: UnixStream,
    awake: UnixStream,
}

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        let (asleep, awake) = UnixStream::pair()?;
        Ok(Self { stopped: AtomicBool::new(false), asleep, awake })
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // It cannot fail but where it has been done before.
        let _before = self.awake.shutdown(std::net::Shutdown::Both);
    }
}

/// A device in calls that block.
pub(super) struct Blocking {
    device: Arc<SyncDevice>,
    name: Arc<str>,
    stop: Arc<Stop>,
}

impl Clone for Blocking {
    fn clone(&self) -> Self {
        Self { device: Arc::clone(&self.device), name: Arc::clone(&self.name), stop: Arc::clone(&self.stop) }
    }
}

impl Blocking {
    pub(super) fn new(device: SyncDevice, name: &str, stop: &Arc<Stop>) -> io::Result<Self> {
        device.set_nonblocking(true)?;
        Ok(Self { device: Arc::new(device), name: name.into(), stop: Arc::clone(stop) })
    }

    /// Does `call` until it does not find the device unready. The device itself does not block, for nothing
    /// could end a `read(2)` that does.
    ///
    /// Before it sleeps it lets whoever wants the processor have it, where it `yields`: if that is the one who makes
    /// the packets, several have come at the next look, for the price of one. Who takes one at a time gains nothing.
    fn patiently<T>(
        &self,
        flags: PollFlags,
        mut yields: bool,
        mut call: impl FnMut(&SyncDevice) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            if self.stop.stopped.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            match call(&self.device) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if mem::take(&mut yields) {
                thread::yield_now();
            } else {
                self.wait(flags)?;
            }
        }
    }

    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let mut fds =
            [PollFd::new(self.device.as_fd(), flags), PollFd::new(self.stop.asleep.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Port for Blocking {
    fn name(&self) -> &str {
        &self.name
    }

    async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(PollFlags::POLLIN, true, |device| device.recv(buffer))
    }

    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.device.recv(buffer)
    }

    async fn send(&self, packet: &[u8]) -> io::Result<usize> {
        self.patiently(PollFlags::POLLOUT, true, |device| device.send(packet))
    }

    async fn recv_multiple(
        &self,
        whole: &mut [u8],
        packets: &mut [BytesMut],
        sizes: &mut [usize],
    ) -> io::Result<usize> {
        self.patiently(PollFlags::POLLIN, false, |device| {
            device.recv_multiple(whole, packets, sizes, VIRTIO_NET_HDR_LEN)
        })
    }

    async fn send_multiple(&self, table: &mut GROTable, packets: &mut [BytesMut]) -> io::Result<usize> {
        self.patiently(PollFlags::POLLOUT, true, |device| device.send_multiple(table, packets, VIRTIO_NET_HDR_LEN))
    }
}

/// A device on tokio's runtime.
pub(super) struct Registered {
    device: Arc<AsyncDevice>,
    name: Arc<str>,
}

impl Clone for Registered {
    fn clone(&self) -> Self {
        Self { device: Arc::clone(&self.device), name: Arc::clone(&self.name) }
    }
}

impl Registered {
    /// To be called within the runtime.
    pub(super) fn new(device: SyncDevice, name: &str) -> io::Result<Self> {
        Ok(Self { device: Arc::new(AsyncDevice::new(device)?), name: name.into() })
    }

    /// The device.
    pub(super) fn device(&self) -> &Arc<AsyncDevice> {
        &self.device
    }
}

impl Port for Registered {
    fn name(&self) -> &str {
        &self.name
    }

    async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.device.recv(buffer).await
    }

    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.device.try_recv(buffer)
    }

    async fn send(&self, packet: &[u8]) -> io::Result<usize> {
        self.device.send(packet).await
    }

    async fn recv_multiple(
        &self,
        whole: &mut [u8],
        packets: &mut [BytesMut],
        sizes: &mut [usize],
    ) -> io::Result<usize> {
        self.device.recv_multiple(whole, packets, sizes, VIRTIO_NET_HDR_LEN).await
    }

    async fn send_multiple(&self, table: &mut GROTable, packets: &mut [BytesMut]) -> io::Result<usize> {
        self.device.send_multiple(table, packets, VIRTIO_NET_HDR_LEN).await
    }
}
