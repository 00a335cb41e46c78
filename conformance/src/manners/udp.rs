//! Datagrams, by the scheme of RFC 5780: two addresses and two ports of the servers show how a program maps and filters.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::thread;

use socket2::{SockRef, Socket};

use super::lab::{Lab, SOON, TRIES, because, datagram, exchange, stuck};
use super::{Manner, Of};
use crate::{Step, ms, secs};

pub(super) const CASES: &[Manner] = &[
    Manner::new("datagrams", "ours", Of::Udp, datagrams)
        .expects("Datagrams of 1 to 1,400 bytes come unchanged, each way."),
    Manner::new("burst", "ours", Of::Udp, burst).expects("Of 64 datagrams in a row, all come, in their order."),
    Manner::new("empty-datagram", "ours", Of::Udp, empty).expects("A datagram without a byte comes, each way."),
    Manner::new("large-datagram", "ours", Of::Packets, largest).expects("A datagram of 65,507 bytes comes, each way."),
    Manner::new("fragments-out", "ours", Of::Udp, fragments_out)
        .expects("A datagram above the MTU, which the client sends in fragments, comes to the server."),
    Manner::new("fragments-in", "MUST RFC 4787, 11: fragments are received", Of::Udp, fragments_in)
        .expects("A datagram above the MTU, which the server sends in fragments, comes to the client."),
    Manner::new("dont-fragment", "MUST RFC 4787, 10: a packet that is too big is reported", Of::Packets, dont_fragment)
        .expects("A datagram that may not be fragmented, above the MTU of the path, comes, or the client is told."),
    Manner::new("mapping", "MUST RFC 4787, 4.1: mapping is independent of the endpoint", Of::Sockets, mapping)
        .expects("A client has the same port for all servers."),
    Manner::new("no-overloading", "MUST RFC 4787, 4.2.1: no port is overloaded", Of::Sockets, no_overloading)
        .expects("Two sockets of the client have two ports at the server."),
    Manner::new("port-kept", "MAY RFC 4787, 4.2.1: the port is preserved", Of::Direct, port_kept)
        .expects("The server sees the port of the client."),
    Manner::new("filter-port", "SHOULD RFC 4787, 5: filtering is by the address at most", Of::Sockets, filter_port)
        .expects("A datagram from another port of the server comes to the client."),
    Manner::new(
        "filter-address",
        "MAY RFC 4787, 5: filtering is independent of the endpoint",
        Of::Sockets,
        filter_address,
    )
    .expects("A datagram from another address comes to the client."),
    Manner::new("hairpin", "MUST RFC 4787, 6: hairpinning", Of::Direct, hairpin)
        .expects("A datagram to the outer address of another client's socket comes to it."),
    Manner::new("mapping-stays", "MUST RFC 4787, 4.3: a mapping stays for two minutes", Of::Sockets, mapping_stays)
        .expects("After 4 s the server still reaches the client, which has the same port."),
    Manner::new("port-unreachable", "MUST RFC 5508, 4.2: errors are translated", Of::Packets, port_unreachable)
        .expects("A client that sends to a closed port is told so."),
    Manner::new("mapping-survives-error", "MUST RFC 4787, 9: an error ends no mapping", Of::Sockets, mapping_survives)
        .expects("After an error from a closed port, the client has the same port as before."),
];

const PORTS: [u16; 2] = [6001, 6002];

fn datagrams(lab: &mut Lab<'_>) -> Step {
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    [1, 100, 1400].into_iter().try_for_each(|len| exchange(&client, &server, len).map(drop))
}

fn burst(lab: &mut Lab<'_>) -> Step {
    const COUNT: u8 = 64;
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    exchange(&client, &server, 10)?;
    let (to, mut buffer) = (lab.server(PORTS[0]), [0; 2048]);
    let mut came = Vec::new();
    for _ in 0..TRIES {
        for index in 0..COUNT {
            client.send_to(&[index; 1000], to).map_err(because("a datagram cannot be sent"))?;
        }
        came.clear();
        while came.len() < COUNT.into()
            && let Ok((len, _)) = datagram(&server, &mut buffer, "the server")
        {
            came.extend(buffer.get(..len).and_then(<[u8]>::first).copied());
        }
        if came.iter().copied().eq(0..COUNT) {
            return Ok(());
        }
    }
    let order = if came.is_sorted() { "" } else { ", out of order" };
    fail!(Data, "{} of {COUNT} came{order}", came.len())
}

fn of_length(lab: &mut Lab<'_>, len: usize) -> Step {
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    for socket in [&client, &server] {
        // Buffers hold the largest.
        let set = SockRef::from(socket).set_recv_buffer_size(1 << 20);
        set.map_err(because("a socket"))?;
    }
    exchange(&client, &server, 10)?;
    exchange(&client, &server, len).map(drop)
}

fn empty(lab: &mut Lab<'_>) -> Step {
    of_length(lab, 0)
}

fn largest(lab: &mut Lab<'_>) -> Step {
    of_length(lab, 65_507)
}

/// More than a packet, and less than the datagrams that a SOCKS5 server relays.
const FRAGMENTED: usize = 4000;

fn fragments_out(lab: &mut Lab<'_>) -> Step {
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    exchange(&client, &server, 10)?;
    let mut buffer = vec![0; 1 << 16];
    for attempt in 1..=TRIES {
        client.send_to(&[1; FRAGMENTED], lab.server(PORTS[0])).map_err(stuck("it cannot be sent"))?;
        match datagram(&server, &mut buffer, "the server") {
            Ok((len, _)) => return check!(len == FRAGMENTED, Data, "{len} bytes came"),
            Err(lost) if attempt == TRIES => return Err(lost),
            Err(_) => {}
        }
    }
    Ok(())
}

