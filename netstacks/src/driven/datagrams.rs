//! An engine's datagrams. A task that waits for one drives the engine, as a reader of a stream does.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use platform::{Capabilities, MAX_DATAGRAMS_TOGETHER};
use tokio::task::coop;
use tokio::time::Instant;

use super::engine::Engine;
use super::turns::{Shared, Waiter, Wakes};
use crate::datagrams::{Inbox, Receivers, max_payload};
use crate::{Datagram, DatagramBatch, Datagrams, segments};

pub struct DrivenDatagrams<E: Engine>(Arc<Receiving<E>>);

/// What all clones share; the last closes the engine's datagrams.
struct Receiving<E: Engine>(Shared<E>);

impl<E: Engine> DrivenDatagrams<E> {
    pub(super) fn new(shared: Shared<E>) -> Self {
        Self(Arc::new(Receiving(shared)))
    }

    fn poll_recv<T>(&self, cx: &mut Context<'_>, mut pop: impl FnMut(&mut Inbox) -> Option<T>) -> Poll<io::Result<T>> {
        let budget = ready!(coop::poll_proceed(cx));
        let mut wakes = Wakes::default();
        let mut state = self.0.0.lock()?;
        let receive = |engine: &mut E| pop(engine.inbox()).ok_or_else(|| io::ErrorKind::WouldBlock.into());
        let polled = state.poll_operation(Waiter::Datagrams, cx, &mut wakes, receive);
        if polled.is_ready() {
            budget.made_progress();
        } else {
            state.receivers.park(cx);
        }
        polled
    }
}

impl<E: Engine> Clone for DrivenDatagrams<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: Engine> Datagrams for DrivenDatagrams<E> {
    fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<Datagram>> + Send {
        poll_fn(move |cx| self.poll_recv(cx, |inbox| inbox.pop(buffer)))
    }

    fn recv_batch(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<DatagramBatch>> + Send {
        poll_fn(move |cx| self.poll_recv(cx, |inbox| inbox.pop_batch(buffer)))
    }

    fn try_send_batch(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        let mut wakes = Wakes::default();
        let mut state = self.0.0.lock()?;
        let (mut sent, now) = (0, Instant::now());
        let together = together(state.engine.udp_segmentation(), segment_len, local.is_ipv6());
        let mut result = Ok(0);
        for packet in segments(payloads, segment_len * together) {
            let gso_size = NonZeroU16::new(segment_len as u16).filter(|_| packet.len() > segment_len);
            result = state.engine.send_datagram(now, (local, peer), packet, gso_size).map(|()| sent + packet.len());
            match result {
                Ok(so_far) => sent = so_far,
                Err(_) => break,
            }
        }
        // The driver has to wait for room on the link.
        if state.engine.is_blocked() {
            state.call_driver(&mut wakes);
        }
        match result {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::InvalidInput) => {
                if sent > 0 { Ok(sent) } else { Err(error) }
            }
            result => state.failed(result, &mut wakes),
        }
    }
}

/// How many datagrams of a length go in one packet of a link with UDP super-packets.
fn together(link: Option<Capabilities>, segment_len: usize, ipv6: bool) -> usize {
    let Some(Capabilities { mtu, max_packet_len, .. }) = link else { return 1 };
    let largest = max_payload(max_packet_len.min(Capabilities::MAX_SUPER_PACKET), ipv6);
    let fits_mtu = (1..=max_payload(mtu, ipv6)).contains(&segment_len);
    if fits_mtu { (largest / segment_len).clamp(1, MAX_DATAGRAMS_TOGETHER) } else { 1 }
}

impl<E: Engine> Drop for Receiving<E> {
    fn drop(&mut self) {
        // A stack that has failed receives nothing.
        let Ok(mut state) = self.0.lock() else { return };
        state.receivers = Receivers::default();
        state.engine.close_datagrams();
    }
}
