//! Windows: the rings of Wintun. Only waiting for packets needs a thread: tokio cannot wait for an event of Windows.

#![allow(missing_docs, reason = "the documentation is at Linux's functions")]

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::windows::io::AsRawSocket;
use std::pin::Pin;
use std::process::ExitStatus;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::signal::windows::{CtrlC, ctrl_c};
use tokio::time::{Instant, Sleep, sleep};
use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, HANDLE, STATUS_CONTROL_C_EXIT, STATUS_SEVERITY_ERROR};
use windows_sys::Win32::Networking::WinSock::{SIO_TCP_INFO, SOCKET, TCP_INFO_v0, WSAIoctl};
use windows_sys::Win32::System::IO::CancelIoEx;
use wintun::{Packet, Session};

mod adapter;
mod clock;
mod interface;
mod library;
mod machine;
mod signal;
mod spin;

pub(crate) use self::adapter::keep_device;
use self::adapter::{cause, of_ring};
pub(crate) use self::clock::Pause;
pub use self::clock::{PollClock, SharpTimers, sharpen_timers};
use self::interface::Interface;
pub use self::interface::bind_to_interface;
use self::library::with_log;
use self::machine::is_elevated;
pub(crate) use self::machine::{cpu, kernel, rss_bytes_of, virtual_machine};
pub use self::machine::{cpu_of_process, cpu_of_thread, memory_bytes, peak_rss_bytes};
use self::signal::Signal;
use self::spin::Spin;
pub use super::fallback::*;
use crate::doctor::Check;
use crate::link::packet_len;
use crate::{
    Capabilities, Cause, DropCounter, Error, Link, PacketBuffer, PacketMeta, ProcessEnd, TcpStatistics, TunConfig,
};

/// Size of each of the two rings, in bytes, a power of two: 20,000 packets of 1500 bytes.
const RING_BYTES: u32 = 32 << 20;

/// The time until a full ring is tried again: Wintun does not report when it has room.
const RETRY: Duration = Duration::from_millis(1);

pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.encode_utf16().count() > 127 { Err("Windows takes at most 127 characters") } else { Ok(()) }
}

/// A socket can be bound only to an address of this host. Under Wine this is true only for TCP.
pub fn is_local_address(address: IpAddr, but_of: &str) -> bool {
    let socket_address = SocketAddr::from((address, 0));
    let socket = Socket::new(Domain::for_address(socket_address), Type::STREAM, None);
    socket.and_then(|socket| socket.bind(&socket_address.into())).is_ok() && !interface::has_address(but_of, address)
}

/// `SIO_TCP_INFO`, since Windows 10 1703.
pub fn tcp_statistics(socket: &TcpStream) -> TcpStatistics {
    let (version, mut info, mut written) = (0_u32, TCP_INFO_v0::default(), 0);
    // SAFETY: Windows reads the version, a number of four bytes, and writes at most the size of `info` to it.
    // Without an overlapped structure, it has finished when the call returns.
    let result = unsafe {
        WSAIoctl(
            socket.as_raw_socket() as SOCKET,
            SIO_TCP_INFO,
            (&raw const version).cast(),
            size_of::<u32>() as u32,
            (&raw mut info).cast(),
            size_of::<TCP_INFO_v0>() as u32,
            &raw mut written,
            ptr::null_mut(),
            None,
        )
    };
    let whole = result == 0 && written as usize >= size_of::<TCP_INFO_v0>();
    if whole { statistics(&info) } else { TcpStatistics::default() }
}

fn statistics(info: &TCP_INFO_v0) -> TcpStatistics {
    // All bits are set in a value that was not measured yet.
    let time = |time_us: u32| (time_us != u32::MAX).then(|| Duration::from_micros(time_us.into()));
    // Windows counts bytes and occasions. Each occasion sends at least one segment again.
    let segments = info.BytesRetrans.div_ceil(info.Mss.max(1));
    let occasions = u64::from(info.FastRetrans) + u64::from(info.TimeoutEpisodes);
    TcpStatistics {
        retransmits: Some(occasions.max(segments.into())),
        rtt: time(info.RttUs),
        min_rtt: time(info.MinRttUs),
        congestion_window_bytes: Some(info.Cwnd.into()),
        send_window_bytes: Some(info.SndWnd.into()),
        receive_window_bytes: Some(info.RcvWnd.into()),
    }
}

/// Cancels the operations of all threads. It does not matter whether there were any.
pub(crate) fn cancel_io(socket: &TcpStream) {
    // SAFETY: the socket is open, and a null pointer means all operations.
    let _none = unsafe { CancelIoEx(socket.as_raw_socket() as HANDLE, ptr::null()) };
}

