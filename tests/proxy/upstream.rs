//! The proxy's side of the servers: its interface, its path and its ports.

use std::io::{ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use socket2::SockRef;

use super::datagrams::socket;
use super::lab::{Between, Host, Lab, SERVER, SERVER_V6};
use super::process::{PATIENCE, wait_until};
use super::servers::{echo_datagrams, echo_streams};

const PORT: u16 = 7000;

/// Both ways of `--nat`.
const NATS: [&[&str]; 2] = [&[], &["--nat", "symmetric"]];

/// Sends a datagram and receives it again. It may get lost, and the one before may come late.
fn exchange(socket: &UdpSocket, len: usize) -> Result<()> {
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket.send(&vec![7; len])?;
    while socket.recv(&mut [0; 2000])? != len {}
    Ok(())
}

/// Sockets to the server over both IP versions, which also report errors that may pass by.
fn clients(lab: &Lab) -> [UdpSocket; 2] {
    [SERVER, SERVER_V6].map(|server| {
        let socket = socket(lab, server, PORT);
        platform::queue_errors(&SockRef::from(&socket), server == SERVER_V6).unwrap();
        wait_until("there is an answer", || exchange(&socket, 100).is_ok());
        socket
    })
}

fn connect(lab: &Lab, server: &str) -> Result<TcpStream> {
    let address = SocketAddr::new(server.parse::<IpAddr>().unwrap(), PORT);
    lab.client.run(move || TcpStream::connect_timeout(&address, PATIENCE))
}

/// A lab with servers of both protocols.
fn lab(between: Between, options: &[&str]) -> Lab {
    let lab = Lab::new(between, options);
    echo_datagrams(&lab, PORT);
    echo_streams(&lab, PORT);
    lab
}

pub(crate) fn an_address_that_changes(between: Between) {
    for options in NATS {
        let lab = lab(between, options);
        let clients = clients(&lab);
        for (version, old, new) in [("-4", "10.2.0.1/24", "10.2.0.3/24"), ("-6", "fd02::1/64", "fd02::3/64 nodad")] {
            lab.middle.ip(&format!("{version} address del {old} dev to-server"));
            lab.middle.ip(&format!("{version} address add {new} dev to-server"));
            let via = new.split('/').next().unwrap();
            lab.server.ip(&format!("{version} route replace default via {via}"));
        }
        for client in clients {
            wait_until("the client gets an answer again", || exchange(&client, 100).is_ok());
        }
    }
}

/// While there is no interface, clients get an error at once, and the proxy opens no more sockets.
pub(crate) fn an_interface_that_is_made_again(between: Between) {
    for options in NATS {
        let lab = lab(between, options);
        let clients = clients(&lab);
        let before = lab.descriptors();
        lab.middle.ip("link del to-server");
        for (client, server) in clients.iter().zip([SERVER, SERVER_V6]) {
            let said = (0..20).map(|_| exchange(client, 100).unwrap_err().kind()).collect::<Vec<_>>();
            assert!(said.contains(&ErrorKind::NetworkUnreachable), "{server}: {said:?}");
            assert_eq!(connect(&lab, server).unwrap_err().kind(), ErrorKind::NetworkUnreachable, "{server}");
        }
        assert!(lab.descriptors() <= before, "{} descriptors after {before}", lab.descriptors());
        lab.join_server();
        for (client, server) in clients.iter().zip([SERVER, SERVER_V6]) {
            wait_until("the client gets an answer again", || exchange(client, 100).is_ok());
            wait_until("a connection succeeds again", || connect(&lab, server).is_ok());
        }
    }
}

/// The client learns the MTU of the path, or its datagrams are fragmented.
pub(crate) fn a_path_that_is_narrower_than_the_device(between: Between) {
    const MTU: usize = 1400;
    for options in NATS {
        let lab = lab(between, options);
        for (host, interface) in [(&lab.middle, "to-server"), (&lab.server, "eth0")] {
            host.ip(&format!("link set {interface} mtu {MTU}"));
        }
        // Before the client knows the MTU, and fragments by itself.
        let fragmented = socket(&lab, SERVER, PORT);
        platform::set_dont_fragment(&SockRef::from(&fragmented), false, false).unwrap();
        wait_until("a datagram without \"don't fragment\" gets an answer", || exchange(&fragmented, 1472).is_ok());
        for (client, headers) in clients(&lab).iter().zip([28, 48]) {
            let fits = MTU - headers;
            let socket = SockRef::from(client);
            platform::set_dont_fragment(&socket, headers == 48, true).unwrap();
            wait_until("the client learns that its datagram is too long", || {
                exchange(client, fits + 1).is_err_and(|error| platform::is_too_long(&error))
            });
            wait_until("one that fits gets an answer", || exchange(client, fits).is_ok());
            assert!(platform::is_too_long(&client.send(&vec![7; fits + 1]).unwrap_err()), "the MTU is {MTU}");
        }
    }
}

fn bound(host: &Host, address: &'static str, port: u16) -> UdpSocket {
    host.run(move || {
        let socket = UdpSocket::bind((address, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket
    })
}

/// Sends a datagram, again if it gets lost, and returns where it came from.
fn carry(from: &UdpSocket, to: &UdpSocket, at: SocketAddr) -> SocketAddr {
    let come = || {
        from.send_to(b"hello", at).unwrap();
        to.recv_from(&mut [0; 5])
    };
    (0..20).find_map(|_| come().ok()).unwrap().1
}

/// Returns the ports that two servers of one client see, after both have answered; and whether other senders reach the
/// client: another port of a server, and another host.
fn ports(between: Between, options: &[&str], v6: bool) -> ([SocketAddr; 2], [bool; 2]) {
    let lab = Lab::new(between, options);
    lab.server.ip("address add 10.2.0.9/24 dev eth0");
    lab.server.ip("address add fd02::9/64 dev eth0 nodad");
    let (any, server, other) = if v6 { ("::", SERVER_V6, "fd02::9") } else { ("0.0.0.0", SERVER, "10.2.0.9") };
    let client = bound(&lab.client, any, 5000);
    let asked = [bound(&lab.server, server, 7001), bound(&lab.server, server, 7002)];
    let seen = [&asked[0], &asked[1]].map(|server| carry(&client, server, server.local_addr().unwrap()));
    for (server, port) in asked.iter().zip(seen) {
        assert_eq!(carry(server, &client, port), server.local_addr().unwrap());
    }
    let strangers = [bound(&lab.server, server, 7003), bound(&lab.server, other, 7001)];
    let reached = strangers.map(|stranger| {
        stranger.send_to(b"hello", seen[0]).unwrap();
        client.recv_from(&mut [0; 5]).is_ok_and(|(_, from)| from == stranger.local_addr().unwrap())
    });
    (seen, reached)
}

/// RFC 4787, REQ-1 and REQ-8. ipstack cannot send from a port that its client has not sent to.
pub(crate) fn one_port_for_all_servers(between: Between) {
    let reached = match between {
        Between::Nothing => [true, true],
        Between::Proxy("ipstack") => [false, false],
        Between::Proxy(_) => [true, false],
    };
    for v6 in [false, true] {
        let (seen, heard) = ports(between, &[], v6);
        assert_eq!((seen[0], heard), (seen[1], reached));
    }
}

pub(crate) fn a_port_for_each_server(between: Between) {
    let is_direct = matches!(between, Between::Nothing);
    for v6 in [false, true] {
        let (seen, heard) = ports(between, &["--nat", "symmetric"], v6);
        assert_eq!((seen[0] == seen[1], heard), (is_direct, [is_direct; 2]));
    }
}

/// The server's network has such an address, and there is a route to it. The kernel forwards over IPv4.
pub(crate) fn link_local_addresses_are_not_forwarded(between: Between) {
    const ADDRESS: &str = "169.254.7.7";
    let lab = lab(between, &[]);
    lab.server.ip(&format!("address add {ADDRESS}/32 dev eth0"));
    lab.middle.ip(&format!("route add {ADDRESS}/32 dev to-server"));
    let client = socket(&lab, ADDRESS, PORT);
    platform::queue_errors(&SockRef::from(&client), false).unwrap();
    let (exchanged, connected) = (exchange(&client, 100), connect(&lab, ADDRESS));
    if let Between::Nothing = between {
        // The server answers datagrams from another address.
        connected.unwrap();
    } else {
        assert_eq!(exchanged.unwrap_err().kind(), ErrorKind::HostUnreachable);
        assert_eq!(connected.unwrap_err().kind(), ErrorKind::HostUnreachable);
    }
}
