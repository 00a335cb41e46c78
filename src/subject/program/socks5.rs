//! A SOCKS5 server (RFC 1928) for programs that send their connections to one: CONNECT and UDP ASSOCIATE, without
//! authentication. It is a process of its own, so that its cost can be told from the client's. It passes bytes on within the
//! kernel, through pipes: a copy of each byte would limit the programs that send their connections to it.

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fast_socks5::server::{DnsResolveHelper, Socks5ServerProtocol, SocksServerError, run_udp_proxy, states};
use fast_socks5::util::stream::tcp_connect_with_timeout;
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use forwarders::Counts;
use platform::{Class, Control, Error, Pipe};
use socket2::SockRef;
use tokio::io::{Interest, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::error::RunError;

const BACKLOG: u32 = 4096;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it waits after it could not accept, for example without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// Open files that it may need: two for each connection, and those of the pipes.
const OPEN_FILES: u64 = 1 << 16;

/// Connections that have pipes at once. The bytes of others are copied: Linux limits the pipes of a user.
const WITH_PIPES: usize = 64;

/// Pipes for so many connections, one for each way, while they are not in use.
type Pipes = Arc<Mutex<Vec<[Pipe; 2]>>>;

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
                    () = accept(listener, address, pipes()) => {}
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

fn pipes() -> Pipes {
    Arc::new(Mutex::new((0..WITH_PIPES).map_while(|_| pipe_each_way().ok()).collect()))
}

fn pipe_each_way() -> io::Result<[Pipe; 2]> {
    Ok([Pipe::new()?, Pipe::new()?])
}

async fn accept(listener: TcpListener, address: SocketAddr, pipes: Pipes) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let pipes = Arc::clone(&pipes);
                // The program under test sees the failure of a connection.
                tokio::spawn(async move { connection(socket, address, &pipes).await.ok() });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn connection(socket: TcpStream, address: SocketAddr, pipes: &Pipes) -> Result<(), SocksServerError> {
    // Without it a small answer would wait for an acknowledgement.
    let _slower = socket.set_nodelay(true);
    let asked = Socks5ServerProtocol::accept_no_auth(socket).await?.read_command().await?;
    let (protocol, command, target) = asked.resolve_dns().await?;
    match command {
        Socks5Command::TCPConnect => connect(protocol, &target, pipes).await?,
        Socks5Command::UDPAssociate => {
            let own = address.ip();
            drop(run_udp_proxy(protocol, &target, Some(own), own, Some(own)).await?);
        }
        Socks5Command::TCPBind => protocol.reply_error(&ReplyError::CommandNotSupported).await?,
    }
    Ok(())
}

async fn connect(
    protocol: Socks5ServerProtocol<TcpStream, states::CommandRead>,
    target: &TargetAddr,
    pipes: &Pipes,
) -> Result<(), SocksServerError> {
    let TargetAddr::Ip(target) = *target else { return protocol.reply_error(&ReplyError::HostUnreachable).await };
    let server = match tcp_connect_with_timeout(target, CONNECT_TIMEOUT).await {
        Ok(server) => server,
        Err(error) => return protocol.reply_error(&error.to_reply_error()).await,
    };
    let _slower = server.set_nodelay(true);
    let client = protocol.reply_success((Ipv4Addr::LOCALHOST, 0).into()).await?;
    // An error ends both connections.
    let _ended = pass(client, server, pipes).await;
    Ok(())
}

/// Passes bytes on both ways until both sides have ended, or one has failed.
async fn pass(mut client: TcpStream, mut server: TcpStream, pipes: &Pipes) -> io::Result<()> {
    let unused = || pipes.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = unused().pop();
    let Some([mut up, mut down]) = taken else {
        return copy_bidirectional(&mut client, &mut server).await.map(drop);
    };
    let passed = tokio::try_join!(pass_one_way(&client, &mut up, &server), pass_one_way(&server, &mut down, &client));
    // The bytes that are left in a pipe must not reach the next connection.
    let empty = if passed.is_ok() { Ok([up, down]) } else { pipe_each_way() };
    unused().extend(empty);
    passed.map(drop)
}

async fn pass_one_way(from: &TcpStream, pipe: &mut Pipe, to: &TcpStream) -> io::Result<()> {
    while from.async_io(Interest::READABLE, || pipe.fill(from)).await? > 0 {
        while !pipe.is_empty() {
            to.async_io(Interest::WRITABLE, || pipe.drain(to)).await?;
        }
    }
    SockRef::from(to).shutdown(Shutdown::Write)
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
            let serving = tokio::spawn(accept(listener, proxy, pipes()));

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

    /// More connections than there are pipes, each with more bytes than a pipe holds. Every third server resets its connection
    /// when it has read them; the others answer after the client's end.
    #[tokio::test]
    async fn many_connections_pass_their_bytes_ends_and_resets() {
        const LEN: usize = 1 << 20;
        platform::allow_open_files(4096);
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (proxy, pipes) = (listener.local_addr().unwrap(), pipes());
        let serving = tokio::spawn(accept(listener, proxy, Arc::clone(&pipes)));
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = target.local_addr().unwrap().port();
        let answering = tokio::spawn(async move {
            loop {
                let (mut stream, _) = target.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut bytes = vec![0; LEN];
                    stream.read_exact(&mut bytes).await.unwrap();
                    if bytes[0].is_multiple_of(3) {
                        return stream.set_zero_linger().unwrap();
                    }
                    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
                    stream.write_all(&bytes).await.unwrap();
                });
            }
        });
        let config = Config::default;
        let connect = || Socks5Stream::connect(proxy, Ipv4Addr::LOCALHOST.to_string(), port, config());
        // All are open before the first sends.
        let mut streams = Vec::new();
        for _ in 0..3 * WITH_PIPES {
            streams.push(connect().await.unwrap());
        }
        let each = streams.into_iter().enumerate().map(|(number, mut stream)| async move {
            let sent: Vec<u8> = (0..LEN).map(|index| (number + index * index / 7) as u8).collect();
            let mut answer = Vec::new();
            stream.write_all(&sent).await.unwrap();
            if sent[0].is_multiple_of(3) {
                // It arrives as an end or as a reset.
                let _reset = stream.read_to_end(&mut answer).await;
                return assert!(answer.is_empty());
            }
            stream.shutdown().await.unwrap();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(answer == sent, "connection {number}");
        });
        futures_util::future::join_all(each).await;
        // A client that resets ends its connection, and its pipes are empty again.
        for _ in 0..2 {
            let stream = connect().await.unwrap();
            stream.get_socket_ref().set_zero_linger().unwrap();
        }
        while pipes.lock().unwrap().len() < WITH_PIPES {
            sleep(PAUSE).await;
        }
        assert!(pipes.lock().unwrap().iter().flatten().all(Pipe::is_empty));
        serving.abort();
        answering.abort();
    }

    /// A program under test, or anybody else, may send anything.
    #[tokio::test]
    async fn what_is_no_socks5_ends_a_connection_and_nothing_else() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let proxy = listener.local_addr().unwrap();
        let serving = tokio::spawn(accept(listener, proxy, pipes()));
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
