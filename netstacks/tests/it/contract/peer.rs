//! The peer of every stack under test: smoltcp as a plain blocking client, on its own thread.
//!
//! It shares no code with the adapters, verifies every checksum, and gives up after a deadline
//! instead of hanging.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use platform::{Link, MemoryLink};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::{tcp, udp};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint};

use super::assert_same;
use super::wire::{SuperPackets, Wire};

/// Limit of every single operation.
const DEADLINE: Duration = Duration::from_secs(30);

/// Size of each connection's two buffers, in bytes.
pub(crate) const BUFFER: usize = 128 << 10;

pub(crate) const ADDRESS_V4: [u8; 4] = [10, 0, 0, 1];

pub(crate) struct Peer {
    shared: Arc<Shared>,
    pump: Option<JoinHandle<()>>,
}

struct Shared {
    world: Mutex<World>,
    changed: Condvar,
}

struct World {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
    next_port: u16,
    stop: bool,
}

/// A connection of the peer.
pub(crate) struct PeerStream {
    shared: Arc<Shared>,
    pump: Thread,
    socket: SocketHandle,
}

impl Peer {
    pub(crate) fn new(link: MemoryLink) -> Self {
        let mut wire = Wire::new(link);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = 7;
        let mut interface = Interface::new(config, &mut wire, now());
        interface.update_ip_addrs(|addresses| {
            let [a, b, c, d] = ADDRESS_V4;
            addresses.push(IpCidr::new(IpAddress::v4(a, b, c, d), 24)).unwrap();
            addresses.push(IpCidr::new(IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), 64)).unwrap();
        });
        interface.routes_mut().add_default_ipv4_route([10, 0, 0, 254].into()).unwrap();
        interface.routes_mut().add_default_ipv6_route("fd00::fe".parse::<std::net::Ipv6Addr>().unwrap()).unwrap();
        let world = World { interface, sockets: SocketSet::new(Vec::new()), wire, next_port: 40_000, stop: false };
        let shared = Arc::new(Shared { world: Mutex::new(world), changed: Condvar::new() });
        let pump = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || pump(&shared)
        });
        Self { shared, pump: Some(pump) }
    }

    /// Drops all packets from and to the peer, or lets them pass again.
    pub(crate) fn mute(&self, mute: bool) {
        self.shared.lock().wire.mute = mute;
    }

    pub(crate) fn super_packets(&self) -> SuperPackets {
        self.shared.lock().wire.super_packets
    }

    /// Returns how many segments of one byte have come from the stack.
    pub(crate) fn single_bytes(&self) -> usize {
        self.shared.lock().wire.single_bytes
    }

    /// Returns how many packets of the stack were neither TCP nor UDP.
    pub(crate) fn others(&self) -> usize {
        self.shared.lock().wire.others
    }

    /// Sends a packet unchanged.
    pub(crate) fn send_packet(&self, packet: &[u8]) {
        let mut world = self.shared.lock();
        world.wire.out.push_back(packet.to_vec());
        world.poll();
        self.unpark();
    }

    /// Opens a UDP socket on a new port, over IPv4 or IPv6.
    pub(crate) fn bind(&self, ipv6: bool) -> PeerSocket<'_> {
        let mut world = self.shared.lock();
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 16], vec![0; 128 << 10]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        world.next_port += 1;
        let local = SocketAddr::new(address(ipv6), world.next_port);
        socket.bind(IpEndpoint::from(local)).unwrap();
        PeerSocket { socket: world.sockets.add(socket), peer: self }
    }

    fn unpark(&self) {
        self.pump.as_ref().unwrap().thread().unpark();
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> PeerStream {
        let stream = self.begin_connect(to);
        stream.wait_established();
        stream
    }

    /// Sends the SYN, and does not wait for the connection.
    pub(crate) fn begin_connect(&self, to: SocketAddr) -> PeerStream {
        let mut world = self.shared.lock();
        let ring = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(ring(), ring());
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(tcp::CongestionControl::None);
        world.next_port += 1;
        let local = SocketAddr::new(address(to.is_ipv6()), world.next_port);
        socket.connect(world.interface.context(), IpEndpoint::from(to), IpEndpoint::from(local)).unwrap();
        let socket = world.sockets.add(socket);
        world.poll();
        drop(world);
        PeerStream { shared: Arc::clone(&self.shared), pump: self.pump.as_ref().unwrap().thread().clone(), socket }
    }
}

fn address(ipv6: bool) -> IpAddr {
    if ipv6 { "fd00::1".parse().unwrap() } else { ADDRESS_V4.into() }
}

/// A UDP socket of the peer.
pub(crate) struct PeerSocket<'a> {
    peer: &'a Peer,
    socket: SocketHandle,
}

