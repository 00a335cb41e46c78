//! Real devices in namespaces of their own, which takes root. A test that cannot run says SKIP and why.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};

use super::super::{Counters, Forwarder};
use crate::forward::{Counts, Ends, Hop, Io, Offload, Way};
use crate::{Class, Error, netlink, netns};

/// Something that hangs is to fail.
const PATIENCE: Duration = Duration::from_secs(20);

/// One network for both ends, so that each device is the way to the other.
const ADDRESSES: [[&str; 2]; 2] = [["10.0.1.1", "10.0.2.1"], ["fd00::1", "fd00::2"]];

const LEN: usize = 3_000_000;

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, that does what it is told.
struct Network {
    jobs: mpsc::Sender<Job>,
    namespace: PathBuf,
}

impl Network {
    fn new() -> Result<Self, Error> {
        let (jobs, orders) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let thread_id = nix::unistd::gettid();
            tell.send(netns::enter().map(|()| PathBuf::from(format!("/proc/self/task/{thread_id}/ns/net")))).unwrap();
            for job in orders {
                job();
            }
        });
        Ok(Self { jobs, namespace: told.recv().unwrap()? })
    }

    /// Begins it there.
    fn begin<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
        let (tell, told) = mpsc::channel();
        self.jobs.send(Box::new(move || drop(tell.send(job())))).unwrap();
        told
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.begin(job).recv_timeout(PATIENCE).unwrap()
    }
}

fn index(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).unwrap()
}

fn set_up(name: &str, addresses: [&str; 2]) {
    let index = index(name);
    for (address, prefix_len) in addresses.into_iter().zip([16, 64]) {
        netlink::add_address(index, address.parse().unwrap(), prefix_len).unwrap();
    }
    netlink::take_up(index).unwrap();
}

fn take_down(name: &str) {
    let mut link = LinkMessage::default();
    link.header.index = index(name);
    link.header.change_mask = LinkFlags::Up;
    netlink::request(RouteNetlinkMessage::SetLink(link)).unwrap();
}

fn delete(name: &str) {
    let mut link = LinkMessage::default();
    link.header.index = index(name);
    netlink::request(RouteNetlinkMessage::DelLink(link)).unwrap();
}

/// A forwarder under way between two networks.
struct Topology {
    near: Network,
    far: Network,
    counters: Counters,
    stopper: super::super::Stopper,
    ended: mpsc::Receiver<Result<(), Error>>,
}

impl Topology {
    fn new(way: Way) -> Result<Self, Error> {
        let (near, far) = (Network::new()?, Network::new()?);
        let ends = Ends { near: "tun11".into(), far: "tun22".into(), far_namespace: far.namespace.clone() };
        let forwarder = near.run(move || Forwarder::open(&ends, &way))?;
        near.run(|| set_up("tun11", ADDRESSES.map(|pair| pair[0])));
        far.run(|| set_up("tun22", ADDRESSES.map(|pair| pair[1])));
        let (counters, stopper) = (forwarder.counters(), forwarder.stopper());
        let ended = near.begin_beside(|| forwarder.run());
        Ok(Self { near, far, counters, stopper, ended })
    }

    /// Stops it, which is no error.
    fn end(self) -> Counts {
        self.stopper.stop();
        self.ended.recv_timeout(PATIENCE).unwrap().unwrap();
        self.counters.read()
    }

    /// A connection between the two, whose client is near.
    fn connect(&self, [near, far]: [&'static str; 2]) -> [TcpStream; 2] {
        let listener = self.far.run(move || TcpListener::bind((far.parse::<IpAddr>().unwrap(), 0)).unwrap());
        let address = listener.local_addr().unwrap();
        let client = self.near.run(move || TcpStream::connect_timeout(&address, PATIENCE).unwrap());
        assert_eq!(client.local_addr().unwrap().ip(), near.parse::<IpAddr>().unwrap());
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        [client, server]
    }
}

impl Network {
    /// Does it in another thread of the same namespace.
    fn begin_beside<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
        let (tell, told) = mpsc::channel();
        self.run(move || drop(thread::spawn(move || drop(tell.send(job())))));
        told
    }
}

fn pattern(index: usize) -> u8 {
    (index ^ index >> 8 ^ index >> 16) as u8
}

/// Sends all bytes from one to the other, and sees that they are the ones.
fn transfer(from: &mut TcpStream, to: &mut TcpStream) {
    let sent: Vec<u8> = (0..LEN).map(pattern).collect();
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).unwrap());
        let mut received = vec![0; LEN];
        to.read_exact(&mut received).unwrap();
        assert!(received == sent);
    });
}

fn way(io: Io, offload: Offload, hop: Hop, workers: u16) -> Way {
    Way { io, offload, hop, workers: NonZeroU16::new(workers).unwrap(), threads: None }
}

/// The ways, or why none can be tried here.
fn legal_ways() -> impl Iterator<Item = Way> {
    let ios = [Io::Sync, Io::Async, Io::Framed];
    ios.into_iter().flat_map(|io| {
        [Offload::Off, Offload::On, Offload::Whole].into_iter().flat_map(move |offload| {
            [Hop::Direct, Hop::Channel, Hop::Pool].into_iter().flat_map(move |hop| {
                [1, 3].into_iter().map(move |workers| way(io, offload, hop, workers)).filter(|way| way.check().is_ok())
            })
        })
    })
}

