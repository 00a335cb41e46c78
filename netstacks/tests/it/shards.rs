//! Several instances of a stack as one, over links in memory.

use std::io;
use std::iter;
use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use netstacks::peer::Peers;
use netstacks::{Datagrams, FlowKey, Listener, Netstack, Spread, StackConfig, Started, sharded};
use platform::{Link, MemoryLink};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The crate ipstack hides a panic of its tasks.
#[cfg(any(feature = "smoltcp", feature = "tcp_ip", feature = "netstack-smoltcp"))]
mod panics;

const SERVER: &str = "10.0.0.2:5201";
const PORTS: std::ops::Range<u16> = 4000..4200;

/// Limit of every test. None takes as long.
const DEADLINE: Duration = Duration::from_mins(1);

/// The links of so many shards, and their other ends.
fn links(shards: usize) -> (MemoryLink, Vec<MemoryLink>, Vec<MemoryLink>) {
    let pairs = iter::repeat_with(|| MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH));
    let (mut links, other_ends): (Vec<_>, Vec<_>) = pairs.take(shards).unzip();
    (links.remove(0), links, other_ends)
}

/// The ends of the flow from a port.
fn key(port: u16) -> FlowKey {
    FlowKey { local: SERVER.parse().unwrap(), peer: ([10, 0, 0, 1], port).into() }
}

/// The ports of each shard.
fn ports(spread: &Spread, shards: usize) -> Vec<Vec<u16>> {
    let of = |shard| PORTS.filter(|port| spread.shard(key(*port), shards) == shard).collect();
    (0..shards).map(of).collect()
}

/// Sends each connection's bytes back, and closes it behind them. Returns after so many.
async fn echo(mut listener: impl Listener, count: usize) {
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let stream = listener.accept().await.unwrap();
        tasks.spawn(async {
            let (mut reader, mut writer) = tokio::io::split(stream);
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
    }
    tasks.join_all().await;
}

/// A connection of [`exchange`].
#[derive(Default)]
struct Exchange {
    is_open: bool,
    sent: usize,
    echoed: Vec<u8>,
    is_over: bool,
}

impl Exchange {
    /// Writes and reads until that would block.
    fn turn(&mut self, peers: &mut Peers<MemoryLink>, slot: usize, bytes: &[u8]) -> io::Result<()> {
        while self.sent < bytes.len() {
            self.sent += peers.write(slot, &bytes[self.sent..])?;
            if self.sent == bytes.len() {
                peers.end_writing(slot);
            }
        }
        let mut buffer = [0; 4096];
        while !self.is_over {
            let len = peers.read(slot, &mut buffer)?;
            self.echoed.extend_from_slice(&buffer[..len]);
            self.is_over = len == 0;
        }
        Ok(())
    }
}

/// Sends bytes from each port, so many at once, and checks that they come back and that the connections end behind them.
/// Returns the client, because a stack fails when the other end of its link is dropped.
fn exchange(end: MemoryLink, ports: &[u16], at_once: usize) -> Peers<MemoryLink> {
    let mut peers = Peers::new(end, [10, 0, 0, 1].into());
    for ports in ports.chunks(at_once) {
        let of = |port: u16| (0..10_000_u32).map(|at| (at.wrapping_mul(31) + u32::from(port)) as u8).collect();
        let bytes: Vec<Vec<u8>> = ports.iter().map(|port| of(*port)).collect();
        let mut exchanges: Vec<_> = ports.iter().map(|_| Exchange::default()).collect();
        for (slot, port) in ports.iter().enumerate() {
            peers.connect_from(slot, *port, SERVER.parse().unwrap()).unwrap();
        }
        let (begin, mut ready) = (Instant::now(), Vec::new());
        while !exchanges.iter().all(|exchange| exchange.is_over) {
            assert!(begin.elapsed() < DEADLINE, "a connection hangs");
            peers.wait(Duration::from_millis(1), &mut ready).unwrap();
            for (slot, exchange) in exchanges.iter_mut().enumerate() {
                // The next wait acknowledges the SYN-ACK: tcp_ip ignores data that comes with this.
                if !mem::replace(&mut exchange.is_open, peers.is_connected(slot)) {
                    continue;
                }
                match exchange.turn(&mut peers, slot, &bytes[slot]) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("port {}: {error}", ports[slot]),
                    _ => {}
                }
            }
        }
        for (slot, exchange) in exchanges.iter().enumerate() {
            assert!(exchange.echoed == bytes[slot], "port {}", ports[slot]);
            peers.close(slot);
        }
    }
    peers
}

fn every_byte_of_every_shard_arrives<S: Netstack<MemoryLink>>(shards: usize, at_once: usize) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (spread, (first, others, other_ends)) = (Spread::default(), links(shards));
        let config = StackConfig { window: 64 << 10, ..StackConfig::default() };
        let Started { listener, driver, .. } = sharded::<S, _>(&spread, first, others, &config).unwrap();
        let driver = tokio::spawn(driver);
        let mut clients = JoinSet::new();
        for (ports, end) in ports(&spread, shards).into_iter().zip(other_ends) {
            if shards == 2 {
                assert!((PORTS.len() / 4..=3 * PORTS.len() / 4).contains(&ports.len()), "{} of 200", ports.len());
            }
            clients.spawn_blocking(move || exchange(end, &ports, at_once));
        }
        let all = async { tokio::join!(echo(listener, PORTS.len()), clients.join_all()).1 };
        tokio::select! {
            result = driver => panic!("the driver ended first: {result:?}"),
            ended = timeout(DEADLINE, all) => drop(ended.unwrap()),
        }
    });
}

