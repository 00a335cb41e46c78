//! The `ipstack` crate behind the common interface.
//!
//! ipstack runs a task for the device and one for each connection, with channels in between. The adapter gives it
//! a device that moves packets to and from the link, and wraps its streams. What ipstack does wrong stays wrong.
//! A few things it must do in ipstack's place, because no run could finish without them. The report names them:
//!
//! | workaround | ipstack alone |
//! |---|---|
//! | `cuts-super-packets` | acknowledges 8,192 bytes for each packet; the rest of a larger one waits for the next packet |
//! | `hands-fin-apart` | ignores a FIN that comes with data |
//! | `holds-fin` | sends its own FIN as soon as the peer's comes, whatever the application still has to say; so it gets the peer's FIN after its own has left |
//! | `tells-end` | does not wake a task that reads at the peer's FIN |
//! | `waits-for-syn-ack` | yields a connection before its SYN-ACK has left; bytes written before that would break it |
//! | `polls-shutdown` | does not wake a task that shuts down when the last byte is acknowledged; the FIN would never leave |
//! | `closes-in-a-task` | a stream that is dropped blocks its thread or panics |
//! | `repeats-reset` | its task for a connection ends at the packet behind a RST |
//! | `limits-datagrams` | queues datagrams without a limit |

mod datagrams;
mod device;
mod flow;
mod stream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::ipstack::{IpStack, IpStackConfig, IpStackStream, TcpConfig, TcpOptions};
use platform::{Capabilities, Link};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::datagrams::{Exchange, IpstackDatagrams};
use self::device::Device;
use self::flow::Hub;
use self::stream::{IpstackListener, IpstackStream};
use crate::offload::{Offload, header_len};
use crate::{Effective, FlowKey, Netstack, StackConfig, StackKind, StartError, Started};

/// As in `Cargo.lock`; the crate does not say it itself.
pub(crate) const VERSION: &str = "1.0.1";

/// What the adapter does in ipstack's place; see the module.
const WORKAROUNDS: [&str; 9] = [
    "cuts-super-packets",
    "hands-fin-apart",
    "holds-fin",
    "tells-end",
    "waits-for-syn-ack",
    "polls-shutdown",
    "closes-in-a-task",
    "repeats-reset",
    "limits-datagrams",
];

/// The largest window without scaling (RFC 9293, 3.1), which ipstack does not know.
const MAX_WINDOW: usize = u16::MAX as usize;
/// RFC 1122, 3.3.3.
const MIN_MTU: usize = 576;
/// Largest super-packet that ipstack is let send: a quarter of the window, so that several are under way. With
/// one as large as the window, each would wait for the ACK of the one before.
const MAX_PACKET: usize = MAX_WINDOW / 4;

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
        let window = config.window.clamp(StackConfig::MIN_WINDOW, MAX_WINDOW);
        let max_packet_len = capabilities.max_packet_len.min(MAX_PACKET.max(capabilities.mtu));
        let offload = Offload::of(&Capabilities { max_packet_len, ..capabilities });
        let mtu = offload.largest_packet().min(MAX_WINDOW);
        let mut settings = IpStackConfig::default();
        settings.mtu_unchecked(mtu as u16).with_tcp_config(tcp_config(window, config.user_timeout, &offload));
        let hub = Arc::new(Hub::new(config.user_timeout, Exchange::new(capabilities.mtu)));
        let stack = IpStack::new(settings, Device::new(link, offload, Arc::clone(&hub)));
        let (offer, accepted) = mpsc::channel(config.backlog.max(1));
        Ok(Started {
            listener: IpstackListener::new(accepted, Arc::clone(&hub)),
            datagrams: IpstackDatagrams::new(Arc::clone(&hub)),
            driver: Box::pin(serve(stack, Ending(hub), offer, offload)),
            effective: Effective {
                stack_version: VERSION.into(),
                // It never advertises less than its MTU.
                receive_buffer_bytes: window.max(mtu),
                send_buffer_bytes: window,
                window_scale: None,
                largest_packet_bytes: offload.largest_tcp_packet(),
                congestion: "none".into(),
                checksum_verified: false,
                checksum_computed: true,
                workarounds: WORKAROUNDS.map(Into::into).to_vec(),
            },
        })
    }
}

fn tcp_config(window: usize, user_timeout: Duration, offload: &Offload) -> TcpConfig {
    let mut tcp = TcpConfig::default();
    // It ends a connection at which the application neither reads nor writes for so long.
    tcp.timeout = user_timeout;
    // It sends another packet while less than this is under way. So it stays within a window of this size.
    let largest = offload.largest_payload(false).max(offload.largest_payload(true)).into();
    tcp.max_unacked_bytes = window.saturating_sub(largest).max(1) as u32;
    tcp.read_buffer_size = window;
    // It has one MSS for both IP versions.
    tcp.options = Some(vec![TcpOptions::MaximumSegmentSize(offload.mss(header_len(true)))]);
    tcp
}

/// Ends the stack when the driver is dropped.
struct Ending(Arc<Hub>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.fail(&io::Error::new(io::ErrorKind::NotConnected, "the stack's driver was dropped"));
    }
}

/// The driver: passes on what comes out of ipstack.
async fn serve(
    mut stack: IpStack,
    hub: Ending,
    offer: mpsc::Sender<IpstackStream>,
    offload: Offload,
) -> io::Result<()> {
    let hub = &hub.0;
    let mut readers = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = hub.failed() => return Err(hub.failure()),
            Some(_) = readers.join_next() => continue,
            stream = stack.accept() => stream.map_err(|_| hub.failure())?,
        };
        // ipstack calls the peer's end the local one.
        let key = FlowKey { peer: stream.local_addr(), local: stream.peer_addr() };
        match stream {
            IpStackStream::Tcp(inner) => {
                let largest = usize::from(offload.largest_payload(key.local.is_ipv6()));
                // With a full backlog, or without a listener, the stream is dropped, which closes it.
                let _dropped = offer.try_send(IpstackStream::new(inner, hub.take(key), largest, hub));
            }
            IpStackStream::Udp(inner) => {
                let taken = hub.exchange().insert(key, inner);
                if taken {
                    readers.spawn(Exchange::receive(Arc::clone(hub), key));
                }
            }
            _ => {}
        }
    }
}