/// Why no test can be made here.
fn cannot() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    Topology::new(way(Io::Sync, Offload::Whole, Hop::Direct, 1)).err().map(|error| error.to_string())
}

/// Past the test harness, which would swallow it.
macro_rules! skip_if {
    ($reason:expr) => {
        if let Some(reason) = $reason {
            let _closed = writeln!(io::stderr(), "SKIP {}: {reason}", module_path!());
            return;
        }
    };
}

#[test]
fn every_way_carries_tcp_both_ways() {
    skip_if!(cannot());
    for way in legal_ways() {
        let topology = Topology::new(way).unwrap();
        let connections = ADDRESSES.map(|addresses| {
            let [mut client, mut server] = topology.connect(addresses);
            transfer(&mut client, &mut server);
            transfer(&mut server, &mut client);
            [client, server]
        });
        let counts = topology.end();
        let sent_again = |side: usize| {
            let of = |ends: &[TcpStream; 2]| crate::tcp_statistics(&ends[side]).retransmits.unwrap();
            connections.iter().map(of).sum::<u64>()
        };
        for (carried, sent_again) in [(counts.to_far, sent_again(0)), (counts.to_near, sent_again(1))] {
            assert!(carried.written_bytes >= 2 * LEN as u64, "{way:?}: {counts:?}");
            assert!(carried.written_bytes <= carried.read_bytes, "{way:?}: {counts:?}");
            let packets = carried.written_packets;
            assert!(packets > 0 && packets <= carried.written_bytes / 40, "{way:?}: {counts:?}");
            if way.offload == Offload::Whole {
                assert!(carried.written_bytes / packets > 1500, "{way:?}: {counts:?}");
            }
            if way.workers.get() == 1 {
                // What is sent again comes late; nothing else does.
                assert!(carried.reordered.unwrap() <= sent_again, "{way:?}: {sent_again} sent again, {counts:?}");
            }
        }
    }
}

#[test]
fn a_device_that_is_deleted_ends_it_by_name() {
    skip_if!(cannot());
    for io in [Io::Sync, Io::Async, Io::Framed] {
        for hop in [Hop::Direct, Hop::Channel] {
            for name in ["tun11", "tun22"] {
                for busy in [false, true] {
                    let topology = Topology::new(way(io, Offload::Off, hop, 1)).unwrap();
                    let [mut client, _server] = topology.connect(ADDRESSES[0]);
                    let writer = busy.then(|| {
                        client.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
                        thread::spawn(move || while client.write(&[0; 16_384]).is_ok() {})
                    });
                    let network = if name == "tun11" { &topology.near } else { &topology.far };
                    network.run(move || delete(name));
                    let error = topology.ended.recv_timeout(PATIENCE).unwrap().unwrap_err();
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
        let topology = Topology::new(way(io, offload, Hop::Direct, 1)).unwrap();
        let [mut client, mut server] = topology.connect(ADDRESSES[0]);
        transfer(&mut client, &mut server);
        topology.far.run(|| take_down("tun22"));
        client.write_all(&[1; 1000]).unwrap();
        topology.far.run(|| netlink::take_up(index("tun22")).unwrap());
        let mut received = [0; 1000];
        server.read_exact(&mut received).unwrap();
        assert_eq!(received, [1; 1000]);
        topology.end();
    }
}

#[test]
fn errors_of_devices_that_cannot_be_made() {
    skip_if!(cannot());
    let near = Network::new().unwrap();
    let far = Network::new().unwrap();
    let ends = |far_namespace| Ends { near: "tun11".into(), far: "tun22".into(), far_namespace };
    let whole = way(Io::Sync, Offload::Whole, Hop::Direct, 1);
    let both = ends(far.namespace.clone());
    let held = far.run(|| {
        Forwarder::open(
            &Ends { near: "tun22".into(), far: "t".into(), far_namespace: "/proc/self/ns/net".into() },
            &way(Io::Sync, Offload::Off, Hop::Direct, 1),
        )
        .unwrap()
    });
    let error = near.run(move || Forwarder::open(&both, &whole)).err().unwrap();
    assert_eq!(error.class(), Class::Invalid);
    assert!(error.to_string().contains("tun22") && error.to_string().contains("the name is taken"), "{error}");
    drop(held);
    for (path, class) in [("/proc/self/ns/nothing", Class::Invalid), ("/dev/null", Class::Unavailable)] {
        let wrong = ends(path.into());
        let error = near.run(move || Forwarder::open(&wrong, &whole)).err().unwrap();
        assert_eq!(error.class(), class, "{error}");
    }
    let impossible = way(Io::Framed, Offload::Whole, Hop::Direct, 1);
    let both = ends(far.namespace.clone());
    let error = near.run(move || Forwarder::open(&both, &impossible)).err().unwrap();
    assert!(error.to_string().contains("--offload: not whole"), "{error}");
}
