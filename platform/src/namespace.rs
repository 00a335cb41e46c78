//! Network namespaces other than the calling thread's, and interfaces in them.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::{Class, Error, PacketCounts, Tuning, host_prefix_len, sys};

type Job = Box<dyn FnOnce() + Send>;

/// A new network namespace, and a thread in it that runs closures. It lives as long as this value, or a socket, a
/// process or a device in it.
#[derive(Debug)]
pub struct Namespace {
    /// `None` ends the thread.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    folder: PathBuf,
}

impl Namespace {
    /// Creates a namespace. Call [`crate::enter_netns`] before: it gets the right that this needs.
    pub fn new() -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (answer, entered) = mpsc::channel();
        let work = move || {
            let result = sys::enter_netns().map(|()| sys::folder_of_thread());
            let failed = result.is_err();
            if answer.send(result).is_err() || failed {
                return;
            }
            for job in queue {
                job();
            }
        };
        let thread = thread::Builder::new().name("far-network".to_owned()).spawn(work).map_err(ended)?;
        let folder = entered.recv().map_err(|_| ended(io::ErrorKind::BrokenPipe.into()))??;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), folder })
    }

    /// Runs a closure in the namespace, and waits for its result. Fails if this closure or an earlier one panicked.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let gone = || ended(io::ErrorKind::BrokenPipe.into());
        let (answer, done) = mpsc::channel();
        let job: Job = Box::new(move || {
            // The caller waits for the result.
            let _heard = answer.send(job());
        });
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        done.recv().map_err(|_| gone())
    }

    /// The thread's folder under `/proc`; see [`interface_counts`](crate::interface_counts).
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file with which another process enters the namespace (`setns(2)`).
    pub fn path(&self) -> PathBuf {
        self.folder.join("ns/net")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // `run` has already reported a panic.
            let _panicked = thread.join();
        }
    }
}

fn ended(source: io::Error) -> Error {
    Error::new(Class::Failed, "work in", "a network namespace", source)
}

/// The kernel's counts of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounts {
    /// Packets and bytes. The program at a TUN device receives what the kernel transmits.
    pub packets: PacketCounts,
    /// Packets dropped in both directions: because the queue was full, or because the kernel did not accept them.
    pub dropped: u64,
}

/// The configuration of an existing interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Prefix length of its network, in bits.
    pub prefix_len: u8,
    /// An address outside its network. The network of this address, with the same prefix length, gets a route.
    pub route_to: Option<IpAddr>,
    /// Its MTU, in bytes; `None` to leave it as it is.
    pub mtu: Option<u16>,
    /// How many packets may wait in its queue before the kernel drops packets (`txqueuelen`); `None` to leave it as it is.
    pub tx_queue_len: Option<u32>,
    /// Its other settings. Of NAPI only the thread is set up here, not for a device of another program.
    pub tuning: Tuning,
}

/// A device that another program has made, as it was before [`Interface::adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Whether its link was up.
    pub is_up: bool,
    /// Its address of the wanted IP version, if the program gave it one.
    pub address: Option<IpAddr>,
    /// How many packets may wait in its queue before the kernel drops packets (`txqueuelen`).
    pub tx_queue_len: u32,
    /// Whether its packets have a virtio header, as offload needs. `None` if it is no TUN or TAP device.
    pub vnet_header: Option<bool>,
    /// How many queues the program has opened. `None` if it is no TUN or TAP device.
    pub queues: Option<u32>,
}

/// The kernel's loopback interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loopback {
    /// Its name.
    pub name: String,
    /// Its MTU, in bytes.
    pub mtu: usize,
    /// Whether super-packets and partial checksums cross it.
    pub offload: bool,
}