fn fragments_in(lab: &mut Lab<'_>) -> Step {
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    let from = exchange(&client, &server, 10)?;
    arrives(&client, &server, from, FRAGMENTED)
}

/// Sends a datagram from a server to a client, which it has to reach.
fn arrives(client: &UdpSocket, server: &UdpSocket, to: SocketAddr, len: usize) -> Step {
    let mut buffer = vec![0; 1 << 16];
    for attempt in 1..=TRIES {
        server.send_to(&vec![2; len], to).map_err(stuck("it cannot be sent"))?;
        match datagram(client, &mut buffer, "the client") {
            Ok((got, _)) => return check!(got == len, Data, "{got} bytes came"),
            Err(lost) if attempt == TRIES => return Err(lost),
            Err(_) => {}
        }
    }
    Ok(())
}

fn dont_fragment(lab: &mut Lab<'_>) -> Step {
    const SMALL: u16 = 1280;
    const LEN: usize = 1350;
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    exchange(&client, &server, 10)?;
    let client: Socket = client.into();
    platform::set_dont_fragment(&client, lab.near.0.is_ipv6(), true).map_err(because("a socket"))?;
    let (client, [near, far]) = (UdpSocket::from(client), lab.link);
    let set = |mtu| {
        let near = platform::set_mtu(near, mtu).map_err(because("the network"));
        near.and_then(|()| lab.beyond(move || platform::set_mtu(far, mtu).map_err(std::io::Error::other)))
    };
    set(SMALL)?;
    let (to, mut buffer) = (lab.server(PORTS[0]), vec![0; 1 << 16]);
    let mut told = fail!(Hang, "the datagram did not come, and the client was not told");
    for _ in 0..TRIES {
        // An error of an earlier datagram comes with the next one.
        if client.send_to(&[3; LEN], to).is_err() || datagram(&server, &mut buffer, "").is_ok() {
            told = Ok(());
            break;
        }
    }
    set(lab.mtu)?;
    told
}

fn mapping(lab: &mut Lab<'_>) -> Step {
    let (client, servers) = lab.datagrams([(0, PORTS[0]), (0, PORTS[1]), (1, PORTS[0])])?;
    let mut seen = Vec::new();
    for server in &servers {
        // The address is a matter of the host's routes.
        seen.push(exchange(&client, server, 10)?.port());
    }
    check!(seen[0] == seen[1], "another port of the server sees the port {} in place of {}", seen[1], seen[0])?;
    check!(seen[0] == seen[2], "another server sees the port {} in place of {}", seen[2], seen[0])
}

fn no_overloading(lab: &mut Lab<'_>) -> Step {
    let (one, [server]) = lab.datagrams([(0, PORTS[0])])?;
    let (other, []) = lab.datagrams([])?;
    let [first, second] = [exchange(&one, &server, 10)?, exchange(&other, &server, 10)?];
    check!(first != second, Data, "the server sees both as {first}")
}

fn port_kept(lab: &mut Lab<'_>) -> Step {
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    let own = client.local_addr().map(|address| address.port()).unwrap_or_default();
    let seen = exchange(&client, &server, 10)?.port();
    check!(own == seen, "the server sees another port")
}

fn filter_port(lab: &mut Lab<'_>) -> Step {
    let (client, [server, other]) = lab.datagrams([(0, PORTS[0]), (0, PORTS[1])])?;
    let from = exchange(&client, &server, 10)?;
    arrives(&client, &other, from, 20)
}

fn filter_address(lab: &mut Lab<'_>) -> Step {
    let (client, [server, other]) = lab.datagrams([(0, PORTS[0]), (1, PORTS[0])])?;
    let from = exchange(&client, &server, 10)?;
    arrives(&client, &other, from, 20)
}

fn hairpin(lab: &mut Lab<'_>) -> Step {
    let (one, [server]) = lab.datagrams([(0, PORTS[0])])?;
    let (other, []) = lab.datagrams([])?;
    let outer = exchange(&one, &server, 10)?;
    applies!(
        outer.ip() != lab.near.0,
        "the outer address is one of the clients' host, which sends no packet out for it"
    )?;
    exchange(&other, &server, 10)?;
    arrives(&one, &other, outer, 20)
}

fn mapping_stays(lab: &mut Lab<'_>) -> Step {
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    let from = exchange(&client, &server, 10)?;
    thread::sleep(secs(4));
    arrives(&client, &server, from, 20)?;
    let now = exchange(&client, &server, 10)?;
    check!(from == now, "the client's port is another one")
}

fn port_unreachable(lab: &mut Lab<'_>) -> Step {
    let (client, []) = lab.datagrams([])?;
    let connected = client.connect(lab.server(Lab::CLOSED));
    connected.map_err(because("the client"))?;
    for _ in 0..TRIES {
        let sent = client.send(b"nobody");
        let told = sent.and_then(|_| client.recv(&mut [0; 16]));
        if told.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            return Ok(());
        }
    }
    fail!("the client heard nothing, {TRIES} times for {} s", SOON.as_secs())
}

fn mapping_survives(lab: &mut Lab<'_>) -> Step {
    let (client, [server]) = lab.datagrams([(0, PORTS[0])])?;
    let before = exchange(&client, &server, 10)?;
    // The error may be the result of either call.
    let _refused = client.send_to(b"nobody", lab.server(Lab::CLOSED));
    thread::sleep(ms(100));
    let after = exchange(&client, &server, 10)?;
    check!(before == after, "the client's port is another one")
}
