//! The promises of every stack, on every runtime, over a link in memory: without a device or root. Each test runs over
//! a plain link and over one that offloads.

mod datagrams;
mod endings;
mod faults;
mod peer;
mod streams;
mod wire;

use std::net::SocketAddr;
use std::panic::{catch_unwind, resume_unwind};
use std::time::Duration;

use netstacks::{Netstack, StackConfig, Started};
use platform::{Link, MemoryLink};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::runtime::{Builder, Runtime};

use self::peer::Peer;
use crate::take_turns;

const MTU: usize = 1500;
const WINDOW: usize = 256 << 10;

/// Limit of every test. None takes as long.
const DEADLINE: Duration = Duration::from_mins(1);

const SERVER_V4: &str = "10.0.0.2:5201";
const SERVER_V6: &str = "[fd00::2]:5201";

/// The runtime and the link of a test.
#[derive(Clone, Copy)]
struct Flavour {
    threads: Threads,
    /// Whether the link takes super-packets and partial checksums.
    offloading: bool,
}

#[derive(Clone, Copy)]
enum Threads {
    Current,
    Multi,
}

fn runtime(flavour: Flavour) -> Runtime {
    match flavour.threads {
        Threads::Current => Builder::new_current_thread().enable_all().build().unwrap(),
        Threads::Multi => Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    }
}

/// Returns the stack's end of a link, and the peer's end.
fn link(flavour: Flavour) -> (MemoryLink, MemoryLink) {
    let pair = if flavour.offloading { MemoryLink::offloading_pair } else { MemoryLink::pair };
    pair(MTU, MemoryLink::DEFAULT_DEPTH)
}

fn config() -> StackConfig {
    StackConfig { window: WINDOW, user_timeout: Duration::from_secs(20), ..StackConfig::default() }
}

/// Stacks that lend neither received bytes nor room: their adapters leave it out.
const DO_NOT_LEND: [&str; 3] = ["Ipstack", "TcpIp", "NetstackSmoltcp"];

/// Whether the stack lends received bytes and room for bytes to send.
fn lends<S: 'static>() -> bool {
    !DO_NOT_LEND.contains(&name_of::<S>())
}

/// The name of the stack's type.
fn name_of<S: 'static>() -> &'static str {
    std::any::type_name::<S>().rsplit("::").next().unwrap()
}

/// Runs `client` on a thread against `server` on a runtime with the stack `S`. Both must end.
fn run<S: Netstack<MemoryLink>>(
    flavour: Flavour,
    config: &StackConfig,
    server: impl AsyncFnOnce(S::Listener),
    client: impl FnOnce(&Peer) + Send + 'static,
) {
    let (link, other_end) = link(flavour);
    run_over::<MemoryLink, S>(flavour, link, other_end, config, server, client);
}

/// The same over this link.
fn run_over<L: Link, S: Netstack<L>>(
    flavour: Flavour,
    link: L,
    other_end: MemoryLink,
    config: &StackConfig,
    server: impl AsyncFnOnce(S::Listener),
    client: impl FnOnce(&Peer) + Send + 'static,
) {
    let server = async |listener, datagrams| {
        drop(datagrams);
        server(listener).await;
    };
    run_whole::<L, S>(flavour, link, other_end, config, server, client);
}

