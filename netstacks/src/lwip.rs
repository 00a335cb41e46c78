//! lwIP 2.2.1d through its raw API, without its threads, sockets and timers.
//!
//! A byte is copied once each way: lwIP takes packets in place, and its pieces go to the link in one vectored call. Its
//! state is global, so a process has one engine at a time, guarded by the lock of [`crate::driven`].

mod core;
mod flow;
mod output;
mod pool;
mod ring;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Once;
use std::task::{Context, Poll};
use std::time::Duration;

use lwip_sys::{Callbacks, ERR_OK, Endpoints, MAX_WINDOW_SCALE, Options};
use platform::{Capabilities, Link, PacketBuffer};
use tokio::time::Instant;

use self::core::Core;
use self::output::Output;
use self::pool::Pool;
use crate::datagrams::{Inbox, MAX_PAYLOAD_V4, check};
use crate::driven::{self, DrivenDatagrams, DrivenListener, Engine, Flow, FlowId, Intake, Table};
use crate::offload::{Offload, header_len};
use crate::running::Running;
use crate::{Effective, Netstack, Sink, Source, StackConfig, StackFault, StackKind, StartError, Started, Workaround};

pub(crate) const VERSION: &str = lwip_sys::VERSION;

/// lwIP. Over IPv4 it fragments and reassembles datagrams; up to 192 fragments may wait.
pub struct Lwip;

/// Every IPv4 host accepts packets of this size (RFC 791, 3.1).
const MIN_MTU: usize = 576;

/// lwIP counts queued pbufs in 16 bits, two for each segment (`tcp_out.c`). Our `c/tcp_out.c` keeps 64 in reserve.
const MAX_QUEUED_SEGMENTS: usize = (0xffff - 3 - 64) / 2;

/// At least this many segments of the largest size fit in the send buffer: some are in flight while one is filled.
const MIN_BUFFERED_SEGMENTS: usize = 4;

const TICK: Duration = Duration::from_millis(lwip_sys::TIMER_MS);

/// Late ticks are made up if the lag is at most this. Later ones would retransmit what unread acknowledgements cover.
const MAX_LAG: Duration = Duration::from_secs(1);

impl<L: Link> Netstack<L> for Lwip {
    type Stream = Flow<LwipEngine<L>>;
    type Listener = DrivenListener<LwipEngine<L>>;
    type Datagrams = DrivenDatagrams<LwipEngine<L>>;

    fn start(link: L, config: &StackConfig) -> Result<Started<Self::Listener, Self::Datagrams>, StartError> {
        let unfit = |reason| StartError::Unfit { stack: StackKind::Lwip, reason };
        let capabilities = link.capabilities();
        let (mtu, window) = (capabilities.mtu, config.window);
        if mtu < MIN_MTU {
            return Err(unfit(format!("an MTU of {mtu} bytes; it takes {MIN_MTU} or more")));
        }
        if !(StackConfig::MIN_WINDOW..=StackConfig::MAX_WINDOW).contains(&window) {
            return Err(unfit(format!(
                "a window of {window} bytes; it takes {} to {}",
                StackConfig::MIN_WINDOW,
                StackConfig::MAX_WINDOW
            )));
        }
        let (window, scale) = scaled(window);
        let offload = Offload::of(&capabilities).cutting_if(config.workarounds.has(Workaround::LargeSegments));
        let segments = Segments::over(&offload, window);
        let effective = Effective {
            receive_buffer_bytes: window >> scale << scale,
            send_buffer_bytes: window.min(MAX_QUEUED_SEGMENTS * usize::from(segments.v4)),
            window_scale: Some(scale),
            largest_packet_bytes: (header_len(false) + usize::from(segments.v4))
                .max(header_len(true) + usize::from(segments.v6)),
            congestion: "newreno".into(),
            checksum_verified: !capabilities.checksum.rx,
            checksum_computed: !capabilities.checksum.tx,
            ..Effective::of(StackKind::Lwip, config, &offload)
        };
        let config = StackConfig { window, ..config.clone() };
        let workarounds = config.workarounds;
        let (listener, datagrams, driver) =
            driven::start(LwipEngine::start(link, config, segments, scale)?, workarounds);
        Ok(Started { listener, datagrams, driver, effective })
    }
}

