//! Several instances of a stack as one, over links in memory: how they fail, and how flows are spread. What they carry is in
//! the scorecard's `smoltcp_in_two_shards`, and for each stack in the runs over a device.

use std::io;
use std::iter;
use std::net::SocketAddr;
use std::time::Duration;

use netstacks::{Datagrams, FlowKey, Listener, Netstack, Spread, StackConfig, Started, sharded};
use platform::{Link, MemoryLink};
use tokio::runtime::Builder;
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
    ($($feature:literal $module:ident $stack:ident)+) => {$(
        #[cfg(feature = $feature)]
        mod $module {
            use netstacks::$stack;

            #[test]
            fn all_learn_that_an_instance_has_failed() {
                super::all_learn_that_an_instance_has_failed::<$stack>();
            }
        }
    )+};
}

of_stacks! {
    "smoltcp" smoltcp Smoltcp
    "ipstack" ipstack Ipstack
    "tcp_ip" tcp_ip TcpIp
    "netstack-smoltcp" netstack_smoltcp NetstackSmoltcp
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
    let half = ports(&spread, 2)[0].len();
    assert!((PORTS.len() / 4..=3 * PORTS.len() / 4).contains(&half), "{half} of 200");
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
