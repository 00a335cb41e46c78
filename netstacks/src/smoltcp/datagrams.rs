//! UDP by smoltcp's own socket, one for every address and port: it moves to the port of each datagram.
//!
//! The socket has an interface with the MTU of the link, which fragments and reassembles over IPv4. Fragments have no
//! port, so that of each first one is remembered. If the link completes checksums, a fragmented datagram has none,
//! which RFC 768 allows. A link verifies no fragments, so those that arrive have an interface that does. UDP
//! super-packets come from a third one, with their MTU, so that smoltcp does not fragment them.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;

use platform::Link;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, DeviceCapabilities};
use smoltcp::socket::udp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpEndpoint};

use super::device::{Device, RxToken, TxToken};
use super::random_seed;
use crate::datagrams::{Arrival, Inbox, MAX_PAYLOAD_V4, check};

/// Datagrams whose fragments' port is remembered: as many as smoltcp reassembles, and some that lost a fragment.
const MAX_FRAGMENTED: usize = 16;

/// A fragmented datagram: both hosts and its number (RFC 791, 3.2).
type Fragmented = (Ipv4Addr, Ipv4Addr, u16);

pub(super) struct Datagrams {
    pub(super) inbox: Inbox,
    /// Made with the first datagram, so that a program without UDP has no buffers for it.
    endpoint: Option<Box<Endpoint>>,
    /// The same for received fragments.
    reassembly: Option<Box<Endpoint>>,
    /// The same for super-packets that are sent.
    segmented: Option<Box<Endpoint>>,
}

struct Endpoint {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    fragmented: VecDeque<(Fragmented, u16)>,
    /// The rest of a fragmented datagram waits for room on the link.
    unsent: bool,
}

impl Datagrams {
    pub(super) fn new() -> Self {
        Self { inbox: Inbox::new(), endpoint: None, reassembly: None, segmented: None }
    }

    pub(super) fn close(&mut self) {
        self.inbox.close();
        // The rest of a fragmented datagram is still sent.
        self.endpoint.take_if(|endpoint| !endpoint.unsent);
        self.reassembly = None;
        self.segmented = None;
    }

    /// Processes the device's next packet, which is `arrival`.
    pub(super) fn input<L: Link>(&mut self, arrival: Arrival, device: &mut Device<L>, clock: Instant) {
        let (endpoint, mut view) = match arrival {
            _ if !self.inbox.is_open() => return device.skip_packet(),
            Arrival::Refused => return device.skip_packet(),
            Arrival::Whole { .. } => (&mut self.endpoint, View::of_packets(device)),
            Arrival::Fragment { .. } => (&mut self.reassembly, View::of_fragments(device)),
        };
        let endpoint = endpoint.get_or_insert_with(|| Endpoint::new(&mut view));
        let port = match arrival {
            Arrival::Whole { local, .. } => local.port(),
            Arrival::Fragment { of, port } => endpoint.port_of(of, port),
            Arrival::Refused => return,
        };
        let segment_len = view.device.next_gso_size();
        endpoint.bind(port);
        endpoint.interface.poll_ingress_single(clock, &mut view, &mut endpoint.sockets);
        let socket = endpoint.sockets.get_mut::<udp::Socket>(endpoint.socket);
        while let Ok((payload, meta)) = socket.recv() {
            if let Some(local) = meta.local_address {
                let peer = SocketAddr::new(meta.endpoint.addr.into(), meta.endpoint.port);
                self.inbox.push(SocketAddr::new(local.into(), port), peer, payload, segment_len);
            }
        }
    }