/// The exit code of a process that the system ends is a status, whose two highest bits mark an error.
pub(crate) fn process_end(status: ExitStatus) -> ProcessEnd {
    match status.code().unwrap_or_default() {
        STATUS_CONTROL_C_EXIT => ProcessEnd::Interrupted,
        code if code.cast_unsigned() >> 30 == STATUS_SEVERITY_ERROR => {
            ProcessEnd::Crashed(format!("exception {:#010x}", code.cast_unsigned()))
        }
        code => ProcessEnd::Exited(code),
    }
}

pub fn examine(_window_bytes: usize) -> Vec<Check> {
    let source = io::Error::new(io::ErrorKind::PermissionDenied, "an ordinary user has no right to it");
    let error = Error::new(Cause::NeedsAdministrator, "create", "Wintun adapters", source);
    let rights = (is_elevated() == Some(false)).then(|| Check::of("rights", &error));
    library::library().err().map(|error| Check::of("Wintun", &error)).into_iter().chain(rights).collect()
}

/// A Wintun adapter. Dropping it deletes the adapter.
pub struct TunDevice {
    // Dropped first: its thread waits for an event that the session owns. `None` of a value that only sends: two threads would
    // take the event from each other.
    packets: Option<Signal>,
    spin: Spin,
    /// A packet that a spin has found.
    found: Option<Packet>,
    session: Arc<Session>,
    interface: Interface,
    name: String,
    mtu: usize,
    /// The timer of a full ring. `None` until the ring was full once.
    retry: Option<Pin<Box<Sleep>>>,
    /// Whether the timer runs.
    full: bool,
}

impl TunDevice {
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        if let Some(fd) = config.fd {
            let source = io::Error::new(io::ErrorKind::Unsupported, "Windows has no such descriptors");
            return Err(Error::new(Cause::NoDescriptors, "take over", format!("file descriptor {fd}"), source));
        }
        config.do_without_offload("Wintun has none")?;
        let name = &config.name;
        let adapter = adapter::open(name)?;
        let failed =
            |operation| move |source| Error::new(Cause::AdapterFailed, operation, format!("adapter {name}"), source);
        // Before the addresses: without a session, the adapter is like one without a cable, and its addresses are not
        // usable.
        let session = machine::uncounted(|| adapter.start_session(RING_BYTES))
            .map_err(|error| failed("start a session on")(with_log(cause(error))))?;
        let session = Arc::new(session);
        // SAFETY: all variants of the union are the same 64 bits.
        let interface = Interface::new(unsafe { adapter.get_luid().Value });
        interface.set_mtu(config.mtu, config.network.address).map_err(failed("set the MTU of"))?;
        interface.add_address(&config.network).map_err(failed("set the address of"))?;
        let event = session.get_read_wait_event().map_err(|error| failed("wait for packets of")(error.into()))?;
        // SAFETY: the event lives as long as the session, and the session is dropped after the signal: here because
        // variables are dropped in reverse order, later because fields are dropped in order.
        let packets = unsafe { Signal::new(event as HANDLE) }.map_err(failed("wait for packets of"))?;
        Ok(Self { packets: Some(packets), ..Self::new(session, interface, name, config.mtu.into()) })
    }

    /// A device that only sends.
    fn new(session: Arc<Session>, interface: Interface, name: &str, mtu: usize) -> Self {
        let (packets, spin, found) = (None, Spin::Off, None);
        Self { packets, spin, found, session, interface, name: name.to_owned(), mtu, retry: None, full: false }
    }

    #[allow(clippy::unnecessary_wraps, reason = "macOS opens a descriptor")]
    pub(crate) fn sender(&self) -> Result<Self, Error> {
        Ok(Self::new(Arc::clone(&self.session), self.interface, &self.name, self.mtu))
    }

    pub fn receives(&self) -> bool {
        self.packets.is_some()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn tx_queue_len(&self) -> Option<u32> {
        None
    }

    pub fn drop_counter(&self) -> DropCounter {
        let interface = self.interface;
        DropCounter(Arc::new(move || interface.dropped_packets()))
    }
}

/// The next packet of the ring.
fn receive(session: &Arc<Session>, name: &str) -> io::Result<Option<Packet>> {
    session.try_receive().map_err(|error| of_ring(name, error.into()))
}

