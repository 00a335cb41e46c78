//! A program as it is, between two networks of the run's own, under load.
//!
//! ```text
//!            near network                                                    far network
//! proxy:     client ── kernel TCP ── TUN ──► program ──► to-far ── link ── to-near ── kernel TCP ── server
//!                                                                       └── SOCKS5 server ──┘
//! tunnel:    client ── kernel TCP ── TUN ──► program ──► to-far ── link ── to-near ──► program ──► TUN ── kernel TCP ── server
//! attach:    client ── kernel TCP ── TAP or TUN ──────────────────────────────────────► program ── kernel TCP ── server
//! ```
//!
//! Inbound, client and server change places: the near device is still the one that is measured.
//!
//! The program is started from its profile and makes its device. This process sets the device up where the program has not,
//! and gives the servers' address a route into it. The program is ready when an answer has come back through it (`echo`).
//! Processes are found, measured and ended by their network, even those that have left their parent (`end`, `residents`).

mod echo;
mod end;
mod file;
mod keys;
mod link;
mod place;
mod prepare;
mod residents;
pub(crate) mod running;
mod socks5;

use std::io;
use std::net::IpAddr;

use futures_util::FutureExt;
use futures_util::future;
use platform::{Cause, Class, Interrupts};
use tempfile::TempDir;

use self::keys::Keys;
use self::place::{Run, invalid};
use self::running::Running;
pub(crate) use self::socks5::Given;
use self::socks5::Socks5;
use super::networks::Networks;
use super::{Parts, Prepared};
use crate::error::RunError;
use crate::plan::scenario::{Scenario, Tun};
use crate::program::{Role, Upstream};

/// Prepares a program between the two networks, on these processors, for servers with so many ports. Also returns
/// their address.
pub(crate) async fn prepare(
    (scenario, processors, server_ports): (&Scenario, Option<&[u16]>, usize),
    tun: &Tun,
    networks: &Networks,
    interrupts: &mut Interrupts,
) -> Result<(Prepared, IpAddr), RunError> {
    let profile = scenario
        .cell
        .program
        .as_ref()
        .and_then(|program| program.profile())
        .ok_or_else(|| invalid("the scenario has no profile of it"))?;
    let link = link::join(scenario, profile.role, tun, networks)?;
    if profile.has_device() && platform::interface_names(&platform::folder_of_thread()).contains(&tun.name) {
        let source = io::ErrorKind::AlreadyExists.into();
        return Err(platform::Error::new(Cause::NameTaken, "let a program make the device", &tun.name, source).into());
    }
    let beside = match profile.upstream() {
        Some(Upstream::Socks5 | Upstream::Far) => Some(link::beside(link.server, tun, networks)?),
        _ => None,
    };
    let is_socks5 = profile.upstream() == Some(Upstream::Socks5);
    let upstream = beside.filter(|_| is_socks5).map(|address| Socks5::start(address, networks)).transpose()?;
    let failed = |source| platform::Error::new(Class::Failed, "make", "a folder for the program", source);
    let shared = TempDir::new().map_err(failed)?;
    let run = Run {
        scenario,
        profile,
        processors,
        server_ports,
        networks,
        device: &tun.name,
        network: tun.network,
        link: link.ends,
        server: link.server,
        beside,
        shared: shared.path(),
        keys: if profile.role == Role::Tunnel { Some(Keys::new(scenario.cell.peers.get())?) } else { None },
    };
    prepare::make(&run, interrupts).await?;
    let mut running = Running::start(&run, upstream).await?;
    let mut carrying = link.driver;
    let ready = tokio::select! {
        ready = running.get_ready(&run, interrupts) => ready,
        failure = &mut carrying => Err(RunError::Process { class: Class::Failed, text: failure.detail }.into()),
    };
    if let Err(reason) = ready {
        return Err(running.refuse(reason).await);
    }
    let meter = running.meter(&run, link.faults);
    let driver = future::select(running.driver(), carrying).map(|ended| ended.factor_first().0).boxed();
    let device = running.device(&run);
    running.keep(shared);
    let parts = Parts { device, program: Some(running), cut: link.cut, ..Parts::default() };
    Ok((Prepared::new(meter, driver, parts), link.server))
}
