//! Tests with real devices in new namespaces. They need root. A test that cannot run prints SKIP and the reason.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU16;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use platform::{Cause, Class, Error, Namespace, Napi};
use socket2::SockRef;

use super::super::{Counters, Forwarder, Stopper};
use crate::{Counts, DevicePair, ForwardConfig, Handoff, Io, Offload};

/// A test that has to wait longer fails.
const TIMEOUT: Duration = Duration::from_secs(20);

/// One network for both ends, so that each device is the route to the other.
const ADDRESSES: [[&str; 2]; 2] = [["10.0.1.1", "10.0.2.1"], ["fd00::1", "fd00::2"]];

const LEN: usize = 3_000_000;

/// Runs `ip` in a network.
fn ip(network: &Namespace, arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    let output = network.run(move || command.output()).unwrap().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn set_up(network: &Namespace, name: &str, [v4, v6]: [&str; 2]) {
    ip(network, &format!("address add {v4}/16 dev {name}"));
    ip(network, &format!("address add {v6}/64 dev {name} nodad"));
    ip(network, &format!("link set {name} up"));
}

/// Runs a closure in another thread of the namespace.
fn spawn_in<T: Send + 'static>(network: &Namespace, job: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    network.run(move || drop(thread::spawn(move || drop(sender.send(job()))))).unwrap();
    receiver
}

/// A running forwarder between two networks.
struct Topology {
    near: Namespace,
    far: Namespace,
    counters: Counters,
    stopper: Stopper,
    ended: mpsc::Receiver<Result<(), Error>>,
}

impl Topology {
    fn new(way: ForwardConfig) -> Result<Self, Error> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let ends = DevicePair { near: "tun11".into(), far: "tun22".into(), far_namespace: far.path() };
        let forwarder = near.run(move || Forwarder::open(&ends, &way))??;
        set_up(&near, "tun11", ADDRESSES.map(|pair| pair[0]));
        set_up(&far, "tun22", ADDRESSES.map(|pair| pair[1]));
        let (counters, stopper) = (forwarder.counters(), forwarder.stopper());
        let ended = spawn_in(&near, || forwarder.run());
        Ok(Self { near, far, counters, stopper, ended })
    }

    /// Stops the forwarder without an error.
    fn end(self) -> Counts {
        self.stopper.stop();
        self.ended.recv_timeout(TIMEOUT).unwrap().unwrap();
        self.counters.read()
    }

    /// A connection between the two networks. The client is near.
    fn connect(&self, [near, far]: [&'static str; 2]) -> [TcpStream; 2] {
        let listener = self.far.run(move || TcpListener::bind((far.parse::<IpAddr>().unwrap(), 0)).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let client = self.near.run(move || TcpStream::connect_timeout(&address, TIMEOUT).unwrap()).unwrap();
        assert_eq!(client.local_addr().unwrap().ip(), near.parse::<IpAddr>().unwrap());
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        }
        [client, server]
    }
}

fn pattern(index: usize) -> u8 {
    (index ^ index >> 8 ^ index >> 16) as u8
}

/// Sends the pattern from one end to the other, and checks that all of it arrives.
fn transfer(from: &mut TcpStream, to: &mut TcpStream) {
    let sent: Vec<u8> = (0..LEN).map(pattern).collect();
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).unwrap());
        let mut received = vec![0; LEN];
        to.read_exact(&mut received).unwrap();
        assert!(received == sent);
    });
}

fn way(io: Io, offload: Offload, hop: Handoff, workers: u16) -> ForwardConfig {
    ForwardConfig { io, offload, hop, workers: NonZeroU16::new(workers).unwrap(), threads: None, napi: Napi::Off }
}

/// The reason why these tests cannot run here.
fn cannot() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    Topology::new(way(Io::Sync, Offload::Whole, Handoff::Direct, 1)).err().map(|error| error.to_string())
}

/// Writes to standard error directly, because the test harness would hide printed output.
macro_rules! skip_if {
    ($reason:expr) => {
        if let Some(reason) = $reason {
            let _closed = writeln!(io::stderr(), "SKIP {}: {reason}", module_path!());
            return;
        }
    };
}

