//! ipstack's UDP: a stream of its own for each pair of a peer and an address that it sends to.
//!
//! ipstack would queue without bound what nobody reads. So nothing is left in its streams: the bridge hands it
//! a datagram, and takes it out of the stream at its next turn, into the one bounded inbox. There are no
//! tasks for the streams, and ipstack's idle time-out is put out of reach: a look every few seconds ends the idle
//! ones, and a new one takes the place of the oldest where there are many.
//!
//! A stream comes out of ipstack by way of the driver, and answers only where something has come in. So
//! what is sent between two ends that are new has ipstack get an empty datagram, which its peer never sent and
//! nobody receives; until the stream is there, what is sent waits.
//!
//! ipstack neither fragments nor puts fragments together: a datagram fills one packet of the MTU at most, and
//! fragments that arrive are dropped. It always computes checksums, and verifies none.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use ipstack::IpStackUdpStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;
use tokio::time::Instant;

use super::hub::Hub;
use crate::datagrams::{Inbox, MAX_PAYLOAD_V4, Receivers, check, max_payload};
use crate::{Datagram, Datagrams, FlowKey};

/// Pairs of ends at once.
const MAX_FLOWS: usize = 1024;
/// A pair of ends that were silent for so long is forgotten; what it sends later makes it anew.
const IDLE: Duration = Duration::from_mins(1);
/// How often the idle are looked for.
const SWEEP: Duration = Duration::from_secs(5);
/// Datagrams that may wait in ipstack for their streams to come out: more than come before the driver has its
/// turn.
const MAX_HELD: usize = 512;
/// Datagrams that may be on their way out, through ipstack's queue.
const MAX_LEAVING: usize = 256;
/// Where no stream has come for so long, ipstack is asked for one again: the packet may have met the end of
/// an older one.
const PATIENCE: Duration = Duration::from_millis(100);

/// What the bridge, the driver and the receivers share of UDP.
#[derive(Debug)]
pub(super) struct Exchange {
    inbox: Inbox,
    receivers: Receivers,
    flows: HashMap<FlowKey, UdpFlow>,
    /// Ends for which ipstack is to get an empty datagram.
    forged: VecDeque<FlowKey>,
    /// Where a stream's datagram is taken out of it.
    room: Box<[u8]>,
    mtu: usize,
    /// In ipstack, for flows without a stream.
    held: usize,
    /// Given to ipstack's streams, or waiting for them, and not seen by the bridge.
    leaving: usize,
    next_sweep: Instant,
}

/// One pair of ends.
#[derive(Debug)]
struct UdpFlow {
    /// `None` while it has not come out of ipstack.
    stream: Option<IpStackUdpStream>,
    /// What waits for it, each way.
    held: usize,
    unsent: Vec<Vec<u8>>,
    /// Empty datagrams that the peer never sent.
    forged: usize,
    asked: Instant,
    used: Instant,
}

impl Exchange {
    pub(super) fn new(mtu: usize) -> Self {
        Self {
            inbox: Inbox::new(),
            receivers: Receivers::default(),
            flows: HashMap::new(),
            forged: VecDeque::new(),
            room: Box::default(),
            mtu,
            held: 0,
            leaving: 0,
            next_sweep: Instant::now() + SWEEP,
        }
    }

    /// Whether there is anything that time may end.
    pub(super) fn is_idle(&self) -> bool {
        self.flows.is_empty()
    }

    pub(super) fn wake_receivers(&mut self) {
        self.receivers.wake();
    }

    /// Whether ipstack is to get a datagram that has arrived.
    pub(super) fn admit(&mut self, key: FlowKey, now: Instant) -> bool {
        if !self.inbox.is_open() {
            return false;
        }
        let full = self.held >= MAX_HELD;
        let flow = self.flow(key, now);
        if flow.stream.is_none() {
            if full {
                return false;
            }
            flow.held += 1;
            self.held += 1;
        }
        true
    }

