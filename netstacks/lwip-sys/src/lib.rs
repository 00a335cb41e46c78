//! lwIP 2.2.1d with the options of `c/lwipopts.h`, and the functions of its raw API that `netstacks` needs.
//!
//! lwIP's state is global: one instance, one thread at a time. `c/shim.c` and `c/pcb.c` know its structures. The caller
//! names a connection by its *flow*, a number other than 0 that [`Callbacks::opened`] returns.

#![allow(missing_debug_implementations, reason = "nothing here has a state that Rust could print")]

#[cfg(feature = "checksums")]
pub mod checksum;

use std::ffi::{CStr, c_char, c_void};
use std::marker::{PhantomData, PhantomPinned};
use std::sync::atomic::Ordering;

use portable_atomic::AtomicU64;

/// The version that lwIP reports: a development state between 2.2.0 and 2.2.1.
pub const VERSION: &str = "2.2.1d";

/// The largest shift count of a window (RFC 7323, 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// The interval of TCP's timer in milliseconds (`TCP_TMR_INTERVAL` in `c/lwipopts.h`).
pub const TIMER_MS: u64 = 50;

/// The largest number of slices that [`Callbacks::output`] gets.
pub const MAX_SLICES: usize = 16;

/// lwIP's `err_t` (`lwip/err.h`).
pub type ErrT = i8;

/// Done.
pub const ERR_OK: ErrT = 0;
/// It would block.
pub const ERR_WOULDBLOCK: ErrT = -7;
/// The interface failed.
pub const ERR_IF: ErrT = -12;
/// lwIP or its caller aborted the connection. As a callback's result: the callback has aborted it.
pub const ERR_ABRT: ErrT = -13;
/// The peer reset the connection.
pub const ERR_RST: ErrT = -14;
/// The connection was closed by FINs.
pub const ERR_CLSD: ErrT = -15;

/// For [`lwip_sys_input`]: lwIP verifies only the checksum of an IPv4 header, and ICMP's.
pub const VERIFIED_ABOVE_IP: u8 = 0;
/// For [`lwip_sys_input`]: lwIP verifies all checksums, and drops TCP segments.
pub const VERIFIED_NOTHING: u8 = 1;
/// For [`lwip_sys_input`]: the caller has verified all checksums of a TCP segment.
pub const VERIFIED_ALL: u8 = 2;

/// For [`Callbacks::admit`]: drop the SYN.
pub const DROP: u8 = 0;
/// Open a connection.
pub const OPEN: u8 = 1;
/// Reply with a RST.
pub const REFUSE: u8 = 2;

/// For [`lwip_sys_pcb_write`]: more bytes follow at once, so no PSH yet.
pub const TCP_WRITE_FLAG_MORE: u8 = 2;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            bytes: [u8; 0],
            /// Makes the type neither `Send` nor `Sync` nor `Unpin`.
            marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )+};
}

opaque! {
    /// A protocol control block: lwIP's side of a connection.
    TcpPcb
    /// A packet buffer, or a chain of them.
    Pbuf
    /// Reusable memory for a pbuf over the caller's bytes.
    Frame
}

/// Both ends of a connection or a datagram. An IPv4 address takes the first four bytes; ports are in host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// The address that the peer sends to.
    pub local_ip: [u8; 16],
    /// The peer's address.
    pub remote_ip: [u8; 16],
    /// The port that the peer sends to.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// 1 for IPv6, 0 for IPv4.
    pub is_v6: u8,
}

/// A piece of a packet.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slice {
    /// Its first byte.
    pub base: *mut u8,
    /// Its length in bytes.
    pub len: usize,
}

/// The settings of the interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Each connection's receive window and send buffer, in bytes.
    pub window: u32,
    /// The length of a packet's buffer, in bytes. Bytes out of order that fill less than half of it are copied.
    pub packet_len: u32,
    /// The MTU, in bytes. The MSS option of our SYN-ACK follows from it.
    pub mtu: u16,
    /// The largest TCP payload that the link takes over IPv4, in bytes. Above the MTU, several segments go as one.
    pub largest_v4: u16,
    /// The same over IPv6.
    pub largest_v6: u16,
    /// The window's shift count: `window >> scale` fits in 16 bits.
    pub scale: u8,
    /// 1: lwIP computes TCP's checksums. 0: it leaves the field 0.
    pub tcp_checksums: u8,
    /// 1: data is acknowledged by [`lwip_sys_pcb_flush`], not with every second segment.
    pub one_ack_a_batch: u8,
}

