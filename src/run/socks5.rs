//! A SOCKS5 server (RFC 1928) for programs that send their connections to one: CONNECT and UDP ASSOCIATE, without
//! authentication. It is a process of its own, so that its cost can be told from the client's.

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::time::Duration;

use conformance::Ready;
use fast_socks5::server::{DnsResolveHelper, Socks5ServerProtocol, SocksServerError, run_tcp_proxy, run_udp_proxy};
use fast_socks5::{ReplyError, Socks5Command};
use platform::{Class, Error};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::carry::Control;
use super::error::RunError;
use super::protocol::Report;
use super::runtime::runtime;
use crate::scenario::RuntimeKind;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;

/// How long it tries to reach a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it waits after it could not accept, for example without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// Open files that it may need: two for each connection.
const OPEN_FILES: u64 = 1 << 16;

/// Serves at this address until the end of `orders`.
///
/// # Errors
///
/// It cannot listen there, an order is unknown, or the answer cannot be written.
pub(super) fn serve(
    address: SocketAddr,
    orders: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), RunError> {
    let failed = |source| Error::new(Class::Failed, "listen on", address.to_string(), source);
    platform::allow_open_files(OPEN_FILES);
    let runtime = runtime(RuntimeKind::MultiThread(None)).map_err(failed)?;
    let entered = runtime.enter();
    let listener = listen(address).map_err(failed)?;
    drop(entered);
    let (stop, stopped) = oneshot::channel::<()>();
    let control = Control { orders, output, report: Report::default };
    control.obey(
        Ready::default(),
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
