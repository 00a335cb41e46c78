//! The engine's state of a connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::slice;
use std::time::Duration;

use lwip_sys::{Endpoints, Pbuf, TcpPcb};
use tokio::time::Instant;

use super::ring::Ring;
use crate::recovery::Recovery;
use crate::{Sink, Workarounds};

/// Received pieces shorter than this are small, in bytes: most of the memory that they occupy is not data.
const SMALL_LEN: u16 = 512;

/// This many small pieces in a row are joined into one.
const JOIN: usize = 64;

const PIECES: usize = 64;

/// What to do about a silent peer: nothing, send a keep-alive probe, or abort the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Enough,
    Probe,
    Exhausted,
}

#[derive(Debug)]
pub struct Flow {
    /// Null once lwIP has freed it.
    pub(super) pcb: *mut TcpPcb,
    /// Set when the handshake is complete. A half-open connection is small without it.
    pub(super) open: Option<Box<Open>>,
    /// Data for the reader. The flow frees it.
    received: VecDeque<*mut Pbuf>,
    /// How many small pieces are at the end of `received`.
    small: usize,
    pub(super) eof: bool,
    /// Our FIN was requested.
    pub(super) finished: bool,
    /// Why the connection ended, if not by FINs.
    pub(super) error: Option<io::ErrorKind>,
    /// It is in `Core::ticking`.
    pub(super) is_ticking: bool,
    /// When TIME-WAIT ends.
    pub(super) over_at: Option<Instant>,
    heard: Instant,
}

/// The part of the state that only an established connection needs.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) recovery: Recovery,
    /// Written bytes that are not acknowledged.
    pub(super) ring: Ring,
    /// When the peer's current silence began to count: a response has been due since then.
    asked: Option<Instant>,
    probed: Option<Instant>,
}

impl Open {
    pub(super) fn new(mss: usize, workarounds: Workarounds) -> Self {
        Self { recovery: Recovery::new(mss, workarounds), ring: Ring::default(), asked: None, probed: None }
    }
}

impl Flow {
    pub(super) fn new(pcb: *mut TcpPcb, now: Instant) -> Self {
        Self {
            pcb,
            open: None,
            received: VecDeque::new(),
            small: 0,
            eof: false,
            finished: false,
            error: None,
            is_ticking: false,
            over_at: None,
            heard: now,
        }
    }

    /// The result without data, or without leave to write: the error that ended the connection, or else `orderly`.
    pub(super) fn end(&self, orderly: io::Result<usize>) -> io::Result<usize> {
        match self.error {
            Some(kind) => Err(kind.into()),
            None => orderly,
        }
    }

    pub(super) fn has_data(&self) -> bool {
        !self.received.is_empty()
    }

    /// Queues data for the reader. The pbuf is alive, and this flow now owns it.
    pub(super) unsafe fn push(&mut self, data: *mut Pbuf) {
        // SAFETY: the caller's promise.
        let len = unsafe { lwip_sys::lwip_sys_pbuf_len(data) };
        if len < SMALL_LEN {
            self.received.push_back(data);
            self.small += 1;
            if self.small == JOIN {
                self.join();
            }
            return;
        }
        self.small = 0;
        // A filled hole brings all segments behind it, which may be tiny.
        // SAFETY: the caller's promise. A null result leaves the part as it is.
        let joined = unsafe {
            if u32::from(lwip_sys::pbuf_clen(data)) * u32::from(SMALL_LEN) > u32::from(len) + u32::from(SMALL_LEN) {
                lwip_sys::lwip_sys_pbuf_join(&raw const data, 1)
            } else {
                ptr::null_mut()
            }
        };
        self.received.push_back(if joined.is_null() { data } else { joined });
    }

    /// Joins the small pieces at the end. Otherwise a window of one-byte segments would take a hundred times its size.
    fn join(&mut self) {
        self.small = 0;
        let mut parts = [ptr::null_mut(); JOIN];
        for (part, small) in parts.iter_mut().zip(self.received.range(self.received.len() - JOIN..)) {
            *part = *small;
        }
        // SAFETY: the parts are alive and this flow owns them. After success they are removed from the queue.
        let joined = unsafe { lwip_sys::lwip_sys_pbuf_join(parts.as_ptr(), parts.len()) };
        if !joined.is_null() {
            self.received.truncate(self.received.len() - JOIN);
            self.received.push_back(joined);
        }
    }