/// Copies the slices one after the other into a packet of the same length.
fn gather(packet: &mut [u8], slices: &[IoSlice<'_>]) {
    let mut rest = packet;
    for slice in slices {
        let Some((head, tail)) = std::mem::take(&mut rest).split_at_mut_checked(slice.len()) else { return };
        head.copy_from_slice(slice);
        rest = tail;
    }
}

impl Link for TunDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(self.mtu)
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let mut count = 0;
        while self.packets.is_some() && count < buffers.len() {
            let found =
                self.found.take().map_or_else(|| receive(&self.session, &self.name), |found| Ok(Some(found)))?;
            let Some(packet) = found else { break };
            self.spin = Spin::Yield;
            let (bytes, buffer) = (packet.bytes(), &mut buffers[count]);
            // IPv6 has a separate MTU, so a packet that Windows itself sends may be larger than the configured MTU. It
            // is dropped, as on any link with a smaller MTU.
            if let Some(storage) = buffer.storage_mut().get_mut(..bytes.len()) {
                storage.copy_from_slice(bytes);
                buffer.filled(bytes.len(), PacketMeta::default())?;
                count += 1;
            }
        }
        if count == 0 && !buffers.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn try_send(&mut self, _meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "packet longer than IP allows");
        let len = u16::try_from(packet_len(slices)).map_err(invalid)?;
        let mut packet = self.session.allocate_send_packet(len).map_err(|error| {
            let error = io::Error::from(error);
            if error.raw_os_error() == Some(ERROR_BUFFER_OVERFLOW.cast_signed()) {
                io::ErrorKind::WouldBlock.into()
            } else {
                of_ring(&self.name, error)
            }
        })?;
        gather(packet.bytes_mut(), slices);
        self.session.send_packet(packet);
        Ok(())
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(packets) = &mut self.packets else { return Poll::Pending };
        if self.found.is_none() {
            self.found = ready!(self.spin.poll(cx, || receive(&self.session, &self.name)))?;
        }
        if self.found.is_some() { Poll::Ready(Ok(())) } else { packets.poll(cx) }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let timer = self.retry.get_or_insert_with(|| Box::pin(sleep(RETRY)));
        if !self.full {
            self.full = true;
            timer.as_mut().reset(Instant::now() + RETRY);
        }
        ready!(timer.as_mut().poll(cx));
        self.full = false;
        Poll::Ready(Ok(()))
    }
}

/// Catches Ctrl-C from its creation on.
#[derive(Debug)]
pub struct Interrupts(CtrlC);

impl Interrupts {
    pub fn catch() -> io::Result<Self> {
        ctrl_c().map(Self)
    }

    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    fn config(fd: Option<i32>) -> TunConfig {
        let network =
            crate::Network::new([10, 90, 0, 1].into(), [10, 90, 0, 2].into(), [255, 255, 255, 0].into()).unwrap();
        TunConfig {
            name: "rust-tun-perf-test".to_owned(),
            or_next: false,
            network,
            mtu: 1500,
            tx_queue_len: 0,
            offload: crate::Offload::Auto,
            fd,
            tuning: crate::Tuning::default(),
        }
    }

    #[test]
    fn slices_are_put_together_in_order() {
        let mut packet = [0; 6];
        gather(&mut packet, &[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cdef")]);
        assert_eq!(&packet, b"abcdef");
    }

    #[test]
    fn a_descriptor_is_refused() {
        let Err(error) = TunDevice::open(&config(Some(3))) else { panic!("descriptor 3 was taken over") };
        assert_eq!(error.cause(), Cause::NoDescriptors);
        assert_eq!(error.class(), Class::Invalid);
    }

    #[test]
    fn retransmits_come_from_bytes_and_occasions() {
        let info = TCP_INFO_v0 { Mss: 1460, RttUs: 250, MinRttUs: u32::MAX, Cwnd: 7, ..TCP_INFO_v0::default() };
        let read = statistics(&info);
        let us = Duration::from_micros;
        assert_eq!((read.retransmits, read.rtt, read.min_rtt), (Some(0), Some(us(250)), None));
        for (bytes, fast, timeouts, segments) in
            [(1, 0, 0, 1), (2921, 1, 1, 3), (1460, 2, 3, 5), (0, u32::MAX, 1, 1 << 32)]
        {
            let info = TCP_INFO_v0 { BytesRetrans: bytes, FastRetrans: fast, TimeoutEpisodes: timeouts, ..info };
            assert_eq!(statistics(&info).retransmits, Some(segments));
        }
        assert_eq!(statistics(&TCP_INFO_v0 { BytesRetrans: 2, Mss: 0, ..info }).retransmits, Some(2));
    }

    /// Creates an adapter where it is allowed: as administrator on Windows, but not under Wine.
    #[tokio::test]
    async fn a_device_opens_or_says_what_is_missing() {
        match TunDevice::open(&config(None)) {
            Ok(device) => {
                assert_eq!((device.name(), device.capabilities().mtu), ("rust-tun-perf-test", 1500));
                assert!(device.drop_counter().read().is_some());
            }
            Err(error) => {
                eprintln!("SKIP: {error}");
                assert_ne!(error.class(), Class::Invalid, "{error}");
            }
        }
    }
}
