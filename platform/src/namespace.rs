//! Networks beside the calling thread's own: namespaces, and what is set up in them.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::sys::{Native, System};
use crate::{Class, Error, PacketCounts};

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace of its own, and a thread in it that does what it is told. Sockets and processes that
/// it makes are in that namespace for good. It vanishes with this value, unless something else is left in
/// it: a socket, a process, a device.
#[derive(Debug)]
pub struct Namespace {
    /// `None` once the thread is told to end.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The thread's folder under `/proc`.
    folder: PathBuf,
}

impl Namespace {
    /// Makes one. The calling thread needs the right to: see [`crate::enter_netns`], which is to be called before.
    ///
    /// # Errors
    ///
    /// [`Class::Unavailable`] where the system has no namespaces or does not allow them.
    pub fn new() -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (answer, entered) = mpsc::channel();
        let work = move || {
            let result = Native::enter_netns().map(|()| Native::folder_of_thread());
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

    /// Does something within the namespace, and waits for that.
    ///
    /// # Errors
    ///
    /// [`Class::Failed`] where it panicked, now or before.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let gone = || ended(io::ErrorKind::BrokenPipe.into());
        let (answer, done) = mpsc::channel();
        let job: Job = Box::new(move || {
            // Whoever asked waits for it.
            let _heard = answer.send(job());
        });
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        done.recv().map_err(|_| gone())
    }

    /// Joins the calling thread's network with this one by a pair of interfaces (veth), and sets both up. Packets
    /// pass when this returns. In the calling thread's network, the interface has no reverse path filter.
    ///
    /// # Errors
    ///
    /// [`Class::Unavailable`] if the kernel lacks veth or the IP version, or keeps settings read-only, else
    /// [`Class::Failed`].
    pub fn join(&self, near: &Interface, far: &Interface) -> Result<(), Error> {
        Native::join(near, far, self)
    }

    /// The thread's folder under `/proc`, by which other threads see the network.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file by which another process enters the namespace (`setns(2)`).
    pub fn path(&self) -> PathBuf {
        self.folder.join("ns/net")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It was told of a panic when it happened.
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
    /// Packets, and their bytes, as the program behind a TUN device sees them: it receives what the kernel transmits.
    pub packets: PacketCounts,
    /// Packets dropped both ways: those that the queue had no room for, and those that the kernel would not take.
    pub dropped: u64,
}

/// The counts of an interface in the network of the thread that was in this folder of `/proc`. `None` where the system
/// does not say.
pub fn interface_counts(thread: &Path, interface: &str) -> Option<InterfaceCounts> {
    Native::interface_counts(thread, interface)
}

/// The calling thread's folder under `/proc`, by which other threads see its network.
pub fn folder_of_thread() -> PathBuf {
    Native::folder_of_thread()
}

/// How an interface that is there is to be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Length of the prefix of its network, in bits.
    pub prefix_len: u8,
    /// An address beyond its network: packets to the network of that, of the same prefix, go out of the interface.
    pub route_to: Option<IpAddr>,
    /// Its MTU, in bytes.
    pub mtu: u16,
    /// How many packets may wait in it before the kernel drops (`txqueuelen`).
    pub tx_queue_len: u32,
}

impl Interface {
    /// Sets the interface and its link up, in the calling thread's network.
    ///
    /// # Errors
    ///
    /// [`Class::Unavailable`] where the kernel lacks the IP version, else [`Class::Failed`].
    pub fn set_up(&self) -> Result<(), Error> {
        Native::set_up(self)
    }
}

/// Sends all packets to a host out of an interface of the calling thread's network.
///
/// # Errors
///
/// [`Class::Failed`] if the interface does not exist or is down.
pub fn add_host_route(interface: &str, host: IpAddr) -> Result<(), Error> {
    Native::add_host_route(interface, host)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn joined_networks_reach_each_other_at_once() {
        for (here, there, prefix_len) in [("10.0.1.1", "10.0.2.1", 24), ("fd10:0:1::1", "fd10:0:2::1", 64)] {
            let (near, far) = match (Namespace::new(), Namespace::new()) {
                (Ok(near), Ok(far)) => (near, Arc::new(far)),
                (Err(error), _) | (_, Err(error)) => return println!("SKIP: {error}"),
            };
            let interface = |name: &str, address: &str, route_to: &str| Interface {
                name: name.to_owned(),
                address: address.parse().unwrap(),
                prefix_len,
                route_to: Some(route_to.parse().unwrap()),
                mtu: 1400,
                tx_queue_len: 1000,
            };
            let ends = (interface("to-far", here, there), interface("to-near", there, here));
            let (other, address) = (Arc::clone(&far), SocketAddr::new(ends.1.address, 0));
            near.run(move || other.join(&ends.0, &ends.1)).unwrap().unwrap();
            let listener = far.run(move || TcpListener::bind(address)).unwrap().unwrap();
            let target = listener.local_addr().unwrap();
            // The kernel sends a SYN that was lost again after a second.
            let connected = near.run(move || TcpStream::connect_timeout(&target, Duration::from_millis(900))).unwrap();
            assert_eq!(connected.unwrap().peer_addr().unwrap(), target);
            near.run(move || add_host_route("to-far", target.ip())).unwrap().unwrap();
        }
    }

    #[test]
    fn a_namespace_has_a_network_of_its_own_and_outlives_a_panic_by_an_error() {
        let namespace = match Namespace::new() {
            Ok(namespace) => namespace,
            Err(error) => {
                println!("SKIP: {error}");
                return;
            }
        };
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
