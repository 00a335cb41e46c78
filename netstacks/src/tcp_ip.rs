//! The `tcp_ip` crate behind the common interface. The adapter adds three tasks: two move packets, and one accepts,
//! because the crate only does handshakes during `accept`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ::tcp_ip::tcp::{TcpConfig, TcpListener, TcpStream};
use ::tcp_ip::udp::UdpSocket;
use ::tcp_ip::{IpStackConfig, IpStackRecv, IpStackSend, ip_stack};
use platform::{Capabilities, Link};
use tokio::sync::mpsc;

use crate::addressed::{Addressed, Inner};
use crate::datagrams::{MAX_PAYLOAD_V4, check, max_payload};
use crate::mss_rewrite;
use crate::port::{Port, now, run_together};
use crate::{
    Datagram, Datagrams, Effective, Listener, Netstack, StackConfig, StackKind, StartError, Started, window_scale,
};

/// As in `Cargo.lock`; the crate has no constant for it.
pub(crate) const VERSION: &str = "0.2.2";

/// Largest number of packets that one call takes out of the stack.
const BATCH: usize = 32;

/// The `tcp_ip` crate, version 0.2.2.
#[derive(Clone, Copy, Debug)]
pub struct TcpIp;

impl<L: Link> Netstack<L> for TcpIp {
    type Stream = TcpIpStream;
    type Listener = TcpIpListener;
    type Datagrams = TcpIpDatagrams;

    fn start(link: L, config: &StackConfig) -> Result<Started<TcpIpListener, TcpIpDatagrams>, StartError> {
        let capabilities = link.capabilities();
        let Capabilities { mtu, checksum, .. } = capabilities;
        let unfit = |error: io::Error| StartError::Unfit { stack: StackKind::TcpIp, reason: error.to_string() };
        let shift = window_scale(config.window);
        let unscaled = (config.window >> shift) as u16;
        let offload = mss_rewrite::offload(&capabilities, config.workarounds);
        let port = Arc::new(Port::new(link, offload, !checksum.rx));
        let largest = offload.largest_packet().min(usize::from(u16::MAX));
        let tcp = TcpConfig { rcv_wnd: unscaled, window_shift_cnt: shift, ..TcpConfig::default() };
        let settings = IpStackConfig::builder().mtu(largest as u16).tcp_config(tcp);
        let settings = settings.tcp_max_half_open(config.backlog.max(1)).validate_checksums(!checksum.rx);
        let (stack, input, output) = ip_stack(settings.build()).map_err(unfit)?;
        // Neither of these two waits.
        let listener = now(TcpListener::bind_all(stack.clone())).map_err(unfit)?;
        let socket = now(UdpSocket::bind_all(stack)).map_err(unfit)?;
        let (offer, accepted) = mpsc::channel(config.backlog.max(1));
        Ok(Started {
            listener: TcpIpListener(accepted),
            datagrams: TcpIpDatagrams { socket: Arc::new(socket), mtu },
            driver: run_together(vec![
                Box::pin(arrive(Arc::clone(&port), input)),
                Box::pin(leave(port, output, largest)),
                Box::pin(accept(listener, offer)),
            ]),
            effective: Effective {
                receive_buffer_bytes: usize::from(unscaled) << shift,
                congestion: "newreno".into(),
                checksum_verified: !checksum.rx,
                ..Effective::of(StackKind::TcpIp, config, &offload)
            },
        })
    }
}

/// Moves packets from the link into the stack.
async fn arrive<L: Link>(port: Arc<Port<L>>, input: IpStackSend) -> io::Result<()> {
    let mut buffers = port.buffers();
    loop {
        let count = port.recv(&mut buffers).await?;
        for buffer in &buffers[..count] {
            // Every error is about this packet, such as an IPv6 header that is cut short. `leave` sees the end of the stack.
            let _refused = input.send_ip_packet(buffer.packet()).await;
        }
    }
}

async fn leave<L: Link>(port: Arc<Port<L>>, mut output: IpStackRecv, largest: usize) -> io::Result<()> {
    let mut packets = vec![vec![0; largest]; BATCH];
    let mut lens = [0; BATCH];
    loop {
        let count = output.recv_ip_packet(&mut packets, &mut lens).await?;
        for (packet, len) in packets.iter_mut().zip(lens).take(count) {
            port.send(&mut packet[..len]).await?;
        }
        port.flush()?;
    }
}

/// Does the handshakes until the listener is dropped. A connection that finds the backlog full is closed.
async fn accept(mut listener: TcpListener, offer: mpsc::Sender<TcpIpStream>) -> io::Result<()> {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = offer.closed() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let _dropped = offer.try_send(TcpIpStream { local: stream.local_addr()?, peer, stream, beside: () });
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(error),
            // This error concerns one packet or one connection only.
            Err(_) => {}
        }
    }
    drop(listener);
    std::future::pending().await
}

/// The listener of `tcp_ip`.
pub struct TcpIpListener(mpsc::Receiver<TcpIpStream>);

impl Listener for TcpIpListener {
    type Stream = TcpIpStream;

    async fn accept(&mut self) -> io::Result<TcpIpStream> {
        self.0.recv().await.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "tcp_ip has ended"))
    }
}

/// A connection of `tcp_ip`. [`Stream::reset`](crate::Stream::reset) closes it: `tcp_ip` has no call that sends a RST.
type TcpIpStream = Addressed<TcpStream>;

impl Inner for TcpStream {
    type Beside = ();
}

#[derive(Clone)]
pub struct TcpIpDatagrams {
    socket: Arc<UdpSocket>,
    mtu: usize,
}

impl Datagrams for TcpIpDatagrams {
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let (len, peer, local) = self.socket.recv_from_to(buffer).await?;
        Ok(Datagram { len, local, peer })
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        check(local, peer, payload.len(), max_payload(self.mtu, false).min(MAX_PAYLOAD_V4), self.mtu)?;
        now(self.socket.send_from_to(payload, local, peer)).map(drop)
    }
}
