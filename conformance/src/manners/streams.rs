//! Connections while they are open.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{SockRef, Socket, TcpKeepalive, Type};

use super::lab::{Lab, Pair, SOON, TRIES, because, connect, ends, receive, reset, send, words};
use super::{Manner, Of};
use crate::{Step, ms, named, pattern, secs};

pub(super) const CASES: &[Manner] = &[
    Manner::new("transfer-up", "ours", Of::All, transfer_up)
        .expects("8 MB from the client come to the server unchanged."),
    Manner::new("transfer-down", "ours", Of::All, transfer_down)
        .expects("8 MB from the server come to the client unchanged."),
    Manner::new("transfer-both", "ours", Of::All, transfer_both)
        .expects("4 MB each way at the same time come unchanged."),
    Manner::new("slow-reader", "ours", Of::All, slow_reader)
        .expects("While a server does not read, another connection works, and later all bytes come."),
    Manner::new("urgent", "MUST-30", Of::All, urgent)
        .expects("Bytes before, with and after urgent data come in their order."),
    Manner::new("keepalive", "ours", Of::All, keepalive)
        .expects("A connection whose client sends keep-alive packets each second stays open, and works after 4 s."),
    Manner::new("idle", "MUST RFC 5382, 5: an idle connection stays for two hours", Of::All, idle)
        .expects("A connection works after 6 s without a packet."),
    Manner::new("thousand", "ours", Of::All, thousand)
        .expects("1,000 connections are open at once, and each gets its own bytes."),
    Manner::new("short-connections", "ours", Of::All, short_connections)
        .expects("New connections one after another, each with a request, take less than 100 ms each."),
    Manner::new("port-after-close", "MAY-2", Of::All, port_after_close)
        .expects("A client opens a connection from the port of one that the server has just closed."),
    Manner::new("port-after-reset", "ours", Of::All, port_after_reset)
        .expects("A client opens a connection from the port of one that it has just reset."),
    Manner::new("path-mtu", "ours", Of::Device, path_mtu)
        .expects("Bytes pass both ways over a link whose MTU has become 1280, and whose ends know it."),
    Manner::new("path-mtu-silent", "ours", Of::Sockets, path_mtu_silent)
        .expects("Bytes pass both ways over a link that drops packets above 1280 bytes without a word."),
];

const MUCH: usize = 8 << 20;

/// Sends bytes from a thread, and receives them.
fn carry(mut from: TcpStream, mut to: TcpStream, bytes: Vec<u8>, who: &str) -> Step {
    let expected = bytes.clone();
    let sending = thread::spawn(move || send(&mut from, &bytes).map(|()| from));
    receive(&mut to, &expected, who)?;
    sending.join().unwrap_or_else(|_| fail!("the sender panicked")).map(drop)
}

fn transfer_up(lab: &mut Lab<'_>) -> Step {
    let Pair { client, server } = lab.pair()?;
    carry(client, server, pattern(1, MUCH), "the server")
}

fn transfer_down(lab: &mut Lab<'_>) -> Step {
    let Pair { client, server } = lab.pair()?;
    carry(server, client, pattern(2, MUCH), "the client")
}

fn transfer_both(lab: &mut Lab<'_>) -> Step {
    let Pair { client, server } = lab.pair()?;
    let copy = |stream: &TcpStream| stream.try_clone().map_err(because("a socket"));
    let (from, to) = (copy(&client)?, copy(&server)?);
    let up = thread::spawn(move || carry(from, to, pattern(3, MUCH / 2), "the server"));
    let down = carry(server, client, pattern(4, MUCH / 2), "the client");
    up.join().unwrap_or_else(|_| fail!("the sender panicked"))?;
    down
}

fn slow_reader(lab: &mut Lab<'_>) -> Step {
    let (Pair { client, mut server }, bytes) = (lab.pair()?, pattern(5, MUCH));
    let (mut sender, expected) = (client, bytes.clone());
    // The time-out of a write is longer than the pause.
    let sending = thread::spawn(move || send(&mut sender, &bytes).map(|()| sender));
    thread::sleep(ms(500));
    lab.works("while a server does not read")?;
    receive(&mut server, &expected, "the server")?;
    sending.join().unwrap_or_else(|_| fail!("the sender panicked")).map(drop)
}

fn urgent(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    let inline = SockRef::from(&pair.server).set_out_of_band_inline(true);
    inline.map_err(because("a socket"))?;
    send(&mut pair.client, b"before")?;
    let sent = SockRef::from(&pair.client).send_out_of_band(b"!");
    sent.map_err(because("urgent data"))?;
    send(&mut pair.client, b"after")?;
    receive(&mut pair.server, b"before!after", "the server")
}

fn keepalive(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    pair.works()?;
    let keepalive = TcpKeepalive::new().with_time(secs(1)).with_interval(secs(1));
    let set = SockRef::from(&pair.client).set_tcp_keepalive(&keepalive);
    set.map_err(because("a socket"))?;
    thread::sleep(secs(4));
    pair.works()
}

