//! A TUN device in calls that never wait.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tun_rs::{AsyncDevice, GROTable, SyncDevice, VIRTIO_NET_HDR_LEN};

/// A non-blocking device that any number of workers read and write. A call that would have to wait fails with
/// [`io::ErrorKind::WouldBlock`].
pub(super) trait Device: Send + Sync + 'static {
    /// Receives a packet.
    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends a packet.
    fn try_send(&self, packet: &[u8]) -> io::Result<usize>;

    /// Receives a super-packet into `whole`, and cuts it into packets, with room for a header before each.
    fn try_recv_multiple(&self, whole: &mut [u8], packets: &mut [BytesMut], sizes: &mut [usize]) -> io::Result<usize>;

    /// Sends packets with room for a header before each, joined to super-packets where that is possible. It does not
    /// wait for room: tun-rs does not say which of them the kernel has taken.
    fn try_send_multiple(&self, table: &mut GROTable, packets: &mut [BytesMut]) -> io::Result<usize>;
}

impl Device for SyncDevice {
    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }

    fn try_send(&self, packet: &[u8]) -> io::Result<usize> {
        self.send(packet)
    }

    fn try_recv_multiple(&self, whole: &mut [u8], packets: &mut [BytesMut], sizes: &mut [usize]) -> io::Result<usize> {
        self.recv_multiple(whole, packets, sizes, VIRTIO_NET_HDR_LEN)
    }

    fn try_send_multiple(&self, table: &mut GROTable, packets: &mut [BytesMut]) -> io::Result<usize> {
        self.send_multiple(table, packets, VIRTIO_NET_HDR_LEN)
    }
}

impl Device for AsyncDevice {
    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_recv(buffer)
    }

    fn try_send(&self, packet: &[u8]) -> io::Result<usize> {
        self.try_send(packet)
    }

    fn try_recv_multiple(&self, whole: &mut [u8], packets: &mut [BytesMut], sizes: &mut [usize]) -> io::Result<usize> {
        self.try_recv_multiple(whole, packets, sizes, VIRTIO_NET_HDR_LEN)
    }

    fn try_send_multiple(&self, table: &mut GROTable, packets: &mut [BytesMut]) -> io::Result<usize> {
        (**self).send_multiple(table, packets, VIRTIO_NET_HDR_LEN)
    }
}

/// A device that workers share, and its name.
pub(super) struct Port<D> {
    pub(super) device: Arc<D>,
    pub(super) name: Arc<str>,
}

impl<D> Port<D> {
    pub(super) fn new(device: D, name: &str) -> Self {
        Self { device: Arc::new(device), name: name.into() }
    }
}

impl<D> Clone for Port<D> {
    fn clone(&self) -> Self {
        Self { device: Arc::clone(&self.device), name: Arc::clone(&self.name) }
    }
}
