//! A SOCKS5 server (RFC 1928) for programs that send their connections to one: CONNECT and UDP ASSOCIATE, without
//! authentication. It hands a connection to a server of the load over to that server, because a relay would be slower than some
//! of the programs that connect here. It relays connections to other targets.

use std::io;
use std::net::{self, IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fast_socks5::server::{DnsResolveHelper, Socks5ServerProtocol, SocksServerError, run_udp_proxy, states};
use fast_socks5::util::stream::tcp_connect_with_timeout;
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use platform::{Class, Error};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

use super::super::networks::{Networks, SOCKS5_PORT};
use crate::error::RunError;

const BACKLOG: u32 = 4096;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it waits after it could not accept, for example without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// An open connection, and the target that was asked for.
pub(crate) type Given = (net::TcpStream, SocketAddr);

/// The targets whose connections are given away, and to whom.
type Takers = Arc<OnceLock<(Vec<SocketAddr>, UnboundedSender<Given>)>>;

/// A running server. Dropping it ends it, and the connections that it still has.
pub(super) struct Socks5 {
    takers: Takers,
    /// Its threads are in the far network.
    runtime: Option<Runtime>,
}

impl Socks5 {
    /// Starts it at an address of the far network.
    pub(super) fn start(address: IpAddr, networks: &Networks) -> Result<Self, RunError> {
        let (address, takers) = (SocketAddr::new(address, SOCKS5_PORT), Takers::default());
        let failed = move |source| Error::new(Class::Failed, "listen on", address.to_string(), source);
        let of_server = Arc::clone(&takers);
        // A thread is in the network of the one that starts it.
        let runtime = networks.far().run(move || -> Result<_, Error> {
            let runtime = Builder::new_multi_thread().enable_all().build().map_err(failed)?;
            let entered = runtime.enter();
            let listener = listen(address).map_err(failed)?;
            drop(entered);
            runtime.spawn(accept(listener, address, of_server));
            Ok(runtime)
        })??;
        Ok(Self { takers, runtime: Some(runtime) })
    }

    /// Returns the connections to these targets from now on. Those to others it goes on to serve itself.
    pub(super) fn give(&self, targets: &[SocketAddr]) -> Option<UnboundedReceiver<Given>> {
        let (sender, given) = mpsc::unbounded_channel();
        self.takers.set((targets.to_vec(), sender)).ok().map(|()| given)
    }
}

impl Drop for Socks5 {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener, address: SocketAddr, takers: Takers) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let takers = Arc::clone(&takers);
                // The program under test sees the failure of a connection.
                tokio::spawn(async move { connection(socket, address, &takers).await.ok() });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn connection(socket: TcpStream, address: SocketAddr, takers: &Takers) -> Result<(), SocksServerError> {
    // Without it a small answer would wait for an acknowledgement.
    let _slower = socket.set_nodelay(true);
    let asked = Socks5ServerProtocol::accept_no_auth(socket).await?.read_command().await?;
    let (protocol, command, target) = asked.resolve_dns().await?;
    match command {
        Socks5Command::TCPConnect => connect(protocol, &target, takers).await?,
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
    takers: &Takers,
) -> Result<(), SocksServerError> {
    let TargetAddr::Ip(target) = *target else { return protocol.reply_error(&ReplyError::HostUnreachable).await };
    let own = (Ipv4Addr::LOCALHOST, 0).into();
    if let Some((targets, taker)) = takers.get()
        && targets.contains(&target)
        && !taker.is_closed()
    {
        let client = protocol.reply_success(own).await?;
        // A load that has ended meanwhile has ended its connections, too.
        let _closed = client.into_std().map(|client| taker.send((client, target)));
        return Ok(());
    }
    let mut server = match tcp_connect_with_timeout(target, CONNECT_TIMEOUT).await {
        Ok(server) => server,
        Err(error) => return protocol.reply_error(&error.to_reply_error()).await,
    };
    let _slower = server.set_nodelay(true);
    let mut client = protocol.reply_success(own).await?;
    // An error ends both connections.
    let _ended = copy_bidirectional(&mut client, &mut server).await;
    Ok(())
}

#[cfg(test)]
mod tests {
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
            let serving = tokio::spawn(accept(listener, proxy, Takers::default()));

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

    /// Connections to a target of the load come with their first bytes, and with the end; those to others pass the server as before.
    #[tokio::test]
    async fn connections_to_the_load_are_given_to_it_until_it_ends() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (proxy, takers) = (listener.local_addr().unwrap(), Takers::default());
        let serving = tokio::spawn(accept(listener, proxy, Arc::clone(&takers)));
        let socks5 = Socks5 { takers, runtime: None };
        let [of_load, other] = [(); 2].map(|()| net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let [target, elsewhere] = [&of_load, &other].map(|listener| listener.local_addr().unwrap());
        let connect = async |to: SocketAddr| {
            Socks5Stream::connect(proxy, to.ip().to_string(), to.port(), Config::default()).await
        };
        let mut given = socks5.give(&[target]).unwrap();
        assert!(socks5.give(&[elsewhere]).is_none(), "they are given once");

        let mut client = connect(target).await.unwrap();
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        let (socket, to) = given.recv().await.unwrap();
        assert_eq!((to, socket.peer_addr().unwrap()), (target, client.get_socket_ref().local_addr().unwrap()));
        let mut server = TcpStream::from_std(socket).unwrap();
        let mut asked = Vec::new();
        server.read_to_end(&mut asked).await.unwrap();
        server.write_all(&asked).await.unwrap();
        drop(server);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"ping");

        // It is asked to connect, as the target is not the load's.
        drop(connect(elsewhere).await.unwrap());
        other.accept().unwrap();
        assert!(given.is_empty());
        // Nor is one when the load has ended; its listener has gone with it.
        drop((given, of_load));
        assert!(connect(target).await.is_err());
        serving.abort();
    }

    /// A program under test, or anybody else, may send anything.
    #[tokio::test]
    async fn what_is_no_socks5_ends_a_connection_and_nothing_else() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let proxy = listener.local_addr().unwrap();
        let serving = tokio::spawn(accept(listener, proxy, Takers::default()));
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