fn idle(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    pair.works()?;
    thread::sleep(secs(6));
    pair.works()
}

fn thousand(lab: &mut Lab<'_>) -> Step {
    const COUNT: u32 = 1000;
    const ALL_WITHIN: Duration = secs(60);
    platform::allow_open_files(4 * u64::from(COUNT));
    let (listener, begun) = (lab.listen()?, Instant::now());
    let mut pairs = Vec::new();
    for index in 0..COUNT {
        let pair = lab.pair_to(&listener);
        pairs.push(named(pair, || format!("connection {} of {COUNT}", index + 1))?);
        check!(begun.elapsed() < ALL_WITHIN, Speed, "{index} connections opened in {} s", ALL_WITHIN.as_secs())?;
    }
    for (index, pair) in pairs.iter_mut().enumerate() {
        let own = pattern(index as u64 + 1, 64);
        send(&mut pair.client, &own)?;
        let came = receive(&mut pair.server, &own, "the server").and_then(|()| send(&mut pair.server, &own));
        let came = came.and_then(|()| receive(&mut pair.client, &own, "the client"));
        named(came, || format!("connection {} of {COUNT}", index + 1))?;
    }
    Ok(())
}

/// The median time of a new connection with a request, on an idle machine less than a millisecond.
fn short_connections(lab: &mut Lab<'_>) -> Step {
    const COUNT: usize = 11;
    const MOST: Duration = ms(100);
    let listener = lab.listen()?;
    let mut median = Duration::ZERO;
    for _ in 0..TRIES {
        let mut times = Vec::new();
        for _ in 0..COUNT {
            let begun = Instant::now();
            let mut pair = lab.pair_to(&listener)?;
            pair.works()?;
            times.push(begun.elapsed());
        }
        times.sort();
        median = times[COUNT / 2];
        if median < MOST {
            return Ok(());
        }
    }
    fail!(Speed, "each takes {} ms", median.as_millis())
}

/// Connects from a port, which may have been used.
fn connect_from(lab: &Lab<'_>, port: u16, to: SocketAddr) -> Step<TcpStream> {
    let open = || -> io::Result<TcpStream> {
        let socket = Socket::new(lab.domain(), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(platform::unspecified(to.is_ipv6()), port).into())?;
        socket.connect_timeout(&to.into(), SOON)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(SOON)).map(|()| stream)
    };
    let is_used = |error: &io::Error| matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable);
    let begun = Instant::now();
    loop {
        match open() {
            Ok(stream) => return Ok(stream),
            // Its own kernel may still wait for the last acknowledgement.
            Err(error) if is_used(&error) && begun.elapsed() < SOON => thread::sleep(ms(20)),
            Err(error) => return fail!(Hang, "the client cannot connect from its port: {}", words(&error)),
        }
    }
}

fn port_again(lab: &mut Lab<'_>, end: impl FnOnce(Pair) -> Step) -> Step {
    let listener = lab.listen()?;
    // No connection of an earlier case has it, as systems choose higher ones.
    let port = listener.address.port() + 13_000;
    let client = connect_from(lab, port, listener.address)?;
    let server = lab.accept(&listener)?;
    let mut pair = Pair { client, server };
    pair.works()?;
    end(pair)?;
    let client = connect_from(lab, port, listener.address)?;
    let server = lab.accept(&listener)?;
    Pair { client, server }.works()
}

fn port_after_close(lab: &mut Lab<'_>) -> Step {
    port_again(lab, |mut pair| {
        drop(pair.server);
        ends(&mut pair.client, "the client")
    })
}

fn port_after_reset(lab: &mut Lab<'_>) -> Step {
    port_again(lab, |pair| {
        reset(pair.client);
        // The program gets it before the next SYN.
        thread::sleep(ms(50));
        Ok(())
    })
}

/// Carries bytes both ways while a link has another MTU.
fn over_mtu(lab: &mut Lab<'_>, at_near: bool) -> Step {
    const SMALL: u16 = 1280;
    let [near, far] = lab.link;
    let set = |lab: &Lab<'_>, mtu: u16| {
        let at_far = lab.beyond(move || platform::set_mtu(far, mtu).map_err(io::Error::other));
        let set = if at_near { platform::set_mtu(near, mtu) } else { Ok(()) };
        at_far.and_then(|()| set.map_err(because("the network")))
    };
    let listener = lab.listen()?;
    set(lab, SMALL)?;
    let carried = (|| {
        let mut client = connect(listener.address)?;
        let mut server = lab.accept(&listener)?;
        let bytes = pattern(6, 100_000);
        send(&mut client, &bytes)?;
        receive(&mut server, &bytes, "the server")?;
        send(&mut server, &bytes)?;
        receive(&mut client, &bytes, "the client")
    })();
    set(lab, lab.mtu)?;
    carried
}

fn path_mtu(lab: &mut Lab<'_>) -> Step {
    over_mtu(lab, true)
}

fn path_mtu_silent(lab: &mut Lab<'_>) -> Step {
    over_mtu(lab, false)
}