fn datagrams_are_answered_over_their_own_links<S: Netstack<MemoryLink>>(shards: usize) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (spread, (first, others, other_ends)) = (Spread::default(), links(shards));
    let started = runtime.block_on(async { sharded::<S, _>(&spread, first, others, &StackConfig::default()).unwrap() });
    runtime.spawn(started.driver);
    let datagrams = started.datagrams;
    runtime.spawn(async move {
        let mut buffer = [0; 1500];
        loop {
            let got = datagrams.recv(&mut buffer).await.unwrap();
            let _lost = datagrams.try_send(got.local, got.peer, &buffer[..got.len]);
        }
    });
    let mut clients: Vec<_> = other_ends.into_iter().map(|end| Peers::new(end, [10, 0, 0, 1].into())).collect();
    for (ports, peers) in ports(&spread, shards).iter().zip(&mut clients) {
        for port in ports {
            let (mut ready, mut buffer) = (Vec::new(), [0; 1500]);
            // A datagram may be lost: a task may find its queue full for a moment.
            let answer = (0..1000).find_map(|_| {
                peers.send_datagram(*port, SERVER.parse().unwrap(), &port.to_be_bytes()).unwrap();
                peers.wait(Duration::from_millis(60), &mut ready).unwrap();
                peers.receive_datagram(&mut buffer).filter(|answer| answer.local.port() == *port)
            });
            let answer = answer.expect("a datagram is not answered");
            assert_eq!((answer.local.port(), &buffer[..answer.len]), (*port, &port.to_be_bytes()[..]));
        }
    }
}

/// Runs two instances over these links. Returns the end of the driver, and checks that the listener and two receivers fail.
fn fails<S: Netstack<L>, L: Link>([first, second]: [L; 2]) -> Result<io::Result<()>, tokio::task::JoinError> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let spread = Spread::default();
        let started = sharded::<S, _>(&spread, first, vec![second], &StackConfig::default()).unwrap();
        let Started { mut listener, datagrams, driver, .. } = started;
        let driver = tokio::spawn(driver);
        let (mut buffer, mut other) = ([0; 1500], [0; 1500]);
        let all = async { tokio::join!(listener.accept(), datagrams.recv(&mut buffer), datagrams.recv(&mut other)) };
        let (accepted, received, other) =
            timeout(DEADLINE, all).await.expect("somebody waits for a stack that has failed");
        assert!(accepted.is_err() && received.is_err() && other.is_err());
        timeout(DEADLINE, driver).await.unwrap()
    })
}

fn all_learn_that_an_instance_has_failed<S: Netstack<MemoryLink>>() {
    let (first, mut others, mut other_ends) = links(2);
    other_ends.truncate(1);
    fails::<S, _>([first, others.remove(0)]).unwrap().unwrap_err();
}

macro_rules! of_stacks {
    ($($feature:literal $module:ident $stack:ident $at_once:literal)+) => {$(
        #[cfg(feature = $feature)]
        mod $module {
            use netstacks::$stack;

            #[test]
            fn every_byte_of_every_shard_arrives() {
                (1..=3).for_each(|shards| super::every_byte_of_every_shard_arrives::<$stack>(shards, $at_once));
            }

            #[test]
            fn datagrams_are_answered_over_their_own_links() {
                (1..=3).for_each(super::datagrams_are_answered_over_their_own_links::<$stack>);
            }

            #[test]
            fn all_learn_that_an_instance_has_failed() {
                super::all_learn_that_an_instance_has_failed::<$stack>();
            }
        }
    )+};
}

of_stacks! {
    "smoltcp" smoltcp Smoltcp 200
    "ipstack" ipstack Ipstack 200
    // It stalls if bytes come before it has accepted their connection.
    "tcp_ip" tcp_ip TcpIp 1
    "netstack-smoltcp" netstack_smoltcp NetstackSmoltcp 200
}

#[test]
fn a_flow_has_one_shard_in_both_directions_and_for_each_key_another() {
    let addresses: Vec<SocketAddr> = vec![SERVER.parse().unwrap(), "[fd00::1]:4000".parse().unwrap()];
    let spread = Spread::default();
    for (local, peer) in PORTS.map(|port| (addresses[usize::from(port % 2)], key(port).peer)) {
        let there = spread.shard(FlowKey { local, peer }, 5);
        assert!(there < 5 && there == spread.shard(FlowKey { local: peer, peer: local }, 5));
    }
    assert_ne!(ports(&spread, 2), ports(&Spread::default(), 2));
}

/// lwIP keeps its state in globals.
#[cfg(feature = "lwip")]
#[test]
fn lwip_has_one_instance() {
    use netstacks::{Lwip, StartError};

    let _turn = crate::take_turns::<Lwip>();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let (first, others, _other_ends) = links(2);
    let refused = sharded::<Lwip, _>(&Spread::default(), first, others, &StackConfig::default());
    assert!(matches!(refused, Err(StartError::AlreadyRunning(_))));
}
