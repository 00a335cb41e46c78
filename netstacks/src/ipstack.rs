//! The `ipstack` crate behind the common interface. It has a task for the device and one for each connection. The
//! adapter counts what the packets of a connection show, so that runs end and memory is bounded.

mod device;
mod flow;
mod stream;
#[cfg(test)]
mod tests;
mod udp;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::ipstack::{IpStack, IpStackConfig, IpStackStream, TcpConfig, TcpOptions};
use platform::{Capabilities, Link};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::device::Device;
use self::flow::Hub;
use self::stream::{IpstackListener, IpstackStream};
use self::udp::{IpstackDatagrams, receive};
use crate::datagrams::{Deliveries, mailbox};
use crate::offload::{Offload, header_len};
use crate::{Effective, FlowKey, Netstack, StackConfig, StackKind, StartError, Started, Workaround};

/// As in `Cargo.lock`; the crate has no constant for it.
pub(crate) const VERSION: &str = "1.0.1";

/// The largest window without window scaling (RFC 9293, 3.1), which ipstack does not support.
const MAX_WINDOW: usize = u16::MAX as usize;
/// RFC 1122, 3.3.3.
const MIN_MTU: usize = 576;
/// Largest super-packet that ipstack may send, in bytes. One that filled the window would wait for the ACK before it.
const MAX_PACKET: usize = MAX_WINDOW / 4;

/// The `ipstack` crate, version 1.0.1. It sends no datagrams longer than a packet of the MTU, and drops fragments.
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
        let workarounds = config.workarounds;
        let offload = Offload::of(&Capabilities { max_packet_len, ..capabilities });
        let offload = offload.cutting_if(workarounds.has(Workaround::LargeMtu));
        let mtu = offload.largest_packet().min(MAX_WINDOW);
        let mut settings = IpStackConfig::default();
        settings.mtu_unchecked(mtu as u16).with_tcp_config(tcp_config(window, config.user_timeout, &offload));
        let (offer, accepted) = mpsc::channel(config.backlog.max(1));
        let (reopened, reopens) = mpsc::unbounded_channel();
        let hub = Arc::new(Hub::new(config, offer, reopened));
        let stack = IpStack::new(settings, Device::new(link, offload, Arc::clone(&hub), reopens));
        let (deliveries, mailbox) = mailbox();
        let is_short = workarounds.has(Workaround::ShortWrites);
        let most = [false, true].map(|ipv6| if is_short { offload.largest_payload(ipv6).into() } else { usize::MAX });
        Ok(Started {
            listener: IpstackListener { accepted, hub: Arc::clone(&hub) },
            datagrams: IpstackDatagrams { mailbox, hub: Arc::clone(&hub), mtu: capabilities.mtu },
            driver: Box::pin(serve(stack, Ending(hub), deliveries, most)),
            effective: Effective {
                // Its window is never smaller than its MTU.
                receive_buffer_bytes: window.max(mtu),
                send_buffer_bytes: window,
                window_scale: None,
                checksum_verified: false,
                ..Effective::of(StackKind::Ipstack, config, &offload)
            },
        })
    }
}

fn tcp_config(window: usize, user_timeout: Duration, offload: &Offload) -> TcpConfig {
    let mut tcp = TcpConfig::default();
    // It ends a connection if the application neither reads nor writes for this long.
    tcp.timeout = user_timeout;
    // It sends while fewer bytes than this are in flight. It may exceed a peer's smaller window by up to a packet.
    let largest = offload.largest_payload(false).max(offload.largest_payload(true)).into();
    tcp.max_unacked_bytes = window.saturating_sub(largest).max(1) as u32;
    tcp.read_buffer_size = window;
    // It has a single MSS for both IP versions.
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

/// The driver: passes on ipstack's streams. `most`: the largest write that it gets, over IPv4 and IPv6.
async fn serve(mut stack: IpStack, hub: Ending, deliveries: Deliveries, most: [usize; 2]) -> io::Result<()> {
    let (hub, deliveries) = (&hub.0, Arc::new(deliveries));
    let mut readers = JoinSet::new();
    loop {
        let stream = tokio::select! {
            _ = hub.failed.wait() => return Err(hub.failure()),
            Some(_) = readers.join_next() => continue,
            stream = stack.accept() => stream.map_err(|_| hub.failure())?,
        };
        // In ipstack, the peer's address is the local one.
        let key = FlowKey { peer: stream.local_addr(), local: stream.peer_addr() };
        match stream {
            IpStackStream::Tcp(inner) => {
                let Some(flow) = hub.flow(&key) else {
                    // It was forgotten meanwhile. Its drop waits for its task.
                    tokio::task::spawn_blocking(move || drop(inner));
                    continue;
                };
                let stream = IpstackStream::new(inner, Arc::clone(&flow), most[usize::from(key.local.is_ipv6())], hub);
                if let Some(stream) = flow.keep(stream) {
                    hub.offer(stream);
                }
            }
            IpStackStream::Udp(inner) => {
                readers.spawn(receive(Arc::clone(hub), key, inner, Arc::clone(&deliveries)));
            }
            _ => {}
        }
    }
}
