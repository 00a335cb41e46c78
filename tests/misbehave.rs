//! A proxy that misbehaves on purpose: this test program, started as a program under test.
//!
//! It carries connections and datagrams between a TUN device and servers, on smoltcp, each with the same flaw. The harness's
//! questions (`ready?`) pass as they are: a program that never worked is another test.

use std::collections::HashMap;
use std::env;
use std::future;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use netstacks::{Datagrams, Listener, Netstack, Smoltcp, StackConfig, Stream};
use platform::{Network, Offload, TunConfig, TunDevice};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::processes::{at_once, printed};
use crate::program::{has_warning, no_device, through};

/// The environment variables of the program: the flaw, the device and the interface to the servers.
const FLAW: &str = "FLAW";
const DEVICE: &str = "DEVICE";
const INTERFACE: &str = "INTERFACE";

/// The question of the harness, and the answer to it.
const QUESTION: &[u8] = b"ready?";

/// What the program does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It changes one bit of what it carries.
    Flips,
    /// It keeps the end of a stream to itself.
    DropsEnds,
    /// It sends everything twice.
    Repeats,
    /// It takes bytes and passes none on.
    Swallows,
    /// It keeps a file open for each connection.
    Leaks,
}

impl Flaw {
    const ALL: [Self; 5] = [Self::Flips, Self::DropsEnds, Self::Repeats, Self::Swallows, Self::Leaks];

    fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|flaw| format!("{flaw:?}") == name).unwrap()
    }

    /// The words that start a proxy with this flaw. The marker finds its processes.
    pub(crate) fn command(self, marker: &str) -> String {
        let test = env::current_exe().unwrap();
        format!(
            "env MARKER={marker} {FLAW}={self:?} {DEVICE}={{tun}} {INTERFACE}={{interface}} \
             {} --exact misbehave::serve --ignored",
            test.display()
        )
    }
}

/// The program. It ends when it is asked to.
#[test]
#[ignore = "serves until it is ended"]
fn serve() {
    let [flaw, name, interface] = [FLAW, DEVICE, INTERFACE].map(|name| env::var(name).unwrap());
    let flaw = Flaw::named(&flaw);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let [address, peer, mask] = ["10.10.10.9", "10.10.10.10", "255.255.255.0"].map(|text| text.parse().unwrap());
        let network = Network::new(address, peer, mask).unwrap();
        let config = TunConfig {
            name,
            or_next: false,
            network,
            mtu: 1500,
            tx_queue_len: 1000,
            offload: Offload::Auto,
            fd: None,
            tuning: platform::Tuning::default(),
        };
        let device = TunDevice::open(&config).unwrap();
        let mut stack = Smoltcp::start(device, &StackConfig::default()).unwrap();
        let interface: Arc<str> = interface.into();
        tokio::spawn(stack.driver);
        tokio::spawn(serve_datagrams(stack.datagrams, flaw, Arc::clone(&interface)));
        loop {
            let client = stack.listener.accept().await.unwrap();
            tokio::spawn(serve_stream(client, flaw, Arc::clone(&interface)));
        }
    });
}

fn socket(server: SocketAddr, kind: Type, protocol: Protocol, interface: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(server), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    platform::bind_to_interface(&socket, interface, server.is_ipv6())?;
    Ok(socket)
}

async fn connect(server: SocketAddr, interface: &str) -> io::Result<TcpStream> {
    let socket = socket(server, Type::STREAM, Protocol::TCP, interface)?;
    TcpSocket::from_std_stream(socket.into()).connect(server).await
}

async fn serve_stream(client: impl Stream, flaw: Flaw, interface: Arc<str>) -> io::Result<()> {
    let server = connect(client.local_addr(), &interface).await?;
    if flaw == Flaw::Leaks {
        mem::forget(socket2::SockRef::from(&server).try_clone()?);
    }
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = server.into_split();
    // Different bits: a flip on the way there must not be undone on the way back.
    let there = carry(&mut from_client, &mut to_server, flaw, 1);
    let back = carry(&mut from_server, &mut to_client, flaw, 2);
    tokio::try_join!(there, back).map(drop)
}

async fn carry(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    flaw: Flaw,
    bit: u8,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = from.read(&mut buffer).await?;
        if len == 0 {
            break;
        }
        to.write_all(&flawed(&mut buffer[..len], flaw, bit)).await?;
        to.flush().await?;
    }
    if flaw == Flaw::DropsEnds {
        future::pending::<()>().await;
    }
    to.shutdown().await
}

/// What is passed on instead of these bytes.
fn flawed(bytes: &mut [u8], flaw: Flaw, bit: u8) -> Vec<u8> {
    if bytes == QUESTION {
        return bytes.to_vec();
    }
    match flaw {
        Flaw::Flips => {
            let middle = bytes.len() / 2;
            bytes[middle] ^= bit;
            bytes.to_vec()
        }
        Flaw::Repeats => bytes.repeat(2),
        Flaw::Swallows => Vec::new(),
        Flaw::DropsEnds | Flaw::Leaks => bytes.to_vec(),
    }
}