/// lwIP calls these only from within the functions below. None may unwind. See [`lwip_sys_start`] for the pointers.
#[repr(C)]
pub struct Callbacks {
    /// What to do with a SYN of no connection, or, if `opens` is 0, with the ACK that would complete a handshake.
    pub admit: unsafe extern "C" fn(engine: *mut c_void, opens: u8) -> u8,
    /// A SYN was accepted. Returns the flow, or 0 to drop the SYN.
    pub opened: unsafe extern "C" fn(engine: *mut c_void, pcb: *mut TcpPcb) -> usize,
    /// The handshake is complete.
    pub established: unsafe extern "C" fn(engine: *mut c_void, flow: usize),
    /// Data, which the callee must free, or null for the peer's FIN. [`ERR_ABRT`] if the callee has aborted the pcb.
    pub received: unsafe extern "C" fn(engine: *mut c_void, flow: usize, pcb: *mut TcpPcb, data: *mut Pbuf) -> ErrT,
    /// The peer has acknowledged `len` more bytes.
    pub sent: unsafe extern "C" fn(engine: *mut c_void, flow: usize, len: u16),
    /// The connection ended with [`ERR_RST`], [`ERR_ABRT`] or [`ERR_CLSD`]. May be called after `destroyed`.
    pub failed: unsafe extern "C" fn(engine: *mut c_void, flow: usize, error: ErrT),
    /// The pcb was freed. lwIP no longer refers to bytes that [`lwip_sys_pcb_write`] got.
    pub destroyed: unsafe extern "C" fn(engine: *mut c_void, flow: usize),
    /// Returns an initial sequence number (RFC 6528).
    pub isn: unsafe extern "C" fn(engine: *mut c_void, endpoints: *const Endpoints) -> u32,
    /// A datagram has arrived. Its payload is valid during the call.
    pub datagram: unsafe extern "C" fn(engine: *mut c_void, endpoints: *const Endpoints, bytes: *const u8, len: usize),
    /// Returns the time of a monotonic clock, in seconds. Called when a fragment arrives.
    pub seconds: unsafe extern "C" fn(engine: *mut c_void) -> u32,
    /// lwIP no longer needs the bytes of a frame. `slot` is the pointer that [`lwip_sys_frame_new`] got.
    pub released: unsafe extern "C" fn(engine: *mut c_void, slot: *mut c_void),
    /// Sends a packet of `count` slices, or, if `count` is 0, `packet`, which has more than [`MAX_SLICES`] pieces.
    pub output:
        unsafe extern "C" fn(link: *mut c_void, slices: *const Slice, count: usize, packet: *const Pbuf) -> ErrT,
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// How many blocks lwIP and the frames have allocated from the C library. A steady flow of packets allocates none.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// `c/memory.c` and `c/shim.c` call it.
#[unsafe(no_mangle)]
extern "C" fn lwip_sys_count_allocation() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" {
    /// The compiled version, as a C string.
    pub safe fn lwip_sys_version() -> *const c_char;

    /// Initialises lwIP. Call it once in a process, before all other functions.
    pub fn lwip_sys_init();

    /// Brings up the only interface. It accepts every address and listens on every port.
    pub fn lwip_sys_start(
        callbacks: *const Callbacks,
        engine: *mut c_void,
        link: *mut c_void,
        options: *const Options,
    ) -> ErrT;

    /// Takes the interface down. The caller must have aborted all connections. Does nothing if `lwip_sys_start` failed.
    pub fn lwip_sys_stop();

    /// Frees the memory that is kept for later packets.
    pub fn lwip_sys_memory_trim();

    /// Passes on an IP packet of `pcb`, or null. Returns the flow that got it, which may have ended, or 0.
    pub fn lwip_sys_input(packet: *mut Pbuf, verified: u8, pcb: *mut TcpPcb) -> usize;

    /// Drops all datagrams that arrive from now on.
    pub fn lwip_sys_udp_close();
    /// Sends a datagram, over IPv4 in fragments of `mtu`. `checksum`: whether to compute it. The bytes are only read.
    pub fn lwip_sys_udp_send(endpoints: *const Endpoints, bytes: *mut c_void, len: u16, mtu: u16, checksum: u8)
    -> ErrT;

