//! The interface of a stack: datagrams.

use std::future::Future;
use std::io;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Whether an address can belong to a single host on a network.
pub(crate) fn is_host(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(broadcast || address.is_multicast() || address.is_unspecified() || address.is_loopback())
}

/// Whether an address is only valid on one link: no router forwards from or to it (RFC 4291, 2.5.6; RFC 3927, 2.7).
pub fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Largest number of datagrams, or super-packets of them, that wait for [`Datagrams::recv`]. Further ones are dropped.
pub const MAX_WAITING_DATAGRAMS: usize = 1024;

/// Largest number of payload bytes that wait for [`Datagrams::recv`].
pub const MAX_WAITING_BYTES: usize = 4 << 20;

/// UDP, to and from any address and port. All clones share one queue: a datagram is received once.
///
/// - The queue is bounded in number and bytes ([`MAX_WAITING_DATAGRAMS`], [`MAX_WAITING_BYTES`]); further datagrams are
///   dropped. After the last clone is dropped, all datagrams are dropped, without an ICMP message.
/// - Only unicast is received: no multicast, no broadcast, no port 0. A datagram is dropped if its UDP length is not the
///   length of its packet, and over IPv6 if it has no checksum (RFC 8200, 8.1).
/// - Datagrams that are longer than a packet of the MTU: over IPv4, lwIP and smoltcp fragment up to 65,507 bytes, and
///   reassemble about four datagrams at once; ipstack does neither. Over IPv6 no stack does.
/// - ipstack only replies: it sends nothing between two addresses before a datagram has arrived between them.
///
/// ```
/// use netstacks::peer::Peers;
/// use netstacks::{Datagrams, Netstack, Smoltcp, StackConfig};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let stack = Smoltcp::start(link, &StackConfig::default())?;
/// tokio::spawn(stack.driver);
/// let mut peers = Peers::new(other_end, "10.0.0.1".parse()?);
/// peers.send_datagram(4000, "10.0.0.2:53".parse()?, b"query")?;
///
/// let mut buffer = [0; 1500];
/// let query = stack.datagrams.recv(&mut buffer).await?;
/// assert_eq!(&buffer[..query.len], b"query");
/// stack.datagrams.try_send(query.local, query.peer, b"answer")?;
/// // The same for datagrams that came in one packet. Each is passed on with its own length.
/// peers.send_datagram(4000, "10.0.0.2:53".parse()?, b"another")?;
/// let batch = stack.datagrams.recv_batch(&mut buffer).await?;
/// assert!(batch.payloads(&buffer).eq([b"another"]));
/// stack.datagrams.try_send_batch(batch.local, batch.peer, &buffer[..batch.len], batch.segment_len)?;
/// # Ok(())
/// # }
/// ```
pub trait Datagrams: Clone + Send + Sync + 'static {
    /// Waits for the next datagram and copies its payload into `buffer`, as far as it fits: 65,535 bytes hold any.
    fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<Datagram>> + Send;

    /// The same for datagrams that came in one super-packet, back to back; 65,535 bytes hold any.
    fn recv_batch(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<DatagramBatch>> + Send {
        async { self.recv(buffer).await.map(DatagramBatch::from) }
    }

    /// Sends a datagram from `local` to `peer` without waiting. An adapter has this or [`Datagrams::try_send_batch`].
    /// [`io::ErrorKind::WouldBlock`]: the link or a queue is full. [`io::ErrorKind::InvalidInput`]: it is too long, the
    /// addresses are not two hosts' of one IP version, or the stack only answers and nothing has come.
    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        self.try_send_batch(local, peer, payload, payload.len()).map(drop)
    }

    /// Sends datagrams that lie back to back, each of `segment_len` bytes but the last; 0 means one. Returns the bytes
    /// of those that were sent; fails if none was. With UDP super-packets one packet holds many.
    fn try_send_batch(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        let mut sent = 0;
        for payload in segments(payloads, segment_len) {
            match self.try_send(local, peer, payload) {
                Ok(()) => sent += payload.len(),
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

/// The datagrams of a stack or an adapter without UDP: none ever arrives.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDatagrams;

impl Datagrams for NoDatagrams {
    async fn recv(&self, _: &mut [u8]) -> io::Result<Datagram> {
        std::future::pending().await
    }

    /// Always returns [`io::ErrorKind::Unsupported`].
    fn try_send(&self, _: SocketAddr, _: SocketAddr, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A datagram that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes of payload in the receiver's buffer.
    pub len: usize,
    /// The address that the peer sent it to.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// Datagrams between two addresses that have arrived together: one, or several of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramBatch {
    /// Bytes of all payloads, which lie back to back in the receiver's buffer.
    pub len: usize,
    /// Payload of each datagram, in bytes. The last may be shorter.
    pub segment_len: usize,
    /// The address that the peer sent them to.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

impl DatagramBatch {
    /// The payload of each datagram, out of the buffer that they were received into.
    pub fn payloads<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        segments(&buffer[..self.len], self.segment_len)
    }
}

impl From<Datagram> for DatagramBatch {
    fn from(Datagram { len, local, peer }: Datagram) -> Self {
        Self { len, segment_len: len, local, peer }
    }
}

pub(crate) const fn segment_len_of(payloads: &[u8], segment_len: usize) -> usize {
    if segment_len == 0 { payloads.len() } else { segment_len }
}

/// The payloads of datagrams that lie back to back. An empty one is a datagram, too.
pub(crate) fn segments(payloads: &[u8], segment_len: usize) -> impl Iterator<Item = &[u8]> {
    let segment_len = segment_len_of(payloads, segment_len);
    let (first, rest) = payloads.split_at(segment_len.min(payloads.len()));
    iter::once(first).chain(rest.chunks(segment_len.max(1)))
}
