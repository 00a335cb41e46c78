//! The `lwip` crate behind the common interface: lwIP 2.1.2 with the options and the locks of the crate. The difference
//! from `lwip` shows the cost of an adapter.
//!
//! The window, the send buffer and the MTU are fixed at build time. One spin lock guards all of lwIP. The adapter moves
//! packets as the crate's examples do. A program can have either this or `lwip`; see `lib.rs`.

use std::ffi::c_void;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::thread::{self, JoinHandle};

use ::lwip_published::{NetStack, TcpListener, TcpStream, UdpRecvHalf, UdpSendHalf};
use futures_util::{FutureExt, Sink, StreamExt};
use platform::Link;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

use crate::addressed::{Addressed, Inner};
use crate::datagrams::{Deliveries, MAX_PAYLOAD_V4, Mailbox, check, mailbox};
use crate::offload::Offload;
use crate::port::{Port, leave, run_together};
use crate::running::Running;
use crate::{Datagram, Datagrams, Effective, Listener, Netstack, StackConfig, StackKind, StartError, Started, lock};

/// As in `Cargo.lock`; the crate has no constant for it.
pub(crate) const VERSION: &str = "0.4.0";

/// The MTU that `NetStackImpl::new` gives to the interface, whatever the link has.
const MTU: usize = 1500;
/// `TCP_MSS` of the crate's `lwipopts.h`.
const MSS: usize = 1460;
/// `TCP_WND` there. There is no window scaling.
const WINDOW: usize = 32 * MSS;
/// `TCP_SND_BUF` there.
const SEND_BUFFER: usize = 16 * MSS;

/// The `lwip` crate, version 0.4.0.
#[derive(Clone, Copy, Debug)]
pub struct LwipPublished;

impl<L: Link> Netstack<L> for LwipPublished {
    type Stream = LwipPublishedStream;
    type Listener = LwipPublishedListener;
    type Datagrams = LwipPublishedDatagrams;

    fn start(
        link: L,
        config: &StackConfig,
    ) -> Result<Started<LwipPublishedListener, LwipPublishedDatagrams>, StartError> {
        let capabilities = link.capabilities();
        let mtu = capabilities.mtu;
        if mtu < MTU {
            return Err(unfit(&format!("an MTU of {mtu} bytes; it takes {MTU} or more, and makes packets of {MTU}")));
        }
        let (globals, sending) = Globals::start()?;
        let (offer, accepted) = mpsc::unbounded_channel();
        let (deliveries, mailbox) = mailbox();
        let offload = Offload::of(&capabilities).cutting_if(false);
        let port = Arc::new(Port::new(link, offload, false));
        let output = Arc::clone(&globals);
        Ok(Started {
            listener: LwipPublishedListener(accepted),
            datagrams: LwipPublishedDatagrams { mailbox, sending: Arc::new(sending), _globals: Arc::clone(&globals) },
            driver: run_together(vec![
                Box::pin(arrive(Arc::clone(&port), globals, offer, deliveries)),
                Box::pin(leave(port, move |cx| lock(&output.stack).poll_next_unpin(cx))),
            ]),
            effective: Effective {
                receive_buffer_bytes: WINDOW,
                send_buffer_bytes: SEND_BUFFER,
                window_scale: None,
                largest_packet_bytes: MTU,
                congestion: "reno".into(),
                checksum_verified: false,
                ..Effective::of(StackKind::LwipPublished, config, &offload)
            },
        })
    }
}

fn unfit(reason: &impl ToString) -> StartError {
    StartError::Unfit { stack: StackKind::LwipPublished, reason: reason.to_string() }
}

/// The crate's handles to lwIP's globals. Connections and datagrams point into the globals, so each keeps this alive.
struct Globals {
    stack: Mutex<NetStack>,
    /// `None` after the adapter's listener is dropped.
    listener: Mutex<Option<TcpListener>>,
    receiving: Mutex<UdpRecvHalf>,
    // Dropped last.
    _timers: Timers,
}

impl Globals {
    fn start() -> Result<(Arc<Self>, UdpSendHalf), StartError> {
        let running = Running::acquire(StackKind::LwipPublished)?;
        let runtime = Builder::new_current_thread().enable_time().build().map_err(|error| unfit(&error))?;
        let entered = runtime.enter();
        let (stack, listener, socket) = NetStack::new().map_err(|error| unfit(&error))?;
        drop(entered);
        let (sending, receiving) = socket.split();
        let globals = Self {
            stack: Mutex::new(stack),
            listener: Mutex::new(Some(listener)),
            receiving: Mutex::new(receiving),
            _timers: Timers::run(runtime, running).map_err(|error| unfit(&error))?,
        };
        Ok((Arc::new(globals), sending))
    }