    /// Lends received bytes to a sink, again and again while it takes all. Returns how many it took.
    pub(super) fn lend(&mut self, sink: &mut Sink<'_>) -> io::Result<usize> {
        let mut lent = 0;
        while self.has_data() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let count = self.front(&mut pieces);
            let offered: usize = pieces[..count].iter().map(|piece| piece.len()).sum();
            let taken = match sink(&pieces[..count]) {
                Ok(0) if lent == 0 => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(taken) => taken.min(offered),
                Err(_) if lent > 0 => break,
                Err(error) => return Err(error),
            };
            self.skip(taken);
            lent += taken;
            if taken < offered || taken == 0 {
                break;
            }
        }
        Ok(lent)
    }

    /// Puts the first received bytes into `pieces`. Returns the number of pieces. They are valid until `skip`.
    fn front(&self, pieces: &mut [IoSlice<'_>]) -> usize {
        let mut count = 0;
        for (piece, chain) in pieces.iter_mut().zip(&self.received) {
            let mut bytes = ptr::null();
            // SAFETY: the chain and its bytes are alive, and this flow owns them.
            let (len, whole) = unsafe {
                let len = lwip_sys::lwip_sys_pbuf_front(*chain, &raw mut bytes);
                *piece = IoSlice::new(slice::from_raw_parts(bytes, usize::from(len)));
                (len, lwip_sys::lwip_sys_pbuf_len(*chain))
            };
            count += 1;
            if len < whole {
                break;
            }
        }
        count
    }

    fn skip(&mut self, mut len: usize) {
        while let Some(chain) = self.received.front_mut().filter(|_| len > 0) {
            // SAFETY: the chain is alive, this flow owns it, and nothing refers to the skipped bytes. This may call
            // `Callbacks::released`, which only touches the pool.
            unsafe {
                let part = lwip_sys::lwip_sys_pbuf_len(*chain).min(u16::try_from(len).unwrap_or(u16::MAX));
                lwip_sys::lwip_sys_pbuf_skip(chain, part);
                len -= usize::from(part);
            }
            if chain.is_null() {
                self.received.pop_front();
                self.small = self.small.min(self.received.len());
            }
        }
    }

    /// Drops all unread bytes. Returns whether there were any.
    pub(super) fn discard(&mut self) -> bool {
        let unread = self.has_data();
        for data in self.received.drain(..) {
            // SAFETY: it was alive, and this flow owned it. See `skip` for the callback.
            unsafe { lwip_sys::lwip_sys_pbuf_free(data) };
        }
        self.small = 0;
        unread
    }

    /// Notes a segment of this connection.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
        if let Some(open) = &mut self.open {
            (open.asked, open.probed) = (None, None);
        }
    }

    /// Checks the user timeout: from outstanding data, or from the first keep-alive probe after a silence of `timeout`.
    pub(super) fn patience(&mut self, now: Instant, timeout: Duration, outstanding: bool) -> Patience {
        let Some(open) = &mut self.open else { return Patience::Enough };
        let idle = now.saturating_duration_since(self.heard) >= timeout;
        if !outstanding && !idle {
            open.asked = None;
            return Patience::Enough;
        }
        let asked = *open.asked.get_or_insert(now);
        if now.saturating_duration_since(asked) >= timeout {
            return Patience::Exhausted;
        }
        let probe_again = open.probed.is_none_or(|probed| now.saturating_duration_since(probed) >= timeout / 4);
        if outstanding || !probe_again {
            return Patience::Enough;
        }
        open.probed = Some(now);
        Patience::Probe
    }

    /// When `patience` must be called again if nothing happens before.
    pub(super) fn next_look(&self, timeout: Duration) -> Instant {
        match self.open.as_ref().map_or((None, None), |open| (open.asked, open.probed)) {
            (None, _) => self.heard + timeout,
            (Some(asked), None) => asked + timeout,
            (Some(asked), Some(probed)) => (probed + timeout / 4).min(asked + timeout),
        }
    }
}

pub(super) fn both_ends(endpoints: &Endpoints) -> (SocketAddr, SocketAddr) {
    let address = |bytes: &[u8; 16], port| match endpoints.is_v6 {
        0 => SocketAddr::new(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]), port),
        _ => SocketAddr::new(IpAddr::from(*bytes), port),
    };
    let local = address(&endpoints.local_ip, endpoints.local_port);
    (local, address(&endpoints.remote_ip, endpoints.remote_port))
}

impl Drop for Flow {
    fn drop(&mut self) {
        debug_assert_eq!(self.pcb, ptr::null_mut(), "lwIP may still refer to the ring");
        self.discard();
    }
}
