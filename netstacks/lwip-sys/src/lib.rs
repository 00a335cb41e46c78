//! lwIP 2.2.1d, compiled with this project's options (`c/lwipopts.h`), and the few functions of its
//! raw API that the adapter in `netstacks` needs, declared by hand.
//!
//! lwIP keeps its state in globals, so all of this is for one thread at a time and one instance a
//! process; who calls it sees to that. No structure of lwIP's is known here: `c/shim.c` and
//! `c/pcb.c` have functions for what is read and written in them.
//!
//! A connection is known by two names. lwIP's is the pcb; the caller's is the *flow*, a number
//! other than 0 that [`Callbacks::opened`] answers and all later callbacks carry.

#![allow(missing_debug_implementations, reason = "nothing here has a state that Rust could print")]

#[cfg(feature = "checksums")]
pub mod checksum;

use std::ffi::{c_char, c_void};
use std::marker::{PhantomData, PhantomPinned};
use std::sync::atomic::{AtomicU64, Ordering};

/// The version of lwIP, as it says itself: a development state on the way from 2.2.0 to 2.2.1.
pub const VERSION: &str = "2.2.1d";

/// The shift count beyond which no window is scaled (RFC 7323, 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// The most slices that [`Callbacks::output`] is given.
pub const MAX_SLICES: usize = 16;

/// lwIP's `err_t` (`lwip/err.h`).
pub type ErrT = i8;

/// Done.
pub const ERR_OK: ErrT = 0;
/// No memory, or no room in the send buffer.
pub const ERR_MEM: ErrT = -1;
/// It would block.
pub const ERR_WOULDBLOCK: ErrT = -7;
/// The interface failed.
pub const ERR_IF: ErrT = -12;
/// lwIP or its caller gave the connection up. From a callback: the connection is no more.
pub const ERR_ABRT: ErrT = -13;
/// The peer reset the connection.
pub const ERR_RST: ErrT = -14;
/// The connection was closed in good order.
pub const ERR_CLSD: ErrT = -15;

/// For [`Callbacks::admit`]: drop the SYN.
pub const DROP: u8 = 0;
/// Open a connection.
pub const OPEN: u8 = 1;
/// Answer with a RST.
pub const REFUSE: u8 = 2;

/// For [`tcp_write`]: more follows at once, so no PSH yet.
pub const TCP_WRITE_FLAG_MORE: u8 = 2;

macro_rules! opaque {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            bytes: [u8; 0],
            /// Neither to be moved nor to be sent or shared by Rust's rules.
            marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    };
}

opaque! {
    /// A protocol control block: lwIP's side of a connection.
    TcpPcb
}
opaque! {
    /// A packet buffer, or a chain of them.
    Pbuf
}
opaque! {
    /// Memory for a pbuf over bytes of the caller's, to be used again and again.
    Frame
}

/// Both ends of a connection or a datagram. An IPv4 address takes the first four bytes; ports are in host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// Where the peer wanted to go.
    pub local_ip: [u8; 16],
    /// The peer.
    pub remote_ip: [u8; 16],
    /// The port that the peer wanted.
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

/// How the interface is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Each connection's receive window and send buffer, in bytes.
    pub window: u32,
    /// The MTU, which is what the MSS option of our SYN comes from.
    pub mtu: u16,
    /// The largest payload, in bytes, of a TCP segment over IPv4 that the link takes. Beyond the
    /// MTU's, peers that take segments of the MTU are sent several at once, in one of up to this.
    pub largest_v4: u16,
    /// The same over IPv6.
    pub largest_v6: u16,
    /// The window's shift count: `window >> scale` fits in 16 bits.
    pub scale: u8,
    /// 1: TCP's checksums are computed. 0: their field is left 0.
    pub tcp_checksums: u8,
}