    /// Passes a packet to lwIP. If lwIP cannot parse it, or has no memory for it, the packet is dropped.
    fn input(&self, packet: &[u8]) {
        let mut stack = lock(&self.stack);
        let mut stack = Pin::new(&mut *stack);
        let _lost = stack.as_mut().start_send(packet.to_vec());
        let _lost = stack.poll_flush(&mut Context::from_waker(Waker::noop()));
    }
}

/// lwIP's timers, in a separate thread and runtime, because the crate spawns a task for them that never ends.
struct Timers {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    // Released last. Then the next stack may start.
    _running: Running,
}

impl Timers {
    /// Runs a runtime in which the crate has already spawned the timer task.
    fn run(runtime: Runtime, running: Running) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("lwip-timers".to_owned()).spawn(move || {
            let _dropped = runtime.block_on(stopped);
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), _running: running })
    }
}

impl Drop for Timers {
    /// Also ends connections that the application has closed, and those that were never accepted.
    fn drop(&mut self) {
        drop(self.stop.take());
        let _panicked = self.thread.take().map(JoinHandle::join);
        for list in [&raw const tcp_active_pcbs, &raw const tcp_tw_pcbs] {
            // SAFETY: the thread has ended. All other callers of lwIP keep `Globals`, so none is left. An aborted
            // connection leaves its list, so the loop ends.
            while let Some(connection) = unsafe { *list } {
                // SAFETY: as above.
                unsafe { tcp_abort(connection) }
            }
        }
    }
}

// Symbols of the crate's lwIP; see `tcp_priv.h` and `tcp.h`.
unsafe extern "C" {
    static mut tcp_active_pcbs: Option<NonNull<c_void>>;
    static mut tcp_tw_pcbs: Option<NonNull<c_void>>;
    fn tcp_abort(connection: NonNull<c_void>);
}

/// Moves packets from the link into the stack, then takes new connections and datagrams out of it.
async fn arrive<L: Link>(
    port: Arc<Port<L>>,
    globals: Arc<Globals>,
    offer: mpsc::UnboundedSender<LwipPublishedStream>,
    deliveries: Deliveries,
) -> io::Result<()> {
    let mut buffers = port.buffers();
    loop {
        let count = tokio::select! {
            // Drop lwIP's listener before it sees another SYN.
            biased;
            () = offer.closed(), if lock(&globals.listener).is_some() => {
                *lock(&globals.listener) = None;
                continue;
            }
            count = port.recv(&mut buffers) => count?,
        };
        for buffer in &buffers[..count] {
            globals.input(buffer.packet());
            // In the crate, the peer's address is the local one.
            while let Some(Some((payload, peer, local))) = lock(&globals.receiving).next().now_or_never() {
                deliveries.push(local, peer, &payload, None);
            }
        }
        let next = || lock(&globals.listener).as_mut()?.next().now_or_never()?;
        while let Some((stream, peer, local)) = next() {
            let beside = Beside { ended: false, _globals: Arc::clone(&globals) };
            let _closed = offer.send(LwipPublishedStream { stream, local, peer, beside });
        }
    }
}

/// The listener of lwip.
pub struct LwipPublishedListener(mpsc::UnboundedReceiver<LwipPublishedStream>);

impl Listener for LwipPublishedListener {
    type Stream = LwipPublishedStream;

    async fn accept(&mut self) -> io::Result<LwipPublishedStream> {
        self.0.recv().await.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "lwip has ended"))
    }
}

/// A connection of lwip. If it is dropped before `shutdown`, it ends with a RST.
type LwipPublishedStream = Addressed<TcpStream>;

/// Whether the peer's FIN has been read, and the globals, which are dropped after the stream.
pub struct Beside {
    ended: bool,
    _globals: Arc<Globals>,
}

impl Inner for TcpStream {
    type Beside = Beside;

    fn read(&mut self, beside: &mut Beside, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if beside.ended {
            return Poll::Ready(Ok(()));
        }
        // With an empty buffer, the crate moves a packet's data to its own for the next read. Or it takes the FIN.
        ready!(Pin::new(&mut *self).poll_read(cx, &mut ReadBuf::new(&mut [])))?;
        match Pin::new(self).poll_read(cx, buf) {
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => {
                beside.ended = true;
                Poll::Ready(Ok(()))
            }
        }
    }
}

#[derive(Clone)]
pub struct LwipPublishedDatagrams {
    mailbox: Mailbox,
    sending: Arc<UdpSendHalf>,
    _globals: Arc<Globals>,
}

impl Datagrams for LwipPublishedDatagrams {
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        self.mailbox.recv(|inbox| inbox.pop(buffer)).await
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        check(local, peer, payload.len(), MAX_PAYLOAD_V4, MTU)?;
        self.sending.send_to(payload, &local, &peer)
    }
}
