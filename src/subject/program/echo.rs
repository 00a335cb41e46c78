//! Answers in the far network, to see whether a program lets them through.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use platform::Class;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::super::networks::Networks;
use crate::error::RunError;

/// How long an answer may take. Then another one is asked for.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

const QUESTION: [u8; 6] = *b"ready?";

/// A server that sends back everything that it reads, over TCP and UDP. It ends when this value is dropped.
pub(super) struct Echo {
    tcp: SocketAddr,
    udp: SocketAddr,
    task: JoinHandle<()>,
}

impl Echo {
    /// Starts it at free ports of an address of the far network.
    pub(super) fn start(networks: &Networks, server: IpAddr) -> Result<Self, RunError> {
        let failed = |source| platform::Error::new(Class::Failed, "listen on", server.to_string(), source);
        let address = SocketAddr::new(server, 0);
        let sockets = networks.far().run(move || -> io::Result<_> {
            let (tcp, udp) = (std::net::TcpListener::bind(address)?, std::net::UdpSocket::bind(address)?);
            tcp.set_nonblocking(true)?;
            udp.set_nonblocking(true)?;
            Ok((tcp, udp))
        })?;
        let start = |(tcp, udp)| -> io::Result<Self> {
            let (listener, socket) = (TcpListener::from_std(tcp)?, UdpSocket::from_std(udp)?);
            let (tcp, udp) = (listener.local_addr()?, socket.local_addr()?);
            Ok(Self { tcp, udp, task: tokio::spawn(serve(listener, socket)) })
        };
        Ok(sockets.and_then(start).map_err(failed)?)
    }

    /// Returns the connection.
    pub(super) async fn over_tcp(&self) -> io::Result<TcpStream> {
        in_time(async {
            let mut stream = TcpStream::connect(self.tcp).await?;
            stream.write_all(&QUESTION).await?;
            let mut answer = [0; QUESTION.len()];
            stream.read_exact(&mut answer).await?;
            check(&answer).map(|()| stream)
        })
        .await
    }

    pub(super) async fn over_udp(&self) -> io::Result<()> {
        in_time(async {
            let socket = UdpSocket::bind((platform::unspecified(self.udp.is_ipv6()), 0)).await?;
            socket.connect(self.udp).await?;
            socket.send(&QUESTION).await?;
            let mut answer = [0; 2 * QUESTION.len()];
            let len = socket.recv(&mut answer).await?;
            check(&answer[..len])
        })
        .await
    }
}

impl Drop for Echo {
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
