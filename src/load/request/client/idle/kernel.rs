//! The kernel's memory of the subject's sockets, which is of no process: how many there are, and what one takes.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use mio::event::Source;
use mio::{Interest, Poll, Token, net};
use platform::{KernelObjects, SocketCount};

use crate::cell::{Protocol, Subject};
use crate::plan::scenario::Scenario;
use crate::program::{Program, Role};

/// How many pairs of sockets show what one takes, in each round. Each processor has some free objects, which blur fewer.
const PAIRS: u64 = 150;

/// Most rounds see none of the sockets that other processes open and close in a few.
const ROUNDS: u64 = 11;

/// The sockets of the kernel that a subject has for connections or flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// It has none: it is a stack, or carries packets.
    Nothing,
    /// The server's, as the kernel is the subject: this many for each connection or flow.
    Served(SocketCount),
    /// All in its network, without this many of the load for each connection or flow.
    Beside(SocketCount),
}

impl Held {
    pub(crate) fn of(scenario: &Scenario) -> Self {
        // All flows have one socket of the server.
        let server = SocketCount { tcp: u64::from(scenario.cell.protocol == Protocol::Tcp), udp: 0 };
        let client = SocketCount { udp: 1 - server.tcp, ..server };
        let profile = scenario.cell.program.as_ref().and_then(Program::profile);
        match (scenario.cell.subject(), profile.map(|profile| profile.role)) {
            (Subject::Loopback | Subject::Kernel, _) | (_, Some(Role::Route)) => Self::Served(server),
            (_, Some(Role::Proxy)) => Self::Beside(client),
            // It works outside.
            (_, Some(Role::Attach)) => Self::Beside(if scenario.cell.inbound { client } else { server }),
            _ => Self::Nothing,
        }
    }

    /// The subject's sockets for so many connections or flows, by its network's before and with them.
    fn sockets(self, count: u64, [before, now]: [Option<SocketCount>; 2]) -> Option<SocketCount> {
        match self {
            Self::Nothing => Some(SocketCount::default()),
            Self::Served(each) => Some(SocketCount { tcp: each.tcp * count, udp: each.udp * count }),
            Self::Beside(ours) => {
                let (before, now) = (before?, now?);
                let grown = |now: u64, before: u64, ours: u64| now.saturating_sub(before + ours * count);
                Some(SocketCount {
                    tcp: grown(now.tcp, before.tcp, ours.tcp),
                    udp: grown(now.udp, before.udp, ours.udp),
                })
            }
        }
    }

    /// What the kernel takes for them, at several moments, in bytes; `None` if it does not say it.
    pub(super) fn bytes(
        self,
        count: u64,
        before: Option<SocketCount>,
        now: &[Option<SocketCount>],
        loopback: IpAddr,
    ) -> Vec<Option<u64>> {
        let all: Vec<_> = now.iter().map(|now| self.sockets(count, [before, *now])).collect();
        let each = |protocol, is_asked: bool| if is_asked { bytes_of_socket(protocol, loopback) } else { Some(0) };
        let has = |of: fn(&SocketCount) -> u64| all.iter().flatten().any(|sockets| of(sockets) > 0);
        let tcp = each(Protocol::Tcp, has(|sockets| sockets.tcp));
        let udp = each(Protocol::Udp, has(|sockets| sockets.udp));
        all.into_iter().map(|sockets| Some(sockets?.tcp * tcp? + sockets?.udp * udp?)).collect()
    }
}

/// What the kernel takes for a connected socket that is waited for, in bytes: pairs of them over the loopback show it.
fn bytes_of_socket(protocol: Protocol, loopback: IpAddr) -> Option<u64> {
    platform::set_loopback_up().ok()?;
    platform::allow_open_files(3 * PAIRS * ROUNDS);
    let poll = Poll::new().ok()?;
    let (mut readings, mut open) = (vec![platform::kernel_objects()?], Vec::new());
    for _ in 0..ROUNDS {
        open.push(pairs(protocol, SocketAddr::new(loopback, 0), &poll).ok()?);
        readings.push(platform::kernel_objects()?);
    }
    Some(KernelObjects::bytes_of_pair(&readings, PAIRS) / 2).filter(|bytes| *bytes > 0)
}

fn pairs(protocol: Protocol, any_port: SocketAddr, poll: &Poll) -> io::Result<Vec<Box<dyn Source>>> {
    let listener = TcpListener::bind(any_port)?;
    let mut ends: Vec<Box<dyn Source>> = Vec::new();
    for _ in 0..PAIRS {
        if protocol == Protocol::Udp {
            let (one, other) = (UdpSocket::bind(any_port)?, UdpSocket::bind(any_port)?);
            one.connect(other.local_addr()?)?;
            other.connect(one.local_addr()?)?;
            ends.extend([one, other].map(|end| Box::new(net::UdpSocket::from_std(end)) as Box<dyn Source>));
        } else {
            let pair = [TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0];
            ends.extend(pair.map(|end| Box::new(net::TcpStream::from_std(end)) as Box<dyn Source>));
        }
    }
    for end in &mut ends {
        poll.registry().register(end, Token(0), Interest::READABLE)?;
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// The sockets of the client and of the server are not the subject's.
    #[test]
    fn the_sockets_of_the_load_are_not_the_subjects() {
        let sockets = |tcp, udp| SocketCount { tcp, udp };
        for (words, now, held) in [
            ("--layer loopback", sockets(20, 0), sockets(10, 0)),
            ("--layer loopback --protocol udp", sockets(0, 10), sockets(0, 0)),
            ("-n kernel", sockets(10, 0), sockets(10, 0)),
            ("-n lwip", sockets(10, 0), sockets(0, 0)),
            ("--program kernel", sockets(10, 0), sockets(10, 0)),
            ("--program tun2proxy", sockets(20, 0), sockets(10, 0)),
            ("--program sing-box-system", sockets(30, 1), sockets(20, 1)),
            // A flow has a connection to the SOCKS5 server, too.
            ("--program tun2proxy --protocol udp", sockets(10, 20), sockets(10, 10)),
            ("--program boringtun", sockets(10, 0), sockets(0, 0)),
            ("--program pasta", sockets(20, 0), sockets(10, 0)),
            ("--program pasta --protocol udp", sockets(0, 10), sockets(0, 10)),
            ("--program pasta --protocol udp --inbound", sockets(0, 20), sockets(0, 10)),
        ] {
            let arguments = format!("x -m idle --parallel 11 {words}");
            let cli = Cli::try_parse_from(arguments.split_whitespace()).unwrap();
            let of = Held::of(&Scenario::try_from(cli.run).unwrap());
            let before = sockets(3, 2);
            let now = sockets(now.tcp + before.tcp, now.udp + before.udp);
            assert_eq!(of.sockets(10, [Some(before), Some(now)]), Some(held), "{words}");
            assert_eq!(of.sockets(10, [None, None]).is_none(), matches!(of, Held::Beside(_)), "{words}");
        }
    }

    /// Other tests open sockets meanwhile.
    #[test]
    fn a_socket_takes_some_kilobytes_of_the_kernel() {
        if platform::kernel_objects().is_none() {
            return eprintln!("SKIP: this process may not read /proc/slabinfo");
        }
        let [tcp, udp] =
            [Protocol::Tcp, Protocol::Udp].map(|one| bytes_of_socket(one, Ipv4Addr::LOCALHOST.into()).unwrap());
        assert!((2000..20_000).contains(&tcp) && (1000..20_000).contains(&udp), "{tcp} {udp}");
    }
}
