//! Many connections at once.

use crate::prelude::*;
use std::collections::HashMap;

pub(super) const CASES: &[Case] = &[
    Case::new("thousand-connections", "ours", "RFC 9293, 3.10.7.4", |lab| {
        let mut pairs = open(lab, 1000)?;
        (0..2).try_for_each(|_| pairs.iter_mut().try_for_each(|(client, served)| carry(client, served)))
    })
    .about("1,000 connections are open at once, and each carries 1,000 bytes each way")
    .expects("All open, and all bytes arrive.")
    // Each of two shards has half of the backlog, and may get more than half of the connections.
    .with(|config| (config.window, config.backlog) = (16 << 10, 2048)),
    Case::new("syns-at-once", "ours", "RFC 9293, 3.5; the promise of StackConfig::backlog", |lab| {
        lab.needs_whole_backlog()?;
        open(lab, 1024).map(drop)
    })
    .about("1,024 SYNs at once, as many as the backlog, with the default window")
    .expects("Each is answered with SYN+ACK, and all connections are accepted.")
    .with(|config| *config = StackConfig::default()),
    Case::new("slow-reader", "ours", "RFC 9293, 3.8.6", |lab| {
        let mut pairs = open(lab, 11)?;
        let Some((mut full, mut unread)) = pairs.pop() else { return Ok(()) };
        let bytes = pattern(60, 16_000);
        full.data(&bytes)?;
        let begin = Instant::now();
        (0..10).try_for_each(|_| pairs.iter_mut().try_for_each(|(client, served)| carry(client, served)))?;
        check!(begin.elapsed() < patient(secs(3)), Speed, "the others took {:?}", begin.elapsed())?;
        full.acked(SOON)?;
        unread.reads(&bytes)
    })
    .about("One server reads nothing, and ten others exchange data")
    .expects("The full connection delays no other. Its data is read later.")
    .with(SMALL_WINDOW),
    Case::new("slow-client", "ours", "RFC 9293, 3.8.6", |lab| {
        let mut pairs = open(lab, 11)?;
        let Some((mut slow, waiting)) = pairs.pop() else { return Ok(()) };
        let waits = waiting.send(pattern(61, 500_000), Then::Shutdown);
        let begin = Instant::now();
        for (mut client, served) in pairs {
            let sending = served.send(pattern(62, 100_000), Then::Shutdown);
            client.receives_to_end(&pattern(62, 100_000))?;
            sending.finish()?;
        }
        check!(begin.elapsed() < patient(secs(3)), Speed, "the others took {:?}", begin.elapsed())?;
        slow.receives_to_end(&pattern(61, 500_000))?;
        waits.finish()
    })
    .about("One client takes nothing, and ten others receive 100 KB each")
    .expects("The client that waits delays no other, and gets its data later."),
    Case::new("many-resets", "MUST RFC 9293, 3.9.1.6", "RFC 9293, 3.10.5", |lab| {
        let (clients, served): (Vec<_>, Vec<_>) = open(lab, 100)?.into_iter().unzip();
        served.into_iter().for_each(Served::reset);
        all_reset(clients)
    })
    .about("The server resets 100 connections at once")
    .expects("A RST on each."),
    Case::new("many-drops-with-unread-data", "SHLD-3", "RFC 9293, 3.6.1; RFC 2525, 2.17", |lab| {
        let (mut clients, served): (Vec<_>, Vec<_>) = open(lab, 100)?.into_iter().unzip();
        clients.iter_mut().try_for_each(|client| client.data(b"nobody reads this"))?;
        clients.iter_mut().try_for_each(|client| client.acked(SOON).map(drop))?;
        drop(served);
        all_reset(clients)
    })
    .about("The server drops 100 streams with unread data at once")
    .expects("A RST on each."),
    Case::new("many-in-time-wait", "ours", "RFC 9293, 3.6.1", |lab| {
        for _ in 0..500 {
            let (mut client, mut served) = lab.connect()?;
            served.write(b"bye")?;
            drop(served);
            client.receives_to_end(b"bye")?;
            client.fin()?;
            client.acked(LATE)?;
        }
        Ok(())
    })
    .about("500 connections one after another, each closed by the stack first")
    .expects("All open and close; those in TIME-WAIT do not stop new ones."),
    Case::new("one-resets-among-many", "MUST-12", "RFC 9293, 3.10.7.4", |lab| {
        let mut pairs = open(lab, 20)?;
        pairs.iter().step_by(2).try_for_each(|(client, _)| client.rst())?;
        pairs.iter_mut().skip(1).step_by(2).try_for_each(|(client, served)| carry(client, served))?;
        pairs.iter_mut().step_by(2).try_for_each(|(_, served)| served.read_error().map(drop))
    })
    .about("Every second of 20 connections is reset by its client")
    .expects("The others go on."),
];

/// Opens `count` connections at once: sends all SYNs first, then takes each SYN+ACK and sends the ACK.
fn open(lab: &mut Lab, count: usize) -> Step<Vec<(Client, Served)>> {
    let mut clients: Vec<_> = (0..count).map(|_| lab.client()).collect();
    clients.iter_mut().try_for_each(Client::syn)?;
    for client in &mut clients {
        client.syn_ack(SOON)?;
        client.ack()?;
    }
    let mut served = HashMap::new();
    for index in 0..count {
        let Some(stream) = lab.accept_within(SOON)? else { return fail!(Hang, "{index} of {count} were accepted") };
        served.insert(stream.addresses()[1].port(), stream);
    }
    let mut with_stream = |client: Client| served.remove(&client.port()).map(|stream| (client, stream));
    let pairs: Vec<_> = clients.into_iter().filter_map(&mut with_stream).collect();
    check!(pairs.len() == count, "{} of {count} have a server", pairs.len())?;
    Ok(pairs)
}

/// Sends a kilobyte in each direction.
fn carry(client: &mut Client, served: &mut Served) -> Step {
    let bytes = pattern(client.port().into(), 1000);
    client.data(&bytes)?;
    served.reads(&bytes)?;
    served.write(&bytes)?;
    client.receives(&bytes, SOON)
}

/// Every client must get a RST and no FIN.
fn all_reset(clients: Vec<Client>) -> Step {
    let count = clients.len();
    let (mut reset, mut ended) = (0, 0);
    let until = Instant::now() + patient(SOON);
    for mut client in clients {
        let left = until.saturating_duration_since(Instant::now());
        match client.expect_within(left, "RST", |segment| segment.has(RST) || segment.has(FIN)) {
            Ok(segment) if segment.has(RST) => reset += 1,
            Ok(_) => ended += 1,
            Err(_) => {}
        }
    }
    check!(reset == count, "{reset} of {count} clients got a RST, and {ended} a FIN")
}
