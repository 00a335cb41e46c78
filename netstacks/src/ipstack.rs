//! The `ipstack` crate behind the common interface.
//!
//! ipstack runs a task for the device and one for each connection, and has channels in between. It
//! is made for proxies of short connections on a good link, and much of TCP is left out or wrong.
//! All of it is made good here, without touching ipstack, by the device that it is given: the
//! [`Bridge`] sees every packet in both directions, keeps a record of every connection, and decides
//! what ipstack gets to see. What stays ipstack's is the way of a byte: it cuts what is written
//! into segments, sums them, keeps them until they are acknowledged, sends them again when they are
//! not, and hands on what arrives. What the bridge does:
//!
//! | ipstack | here |
//! |---|---|
//! | swallows read errors of its device, and dies silently of write errors | the driver ends with them, and so does every stream |
//! | closes at the peer's FIN, loses a FIN with data, sends its own once and only when all is acknowledged | it sees no FIN; both are the record's |
//! | marks a reset and wakes nobody | the record wakes both sides |
//! | has no receive window | the record's, put into every segment that leaves |
//! | stops for ever at segments that overlap, does not answer repeated ones | it gets each byte once, in order |
//! | takes 8,192 bytes from one packet | larger ones are cut |
//! | sends beyond the peer's window, knows no zero window | the stream writes no more than fits; the record probes |
//! | looks at its retransmission timers when a packet arrives | a forged one arrives five times a second |
//! | yields a connection at its SYN, forgets a lost SYN-ACK | accepted after the handshake; the SYN-ACK is the record's |
//! | blocks or panics when a stream is dropped | a task holds it until it may be |
//!
//! An alternative for closing is to keep the peer's FIN back until ours is out. It was not taken:
//! ipstack never repeats its FIN and takes any ACK for the FIN's, so a single loss would hang the
//! connection. So ipstack's connections all end the same way: two forged resets.
//!
//! ipstack's own time-out ends a connection whose application is silent as well; it is put out of
//! reach. The record's ends one whose peer is silent for the user time-out while something is under
//! way, or a write, a shutdown or a read waits. Half way to it a waiting read has the peer probed
//! (RFC 9293, 3.8.4), so an idle connection stays and a dead one does not.
//!
//! UDP goes through ipstack unchanged; see `ipstack/datagrams.rs`. It does not fragment.
//!
//! What remains: 64 KB in flight at most, since it knows no window scaling; no SACK, no timestamps
//! and no congestion control; a retransmission time-out of one second whatever the round trip; and,
//! in builds with debug assertions, an initial sequence number of 100 for every connection.

mod bridge;
mod datagrams;
mod events;
mod flow;
mod hub;
mod port;
mod receive;
mod segment;
mod send;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::ipstack::{IpStack, IpStackConfig, IpStackStream, TcpConfig, TcpOptions};
use platform::{Capabilities, Link};
use tokio::runtime::Handle;

use self::bridge::Bridge;
use self::datagrams::IpstackDatagrams;
use self::events::Limits;
use self::hub::Hub;
use self::stream::{IpstackListener, IpstackStream};
use crate::offload::Offload;
use crate::{Effective, FlowKey, Netstack, StackConfig, StackKind, StartError, Started};

/// As in `Cargo.lock`; the crate does not say it itself.
pub(crate) const VERSION: &str = "1.0.1";

/// The largest window without scaling (RFC 9293, 3.1), which ipstack does not know.
const MAX_WINDOW: usize = u16::MAX as usize;
/// RFC 1122, 3.3.3.
const MIN_MTU: usize = 576;
/// ipstack ends connections by a timer of its own, which the application's silence feeds as well;
/// the record's takes its place.
const NEVER: Duration = Duration::from_hours(365 * 24);
/// How long ipstack's tasks may take to end after the stack has.
const GRACE: Duration = Duration::from_secs(5);

/// The `ipstack` crate, version 1.0.1. Its datagrams fill one packet of the MTU at most; of fragments it takes
/// none.
#[derive(Clone, Copy, Debug)]
pub struct Ipstack;

impl<L: Link> Netstack<L> for Ipstack {
    type Stream = IpstackStream;
    type Listener = IpstackListener;
    type Datagrams = IpstackDatagrams;

