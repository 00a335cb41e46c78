//! A SOCKS5 server (RFC 1928) for programs that send their connections to one: CONNECT and UDP ASSOCIATE, without
//! authentication. It is a process of its own, so that its cost can be told from the client's.

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::time::Duration;

use fast_socks5::server::{DnsResolveHelper, Socks5ServerProtocol, SocksServerError, run_tcp_proxy, run_udp_proxy};
use fast_socks5::{ReplyError, Socks5Command};
use forwarders::Counts;
use platform::{Class, Control, Error};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::error::RunError;

const BACKLOG: u32 = 4096;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it waits after it could not accept, for example without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// Open files that it may need: two for each connection.
const OPEN_FILES: u64 = 1 << 16;

/// Serves at this address until the end of `orders`.
pub(crate) fn serve(
    address: SocketAddr,
    runtime: &Runtime,
    orders: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), RunError> {
    let failed = |source| Error::new(Class::Failed, "listen on", address.to_string(), source);
    platform::allow_open_files(OPEN_FILES);
    let entered = runtime.enter();
    let listener = listen(address).map_err(failed)?;
    drop(entered);
    let (stop, stopped) = oneshot::channel::<()>();
    let control = Control { orders, output, report: Counts::default };
    control.obey(
        move || drop(stop),
        || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = accept(listener, address) => {}
                }
            });
            Ok(())
        },
    )
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener, address: SocketAddr) {
    loop {
        match listener.accept().await {
            // The program under test sees the failure of a connection.
            Ok((socket, _)) => drop(tokio::spawn(async move { connection(socket, address).await.ok() })),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn connection(socket: TcpStream, address: SocketAddr) -> Result<(), SocksServerError> {
    // Without it a small answer would wait for an acknowledgement.
    let _slower = socket.set_nodelay(true);
    let asked = Socks5ServerProtocol::accept_no_auth(socket).await?.read_command().await?;
    let (protocol, command, target) = asked.resolve_dns().await?;
    match command {
        Socks5Command::TCPConnect => drop(run_tcp_proxy(protocol, &target, CONNECT_TIMEOUT, true).await?),
        Socks5Command::UDPAssociate => {
            let own = address.ip();
            drop(run_udp_proxy(protocol, &target, Some(own), own, Some(own)).await?);
        }
        Socks5Command::TCPBind => protocol.reply_error(&ReplyError::CommandNotSupported).await?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::net::{Ipv4Addr, Ipv6Addr};

    use fast_socks5::client::{Config, Socks5Datagram, Socks5Stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UdpSocket;

    use super::*;

    /// The end of one half passes it, as do bytes and datagrams, over both versions of IP.
    #[tokio::test]
    async fn connections_and_datagrams_pass_the_server() {
        for own in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let address = SocketAddr::new(own, 0);
            // A machine may have no IPv6.
            let Ok(listener) = listen(address) else { continue };
            let proxy = listener.local_addr().unwrap();
            let serving = tokio::spawn(accept(listener, proxy));

            let target = TcpListener::bind(address).await.unwrap();
            let server = target.local_addr().unwrap();
            let answering = tokio::spawn(async move {
                let (mut stream, _) = target.accept().await.unwrap();
                let mut asked = Vec::new();
                stream.read_to_end(&mut asked).await.unwrap();
                stream.write_all(&[&asked[..], b" pong"].concat()).await.unwrap();
            });
            let host = server.ip().to_string();
            let mut stream = Socks5Stream::connect(proxy, host, server.port(), Config::default()).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"ping pong");
            answering.await.unwrap();

            let socket = UdpSocket::bind(address).await.unwrap();
            let server = socket.local_addr().unwrap();
            let answering = tokio::spawn(async move {
                let mut bytes = [0; 16];
                let (len, from) = socket.recv_from(&mut bytes).await.unwrap();
                socket.send_to(&bytes[..len], from).await.unwrap();
            });
            let control = TcpStream::connect(proxy).await.unwrap();
            let datagrams = Socks5Datagram::bind(control, address).await.unwrap();
            datagrams.send_to(b"datagram", server).await.unwrap();
            let mut bytes = [0; 16];
            let (len, from) = Box::pin(datagrams.recv_from(&mut bytes)).await.unwrap();
            assert_eq!((&bytes[..len], from.to_string()), (&b"datagram"[..], server.to_string()));
            answering.await.unwrap();
            serving.abort();
        }
    }

    /// A program under test, or anybody else, may send anything.
    #[tokio::test]
    async fn what_is_no_socks5_ends_a_connection_and_nothing_else() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let proxy = listener.local_addr().unwrap();
        let serving = tokio::spawn(accept(listener, proxy));
        // Not version 5; no method that the server has; a command that there is not; a host that is cut off.
        for wrong in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\x05\x01\x02",
            b"\x05\x01\x00\x05\x09\x00\x01",
            b"\x05\x01\x00\x05\x01\x00\x03\xff",
        ] {
            let mut stream = TcpStream::connect(proxy).await.unwrap();
            stream.write_all(wrong).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            // A reset is an end, too.
            let _reset = stream.read_to_end(&mut answer).await;
            assert!(answer.len() < 16, "{answer:?}");
        }
        // A server that is not there is refused at once.
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
        let refused = Socks5Stream::connect(proxy, closed.ip().to_string(), closed.port(), Config::default()).await;
        assert!(refused.is_err(), "there is no server");
        assert!(!serving.is_finished());
        serving.abort();
    }
}
