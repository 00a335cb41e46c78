//! Connections that the kernel leads to a port of this host, whatever their servers (TPROXY). Both their ends are kernel sockets:
//! there is no device and no stack.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use netstacks::kernel::{KernelListener, KernelStream};
use netstacks::{Listener, Stream};
use platform::{Cause, Class, Error};
use tokio::sync::Semaphore;

use super::relay::relay;
use super::upstream::{Upstream, reason};

/// How long it waits after it could not accept, for example without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// Listens at this port for connections to any address, over both versions of IP where the system has them.
pub(super) fn listen(port: u16) -> Result<Vec<TcpListener>, Error> {
    let listen = |address: SocketAddr| platform::listen_transparently(address).map_err(|source| (address, source));
    let v4 = listen((Ipv4Addr::UNSPECIFIED, port).into()).map(Some);
    let v6 = listen((Ipv6Addr::UNSPECIFIED, port).into()).map(Some).or_else(|(address, source)| match source.kind() {
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported => Ok(None),
        _ if source.raw_os_error() == Some(NO_FAMILY) => Ok(None),
        _ => Err((address, source)),
    });
    let both = v4.and_then(|v4| Ok([v4, v6?])).map_err(|(address, source)| {
        let is_denied = source.kind() == io::ErrorKind::PermissionDenied;
        let cause = if is_denied { Cause::NeedsNetAdmin } else { Cause::Other(Class::Failed) };
        Error::new(cause, "listen for any address at", address.to_string(), source)
    })?;
    Ok(both.into_iter().flatten().collect())
}

/// EAFNOSUPPORT of Linux.
const NO_FAMILY: i32 = 97;

/// Forwards every connection. Beyond the limit they wait in the kernel's queue.
pub(super) async fn serve(listeners: Vec<TcpListener>, upstream: Arc<Upstream>) -> io::Result<()> {
    let mut listener = KernelListener::new(listeners, None)?;
    let places = Arc::new(Semaphore::new(upstream.config.max_flows));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        match listener.accept().await {
            Ok(client) => {
                let forwarded = forward(client, Arc::clone(&upstream)).map(|()| drop(place));
                tokio::spawn(forwarded.boxed());
            }
            Err(error) => {
                upstream.report("accept at", (Ipv4Addr::UNSPECIFIED, 0).into(), &error);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn forward(client: KernelStream, upstream: Arc<Upstream>) {
    let server = client.local_addr();
    match upstream.connect(server).await {
        Ok(connected) => relay(client, None, connected, upstream.config.tcp_idle).await,
        Err(error) => {
            if reason(&error).is_none() && error.kind() != io::ErrorKind::TimedOut {
                upstream.report("connect to", server, &error);
            }
            client.reset();
        }
    }
}