    pub(super) fn send<L: Link>(
        &mut self,
        device: &mut Device<L>,
        clock: Instant,
        (local, peer): (SocketAddr, SocketAddr),
        payload: &[u8],
        segment_len: Option<NonZeroU16>,
    ) -> io::Result<()> {
        let mtu = View::of_datagrams(device, segment_len).mtu;
        check(local, peer, payload.len(), MAX_PAYLOAD_V4, mtu)?;
        self.flush(device, clock);
        let endpoint = if segment_len.is_none() { &mut self.endpoint } else { &mut self.segmented };
        let endpoint = endpoint.get_or_insert_with(|| Endpoint::new(&mut View::of_datagrams(device, segment_len)));
        if endpoint.unsent || !device.sender.is_ready() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        endpoint.bind(local.port());
        let meta = udp::UdpMetadata { local_address: Some(local.ip().into()), ..IpEndpoint::from(peer).into() };
        let socket = endpoint.sockets.get_mut::<udp::Socket>(endpoint.socket);
        socket.send_slice(payload, meta).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        if segment_len.is_none() {
            endpoint.unsent = true;
            self.flush(device, clock);
        } else {
            device.sender.udp_segment = segment_len;
            endpoint.interface.poll_egress(clock, &mut View::of_datagrams(device, segment_len), &mut endpoint.sockets);
            device.sender.udp_segment = None;
        }
        Ok(())
    }

    /// Sends what is left of a datagram.
    pub(super) fn flush<L: Link>(&mut self, device: &mut Device<L>, clock: Instant) {
        let Some(endpoint) = self.endpoint.as_mut().filter(|endpoint| endpoint.unsent) else { return };
        while endpoint.unsent && device.sender.is_ready() {
            endpoint.interface.poll_egress(clock, &mut View::of_packets(device), &mut endpoint.sockets);
            endpoint.unsent = endpoint.interface.poll_at(clock, &endpoint.sockets).is_some();
        }
        if !endpoint.unsent && !self.inbox.is_open() {
            self.endpoint = None;
        }
    }
}

impl Endpoint {
    fn new<L: Link>(view: &mut View<'_, L>) -> Box<Self> {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = random_seed();
        let mut interface = Interface::new(config, view, Instant::ZERO);
        interface.set_any_ip(true);
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY], vec![0; MAX_PAYLOAD_V4]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(udp::Socket::new(buffer(), buffer()));
        Box::new(Self { interface, sockets, socket, fragmented: VecDeque::new(), unsent: false })
    }

    /// Moves the socket to a port. Its buffers are empty.
    fn bind(&mut self, port: u16) {
        let socket = self.sockets.get_mut::<udp::Socket>(self.socket);
        if socket.endpoint().port != port {
            socket.close();
            // It is closed, so only port 0 is refused. Datagrams with port 0 were dropped before.
            let _bound = socket.bind(port);
        }
    }

    /// The port that a fragment is for; any, as long as the first has not come.
    fn port_of(&mut self, of: Fragmented, port: Option<u16>) -> u16 {
        if let Some(port) = port {
            self.fragmented.retain(|(known, _)| *known != of);
            if self.fragmented.len() >= MAX_FRAGMENTED {
                self.fragmented.pop_front();
            }
            self.fragmented.push_back((of, port));
        }
        let known = self.fragmented.iter().find(|(known, _)| *known == of);
        known.map_or(1, |(_, port)| *port)
    }
}

/// The device, with the MTU of datagrams.
struct View<'a, L> {
    device: &'a mut Device<L>,
    mtu: usize,
    /// Whether smoltcp verifies UDP's checksum although the link has verified that of whole datagrams.
    verifies: bool,
}

impl<'a, L: Link> View<'a, L> {
    fn of_packets(device: &'a mut Device<L>) -> Self {
        Self::of_datagrams(device, None)
    }

    fn of_fragments(device: &'a mut Device<L>) -> Self {
        Self { verifies: true, ..Self::of_packets(device) }
    }

    /// A super-packet has an MTU of its own.
    fn of_datagrams(device: &'a mut Device<L>, segment_len: Option<NonZeroU16>) -> Self {
        let link = device.sender.link.capabilities();
        Self { mtu: if segment_len.is_some() { link.max_packet_len } else { link.mtu }, device, verifies: false }
    }
}

impl<L: Link> phy::Device for View<'_, L> {
    type RxToken<'a>
        = RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = TxToken<'a, L>
    where
        Self: 'a;

    fn receive(&mut self, now: Instant) -> Option<(RxToken<'_>, TxToken<'_, L>)> {
        self.device.receive(now)
    }

    fn transmit(&mut self, now: Instant) -> Option<TxToken<'_, L>> {
        self.device.transmit(now)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = self.device.capabilities();
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum.udp = if self.verifies { Checksum::Rx } else { self.device.checksums() };
        capabilities
    }
}