/// All packets to a host go out of an interface; see [`crate::add_route`].
pub fn add_host_route(interface: &str, host: IpAddr) -> Result<(), Error> {
    sys::add_route(interface, host, host_prefix_len(host), None)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::{
        Cause, Napi, Offload, TunConfig, TunDevice, add_address, folder_of_thread, interface_counts, set_black_hole,
        set_segmentation,
    };

    /// `None` if the test cannot run. This is said past the test harness, which would hide it.
    fn namespace(test: &str) -> Option<Namespace> {
        let skip = |error: &Error| drop(writeln!(io::stderr(), "SKIP {}::{test}: {error}", module_path!()));
        Namespace::new().inspect_err(skip).ok()
    }

    #[test]
    fn joined_networks_reach_each_other_at_once() {
        for (here, there, prefix_len) in [("10.0.1.1", "10.0.2.1", 24), ("fd10:0:1::1", "fd10:0:2::1", 64)] {
            let Some((near, far)) = namespace("joined_networks").zip(namespace("joined_networks")) else { return };
            let far = Arc::new(far);
            let interface = |name: &str, address: &str, route_to: &str| Interface {
                name: name.to_owned(),
                address: address.parse().unwrap(),
                prefix_len,
                route_to: Some(route_to.parse().unwrap()),
                mtu: Some(1400),
                tx_queue_len: None,
                tuning: Tuning::default(),
            };
            let ends = (interface("to-far", here, there), interface("to-near", there, here));
            let (other, address) = (Arc::clone(&far), SocketAddr::new(ends.1.address, 0));
            near.run(move || other.join(&ends.0, &ends.1)).unwrap().unwrap();
            let listener = far.run(move || TcpListener::bind(address)).unwrap().unwrap();
            let target = listener.local_addr().unwrap();
            // The kernel retransmits a lost SYN after a second.
            let connected = near.run(move || TcpStream::connect_timeout(&target, Duration::from_millis(900))).unwrap();
            assert_eq!(connected.unwrap().peer_addr().unwrap(), target);
            near.run(move || add_host_route("to-far", target.ip())).unwrap().unwrap();
            near.run(|| set_black_hole("to-far", true)).unwrap().unwrap();
            let connect = move || TcpStream::connect_timeout(&target, Duration::from_millis(100));
            near.run(connect).unwrap().unwrap_err();
            near.run(|| set_black_hole("to-far", false)).unwrap().unwrap();
            near.run(connect).unwrap().unwrap();
        }
    }

    /// How many threads of the kernel poll a device of this name; `None` in a container, which does not see them.
    fn pollers(device: &str) -> Option<usize> {
        let name = |process: PathBuf| std::fs::read_to_string(process.join("comm")).ok();
        name(PathBuf::from("/proc/2")).filter(|name| name.trim() == "kthreadd")?;
        let processes = std::fs::read_dir("/proc").ok()?.flatten();
        let names = processes.filter_map(|process| name(process.path()));
        Some(names.filter(|name| name.starts_with(&format!("napi/{device}-"))).count())
    }

    #[test]
    fn a_device_has_the_settings_that_were_asked_for() {
        let Some(namespace) = namespace("a_device_has_the_settings") else { return };
        let tested = namespace.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _entered = runtime.enter();
            let [address, peer, mask] = ["10.0.3.9", "10.0.3.1", "255.255.255.0"].map(|text| text.parse().unwrap());
            let network = crate::Network::new(address, peer, mask).unwrap();
            let open = |shards, offload, napi, qdisc: &str| {
                let (name, tuning) = ("tuned".to_owned(), Tuning { napi, qdisc: Some(qdisc.to_owned()) });
                let (tx_queue_len, or_next, fd) = (500, false, None);
                let config = TunConfig { name, or_next, network, mtu: 1500, tx_queue_len, offload, fd, tuning };
                TunDevice::open_shards(&config, shards, None)
            };
            for (shards, napi, threads) in
                [(1, Napi::Off, 0), (1, Napi::On, 0), (1, Napi::Threaded, 1), (2, Napi::Threaded, 2)]
            {
                let _devices = open(shards, Offload::Off, napi, "noqueue")?;
                assert_eq!(crate::qdisc_of("tuned").as_deref(), Some("noqueue"));
                assert!(pollers("tuned").is_none_or(|found| found == threads), "{napi:?}");
                assert_eq!(set_segmentation("tuned", true).unwrap_err().class(), Class::Unavailable);
                set_segmentation("tuned", false).unwrap();
            }
            assert!(pollers("tuned").is_none_or(|threads| threads == 0));
            let offloading = open(1, Offload::On, Napi::Off, "pfifo_fast")?;
            for is_on in [false, true] {
                set_segmentation("tuned", is_on).unwrap();
            }
            drop(offloading);
            for (offload, napi, qdisc, cause) in [
                (Offload::On, Napi::On, "noqueue", Cause::NoOffload),
                (Offload::Off, Napi::Off, "nonesuch", Cause::NoQdisc),
            ] {
                assert_eq!(open(1, offload, napi, qdisc).err().unwrap().cause(), cause);
            }
            Ok::<_, Error>(())
        });
        // The device's node, or a right.
        if let Err(error) = tested.unwrap() {
            drop(writeln!(io::stderr(), "SKIP {}: {error}", module_path!()));
        }
    }

    #[test]
    fn an_added_address_is_reached_at_once() {
        let Some(namespace) = namespace("an_added_address") else { return };
        namespace.run(|| crate::set_loopback_up().unwrap()).unwrap();
        for host in 1..50 {
            let address = SocketAddr::new(IpAddr::from([0xfd10, 0, 1, 0, 0, 0, 0, host]), 0);
            namespace.run(move || add_address("lo", address.ip(), 128)).unwrap().unwrap();
            let connect = move || {
                let listener = TcpListener::bind(address)?;
                TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_millis(900))
            };
            namespace.run(connect).unwrap().unwrap();
        }
    }

    #[test]
    fn a_namespace_has_a_network_of_its_own_and_outlives_a_panic_by_an_error() {
        let Some(namespace) = namespace("a_namespace") else { return };
        let network = |path: PathBuf| std::fs::read_link(path).unwrap();
        assert_ne!(network(namespace.path()), network(folder_of_thread().join("ns/net")));
        let inside = namespace.run(|| folder_of_thread().join("ns/net")).unwrap();
        assert_eq!(network(inside), network(namespace.path()));
        assert_eq!(interface_counts(namespace.folder(), "lo"), Some(InterfaceCounts::default()));
        assert_eq!(interface_counts(namespace.folder(), "no-such"), None);
        let panicked = namespace.run(|| panic!("on purpose")).unwrap_err();
        assert!(panicked.to_string().contains("network namespace"), "{panicked}");
        namespace.run(|| ()).unwrap_err();
    }
}