/// Linux 6.2 and newer.
#[test]
fn datagrams_pass_through_in_super_packets() {
    const SENT: usize = 40 * 1_200;
    skip_if!(cannot());
    for io in [Io::Sync, Io::Async] {
        let topology = Topology::new(way(io, Offload::Whole, Handoff::Direct, 1)).unwrap();
        let has_segmentation =
            topology.near.run(|| platform::linux::create_tun("probe", true, Napi::Off).unwrap().udp_gso()).unwrap();
        skip_if!((!has_segmentation).then_some("this kernel's TUN has no UDP super-packets"));
        let server = topology.far.run(|| UdpSocket::bind("10.0.2.1:0").unwrap()).unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        platform::coalesce_datagrams(&SockRef::from(&server), true);
        let to = server.local_addr().unwrap();
        let client = topology.near.run(|| UdpSocket::bind("10.0.1.1:0").unwrap()).unwrap();
        let expected: Vec<u8> = (0..SENT).map(pattern).collect();
        let sent = platform::send_datagrams(&SockRef::from(&client), Some(to), &expected, 1_200).unwrap();
        assert_eq!(sent, SENT);
        let mut buffer = vec![0; 65_535];
        let received = platform::recv_datagrams(&SockRef::from(&server), &mut buffer).unwrap();
        assert_eq!((received.len, received.segment_len), (SENT, 1_200), "{io:?}");
        assert!(buffer[..SENT] == expected);
        // The kernel may have sent packets of its own.
        let carried = topology.end().to_far;
        assert!(carried.written_bytes > SENT as u64 && carried.written_packets < 10, "{io:?}: {carried:?}");
    }
}

#[test]
fn a_device_that_is_deleted_ends_it_by_name() {
    skip_if!(cannot());
    for io in [Io::Sync, Io::Async, Io::Framed] {
        for hop in [Handoff::Direct, Handoff::Channel] {
            for name in ["tun11", "tun22"] {
                for busy in [false, true] {
                    let topology = Topology::new(way(io, Offload::Off, hop, 1)).unwrap();
                    let [mut client, _server] = topology.connect(ADDRESSES[0]);
                    let writer = busy.then(|| {
                        client.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
                        thread::spawn(move || while client.write(&[0; 16_384]).is_ok() {})
                    });
                    let network = if name == "tun11" { &topology.near } else { &topology.far };
                    ip(network, &format!("link delete {name}"));
                    let error = topology.ended.recv_timeout(TIMEOUT).unwrap().unwrap_err();
                    assert!(error.to_string().contains(name), "{error}");
                    assert_eq!(error.class(), Class::Failed);
                    if let Some(writer) = writer {
                        writer.join().unwrap();
                    }
                }
            }
        }
    }
}

#[test]
fn a_device_that_is_down_for_a_moment_ends_nothing() {
    skip_if!(cannot());
    for (io, offload) in [(Io::Sync, Offload::Whole), (Io::Async, Offload::On), (Io::Framed, Offload::On)] {
        let topology = Topology::new(way(io, offload, Handoff::Direct, 1)).unwrap();
        let [mut client, mut server] = topology.connect(ADDRESSES[0]);
        transfer(&mut client, &mut server);
        ip(&topology.far, "link set tun22 down");
        client.write_all(&[1; 1000]).unwrap();
        ip(&topology.far, "link set tun22 up");
        let mut received = [0; 1000];
        server.read_exact(&mut received).unwrap();
        assert_eq!(received, [1; 1000]);
        topology.end();
    }
}

#[test]
fn errors_of_devices_that_cannot_be_made() {
    skip_if!(cannot());
    let near = Namespace::new().unwrap();
    let far = Namespace::new().unwrap();
    // Each attempt has another near device: the kernel may take a while to remove one, for instance if another test
    // forks.
    let ends = |near: &str, far_namespace| DevicePair { near: near.into(), far: "tun22".into(), far_namespace };
    let whole = way(Io::Sync, Offload::Whole, Handoff::Direct, 1);
    let both = ends("tun11", far.path());
    let held = far
        .run(|| {
            Forwarder::open(
                &DevicePair { near: "tun22".into(), far: "t".into(), far_namespace: "/proc/self/ns/net".into() },
                &way(Io::Sync, Offload::Off, Handoff::Direct, 1),
            )
            .unwrap()
        })
        .unwrap();
    let error = near.run(move || Forwarder::open(&both, &whole)).unwrap().err().unwrap();
    assert_eq!(error.cause(), Cause::NameTaken);
    assert!(error.to_string().contains("tun22"), "{error}");
    drop(held);
    for (name, path, class) in
        [("tun12", "/proc/self/ns/nothing", Class::Invalid), ("tun13", "/dev/null", Class::Unavailable)]
    {
        let wrong = ends(name, path.into());
        let error = near.run(move || Forwarder::open(&wrong, &whole)).unwrap().err().unwrap();
        assert_eq!(error.class(), class, "{error}");
    }
    let impossible = way(Io::Framed, Offload::Whole, Handoff::Direct, 1);
    let both = ends("tun14", far.path());
    let error = near.run(move || Forwarder::open(&both, &impossible)).unwrap().err().unwrap();
    assert!(error.to_string().contains("--offload: not whole"), "{error}");
}