fn scaled(window: usize) -> (usize, u8) {
    let window = window.min(usize::from(u16::MAX) << MAX_WINDOW_SCALE);
    (window, crate::window_scale(window))
}

/// The largest payloads of TCP segments, in bytes: one MSS, or several if the link cuts super-packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segments {
    v4: u16,
    v6: u16,
}

impl Segments {
    fn over(offload: &Offload, window: usize) -> Self {
        let largest = |ipv6| {
            let mss = offload.mss(header_len(ipv6));
            let most = (window / MIN_BUFFERED_SEGMENTS).min(usize::from(offload.largest_payload(ipv6))) as u16;
            (most - most % mss).max(mss)
        };
        Self { v4: largest(false), v6: largest(true) }
    }
}

/// Converts both addresses of a datagram for lwIP. They must have the same IP version.
fn endpoints(local: SocketAddr, peer: SocketAddr) -> Endpoints {
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_compatible().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let (mut local_ip, mut remote_ip) = (bytes(local.ip()), bytes(peer.ip()));
    if local.is_ipv4() {
        // The address is in the last four bytes; lwIP expects it in the first four.
        local_ip.rotate_left(12);
        remote_ip.rotate_left(12);
    }
    let (local_port, remote_port, is_v6) = (local.port(), peer.port(), u8::from(local.is_ipv6()));
    Endpoints { local_ip, remote_ip, local_port, remote_port, is_v6 }
}

fn fault() -> Option<StackFault> {
    // SAFETY: only the engine that holds `Running` calls this, or a function that has just acquired it.
    let (message, line) = unsafe {
        if !lwip_sys::has_failed() {
            return None;
        }
        lwip_sys::failure()?
    };
    Some(StackFault(format!("lwIP: assertion failed: {message} (line {line})")))
}

pub struct LwipEngine<L: Link> {
    /// From a box. lwIP has these pointers too, so no reference made through them may live across a call of lwIP.
    core: *mut Core,
    output: *mut Output<L>,
    batch: Vec<PacketBuffer>,
    verify: bool,
    next_tick: Option<Instant>,
    /// Dropped last. Then another engine may start, on any thread.
    _running: Running,
}

// SAFETY: the engine owns the memory of the pointers. lwIP's globals belong to the holder of `Running`, which is this
// engine. `&mut self` and the lock around the engine allow one thread at a time.
unsafe impl<L: Link> Send for LwipEngine<L> {}

impl<L: Link> LwipEngine<L> {
    const CALLBACKS: Callbacks = Callbacks {
        admit: Core::on_admit,
        opened: Core::on_opened,
        established: Core::on_established,
        received: Core::on_received,
        sent: Core::on_sent,
        failed: Core::on_failed,
        destroyed: Core::on_destroyed,
        isn: Core::on_isn,
        datagram: Core::on_datagram,
        seconds: Core::on_seconds,
        released: Core::on_released,
        output: Output::<L>::callback,
    };

    fn start(link: L, config: StackConfig, segments: Segments, scale: u8) -> Result<Self, StartError> {
        static INIT: Once = Once::new();
        let running = Running::acquire(StackKind::Lwip)?;
        if let Some(fault) = fault() {
            let reason = format!("{fault}, earlier in this process; start the program again");
            return Err(StartError::Unfit { stack: StackKind::Lwip, reason });
        }
        // SAFETY: called once in a process, by the holder of `Running`, before any other function.
        INIT.call_once(|| unsafe { lwip_sys::lwip_sys_init() });
        let capabilities = link.capabilities();
        let (window, packet_len) = (config.window, capabilities.max_packet_len.max(capabilities.mtu));
        let options = Options {
            window: window as u32,
            packet_len: packet_len as u32,
            mtu: capabilities.mtu.min(usize::from(u16::MAX)) as u16,
            largest_v4: segments.v4,
            largest_v6: segments.v6,
            scale,
            tcp_checksums: u8::from(!capabilities.checksum.tx),
            one_ack_a_batch: u8::from(config.workarounds.has(Workaround::OneAckABatch)),
        };
        let core = Core::new(
            config,
            capabilities.mtu.saturating_sub(header_len(false)),
            Pool::new(packet_len, window),
            Instant::now(),
        );
        let engine = Self {
            core: Box::into_raw(Box::new(core)),
            output: Box::into_raw(Box::new(Output::new(link))),
            batch: (0..capabilities.batch.max(1)).map(|_| PacketBuffer::new(packet_len)).collect(),
            verify: !capabilities.checksum.rx,
            next_tick: None,
            _running: running,
        };
        // SAFETY: lwIP is initialised and not started. Callbacks and pointers are valid until
        // `lwip_sys_stop`, in `drop`.
        let error = unsafe {
            lwip_sys::lwip_sys_start(
                &raw const *const { &Self::CALLBACKS },
                engine.core.cast(),
                engine.output.cast(),
                &raw const options,
            )
        };
        if error == ERR_OK {
            Ok(engine)
        } else {
            let reason = format!("lwIP's error {error}: no memory for its listener or its UDP");
            Err(StartError::Unfit { stack: StackKind::Lwip, reason })
        }
    }

