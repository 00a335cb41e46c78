//! ipstack's streams of datagrams, one for each pair of addresses, and the queue of what they receive.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use ipstack::IpStackUdpStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::datagrams::{Inbox, MAX_PAYLOAD_V4, Receivers, check, max_payload};
use crate::{Datagram, FlowKey, FlowMap, Workaround, Workarounds};

/// Largest number of streams at the same time. The datagrams of further ones are dropped.
const MAX_FLOWS: usize = 4096;
/// Largest number of datagrams that wait in ipstack's queue to the device.
const MAX_LEAVING: usize = 256;

/// The UDP state that the driver, the streams' tasks and the receivers share.
#[derive(Debug)]
pub(super) struct Exchange {
    inbox: Inbox,
    receivers: Receivers,
    flows: FlowMap<IpStackUdpStream>,
    /// The buffer that a stream's datagram is read into.
    room: Box<[u8]>,
    /// The MTU of the link.
    mtu: usize,
    /// Datagrams in ipstack's queue to the device, and the most.
    leaving: usize,
    pub(super) most_leaving: usize,
}

impl Exchange {
    pub(super) fn new(mtu: usize, workarounds: Workarounds) -> Self {
        let most_leaving = if workarounds.has(Workaround::LimitsDatagrams) { MAX_LEAVING } else { usize::MAX };
        let room = vec![0; usize::from(u16::MAX)].into_boxed_slice();
        Self {
            inbox: Inbox::new(),
            receivers: Receivers::default(),
            flows: FlowMap::default(),
            room,
            mtu,
            leaving: 0,
            most_leaving,
        }
    }

    pub(super) fn wake(&mut self) {
        self.receivers.wake();
    }

    /// The device has sent a packet that is not TCP.
    pub(super) fn left(&mut self) {
        self.leaving = self.leaving.saturating_sub(1);
    }

    /// Adds a new stream of ipstack. Returns whether it is kept.
    pub(super) fn insert(&mut self, key: FlowKey, stream: IpStackUdpStream) -> bool {
        let takes = self.inbox.is_open() && self.flows.len() < MAX_FLOWS;
        if takes {
            self.flows.insert(key, stream);
        }
        takes
    }

    /// Removes the stream, which ipstack has ended.
    pub(super) fn remove(&mut self, key: &FlowKey) {
        self.flows.remove(key);
    }

    /// Takes the next datagram of a stream; `None` when ipstack has ended it.
    pub(super) fn poll_stream(&mut self, cx: &mut Context<'_>, key: FlowKey) -> Poll<Option<()>> {
        let Some(stream) = self.flows.get_mut(&key) else { return Poll::Ready(None) };
        let mut buffer = ReadBuf::new(&mut self.room);
        let polled = ready!(Pin::new(stream).poll_read(cx, &mut buffer));
        if polled.is_ok() {
            self.inbox.push(key.local, key.peer, buffer.filled(), None);
            self.receivers.wake();
        }
        Poll::Ready(polled.ok())
    }

    /// Sends a datagram, if its addresses have a stream. Does not wait.
    pub(super) fn send(&mut self, key: FlowKey, payload: &[u8]) -> io::Result<()> {
        check(key.local, key.peer, payload.len(), max_payload(self.mtu, false).min(MAX_PAYLOAD_V4), self.mtu)?;
        let Some(stream) = self.flows.get_mut(&key) else {
            let reason = format!("send a datagram from {} to {}: ipstack only answers", key.local, key.peer);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        };
        if self.leaving >= self.most_leaving {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.leaving += 1;
        // This never waits.
        match Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), payload) {
            Poll::Ready(sent) => sent.map(drop),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Takes a datagram that waits. Without one, the task is woken for the next.
    pub(super) fn receive(&mut self, cx: &Context<'_>, buffer: &mut [u8]) -> Option<Datagram> {
        let datagram = self.inbox.pop(buffer);
        if datagram.is_none() {
            self.receivers.park(cx);
        }
        datagram
    }

    /// Drops all datagrams from now on: all receivers are gone.
    pub(super) fn close(&mut self) {
        self.inbox.close();
        self.flows.clear();
    }
}
