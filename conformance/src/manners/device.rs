//! What changes below a program: its device, its addresses, its link, and how many files it may open.

use std::net::{IpAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::lab::{Lab, SOON, TRIES, because, receive, send};
use super::{Manner, Of};
use crate::{Step, ms, secs};

pub(super) const CASES: &[Manner] = &[
    Manner::new("rest", "ours", Of::Device, rest)
        .expects("After 100 connections have ended, the program is at rest, most of the time."),
    Manner::new("link-gone-and-back", "ours", Of::All, link_gone)
        .expects("After 2 s without the link, an open connection goes on, and a new one works."),
    Manner::new("host-address-changed", "ours", Of::Roaming, address_changed)
        .breaks()
        .expects("After the address of the program's host has changed, a new connection works."),
    Manner::new("no-more-files", "ours", Of::Sockets, no_more_files)
        .breaks()
        .expects("A program that may open no more files survives 40 connections, and works when it may again."),
    Manner::new("device-deleted", "ours", Of::Device, device_deleted)
        .breaks()
        .expects("After its device was deleted, the program ends, or is at rest."),
];

/// Opens connections that nobody serves, as far as they open.
fn open_many(lab: &mut Lab<'_>, count: usize) -> Step<Vec<TcpStream>> {
    let listener = lab.listen()?;
    let open = |_| TcpStream::connect_timeout(&listener.address, ms(500)).ok();
    Ok((0..count).filter_map(open).collect())
}

/// The least share of a second's looks at which it has something to do, of several seconds.
fn busy(lab: &Lab<'_>) -> f64 {
    const LOOKS: u32 = 50;
    let share = || {
        let is_busy = |_: &u32| {
            thread::sleep(secs(1) / LOOKS);
            lab.subject.is_busy()
        };
        f64::from((0..LOOKS).filter(is_busy).count() as u32) / f64::from(LOOKS)
    };
    let mut least = f64::INFINITY;
    for _ in 0..TRIES {
        least = least.min(share());
        if least < MOST_AT_REST {
            break;
        }
    }
    least
}

const MOST_AT_REST: f64 = 0.3;

fn at_rest(lab: &Lab<'_>, when: &str) -> Step {
    let share = busy(lab);
    check!(share < MOST_AT_REST, Speed, "{when} it has something to do in {:.0} % of the time", share * 100.0)
}

fn rest(lab: &mut Lab<'_>) -> Step {
    drop(open_many(lab, 100)?);
    at_rest(lab, "after connections")
}

fn link_gone(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    pair.works()?;
    let cut = |lab: &Lab<'_>, is_cut| lab.subject.cut(is_cut).map_err(because("the link"));
    cut(lab, true)?;
    let sent = send(&mut pair.client, b"meanwhile");
    thread::sleep(secs(2));
    cut(lab, false)?;
    sent?;
    // The time until the next retransmission doubles.
    let patient = pair.server.set_read_timeout(Some(2 * SOON));
    patient.map_err(because("a socket"))?;
    receive(&mut pair.server, b"meanwhile", "the server")?;
    lab.works("after it")
}

/// Another address in the network of the link.
fn another(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) + 76).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) + 76).into()),
    }
}

fn address_changed(lab: &mut Lab<'_>) -> Step {
    let ([interface, _], (address, prefix_len)) = (lab.link, lab.near);
    let new = another(address);
    let changed = platform::add_address(interface, new, platform::host_prefix_len(new))
        .and_then(|()| platform::remove_address(interface, address, prefix_len));
    changed.map_err(because("the network"))?;
    let (begun, patience) = (Instant::now(), Duration::from_secs(10));
    // A tunnel tells its peer by the next packet.
    while begun.elapsed() < patience {
        if lab.echo() {
            return Ok(());
        }
    }
    lab.works("after the change")
}

fn no_more_files(lab: &mut Lab<'_>) -> Step {
    let limit = |lab: &Lab<'_>, more| lab.subject.limit_files(more).map_err(because("the limit"));
    limit(lab, Some(8))?;
    let open = open_many(lab, 40)?;
    let ended = lab.subject.ended();
    check!(ended.is_none(), Hang, "it ended: {}", ended.unwrap_or_default())?;
    limit(lab, None)?;
    drop(open);
    // It closes its ends of them.
    thread::sleep(secs(1));
    lab.works("when it may again")
}

fn device_deleted(lab: &mut Lab<'_>) -> Step {
    lab.works("before")?;
    platform::delete_interface(lab.device).map_err(because("the network"))?;
    let begun = Instant::now();
    while begun.elapsed() < secs(2) {
        if lab.subject.ended().is_some() {
            return Ok(());
        }
        thread::sleep(ms(50));
    }
    at_rest(lab, "without its device")
}