    fn core(&self) -> &Core {
        // SAFETY: the engine owns the core. The reference borrows the engine, and no function that takes `&self` calls
        // lwIP.
        unsafe { &*self.core }
    }

    fn core_mut(&mut self) -> &mut Core {
        // SAFETY: as above; the caller drops the reference before it calls lwIP.
        unsafe { &mut *self.core }
    }

    fn output(&mut self) -> &mut Output<L> {
        // SAFETY: as above.
        unsafe { &mut *self.output }
    }

    fn check(&mut self) -> io::Result<()> {
        match fault() {
            None => self.output().check(),
            Some(fault) => Err(io::Error::other(fault)),
        }
    }

    fn fill_batch(&mut self) -> io::Result<usize> {
        // SAFETY: the engine owns it, and nothing here calls lwIP.
        let output = unsafe { &mut *self.output };
        match output.link.try_recv(&mut self.batch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            filled => filled,
        }
    }

    fn tick(&mut self, now: Instant) {
        if self.core().ticking.is_empty() {
            self.next_tick = None;
            return;
        }
        let due = *self.next_tick.get_or_insert(now + TICK);
        if now < due {
            return;
        }
        let lag = now.saturating_duration_since(due);
        self.next_tick = Some(if lag > MAX_LAG { now } else { due } + TICK);
        // Send first. lwIP's persist timer assumes that a window that opened was used at once.
        // SAFETY: the engine's core; no reference into it is alive.
        unsafe {
            Core::flush(self.core, self.output);
            Core::tick(self.core);
            if self.output().blocked {
                Core::demand_acks(self.core);
            }
        }
    }
}

impl<L: Link> Engine for LwipEngine<L> {
    type Connection = flow::Flow;

    fn ingress(&mut self, now: Instant) -> io::Result<Intake> {
        self.check()?;
        let filled = self.fill_batch()?;
        self.core_mut().now = now;
        let mut len = 0;
        for buffer in &mut self.batch[..filled] {
            len += buffer.packet().len();
            // SAFETY: the engine's core; no reference into it is alive.
            unsafe { Core::input(self.core, buffer, self.verify) };
        }
        self.check()?;
        let has_passed_on = self.output().link.has_passed_on();
        Ok(Intake { len, is_drained: filled < self.batch.len(), has_passed_on })
    }

    fn egress(&mut self, now: Instant) -> io::Result<()> {
        self.output().blocked = false;
        self.core_mut().now = now;
        self.tick(now);
        // SAFETY: the engine's core; no reference into it is alive.
        unsafe { Core::flush(self.core, self.output) };
        self.check()?;
        self.output().flush()
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let tick = (!self.core().ticking.is_empty()).then(|| self.next_tick.unwrap_or(now + TICK));
        [tick, self.core().table.deadline()].into_iter().flatten().min()
    }

    fn table(&self) -> &Table<flow::Flow> {
        &self.core().table
    }

    fn table_mut(&mut self) -> &mut Table<flow::Flow> {
        &mut self.core_mut().table
    }

    fn close_listener(&mut self) {
        // SAFETY: the engine's core; no reference into it is alive.
        unsafe { Core::close_listener(self.core) };
    }