    fn start(link: L, config: &StackConfig) -> Result<Started<IpstackListener, IpstackDatagrams>, StartError> {
        let capabilities = link.capabilities();
        if capabilities.mtu < MIN_MTU {
            let reason = format!("an MTU of {} is too small; it takes {MIN_MTU} and more", capabilities.mtu);
            return Err(StartError::Unfit { stack: StackKind::Ipstack, reason });
        }
        let budget = config.window.clamp(StackConfig::MIN_WINDOW, MAX_WINDOW);
        // By which it cuts: where the link cuts super-packets, theirs.
        let offload = Offload::of(&capabilities);
        let mtu = offload.largest_packet().try_into().unwrap_or(u16::MAX);
        let limits = Limits { budget: budget as u32, user_timeout: config.user_timeout };
        let hub = Arc::new(Hub::new(limits, config.backlog, capabilities.mtu, Handle::current()));
        let mut settings = IpStackConfig::default();
        // The bridge ends what is idle of UDP.
        settings
            .mtu_unchecked(mtu)
            .packet_information(false)
            .udp_timeout(NEVER)
            .with_tcp_config(tcp_config(budget as u32, &capabilities));
        let stack = IpStack::new(settings, Bridge::new(link, Arc::clone(&hub)));
        Ok(Started {
            listener: IpstackListener::new(Arc::clone(&hub)),
            datagrams: IpstackDatagrams::new(Arc::clone(&hub)),
            driver: Box::pin(Serving { stack: Some(stack), hub }),
            effective: Effective {
                stack_version: VERSION.into(),
                receive_buffer_bytes: budget,
                send_buffer_bytes: budget,
                window_scale: None,
                largest_packet_bytes: offload.largest_tcp_packet(),
                congestion: "none".into(),
                checksum_verified: false,
                checksum_computed: true,
                workarounds: Vec::new(),
            },
        })
    }
}

fn tcp_config(budget: u32, capabilities: &Capabilities) -> TcpConfig {
    let mut tcp = TcpConfig::default();
    tcp.timeout = NEVER;
    // Its FINs stay within it, so these never run.
    tcp.two_msl = Duration::ZERO;
    tcp.max_unacked_bytes = budget;
    tcp.read_buffer_size = MAX_WINDOW;
    // It would forget the segment, not end the connection; the user time-out does.
    tcp.max_retransmit_count = usize::MAX;
    // The SYN-ACK that leaves is the bridge's, with the same MSS or IPv6's.
    let mss = capabilities.mtu.saturating_sub(40).try_into().unwrap_or(u16::MAX);
    tcp.options = Some(vec![TcpOptions::MaximumSegmentSize(mss)]);
    tcp
}

/// The driver: takes connections out of ipstack until the stack ends.
struct Serving {
    /// There until the driver is dropped.
    stack: Option<IpStack>,
    hub: Arc<Hub>,
}

impl Serving {
    /// Takes what has come out of ipstack.
    fn collect(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(stack) = &mut self.stack else { return Poll::Pending };
        loop {
            match pin!(stack.accept()).poll(cx) {
                Poll::Ready(Ok(IpStackStream::Tcp(inner))) => {
                    // ipstack calls the peer's end the local one.
                    let key = FlowKey { peer: inner.local_addr(), local: inner.peer_addr() };
                    self.hub.deliver(inner, key);
                }
                Poll::Ready(Ok(IpStackStream::Udp(stream))) => {
                    let key = FlowKey { peer: stream.local_addr(), local: stream.peer_addr() };
                    self.hub.exchange().deliver(stream, key);
                }
                // The bridge hands it nothing but TCP and UDP.
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(io::Error::other(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Future for Serving {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let serving = self.get_mut();
        if let Poll::Ready(error) = serving.collect(cx) {
            serving.hub.fail(&error);
        }
        serving.hub.poll_failure(cx).map(Err)
    }
}

impl Drop for Serving {
    /// ipstack has to outlive its connections' tasks, or their streams could not be dropped.
    fn drop(&mut self) {
        self.hub.fail(&io::Error::new(io::ErrorKind::NotConnected, "the stack's driver was dropped"));
        // A stream that was dropped with ipstack's queue would block.
        let _ = self.collect(&mut Context::from_waker(Waker::noop()));
        let stack = self.stack.take();
        let hub = Arc::clone(&self.hub);
        self.hub.spawn(async move {
            let _ = tokio::time::timeout(GRACE, hub.emptied.notified()).await;
            drop(stack);
        });
    }
}