/// The same with a server that also gets the datagrams.
fn run_whole<L: Link, S: Netstack<L>>(
    flavour: Flavour,
    link: L,
    other_end: MemoryLink,
    config: &StackConfig,
    server: impl AsyncFnOnce(S::Listener, S::Datagrams),
    client: impl FnOnce(&Peer) + Send + 'static,
) {
    let _turn = take_turns::<S>();
    runtime(flavour).block_on(async {
        let Started { listener, datagrams, driver, .. } = S::start(link, config).unwrap();
        let driver = tokio::spawn(driver);
        let (done, client_done) = tokio::sync::oneshot::channel();
        let client = std::thread::spawn(move || {
            let peer = Peer::new(other_end);
            client(&peer);
            // The peer stays until the server is done too: both sides take part in closing a connection.
            let _gone = done.send(peer);
        });
        let both = async {
            server(listener, datagrams).await;
            client_done.await
        };
        tokio::select! {
            result = driver => panic!("the driver ended first: {result:?}"),
            both = tokio::time::timeout(DEADLINE, both) => drop(both.expect("the test hangs")),
        }
        client.join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Returns the address that the peer connects to: IPv4 on one runtime, IPv6 on the other, so every test covers both.
/// Their headers differ in length, and a stack may make super-packets differently.
fn server_addr(flavour: Flavour) -> SocketAddr {
    match flavour.threads {
        Threads::Current => SERVER_V4,
        Threads::Multi => SERVER_V6,
    }
    .parse()
    .unwrap()
}

/// Returns pseudo-random bytes, so that a shift, loss or repetition is always found.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

fn assert_same(got: &[u8], expected: &[u8]) {
    if got != expected {
        let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
        panic!("{} bytes came, {} were sent, and byte {at} differs", got.len(), expected.len());
    }
}

/// Reads the bytes of a pattern.
async fn expect(stream: &mut (impl AsyncRead + Unpin), seed: u64, len: usize) {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_same(&bytes, &pattern(seed, len));
}

/// Tests that a stack fails: its type, the test, whether it fails only with super-packets, and the reason. The adapters do
/// not work around these.
const KNOWN_FAILURES: &[(&str, &str, bool, &str)] = &[
    ("Ipstack", "a_peer_that_stops_for_a_while", true, "it sends beyond the peer's window"),
    ("Ipstack", "a_peer_that_vanishes", false, "it looks at its retransmission timers only when a packet comes"),
    ("Ipstack", "packets_are_lost", false, "it looks at its retransmission timers only when a packet comes"),
    // These fail sometimes: the last segment beyond the peer's window is lost, and never comes again.
    ("Ipstack", "bulk_both_ways_at_once", true, "it sends beyond the peer's window"),
    ("Ipstack", "twenty_at_once", false, "it sends beyond the peer's window"),
    ("Ipstack", "nothing_goes_wrong", true, "it sends beyond the peer's window"),
    ("Ipstack", "room_is_denied", false, "it sends beyond the peer's window"),
    ("Ipstack", "room_is_lent", true, "it sends beyond the peer's window"),
    ("Ipstack", "answers_from_another_address", false, "it sends datagrams only where one has come from"),
    ("Ipstack", "a_full_link", false, "it sends datagrams only where one has come from"),
    ("TcpIp", "a_flood_that_nobody_reads", false, "it takes no packet while nobody reads its datagrams"),
    ("TcpIp", "a_link_that_closes", false, "a task that writes gets another error"),
    ("TcpIp", "a_peer_that_stops_for_a_while", false, "a write of a stream takes nothing once its buffer is full"),
    ("TcpIp", "a_peer_that_vanishes", false, "it queues writes without a limit"),
    ("TcpIp", "a_reader_that_stops_for_a_while", false, "it takes more than its window"),
    ("TcpIp", "a_slow_reader_after_both_have_closed", false, "a write after the end has another error"),
    ("TcpIp", "answers_from_another_address", false, "it refuses to send empty datagrams"),
    ("TcpIp", "reset_wakes_a_parked_reader", false, "a stream ends after a RST as if by a FIN"),
    ("TcpIp", "reset_wakes_a_parked_writer", false, "a writer learns nothing of a RST"),
    ("NetstackSmoltcp", "a_device_that_fails", false, "its tasks wait for ever once the link has failed"),
    ("NetstackSmoltcp", "a_link_that_closes", false, "its tasks wait for ever once the link has failed"),
    ("NetstackSmoltcp", "a_peer_that_stops_for_a_while", false, "its buffers are larger than the configured ones"),
    ("NetstackSmoltcp", "a_peer_that_vanishes", false, "it gives up after two hours only"),
    ("NetstackSmoltcp", "a_reader_that_stops_for_a_while", false, "its buffers are larger than the configured ones"),
    ("NetstackSmoltcp", "answers_from_another_address", false, "it drops empty datagrams"),
    ("NetstackSmoltcp", "bulk_both_ways_at_once", true, "smoltcp 0.12 panics at some sequence numbers, sometimes"),
    ("NetstackSmoltcp", "datagrams_of_every_length", false, "it drops empty datagrams"),
    ("NetstackSmoltcp", "reset_wakes_a_parked_reader", false, "a stream ends after a RST as if by a FIN"),
    ("NetstackSmoltcp", "reset_wakes_a_parked_writer", false, "a writer gets another error after a RST"),
];

/// Returns the reason of a known failure.
fn known_failure<S: 'static>(test: &str, flavour: Flavour) -> Option<&'static str> {
    let is_this = |(stack, name, offloading, _): &&(&str, &str, bool, &str)| {
        *stack == name_of::<S>() && *name == test && (flavour.offloading || !offloading)
    };
    KNOWN_FAILURES.iter().find(is_this).map(|(_, _, _, reason)| *reason)
}

/// smoltcp 0.12, on which netstack-smoltcp is, chooses its sequence numbers by chance, so this may end any test.
const KNOWN_PANIC: (&str, &str, &str) = (
    "NetstackSmoltcp",
    "attempt to subtract sequence numbers with underflow",
    "smoltcp 0.12 panics at some sequence numbers, sometimes",
);

/// Runs a test, unless it is known to fail. Then, or if it panics as it is known to, this returns the reason.
fn run_unless_known<S: 'static>(name: &str, flavour: Flavour, test: fn(Flavour)) -> Option<&'static str> {
    if let Some(reason) = known_failure::<S>(name, flavour) {
        return Some(reason);
    }
    let panic = catch_unwind(|| test(flavour)).err()?;
    let (stack, words, reason) = KNOWN_PANIC;
    if name_of::<S>() == stack && panic.downcast_ref::<String>().is_some_and(|message| message.contains(words)) {
        return Some(reason);
    }
    resume_unwind(panic)
}

macro_rules! contract {
    ($($subject:ident: $($test:ident)*;)*) => {
        contract!(@stack lwip, "lwip", Lwip, $($subject: $($test)*;)*);
        contract!(@stack ipstack, "ipstack", Ipstack, $($subject: $($test)*;)*);
        contract!(@stack smoltcp, "smoltcp", Smoltcp, $($subject: $($test)*;)*);
        contract!(@stack tcp_ip, "tcp_ip", TcpIp, $($subject: $($test)*;)*);
        contract!(@stack netstack_smoltcp, "netstack-smoltcp", NetstackSmoltcp, $($subject: $($test)*;)*);
    };
    (@stack $module:ident, $feature:literal, $stack:ident, $($rest:tt)*) => {
        #[cfg(feature = $feature)]
        mod $module {
            mod plain {
                contract!(@threads $stack, false, $($rest)*);
            }
            mod offloading {
                contract!(@threads $stack, true, $($rest)*);
            }
        }
    };
    (@threads $stack:ident, $offloading:literal, $($rest:tt)*) => {
        mod current_thread {
            contract!(@tests $stack, Current, $offloading, $($rest)*);
        }
        mod multi_thread {
            contract!(@tests $stack, Multi, $offloading, $($rest)*);
        }
    };
    (@tests $stack:ident, $threads:ident, $offloading:literal, $($subject:ident: $($test:ident)*;)*) => {
        $($(
            #[test]
            fn $test() {
                let flavour = crate::contract::Flavour { threads: crate::contract::Threads::$threads, offloading: $offloading };
                let test = crate::contract::$subject::$test::<netstacks::$stack>;
                if let Some(reason) = crate::contract::run_unless_known::<netstacks::$stack>(stringify!($test), flavour, test) {
                    let line = format_args!("SKIP {}: {reason}\n", module_path!());
                    let _closed = std::io::Write::write_fmt(&mut std::io::stderr(), line);
                }
            }
        )*)*
    };
}

contract! {
    streams:
        echo
        echo_without_workarounds
        a_slow_reader_after_both_have_closed
        received_bytes_are_lent
        room_is_lent
        bulk_both_ways_at_once
        twenty_at_once
        a_reader_that_stops_for_a_while
        a_peer_that_stops_for_a_while;
    endings:
        reset_wakes_a_parked_reader
        reset_wakes_a_parked_writer
        a_peer_that_vanishes
        a_link_that_closes;
    datagrams:
        datagrams_of_every_length
        many_flows_of_datagrams_at_once
        more_flows_than_are_kept
        answers_from_another_address
        a_flood_that_nobody_reads
        a_flood_that_nobody_wants
        a_full_link;
    faults:
        nothing_goes_wrong
        packets_are_lost
        room_is_denied
        a_device_that_fails
        a_trace_is_written;
}
