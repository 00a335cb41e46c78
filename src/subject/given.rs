//! A device that a program serves which the user has started: a proxy, most often. Nothing is started or set up.
//!
//! ```text
//! client, bound to the device ── kernel TCP ── TUN ──► the user's program ──► an interface of this host ── kernel TCP ── server
//! ```
//!
//! Both ends are sockets of this process, so a connection before the load shows whether they reach each other through the
//! device. If the server sees the client's own address, the kernel has led the packets past it.

use std::future;
use std::io;
use std::net::{self, SocketAddr};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;
use platform::{Cause, Class, Error, Interrupts};
use socket2::Socket;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;

use super::{Parts, Prepared};
use crate::error::RunError;
use crate::load::sockets::kernel;
use crate::meter::LinkMeter;
use crate::plan::scenario::End;
use crate::remedy::WithRemedy;

/// How long the first connection may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Refuses a device that the load would not pass. `listeners` are a server's: the first one is for all connections.
pub(crate) async fn prepare(
    given: &End,
    listeners: Vec<net::TcpListener>,
    interrupts: &mut Interrupts,
) -> Result<Prepared, RunError> {
    let End { name, address } = given;
    let (device, folder) = (name.clone(), platform::folder_of_thread());
    let bound = || {
        let target = listeners.first().ok_or(io::ErrorKind::InvalidInput)?.local_addr()?;
        Ok((kernel::bound(target, name)?, target))
    };
    let socket = bound().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied => Error::new(Cause::NeedsNetAdmin, "bind a socket to", name, source).into(),
        _ => Error::new(Class::Invalid, "bind a socket to", name, source)
            .remedy("name a device that exists with --device"),
    })?;
    let crossed = tokio::select! {
        crossed = timeout(PATIENCE, cross(socket, listeners)) => crossed.unwrap_or(Err(io::ErrorKind::TimedOut.into())),
        () = interrupts.next() => return Err(RunError::Interrupted),
    };
    let error = |source| Error::new(Class::Unavailable, "connect", format!("to {address} through {name}"), source);
    match crossed {
        Ok(true) => {
            let drops = move || Some(platform::interface_counts(&folder, &device)?.dropped);
            Ok(Prepared::new(LinkMeter::new([], drops), future::pending().boxed(), Parts::default()))
        }
        Ok(false) => {
            let source =
                io::Error::other("the packets did not leave through it: the server saw the client's own address");
            let remedy =
                "this system keeps packets to its own addresses on its loopback; Linux alone lets a device have them";
            Err(error(source).remedy(remedy).into())
        }
        Err(source) => {
            let lost = if address.is_ipv4() { platform::doctor::drops_own_sources(name) } else { None };
            let remedy = lost.map_or_else(
                || format!("see that a program serves {name} and reaches {address}; over IPv6 it also takes a route into {name}"),
                |check| format!("{}; {}", check.finding, check.remedy.unwrap_or_default()),
            );
            Err(error(source).remedy(remedy).into())
        }
    }
}

/// Refuses an address that no interface of this host but the device has.
pub(crate) fn check_address(given: &End) -> Result<(), RunError> {
    if platform::is_local_address(given.address, &given.name) {
        return Ok(());
    }
    let source = io::Error::new(io::ErrorKind::AddrNotAvailable, "no other interface of this host has it");
    Err(Error::new(Class::Invalid, "listen on", given.address.to_string(), source)
        .remedy(format!("give --dest an address of this host, on another interface than {}", given.name))
        .into())
}

/// Connects. Returns whether the server has seen another address than the client's.
async fn cross((socket, target): (Socket, SocketAddr), listeners: Vec<net::TcpListener>) -> io::Result<bool> {
    let mut accepting = Vec::new();
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        accepting.push(async move { listener.accept().await }.boxed());
    }
    let client = TcpSocket::from_std_stream(socket.into()).connect(target).await?;
    let (_, seen) = select_all(accepting).await.0?;
    Ok(seen != client.local_addr()?)
}