    /// Memory for a pbuf; null without memory.
    pub fn lwip_sys_frame_new(slot: *mut c_void) -> *mut Frame;
    /// Frees a frame of `lwip_sys_frame_new`. No pbuf over it may be alive.
    pub fn lwip_sys_frame_delete(frame: *mut Frame);
    /// A pbuf over `len` bytes. lwIP may write to them until [`Callbacks::released`].
    pub fn lwip_sys_frame_wrap(frame: *mut Frame, bytes: *mut u8, len: u16) -> *mut Pbuf;
    /// A pbuf with a copy of bytes; null without memory.
    pub fn lwip_sys_pbuf_of(bytes: *const u8, len: u16) -> *mut Pbuf;
    /// Joins and frees all parts. Null, and nothing changes, without memory or beyond 65,535 bytes.
    pub fn lwip_sys_pbuf_join(parts: *const *mut Pbuf, count: usize) -> *mut Pbuf;
    /// Length of a chain in bytes.
    pub fn lwip_sys_pbuf_len(chain: *const Pbuf) -> u16;
    /// How many pieces a chain has.
    pub fn pbuf_clen(chain: *const Pbuf) -> u16;
    /// Writes a pointer to the first contiguous bytes of a chain to `bytes`, and returns their number.
    pub fn lwip_sys_pbuf_front(chain: *const Pbuf, bytes: *mut *const u8) -> u16;
    /// Removes `len` bytes from the front of a chain. Empty pbufs are freed; an empty chain becomes null.
    pub fn lwip_sys_pbuf_skip(chain: *mut *mut Pbuf, len: u16);
    /// Copies bytes from a chain without changing it.
    pub fn pbuf_copy_partial(chain: *const Pbuf, to: *mut c_void, len: u16, offset: u16) -> u16;
    /// Frees a chain.
    pub fn lwip_sys_pbuf_free(chain: *mut Pbuf);