/// What lwIP calls, always from within one of the functions below. None may unwind. `engine` and
/// `link` are what [`lwip_sys_start`] was given.
#[repr(C)]
pub struct Callbacks {
    /// What to do with a SYN that belongs to no connection: [`DROP`], [`OPEN`] or [`REFUSE`].
    pub admit: unsafe extern "C" fn(engine: *mut c_void) -> u8,
    /// A SYN was taken: answers the flow, or 0 to drop it.
    pub opened: unsafe extern "C" fn(engine: *mut c_void, pcb: *mut TcpPcb) -> usize,
    /// The handshake is done.
    pub established: unsafe extern "C" fn(engine: *mut c_void, flow: usize),
    /// Data, which then is the callee's to free, or the peer's FIN, for which `data` is null. The
    /// callee may call [`tcp_abort`] on the pcb and answers [`ERR_ABRT`] then, else [`ERR_OK`].
    pub received: unsafe extern "C" fn(engine: *mut c_void, flow: usize, pcb: *mut TcpPcb, data: *mut Pbuf) -> ErrT,
    /// The peer has acknowledged so many more bytes.
    pub sent: unsafe extern "C" fn(engine: *mut c_void, flow: usize, len: u16),
    /// The connection ended by [`ERR_RST`], [`ERR_ABRT`] or [`ERR_CLSD`]. May come after
    /// `destroyed`.
    pub failed: unsafe extern "C" fn(engine: *mut c_void, flow: usize, error: ErrT),
    /// The pcb is gone, and with it every reference to bytes that were given to [`tcp_write`].
    pub destroyed: unsafe extern "C" fn(engine: *mut c_void, flow: usize),
    /// An initial sequence number (RFC 6528).
    pub isn: unsafe extern "C" fn(engine: *mut c_void, endpoints: *const Endpoints) -> u32,
    /// A datagram has come. Its payload is valid during the call.
    pub datagram: unsafe extern "C" fn(engine: *mut c_void, endpoints: *const Endpoints, bytes: *const u8, len: usize),
    /// A clock, in seconds, that never goes back. Asked when a fragment comes.
    pub seconds: unsafe extern "C" fn(engine: *mut c_void) -> u32,
    /// lwIP needs the bytes of a frame no more; `slot` is what [`lwip_sys_frame_new`] was given.
    pub released: unsafe extern "C" fn(engine: *mut c_void, slot: *mut c_void),
    /// A packet to be sent, in `count` slices; with more than [`MAX_SLICES`] pieces `count` is 0
    /// and `packet` has them. Any answer but [`ERR_OK`] leaves the packet with lwIP, which tries
    /// again if it carries data.
    pub output:
        unsafe extern "C" fn(link: *mut c_void, slices: *const Slice, count: usize, packet: *const Pbuf) -> ErrT,
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// How many blocks of memory lwIP, and the frames of its caller, have taken from the C library since
/// the process began. A steady flow of packets takes none: `c/memory.c` keeps what is freed for the
/// next. Any thread may ask, while lwIP runs.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// For `c/memory.c`.
#[unsafe(no_mangle)]
extern "C" fn lwip_sys_count_allocation() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" {
    /// The version that was compiled, as a C string.
    pub safe fn lwip_sys_version() -> *const c_char;

    /// Initialises lwIP. Once in a process, before everything else.
    pub fn lwip_sys_init();

    /// Brings up the one interface, which takes every address and listens on every port.
    pub fn lwip_sys_start(
        callbacks: *const Callbacks,
        engine: *mut c_void,
        link: *mut c_void,
        options: *const Options,
    ) -> ErrT;

    /// Takes the interface down. All connections have been aborted. Does nothing where `lwip_sys_start` failed.
    pub fn lwip_sys_stop();

    /// Gives memory back that was kept for packets to come.
    pub fn lwip_sys_memory_trim();

    /// Takes an IP packet, and the pbuf with it. `pcb`: the connection of its addresses, or null. Returns the flow
    /// that took it, or 0; that flow may be gone by now. `verify`: whether to check TCP's or UDP's checksum.
    pub fn lwip_sys_input(packet: *mut Pbuf, verify: u8, pcb: *mut TcpPcb) -> usize;

    /// Has all datagrams that come from now on dropped.
    pub fn lwip_sys_udp_close();
    /// Sends a datagram. Over IPv4, a packet longer than `mtu` is sent in fragments; over IPv6 it must not be longer.
    /// `checksum`: whether to compute its checksum. That of fragments always is. lwIP only reads the bytes, and has no
    /// pointer to them afterwards.
    pub fn lwip_sys_udp_send(endpoints: *const Endpoints, bytes: *mut c_void, len: u16, mtu: u16, checksum: u8)
    -> ErrT;

    /// Memory for a pbuf; null where there is none.
    pub fn lwip_sys_frame_new(slot: *mut c_void) -> *mut Frame;
    /// Frees what `lwip_sys_frame_new` made. No pbuf over it may be alive.
    pub fn lwip_sys_frame_delete(frame: *mut Frame);
    /// A pbuf over `len` bytes, which lwIP may write to until [`Callbacks::released`].
    pub fn lwip_sys_frame_wrap(frame: *mut Frame, bytes: *mut u8, len: u16) -> *mut Pbuf;
    /// A pbuf with a copy of bytes; null where there is no memory.
    pub fn lwip_sys_pbuf_of(bytes: *const u8, len: u16) -> *mut Pbuf;
    /// One pbuf of the bytes of all parts, which are freed; null, and nothing changed, where there
    /// is no memory or there are more than 65,535 bytes.
    pub fn lwip_sys_pbuf_join(parts: *const *mut Pbuf, count: usize) -> *mut Pbuf;
    /// Length of a chain in bytes.
    pub fn lwip_sys_pbuf_len(chain: *const Pbuf) -> u16;
    /// The first bytes of a chain that lie in one piece, and how many they are.
    pub fn lwip_sys_pbuf_front(chain: *const Pbuf, bytes: *mut *const u8) -> u16;
    /// Forgets so many bytes at the front of a chain. What is empty is freed; an empty chain becomes null.
    pub fn lwip_sys_pbuf_skip(chain: *mut *mut Pbuf, len: u16);
    /// Copies from a chain without changing it.
    pub fn pbuf_copy_partial(chain: *const Pbuf, to: *mut c_void, len: u16, offset: u16) -> u16;
    /// Gives up a chain.
    pub fn pbuf_free(chain: *mut Pbuf) -> u8;

