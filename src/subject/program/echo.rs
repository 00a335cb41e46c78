//! Answers where the servers will be, to see whether a program lets them through.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use platform::{Class, Namespace};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::super::networks::FORWARDED_PORT;
use super::place::Run;
use crate::error::RunError;

/// How long an answer may take. Then another one is asked for.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a datagram may take until it is sent again. Inbound, the first one may come before the device is set up.
const RESEND: Duration = Duration::from_millis(20);

const QUESTION: [u8; 6] = *b"ready?";

/// A server that sends back everything that it reads, over TCP and UDP. It ends when this value is dropped.
pub(super) struct Echo<'a> {
    /// The network of the clients, if it is not this thread's.
    outside: Option<&'a Namespace>,
    /// The ports, over TCP and UDP.
    ports: [u16; 2],
    task: JoinHandle<()>,
}

impl<'a> Echo<'a> {
    /// Starts it where the servers will be, at free ports or at the one that is forwarded.
    pub(super) fn start(run: &Run<'a>) -> Result<Self, RunError> {
        let (server, far) = (run.server, run.networks.far());
        let failed = |source| platform::Error::new(Class::Failed, "listen on", server.to_string(), source);
        let outside = run.scenario.cell.inbound.then_some(far);
        let any = platform::unspecified(server.is_ipv6());
        let address = match outside {
            Some(_) => SocketAddr::new(any, FORWARDED_PORT),
            // Behind each peer the server has another address.
            None => SocketAddr::new(if run.scenario.cell.peers.get() > 1 { any } else { server }, 0),
        };
        let bind = move || -> io::Result<_> {
            let (tcp, udp) = (std::net::TcpListener::bind(address)?, std::net::UdpSocket::bind(address)?);
            tcp.set_nonblocking(true)?;
            udp.set_nonblocking(true)?;
            Ok((tcp, udp))
        };
        let sockets = if outside.is_some() { bind() } else { far.run(bind)? };
        let start = |(tcp, udp)| -> io::Result<Self> {
            let (listener, socket) = (TcpListener::from_std(tcp)?, UdpSocket::from_std(udp)?);
            let ports = [listener.local_addr()?.port(), socket.local_addr()?.port()];
            Ok(Self { outside, ports, task: tokio::spawn(serve(listener, socket)) })
        };
        Ok(sockets.and_then(start).map_err(failed)?)
    }

    /// Returns the connection to the server at this address.
    pub(super) async fn over_tcp(&self, server: IpAddr) -> io::Result<TcpStream> {
        in_time(async {
            let is_ipv6 = server.is_ipv6();
            let socket = self.open(move || if is_ipv6 { TcpSocket::new_v6() } else { TcpSocket::new_v4() })?;
            let mut stream = socket.connect(SocketAddr::new(server, self.ports[0])).await?;
            stream.write_all(&QUESTION).await?;
            let mut answer = [0; QUESTION.len()];
            stream.read_exact(&mut answer).await?;
            check(&answer).map(|()| stream)
        })
        .await
    }

    pub(super) async fn over_udp(&self, server: IpAddr) -> io::Result<()> {
        in_time(async {
            let any_port = SocketAddr::new(platform::unspecified(server.is_ipv6()), 0);
            let socket = self.open(move || std::net::UdpSocket::bind(any_port))?;
            socket.set_nonblocking(true)?;
            let socket = UdpSocket::from_std(socket)?;
            socket.connect(SocketAddr::new(server, self.ports[1])).await?;
            let mut answer = [0; 2 * QUESTION.len()];
            let len = loop {
                socket.send(&QUESTION).await?;
                if let Ok(received) = timeout(RESEND, socket.recv(&mut answer)).await {
                    break received?;
                }
            };
            check(&answer[..len])
        })
        .await
    }

    /// Makes a socket where the clients will be.
    fn open<T: Send + 'static>(&self, socket: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        match self.outside {
            Some(network) => network.run(socket).map_err(io::Error::other)?,
            None => socket(),
        }
    }
}

impl Drop for Echo<'_> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn in_time<T>(answer: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn check(answer: &[u8]) -> io::Result<()> {
    if answer == QUESTION { Ok(()) } else { Err(io::Error::other("the answer is not what was asked")) }
}

async fn serve(listener: TcpListener, socket: UdpSocket) {
    let mut connections = JoinSet::new();
    let mut datagram = [0; 2 * QUESTION.len()];
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => drop(connections.spawn(answer(stream))),
            Ok((len, from)) = socket.recv_from(&mut datagram) => {
                // Another one comes if this one is lost.
                let _lost = socket.send_to(&datagram[..len], from).await;
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut question = [0; QUESTION.len()];
    stream.read_exact(&mut question).await?;
    stream.write_all(&question).await?;
    // The client may keep it.
    stream.read(&mut question).await.map(drop)
}
