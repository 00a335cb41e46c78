//! A TUN device with calls that never block.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tun_rs::{AsyncDevice, GROTable, SyncDevice, VIRTIO_NET_HDR_LEN};

/// A non-blocking device. Any number of workers may read and write it. A call that would block fails with
/// [`io::ErrorKind::WouldBlock`].
pub(super) trait Device: Send + Sync + 'static {
    /// Receives a packet.
    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends a packet.
    fn try_send(&self, packet: &[u8]) -> io::Result<usize>;

    /// Receives a super-packet into `whole` and splits it into packets, each with room for a header in front.
    fn try_recv_multiple(&self, whole: &mut [u8], packets: &mut [BytesMut], sizes: &mut [usize]) -> io::Result<usize>;

    /// Coalesces packets into super-packets if possible, and sends them. Each packet has room for a header in front. It
    /// does not wait for room in the device, because tun-rs does not report which packets the kernel has accepted.
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

/// A shared device and its name.
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
