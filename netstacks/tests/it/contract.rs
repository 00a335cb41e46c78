//! The promises of the interface, of every stack, on every runtime, over a link in memory: without a device or root. Each
//! test runs over a plain link and over one that offloads. What the RFCs ask of a stack is in the cases of `conformance`.

mod datagrams;
mod faults;
mod streams;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::panic::{catch_unwind, resume_unwind};
use std::time::Duration;

use netstacks::peer::{Client, Peers};
use netstacks::{Netstack, StackConfig, Started};
use platform::{Link, MemoryLink};
use tokio::runtime::{Builder, Runtime};

use crate::take_turns;

const MTU: usize = 1500;
const WINDOW: usize = 256 << 10;

/// Limits of every test, and of each step of its client. None takes as long.
const DEADLINE: Duration = Duration::from_mins(1);
const PATIENCE: Duration = Duration::from_secs(30);

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

/// Runs `client` on a thread, at the other end of the link, against `server` on a runtime with the stack `S`. Both must end.
fn run<L: Link, S: Netstack<L>, T: Send + 'static>(
    flavour: Flavour,
    link: L,
    config: &StackConfig,
    server: impl AsyncFnOnce(S::Listener, S::Datagrams),
    client: impl FnOnce() -> T + Send + 'static,
) {
    let _turn = take_turns::<S>();
    runtime(flavour).block_on(async {
        let Started { listener, datagrams, driver, .. } = S::start(link, config).unwrap();
        let driver = tokio::spawn(driver);
        // The client returns its link, which stays until the server is done too: both take part in closing a connection.
        let client = async {
            tokio::task::spawn_blocking(client).await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
        };
        let both = async { tokio::join!(server(listener, datagrams), client) };
        tokio::select! {
            result = driver => panic!("the driver ended first: {result:?}"),
            both = tokio::time::timeout(DEADLINE, both) => drop(both.expect("the test hangs")),
        }
    });
}

/// The same with a client that has one connection. Once it is done, it closes, and the server must close too.
fn run_streams<S: Netstack<MemoryLink>>(
    flavour: Flavour,
    config: &StackConfig,
    server: impl AsyncFnOnce(S::Listener),
    client: impl FnOnce(&mut Client<MemoryLink>) + Send + 'static,
) {
    let (link, other_end) = link(flavour);
    let server = async |listener, datagrams| {
        drop(datagrams);
        server(listener).await;
    };
    run::<MemoryLink, S, _>(flavour, link, config, server, move || {
        let mut connection = connect(flavour, other_end);
        client(&mut connection);
        finish(connection)
    });
}

fn connect(flavour: Flavour, link: MemoryLink) -> Client<MemoryLink> {
    let [local, server] = addresses(flavour);
    Client::connect(link, local.ip(), server, PATIENCE).unwrap()
}

/// Closes a connection. The other side has to close it too, and to send nothing before.
fn finish(mut client: Client<MemoryLink>) -> Client<MemoryLink> {
    client.shutdown_write().unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    client.flush().unwrap();
    client
}

/// Returns the addresses of the client and of the server: IPv4 on one runtime, IPv6 on the other, so every test covers both.
/// Their headers differ in length, and a stack may make super-packets differently.
fn addresses(flavour: Flavour) -> [SocketAddr; 2] {
    match flavour.threads {
        Threads::Current => ["10.0.0.1:0", "10.0.0.2:5201"],
        Threads::Multi => ["[fd00::1]:0", "[fd00::2]:5201"],
    }
    .map(|address| address.parse().unwrap())
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

/// Reads these bytes.
fn expect(client: &mut impl Read, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    client.read_exact(&mut bytes).unwrap();
    assert_same(&bytes, expected);
}

/// Sends bytes on slot 0, and receives these at the same time.
fn exchange(peers: &mut Peers<MemoryLink>, bytes: &[u8], expected: &[u8]) {
    let done = |result: io::Result<usize>| match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        result => result.unwrap(),
    };
    let (mut sent, mut got, mut received) = (0, 0, vec![0; expected.len()]);
    while sent < bytes.len() || got < received.len() {
        sent += done(peers.write(0, &bytes[sent..]));
        got += done(peers.read(0, &mut received[got..]));
        peers.wait(Duration::from_millis(5), &mut Vec::new()).unwrap();
    }
    assert_same(&received, expected);
}

/// Tests that a stack fails: its type, the test, whether it fails only with super-packets, and the reason. The adapters do
/// not work around these.
const KNOWN_FAILURES: &[(&str, &str, bool, &str)] = &[
    ("Ipstack", "answers_from_another_address", false, "it sends datagrams only where one has come from"),
    ("Ipstack", "a_full_link", false, "it sends datagrams only where one has come from"),
    ("Ipstack", "room_is_denied", false, "sometimes, on a busy machine, no more bytes come"),
    ("TcpIp", "answers_from_another_address", false, "it refuses to send empty datagrams"),
    ("TcpIp", "a_link_that_closes", false, "a task that writes gets another error"),
    ("NetstackSmoltcp", "a_device_that_fails", false, "its tasks wait for ever once the link has failed"),
    ("NetstackSmoltcp", "a_link_that_closes", false, "its tasks wait for ever once the link has failed"),
    ("NetstackSmoltcp", "answers_from_another_address", false, "it drops empty datagrams"),
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
        received_bytes_are_lent
        room_is_lent
        bulk_both_ways_at_once;
    datagrams:
        answers_from_another_address
        a_flood_that_nobody_wants
        a_full_link;
    faults:
        room_is_denied
        a_device_that_fails
        a_link_that_closes;
}