    fn lend(&mut self, flow: FlowId, sink: &mut Sink<'_>) -> io::Result<usize> {
        self.check()?;
        // SAFETY: the engine's core; no reference into it is alive, and the sink has none to make.
        unsafe { Core::lend(self.core, flow, sink) }
    }

    fn has_failed(&self, flow: FlowId) -> bool {
        fault().is_some() || self.core().table.get(flow).is_none_or(|connection| connection.error.is_some())
    }

    fn fill(&mut self, flow: FlowId, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        self.check()?;
        // SAFETY: the engine's core; no reference into it is alive, and the source has none to make.
        unsafe { Core::fill(self.core, flow, most, source) }
    }

    fn finish(&mut self, flow: FlowId) {
        // SAFETY: the engine's core; no reference into it is alive.
        unsafe { Core::finish(self.core, flow) };
    }

    fn release(&mut self, flow: FlowId) {
        // SAFETY: the engine's core; no reference into it is alive.
        unsafe { Core::release(self.core, flow) };
    }

    fn reset(&mut self, flow: FlowId) {
        // A RST is not retransmitted, so try the link even if it had no room before.
        self.output().blocked = false;
        // SAFETY: the engine's core; no reference into it is alive.
        unsafe { Core::reset(self.core, flow) };
    }

    fn inbox(&mut self) -> &mut Inbox {
        &mut self.core_mut().inbox
    }

    fn udp_segmentation(&self) -> Option<Capabilities> {
        // SAFETY: the engine's own, and nothing here calls lwIP.
        let output = unsafe { &*self.output };
        output.udp_segmentation.then(|| output.link.capabilities())
    }

    fn send_datagram(
        &mut self,
        now: Instant,
        (local, peer): (SocketAddr, SocketAddr),
        payload: &[u8],
        segment_len: Option<NonZeroU16>,
    ) -> io::Result<()> {
        let capabilities = self.output().link.capabilities();
        let mtu = if segment_len.is_some() { capabilities.max_packet_len } else { capabilities.mtu };
        check(local, peer, payload.len(), MAX_PAYLOAD_V4, mtu)?;
        self.check()?;
        self.output().blocked = false;
        self.output().udp_segment = segment_len;
        self.core_mut().now = now;
        let ends = endpoints(local, peer);
        let (bytes, len) = (payload.as_ptr().cast_mut().cast(), payload.len() as u16);
        let (mtu, checksum) = (mtu.min(usize::from(u16::MAX)) as u16, u8::from(!capabilities.checksum.tx));
        // SAFETY: no reference into the core is alive. lwIP reads the payload during the call alone.
        let error = unsafe { lwip_sys::lwip_sys_udp_send(&raw const ends, bytes, len, mtu, checksum) };
        self.output().udp_segment = None;
        self.check()?;
        // lwIP does not report whether all fragments were sent. After a lack of memory a later try may succeed.
        if self.output().blocked || error != ERR_OK {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.output().flush()
    }

    fn close_datagrams(&mut self) {
        self.core_mut().inbox.close();
        // SAFETY: it only sets a flag, and makes no callback.
        unsafe { lwip_sys::lwip_sys_udp_close() };
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output().link.poll_readable(cx)
    }

    fn is_blocked(&self) -> bool {
        // SAFETY: the engine owns it, and nothing here calls lwIP.
        unsafe { (*self.output).blocked }
    }

    fn poll_unblocked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let output = self.output();
        if output.blocked { output.link.poll_writable(cx) } else { Poll::Pending }
    }
}

impl<L: Link> Drop for LwipEngine<L> {
    fn drop(&mut self) {
        // SAFETY: lwIP was started, or `start` failed and `lwip_sys_stop` does nothing. After `Core::stop` no pcb is
        // left, so lwIP has no pointer of ours, and the pool has all its buffers. After a failed assertion lwIP has
        // some, but does not run again.
        unsafe {
            Core::stop(self.core);
            lwip_sys::lwip_sys_stop();
            drop(Box::from_raw(self.core));
            drop(Box::from_raw(self.output));
            lwip_sys::lwip_sys_memory_trim();
        }
    }
}