impl PeerSocket<'_> {
    /// Sends a datagram once there is room for it.
    pub(crate) fn send(&self, payload: &[u8], to: SocketAddr) {
        self.wait("send a datagram", |socket| socket.send_slice(payload, IpEndpoint::from(to)).ok());
    }

    /// Returns the next datagram and its sender.
    pub(crate) fn recv(&self) -> (Vec<u8>, SocketAddr) {
        self.wait("receive a datagram", |socket| {
            let (payload, meta) = socket.recv().ok()?;
            Some((payload.to_vec(), SocketAddr::new(meta.endpoint.addr.into(), meta.endpoint.port)))
        })
    }

    fn wait<T>(&self, what: &str, mut attempt: impl FnMut(&mut udp::Socket<'static>) -> Option<T>) -> T {
        let deadline = Instant::now() + DEADLINE;
        let mut world = self.peer.shared.lock();
        loop {
            let result = attempt(world.sockets.get_mut(self.socket));
            world.poll();
            if let Some(result) = result {
                self.peer.unpark();
                return result;
            }
            assert!(Instant::now() < deadline, "{what}: nothing for {DEADLINE:?}");
            world = self.peer.shared.changed.wait_timeout(world, Duration::from_millis(50)).unwrap().0;
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        let pump = self.pump.take().unwrap();
        pump.thread().unpark();
        pump.join().unwrap();
    }
}

impl PeerStream {
    pub(crate) fn wait_established(&self) {
        self.wait("connect", |socket| (socket.state() != tcp::State::SynSent).then_some(()));
    }

    pub(crate) fn write_all(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = self.wait("write", |socket| {
                assert!(socket.may_send(), "write: the connection is {}", socket.state());
                Some(socket.send_slice(bytes).unwrap()).filter(|len| *len > 0)
            });
            bytes = &bytes[len..];
        }
    }

    /// Writes while there is room. Returns the number of bytes once there has been no room for `quiet`.
    pub(crate) fn write_until_blocked(&self, bytes: &[u8], quiet: Duration) -> usize {
        let mut written = 0;
        let mut last = Instant::now();
        while written < bytes.len() && last.elapsed() < quiet {
            let mut world = self.shared.lock();
            let len = world.sockets.get_mut::<tcp::Socket>(self.socket).send_slice(&bytes[written..]).unwrap();
            world.poll();
            if len > 0 {
                last = Instant::now();
            }
            written += len;
            drop(self.shared.changed.wait_timeout(world, Duration::from_millis(5)).unwrap());
        }
        written
    }

    /// Returns 0 after the other side's FIN.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> usize {
        self.wait("read", |socket| match socket.recv_slice(buffer) {
            Ok(0) => None,
            Ok(len) => Some(len),
            Err(tcp::RecvError::Finished) => Some(0),
            Err(error) => panic!("read: {error} in state {}", socket.state()),
        })
    }

    pub(crate) fn read_exact(&self, buffer: &mut [u8]) {
        let mut filled = 0;
        while filled < buffer.len() {
            let len = self.read(&mut buffer[filled..]);
            assert!(len > 0, "the connection ended after {filled} of {} bytes", buffer.len());
            filled += len;
        }
    }

    /// Reads these bytes.
    pub(crate) fn expect(&self, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        self.read_exact(&mut bytes);
        assert_same(&bytes, expected);
    }

    pub(crate) fn read_to_end(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 16 << 10];
        loop {
            match self.read(&mut buffer) {
                0 => return bytes,
                len => bytes.extend_from_slice(&buffer[..len]),
            }
        }
    }

    /// Sends a FIN.
    pub(crate) fn finish(&self) {
        self.with(tcp::Socket::close);
    }

    /// Sends a RST.
    pub(crate) fn reset(&self) {
        self.with(tcp::Socket::abort);
    }

    fn with(&self, operation: impl FnOnce(&mut tcp::Socket<'static>)) {
        let mut world = self.shared.lock();
        operation(world.sockets.get_mut(self.socket));
        world.poll();
        self.pump.unpark();
    }

    /// Calls `attempt` after each change, until it returns a value.
    fn wait<T>(&self, what: &str, mut attempt: impl FnMut(&mut tcp::Socket<'static>) -> Option<T>) -> T {
        let deadline = Instant::now() + DEADLINE;
        let mut world = self.shared.lock();
        loop {
            let socket = world.sockets.get_mut::<tcp::Socket>(self.socket);
            let result = attempt(socket);
            let state = socket.state();
            world.poll();
            if let Some(result) = result {
                self.pump.unpark();
                return result;
            }
            assert!(Instant::now() < deadline, "{what}: nothing for {DEADLINE:?} in state {state}");
            world = self.shared.changed.wait_timeout(world, Duration::from_millis(50)).unwrap().0;
        }
    }
}

impl Drop for PeerStream {
    fn drop(&mut self) {
        // The socket stays until the peer is dropped: its FIN may still need a retransmission.
        if !std::thread::panicking() {
            self.with(tcp::Socket::close);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl World {
    fn poll(&mut self) {
        self.wire.flush();
        self.interface.poll(now(), &mut self.wire, &mut self.sockets);
        self.wire.flush();
    }
}

/// Returns the time since the first call. smoltcp's own `now` is the system's time, which may be set back.
fn now() -> smoltcp::time::Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    smoltcp::time::Instant::from_micros(START.get_or_init(Instant::now).elapsed().as_micros() as i64)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls the interface while no thread of a connection does.
fn pump(shared: &Shared) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        let mut world = shared.lock();
        if world.stop {
            return;
        }
        world.poll();
        shared.changed.notify_all();
        let parked = {
            let wire = &mut world.wire;
            let mut readable = std::pin::pin!(poll_fn(|cx| wire.link.poll_readable(cx)));
            readable.as_mut().poll(&mut cx).is_pending()
        };
        let delay = world.next_delay();
        drop(world);
        if parked {
            std::thread::park_timeout(delay);
        } else {
            std::thread::yield_now();
        }
    }
}

impl World {
    fn next_delay(&mut self) -> Duration {
        let longest = Duration::from_millis(20);
        self.interface
            .poll_delay(now(), &self.sockets)
            .map_or(longest, |delay| Duration::from(delay).clamp(Duration::from_millis(1), longest))
    }
}