    /// Both ends.
    pub fn lwip_sys_pcb_endpoints(pcb: *const TcpPcb, endpoints: *mut Endpoints);
    /// How many of `wanted` bytes may be given to [`tcp_write`] now, for more than one segment a whole
    /// number of them.
    pub fn lwip_sys_pcb_room(pcb: *mut TcpPcb, wanted: usize) -> usize;
    /// Sets PSH on the last segment that is not sent yet, if there is one.
    pub fn lwip_sys_pcb_push(pcb: *mut TcpPcb);
    /// 1 in TIME-WAIT.
    pub fn lwip_sys_pcb_is_over(pcb: *const TcpPcb) -> u8;
    /// 1 while the peer owes an answer to data or a FIN.
    pub fn lwip_sys_pcb_outstanding(pcb: *const TcpPcb) -> u8;
    /// How many sequence numbers have been sent and not acknowledged.
    pub fn lwip_sys_pcb_in_flight(pcb: *const TcpPcb) -> u32;
    /// Sends the first segment that is not acknowledged once more, with the next [`lwip_sys_pcb_flush`]. Not 0 if there
    /// is one and it does not wait already.
    pub fn lwip_sys_pcb_probe(pcb: *mut TcpPcb) -> u8;
    /// The same for a segment that is lost. The congestion window falls if `is_new` is not 0.
    pub fn lwip_sys_pcb_retransmit(pcb: *mut TcpPcb, is_new: u8);
    /// Opens the receive window again by bytes that were taken from it.
    pub fn lwip_sys_pcb_recved(pcb: *mut TcpPcb, len: usize);
    /// Sends what may be sent, and an acknowledgement where one is due.
    pub fn lwip_sys_pcb_flush(pcb: *mut TcpPcb) -> ErrT;
    /// Makes an acknowledgement due.
    pub fn lwip_sys_pcb_demand_ack(pcb: *mut TcpPcb);
    /// Closes a connection that nobody reads any more; `unread`: whether received bytes were thrown
    /// away. The pcb may be gone afterwards.
    pub fn lwip_sys_pcb_release(pcb: *mut TcpPcb, unread: u8);
    /// Lets a released connection that waits for the peer's FIN end after 20 seconds.
    pub fn lwip_sys_pcb_linger(pcb: *mut TcpPcb);
    /// Queues bytes to be sent. Without the flag `TCP_WRITE_FLAG_COPY` they have to stay as they
    /// are until they are acknowledged or the pcb is gone.
    pub fn tcp_write(pcb: *mut TcpPcb, bytes: *const c_void, len: u16, flags: u8) -> ErrT;
    /// Sends a FIN behind what is queued (`shut_tx`).
    pub fn tcp_shutdown(pcb: *mut TcpPcb, shut_rx: i32, shut_tx: i32) -> ErrT;
    /// Resets and frees the connection; calls `destroyed`, then `failed`.
    pub fn tcp_abort(pcb: *mut TcpPcb);
    /// Asks an idle peer whether it is still there (RFC 1122, 4.2.3.6).
    pub fn tcp_keepalive(pcb: *mut TcpPcb) -> ErrT;
    /// Advances the clock of TCP's timers. Due each [`TCP_TIMER_MS`] milliseconds while a connection is not quiet.
    pub fn lwip_sys_tick();
    /// Runs the timers of a connection that is not in TIME-WAIT; to be called after each `lwip_sys_tick`. The pcb
    /// may be gone afterwards.
    pub fn lwip_sys_pcb_tick(pcb: *mut TcpPcb);
    /// 1 if the connection needs no timer until it is called for or a segment arrives.
    pub fn lwip_sys_pcb_is_quiet(pcb: *const TcpPcb) -> u8;
    /// The internet checksum (RFC 1071), complemented, as it is in memory.
    pub fn inet_chksum(bytes: *const c_void, len: u16) -> u16;
}

/// `TCP_TMR_INTERVAL` (`c/lwipopts.h`).
pub const TCP_TIMER_MS: u64 = 50;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::ffi::CStr;

    use super::*;

    /// RFC 1071, section 1, word by word.
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

    /// All of lwIP's ways to the checksum that this build has.
    fn ways() -> Vec<fn(&[u8]) -> u16> {
        // SAFETY: the pointer and the length are a slice's.
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