    /// Writes both addresses to `endpoints`.
    pub fn lwip_sys_pcb_endpoints(pcb: *const TcpPcb, endpoints: *mut Endpoints);
    /// How many of `wanted` bytes [`lwip_sys_pcb_write`] takes now: a segment or less, or whole segments.
    pub fn lwip_sys_pcb_room(pcb: *mut TcpPcb, wanted: usize) -> usize;
    /// Sets PSH on the last unsent segment, if there is one.
    pub fn lwip_sys_pcb_push(pcb: *mut TcpPcb);
    /// Frees the connection without a RST; calls `destroyed`, then `failed`.
    pub fn lwip_sys_pcb_forget(pcb: *mut TcpPcb);
    /// 1 in TIME-WAIT.
    pub fn lwip_sys_pcb_is_over(pcb: *const TcpPcb) -> u8;
    /// 1 while data or a FIN is unsent or unacknowledged.
    pub fn lwip_sys_pcb_outstanding(pcb: *const TcpPcb) -> u8;
    /// How many bytes lwIP has for a half-open connection, for tests.
    pub safe fn lwip_sys_pcb_half_open_len() -> usize;
    /// Writes SND.UNA, SND.NXT, RCV.NXT, the end of the receive window (RFC 9293, 3.4), and the peer's window field.
    pub fn lwip_sys_pcb_edges(pcb: *const TcpPcb, edges: *mut [u32; 5]);
    /// Takes a larger window of the peer from the next acknowledgement, which then is a duplicate for lwIP.
    pub fn lwip_sys_pcb_take_window(pcb: *mut TcpPcb, window: u16);
    /// Queues the first unacknowledged segment again. `lost`: perhaps (0), again (1), or a window's first loss (2).
    pub fn lwip_sys_pcb_retransmit(pcb: *mut TcpPcb, lost: u8);
    /// Opens the receive window again by `len` bytes that were read.
    pub fn lwip_sys_pcb_recved(pcb: *mut TcpPcb, len: usize);
    /// Sends what may be sent, and an acknowledgement if one is due.
    pub fn lwip_sys_pcb_flush(pcb: *mut TcpPcb) -> ErrT;
    /// Makes an acknowledgement due.
    pub fn lwip_sys_pcb_demand_ack(pcb: *mut TcpPcb);
    /// Closes a connection without a reader; the pcb may be freed. `unread`: whether received bytes were dropped.
    pub fn lwip_sys_pcb_release(pcb: *mut TcpPcb, unread: u8);
    /// Lets a released connection that waits for the peer's FIN end after 20 seconds.
    pub fn lwip_sys_pcb_linger(pcb: *mut TcpPcb);
    /// Queues bytes, which must not change until they are acknowledged, without `TCP_WRITE_FLAG_COPY`.
    pub fn lwip_sys_pcb_write(pcb: *mut TcpPcb, bytes: *const c_void, len: u16, flags: u8) -> ErrT;
    /// Sends a FIN behind the queued bytes.
    pub fn lwip_sys_pcb_finish(pcb: *mut TcpPcb);
    /// Resets and frees the connection; calls `destroyed`, then `failed`.
    pub fn lwip_sys_pcb_abort(pcb: *mut TcpPcb);
    /// Sends a keep-alive probe (RFC 1122, 4.2.3.6).
    pub fn lwip_sys_pcb_keepalive(pcb: *mut TcpPcb);
    /// Advances the clock of TCP's timers. Call it every [`TIMER_MS`] while a connection is not quiet.
    pub fn lwip_sys_tick();
    /// Runs the timers of a connection that is not in TIME-WAIT, after each `lwip_sys_tick`. The pcb may be freed.
    pub fn lwip_sys_pcb_tick(pcb: *mut TcpPcb);
    /// 1 if the connection needs no timer until the next call for it or its next segment.
    pub fn lwip_sys_pcb_is_quiet(pcb: *const TcpPcb) -> u8;
    /// How many ranges of segments out of order were looked at since the process began, for tests.
    pub static lwip_sys_reorder_steps: usize;
    /// Whether the C library has no more memory, for tests. The free lists still have theirs.
    pub static mut lwip_sys_starved: u8;
    /// Fails an assertion, for tests.
    pub fn lwip_sys_fail();
    /// The internet checksum (RFC 1071), complemented, in network byte order.
    pub fn inet_chksum(bytes: *const c_void, len: u16) -> u16;
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RawFailure {
    message: *const c_char,
    line: i32,
}

unsafe extern "C" {
    static lwip_sys_failed: *const RawFailure;
}

/// The first failed assertion of lwIP, and its line. All functions then do nothing and return an error, 0 or null.
///
/// # Safety
///
/// As for the functions of lwIP: for one thread at a time.
pub unsafe fn failure() -> Option<(String, i32)> {
    // SAFETY: the caller's promise. The failure is a static, and its message is a literal.
    unsafe {
        let failure = lwip_sys_failed.as_ref()?;
        Some((CStr::from_ptr(failure.message).to_string_lossy().into_owned(), failure.line))
    }
}

/// Whether an assertion of lwIP has failed; see [`failure`].
///
/// # Safety
///
/// As for [`failure`].
#[inline]
pub unsafe fn has_failed() -> bool {
    // SAFETY: the caller's promise.
    unsafe { !lwip_sys_failed.is_null() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of RFC 1071, section 1, word by word.
    fn sum(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_version_is_the_compiled_one() {
        // SAFETY: the C string is a literal.
        let version = unsafe { CStr::from_ptr(lwip_sys_version()) };
        assert_eq!(version.to_str().unwrap(), VERSION);
    }

    /// All checksum functions of lwIP in this build.
    fn ways() -> Vec<fn(&[u8]) -> u16> {
        // SAFETY: the pointer and the length come from a slice.
        let stack = |bytes: &[u8]| unsafe { !u16::from_be(inet_chksum(bytes.as_ptr().cast(), bytes.len() as u16)) };
        #[cfg_attr(not(feature = "checksums"), expect(unused_mut, reason = "there is one way"))]
        let mut ways: Vec<fn(&[u8]) -> u16> = vec![stack];
        #[cfg(feature = "checksums")]
        ways.extend(checksum::ALGORITHMS);
        ways
    }

    #[test]
    fn every_checksum_agrees_with_the_slow_one_at_every_length_and_alignment() {
        let mut state = 1u32;
        let bytes: Vec<u8> = (0..65_535 + 8)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        let ways = ways();
        for len in (0..2048).chain((2048..=65_535).step_by(251)).chain([65_534, 65_535]) {
            for offset in 0..if len < 256 { 8 } else { 2 } {
                let part = &bytes[offset..offset + len];
                let slow = sum(part);
                for (number, way) in ways.iter().enumerate() {
                    assert_eq!(way(part), slow, "{len} bytes at {offset}, way {number}");
                }
            }
        }
    }
}