    /// The flow of a pair of ends, which is in use now.
    fn flow(&mut self, key: FlowKey, now: Instant) -> &mut UdpFlow {
        if !self.flows.contains_key(&key) && self.flows.len() >= MAX_FLOWS {
            let oldest = self.flows.iter().min_by_key(|(_, flow)| flow.used).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                self.forget(oldest);
            }
        }
        let flow = self.flows.entry(key).or_insert_with(|| UdpFlow::new(now));
        flow.used = now;
        flow
    }

    fn forget(&mut self, key: FlowKey) {
        if let Some(flow) = self.flows.remove(&key) {
            self.held -= flow.held;
            self.leaving -= flow.unsent.len();
        }
    }

    /// Forgets the idle, and those whose stream does not come.
    pub(super) fn sweep(&mut self, now: Instant) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP;
        let patience = |flow: &UdpFlow| if flow.stream.is_some() { IDLE } else { SWEEP };
        let idle = |flow: &UdpFlow| now.saturating_duration_since(flow.used) >= patience(flow);
        let gone: Vec<FlowKey> = self.flows.iter().filter(|(_, flow)| idle(flow)).map(|(key, _)| *key).collect();
        for key in gone {
            self.forget(key);
        }
    }

    /// A stream has come out of ipstack.
    pub(super) fn deliver(&mut self, stream: IpStackUdpStream, key: FlowKey) {
        // A forgotten flow's is dropped, and its ends come again as new ones.
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let stream = flow.stream.insert(stream);
        for payload in mem::take(&mut flow.unsent) {
            if !write(stream, &payload) {
                self.leaving -= 1;
            }
        }
        self.held -= mem::take(&mut flow.held);
        self.collect(key);
    }

    /// Takes what ipstack has put into a flow's stream.
    pub(super) fn collect(&mut self, key: FlowKey) {
        let Some(UdpFlow { stream: Some(stream), forged, .. }) = self.flows.get_mut(&key) else { return };
        if self.room.is_empty() {
            self.room = vec![0; MAX_PAYLOAD_V4].into();
        }
        while let Some(len) = read(stream, &mut self.room) {
            if len == 0 && *forged > 0 {
                *forged -= 1;
            } else {
                self.inbox.push(key.local, key.peer, &self.room[..len]);
            }
        }
        if !self.inbox.is_empty() {
            self.receivers.wake();
        }
    }

    /// The next ends for which ipstack is to get an empty datagram.
    pub(super) fn next_forged(&mut self) -> Option<FlowKey> {
        self.forged.pop_front()
    }

    /// A datagram has come out of ipstack.
    pub(super) fn left(&mut self) {
        self.leaving = self.leaving.saturating_sub(1);
    }

    /// Sends by way of ipstack. Whether the bridge has to be told of an empty datagram.
    fn send(&mut self, key: FlowKey, payload: &[u8], now: Instant) -> io::Result<bool> {
        if self.leaving >= MAX_LEAVING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let flow = self.flow(key, now);
        if let Some(stream) = &mut flow.stream {
            if !write(stream, payload) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.leaving += 1;
            return Ok(false);
        }
        flow.unsent.push(payload.to_vec());
        let ask = flow.forged == 0 || now.saturating_duration_since(flow.asked) >= PATIENCE;
        if ask {
            flow.forged += 1;
            flow.asked = now;
            self.forged.push_back(key);
        }
        self.leaving += 1;
        Ok(ask)
    }

    /// Nobody receives any more.
    fn close(&mut self) {
        self.inbox.close();
        self.receivers = Receivers::default();
        self.flows.clear();
        self.forged.clear();
        self.room = Box::default();
        (self.held, self.leaving) = (0, 0);
    }
}

impl UdpFlow {
    fn new(now: Instant) -> Self {
        Self { stream: None, held: 0, unsent: Vec::new(), forged: 0, asked: now, used: now }
    }
}

/// Polls what does not wait for anybody, whatever is left of the task's budget.
fn at_once<T>(operation: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    match pin!(coop::unconstrained(poll_fn(operation))).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// The next datagram's length; `None` for none.
fn read(stream: &mut IpStackUdpStream, room: &mut [u8]) -> Option<usize> {
    let mut room = ReadBuf::new(room);
    at_once(|cx| Pin::new(&mut *stream).poll_read(cx, &mut room))?.ok()?;
    Some(room.filled().len())
}

/// Whether ipstack has taken a datagram.
fn write(stream: &mut IpStackUdpStream, payload: &[u8]) -> bool {
    at_once(|cx| Pin::new(&mut *stream).poll_write(cx, payload)).is_some_and(|result| result.is_ok())
}

/// ipstack's datagrams.
#[derive(Clone, Debug)]
pub struct IpstackDatagrams(Arc<Receiving>);

/// What all clones share; the last closes the exchange.
#[derive(Debug)]
struct Receiving(Arc<Hub>);

impl IpstackDatagrams {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self(Arc::new(Receiving(hub)))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Datagram>> {
        let budget = ready!(coop::poll_proceed(cx));
        let hub = &self.0.0;
        let mut exchange = hub.exchange();
        if let Some(datagram) = exchange.inbox.pop(buffer) {
            budget.made_progress();
            return Poll::Ready(Ok(datagram));
        }
        exchange.receivers.park(cx);
        // Behind the parking: a failure from now on wakes.
        hub.failure().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }
}

impl Datagrams for IpstackDatagrams {
    fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<Datagram>> + Send {
        poll_fn(move |cx| self.poll_recv(cx, buffer))
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let hub = &self.0.0;
        if let Some(error) = hub.failure() {
            return Err(error);
        }
        let mut exchange = hub.exchange();
        check(local, peer, payload.len(), max_payload(exchange.mtu, false), exchange.mtu)?;
        let ask = exchange.send(FlowKey { local, peer }, payload, Instant::now())?;
        drop(exchange);
        if ask {
            hub.request_stream();
        }
        Ok(())
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.exchange().close();
    }
}