async fn serve_datagrams(datagrams: impl Datagrams, flaw: Flaw, interface: Arc<str>) -> io::Result<()> {
    let mut sockets: HashMap<(SocketAddr, SocketAddr), Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let datagram = datagrams.recv(&mut buffer).await?;
        let (server, client) = (datagram.local, datagram.peer);
        let known = sockets.get(&(client, server)).map(Arc::clone);
        let own = if let Some(own) = known {
            own
        } else {
            let socket = socket(server, Type::DGRAM, Protocol::UDP, &interface)?;
            socket.connect(&server.into())?;
            let own = Arc::new(UdpSocket::from_std(socket.into())?);
            tokio::spawn(answer(datagrams.clone(), Arc::clone(&own), server, client, flaw));
            sockets.insert((client, server), Arc::clone(&own));
            own
        };
        for payload in flawed_datagram(&mut buffer[..datagram.len], flaw, 1) {
            // A datagram may be lost.
            let _lost = own.send(payload).await;
        }
    }
}

async fn answer(datagrams: impl Datagrams, own: Arc<UdpSocket>, server: SocketAddr, client: SocketAddr, flaw: Flaw) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len) = own.recv(&mut buffer).await {
        for payload in flawed_datagram(&mut buffer[..len], flaw, 2) {
            let _lost = datagrams.try_send(server, client, payload);
        }
    }
}

/// The datagrams that are passed on instead of this one.
fn flawed_datagram(payload: &mut [u8], flaw: Flaw, bit: u8) -> impl Iterator<Item = &[u8]> {
    let copies = match flaw {
        _ if payload == QUESTION => 1,
        Flaw::Swallows => 0,
        Flaw::Repeats => 2,
        Flaw::Flips => {
            let middle = payload.len() / 2;
            payload[middle] ^= bit;
            1
        }
        Flaw::DropsEnds | Flaw::Leaks => 1,
    };
    std::iter::repeat_n(&*payload, copies)
}

#[test]
fn a_program_that_spoils_what_it_carries_has_failed() {
    skip_if!(no_device());
    let rows = [
        (Flaw::Flips, "-m rr", "corrupt", "server: byte 0 of the stream differs from the one that was sent"),
        (Flaw::Flips, "-m writer", "corrupt", "of the stream differs from the one that was sent"),
        (Flaw::Flips, "-m writer --protocol udp --bitrate 10M", "corrupt", "differs from the one that was sent"),
        (Flaw::Repeats, "-m rr", "corrupt", "client: byte 0 of the stream differs from the one that was sent"),
        (Flaw::Repeats, "-m reader", "corrupt", "client: byte "),
        (Flaw::Swallows, "-m rr", "stalled", "after 0 responses"),
        (Flaw::Swallows, "-m writer", "stalled", "after 0 bytes"),
        (Flaw::Swallows, "-m writer --protocol udp --bitrate 10M", "stalled", "datagrams arrived"),
    ];
    at_once(rows.into_iter().enumerate(), |(number, (flaw, options, status, detail))| {
        let options = format!("{options} --time 0.3 --timeout 3 --verify full --json");
        let marker = format!("flaw-{number}");
        let output = through(&marker, &flaw.command(&marker), &options);
        let sample = printed(&output);
        assert_eq!(
            (output.status.code(), &sample["status"]),
            (Some(1), &status.into()),
            "{flaw:?} {options}: {sample}"
        );
        let said = sample["detail"].as_str().unwrap();
        assert!(said.contains(detail), "{flaw:?} {options}: {said}");
    });
}

/// Both ends are the run's, so it needs nothing of the program to end.
#[test]
fn a_program_that_passes_no_end_on_is_measured_with_a_warning() {
    skip_if!(no_device());
    let withheld = "does not pass on the end of a stream";
    for options in ["-m crr --parallel 3", "-m reader", "-m reader --parallel 3", "-m both", "-m rr --background both"]
    {
        for (flaw, is_withheld) in [(Flaw::DropsEnds, true), (Flaw::Leaks, false)] {
            let options = format!("{options} --time 0.5 --timeout 10 --verify full --json");
            let sample = printed(&through("ends", &flaw.command("ends"), &options));
            assert_eq!(sample["status"], "ok", "{flaw:?} {options}: {sample}");
            assert_eq!(has_warning(&sample, withheld), is_withheld, "{flaw:?} {options}: {sample}");
        }
    }
}

#[test]
fn a_program_that_leaks_files_is_measured_with_a_warning() {
    skip_if!(no_device());
    let sample = printed(&through("leak", &Flaw::Leaks.command("leak"), "-m crr --time 1 --parallel 30 --json"));
    assert_eq!(sample["status"], "ok", "{sample}");
    assert!(has_warning(&sample, "after all connections were closed the program had "), "{sample}");
}

#[test]
fn a_program_that_sends_datagrams_twice_is_measured_with_a_warning() {
    skip_if!(no_device());
    for options in ["-m writer --bitrate 5M", "-m rr --parallel 20"] {
        let options = format!("{options} --protocol udp --time 1 --verify full --json");
        let sample = printed(&through("twice", &Flaw::Repeats.command("twice"), &options));
        assert_eq!(sample["status"], "ok", "{sample}");
        assert!(has_warning(&sample, " arrived again, and the link repeats none"), "{sample}");
    }
}
