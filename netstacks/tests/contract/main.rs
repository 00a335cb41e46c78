//! What every stack promises, on every runtime, over a link in memory: no device, no root.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "tests may panic")]
#![cfg(any(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]

mod peer;

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use netstacks::{Listener, Netstack, StackConfig, Started, Stream};
use platform::MemoryLink;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use crate::peer::{BUFFER, Peer};

const MTU: usize = 1500;
const WINDOW: usize = 256 << 10;

/// No test takes so long.
const DEADLINE: Duration = Duration::from_mins(1);

const SERVER: &str = "10.0.0.2:5201";

#[derive(Clone, Copy)]
enum Flavour {
    CurrentThread,
    MultiThread,
}

fn runtime(flavour: Flavour) -> Runtime {
    match flavour {
        Flavour::CurrentThread => Builder::new_current_thread().enable_all().build().unwrap(),
        Flavour::MultiThread => Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    }
}

fn config() -> StackConfig {
    StackConfig { window: WINDOW, user_timeout: Duration::from_secs(20), ..StackConfig::default() }
}

/// lwIP runs once in a process, so its tests take turns.
fn take_turns() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `client` on a thread against `server` on a runtime with the stack `S`; both have to end.
fn run<S: Netstack<MemoryLink>>(
    flavour: Flavour,
    config: &StackConfig,
    server: impl AsyncFnOnce(S::Listener),
    client: impl FnOnce(&Peer) + Send + 'static,
) {
    let _turn = take_turns();
    let (link, other_end) = MemoryLink::pair(MTU, MemoryLink::DEFAULT_DEPTH);
    runtime(flavour).block_on(async {
        let Started { listener, driver, .. } = S::start(link, config).unwrap();
        let driver = tokio::spawn(driver);
        let (done, client_done) = tokio::sync::oneshot::channel();
        let client = std::thread::spawn(move || {
            let peer = Peer::new(other_end);
            client(&peer);
            // The peer stays until the server is done too: closing takes two.
            let _gone = done.send(peer);
        });
        let both = async {
            server(listener).await;
            client_done.await
        };
        tokio::select! {
            result = driver => panic!("the driver ended first: {result:?}"),
            both = tokio::time::timeout(DEADLINE, both) => drop(both.expect("the test hangs")),
        }
        client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn server_addr() -> SocketAddr {
    SERVER.parse().unwrap()
}

/// Bytes that tell their position: no shift, loss or repetition goes unseen.
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

fn connect<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = mpsc::channel();
    run::<S>(
        flavour,
        &config(),
        async move |mut listener| {
            let stream = listener.accept().await.unwrap();
            assert_eq!(stream.local_addr(), server_addr());
            assert_eq!(stream.peer_addr(), told.recv().unwrap());
        },
        move |peer| tell.send(peer.connect(server_addr()).local).unwrap(),
    );
}

fn echo<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let bytes = pattern(1, 100_000);
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let mut buffer = vec![0; 7_000];
            loop {
                match stream.read(&mut buffer).await.unwrap() {
                    0 => break,
                    len => stream.write_all(&buffer[..len]).await.unwrap(),
                }
            }
            stream.shutdown().await.unwrap();
        },
        move |peer| {
            let stream = peer.connect(server_addr());
            for chunk in bytes.chunks(999) {
                stream.write_all(chunk);
                let mut back = vec![0; chunk.len()];
                stream.read_exact(&mut back);
                assert_same(&back, chunk);
            }
            stream.finish();
            assert_eq!(stream.read(&mut [0; 1]), 0);
        },
    );
}

/// The peer closes its half first and still gets its answer.
fn half_close_by_the_peer<S: Netstack<MemoryLink>>(flavour: Flavour) {
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let mut request = Vec::new();
            stream.read_to_end(&mut request).await.unwrap();
            assert_same(&request, &pattern(2, 30_000));
            assert_eq!(stream.read(&mut [0; 10]).await.unwrap(), 0, "the end stays the end");
            stream.write_all(&pattern(3, 300_000)).await.unwrap();
            stream.shutdown().await.unwrap();
        },
        |peer| {
            let stream = peer.connect(server_addr());
            stream.write_all(&pattern(2, 30_000));
            stream.finish();
            assert_same(&stream.read_to_end(), &pattern(3, 300_000));
        },
    );
}

/// The stack closes its half first and still hears the rest.
fn half_close_by_the_stack<S: Netstack<MemoryLink>>(flavour: Flavour) {
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(&pattern(4, 20_000)).await.unwrap();
            stream.shutdown().await.unwrap();
            let error = stream.write(b"more").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.unwrap();
            assert_same(&rest, &pattern(5, 200_000));
        },
        |peer| {
            let stream = peer.connect(server_addr());
            assert_same(&stream.read_to_end(), &pattern(4, 20_000));
            stream.write_all(&pattern(5, 200_000));
            stream.finish();
        },
    );
}

fn reset_wakes_a_parked_reader<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = mpsc::channel();
    run::<S>(
        flavour,
        &config(),
        async move |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            let mut buffer = [0; 10];
            let read = stream.read(&mut buffer);
            tell.send(()).unwrap();
            assert_eq!(read.await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(stream.write(b"x").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        },
        move |peer| {
            let stream = peer.connect(server_addr());
            stream.read_exact(&mut [0; 5]);
            told.recv().unwrap();
            stream.reset();
        },
    );
}

/// Our half is closed already.
fn reset_after_our_fin<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = mpsc::channel();
    run::<S>(
        flavour,
        &config(),
        async move |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            stream.shutdown().await.unwrap();
            tell.send(()).unwrap();
            let error = stream.read(&mut [0; 10]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        },
        move |peer| {
            let stream = peer.connect(server_addr());
            assert_eq!(stream.read(&mut [0; 1]), 0);
            told.recv().unwrap();
            stream.reset();
        },
    );
}

/// Nobody reads any more what the peer goes on sending, and it is told.
fn a_stream_dropped_while_the_peer_sends<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = tokio::sync::oneshot::channel();
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 1]).await.unwrap();
            drop(stream);
            told.await.unwrap();
        },
        |peer| {
            peer.connect(server_addr()).write_until_reset(&pattern(13, 10_000));
            tell.send(()).unwrap();
        },
    );
}

fn reset_wakes_a_parked_writer<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = tokio::sync::oneshot::channel();
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let bytes = pattern(6, 4 << 20);
            let mut tell = Some(tell);
            let error = loop {
                match tokio::time::timeout(Duration::from_millis(300), stream.write_all(&bytes)).await {
                    Ok(result) => break result.unwrap_err(),
                    // Parked: the peer reads nothing.
                    Err(_) => drop(tell.take().map(|tell| tell.send(()))),
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        },
        |peer| {
            let stream = peer.connect(server_addr());
            told.blocking_recv().unwrap();
            stream.reset();
        },
    );
}

fn bulk_both_ways_at_once<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 8 << 20;
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let (mut reader, mut writer) = tokio::io::split(listener.accept().await.unwrap());
            let receive = async {
                let mut bytes = vec![0; LEN];
                reader.read_exact(&mut bytes).await.unwrap();
                assert_same(&bytes, &pattern(7, LEN));
            };
            let send = async { writer.write_all(&pattern(8, LEN)).await.unwrap() };
            tokio::join!(receive, send);
        },
        |peer| {
            let stream = peer.connect(server_addr());
            std::thread::scope(|scope| {
                scope.spawn(|| stream.write_all(&pattern(7, LEN)));
                let mut bytes = vec![0; LEN];
                stream.read_exact(&mut bytes);
                assert_same(&bytes, &pattern(8, LEN));
            });
        },
    );
}

fn one_after_another<S: Netstack<MemoryLink>>(flavour: Flavour) {
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            for round in 0..100 {
                let mut stream = listener.accept().await.unwrap();
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).await.unwrap();
                assert_same(&bytes, &pattern(round, 2_000));
                stream.write_all(&bytes).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        },
        |peer| {
            for round in 0..100 {
                let stream = peer.connect(server_addr());
                stream.write_all(&pattern(round, 2_000));
                stream.finish();
                assert_same(&stream.read_to_end(), &pattern(round, 2_000));
            }
        },
    );
}

fn twenty_at_once<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 200_000;
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..20 {
                let mut stream = listener.accept().await.unwrap();
                tasks.spawn(async move {
                    let seed = u64::from(stream.local_addr().port());
                    let mut bytes = vec![0; LEN];
                    stream.read_exact(&mut bytes).await.unwrap();
                    assert_same(&bytes, &pattern(seed, LEN));
                    stream.write_all(&pattern(seed + 1, LEN)).await.unwrap();
                    stream.shutdown().await.unwrap();
                    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
                });
            }
            while let Some(result) = tasks.join_next().await {
                result.unwrap();
            }
        },
        |peer| {
            std::thread::scope(|scope| {
                for port in 1_000..1_020 {
                    scope.spawn(move || {
                        let stream = peer.connect(SocketAddr::from(([10, 0, 0, 2], port)));
                        stream.write_all(&pattern(port.into(), LEN));
                        assert_same(&stream.read_to_end(), &pattern(u64::from(port) + 1, LEN));
                        stream.finish();
                    });
                }
            });
        },
    );
}

fn any_address_and_port<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const DESTINATIONS: [&str; 7] = [
        "10.0.0.2:1",
        "1.1.1.1:53",
        "93.184.215.14:443",
        "10.0.0.2:65535",
        "[fd00::2]:80",
        "[2606:4700:4700::1111]:853",
        "[2001:db8::1]:65535",
    ];
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            for destination in DESTINATIONS {
                let mut stream = listener.accept().await.unwrap();
                assert_eq!(stream.local_addr(), destination.parse().unwrap());
                let mut word = [0; 5];
                stream.read_exact(&mut word).await.unwrap();
                stream.write_all(&word).await.unwrap();
            }
        },
        |peer| {
            for destination in DESTINATIONS {
                let stream = peer.connect(destination.parse().unwrap());
                stream.write_all(b"where");
                assert_eq!(stream.read_to_end(), b"where");
            }
        },
    );
}

/// The window closes when nobody reads, holds no more than it says, and opens again.
fn a_reader_that_stops_for_a_while<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 2 << 20;
    let (tell, told) = tokio::sync::oneshot::channel();
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let taken: usize = told.await.unwrap();
            assert!(taken <= WINDOW + BUFFER, "{taken} bytes went into a window of {WINDOW} and a buffer of {BUFFER}");
            let mut bytes = vec![0; LEN];
            stream.read_exact(&mut bytes).await.unwrap();
            assert_same(&bytes, &pattern(9, LEN));
        },
        |peer| {
            let stream = peer.connect(server_addr());
            let bytes = pattern(9, LEN);
            let taken = stream.write_until_blocked(&bytes, Duration::from_millis(400));
            tell.send(taken).unwrap();
            stream.write_all(&bytes[taken..]);
        },
    );
}

/// A peer that does not read stops the writer, and a peer that reads again lets it go on.
fn a_peer_that_stops_for_a_while<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 2 << 20;
    let (tell, told) = mpsc::channel();
    run::<S>(
        flavour,
        &config(),
        async move |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let bytes = pattern(10, LEN);
            let mut written = 0;
            while let Ok(len) = tokio::time::timeout(Duration::from_millis(400), stream.write(&bytes[written..])).await
            {
                written += len.unwrap();
            }
            assert!(
                written <= WINDOW + BUFFER,
                "{written} bytes went into a window of {WINDOW} and a buffer of {BUFFER}"
            );
            tell.send(()).unwrap();
            stream.write_all(&bytes[written..]).await.unwrap();
            stream.shutdown().await.unwrap();
        },
        move |peer| {
            let stream = peer.connect(server_addr());
            told.recv().unwrap();
            assert_same(&stream.read_to_end(), &pattern(10, LEN));
        },
    );
}

/// Reader and writer give up, each in its time, and the stack serves on.
fn a_peer_that_vanishes<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = mpsc::channel();
    let (back, is_back) = mpsc::channel();
    run::<S>(
        flavour,
        &StackConfig { user_timeout: Duration::from_secs(2), ..config() },
        async move |mut listener| {
            let mut writes = listener.accept().await.unwrap();
            let mut reads = listener.accept().await.unwrap();
            tell.send(()).unwrap();
            let begin = Instant::now();
            let write = async {
                let bytes = pattern(11, 64 << 10);
                loop {
                    if let Err(error) = writes.write_all(&bytes).await {
                        return error.kind();
                    }
                }
            };
            let read = async { reads.read(&mut [0; 10]).await.unwrap_err().kind() };
            assert_eq!(tokio::join!(write, read), (io::ErrorKind::TimedOut, io::ErrorKind::TimedOut));
            assert!(begin.elapsed() < Duration::from_secs(15), "it took {:?}", begin.elapsed());
            drop((writes, reads));
            back.send(()).unwrap();
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(b"alive").await.unwrap();
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        },
        move |peer| {
            let (first, second) = (peer.connect(server_addr()), peer.connect(server_addr()));
            peer.mute(true);
            told.recv().unwrap();
            is_back.recv().unwrap();
            peer.mute(false);
            let stream = peer.connect(server_addr());
            stream.read_exact(&mut [0; 5]);
            stream.finish();
            drop((first, second));
        },
    );
}

/// What was written before the stream was dropped arrives all the same.
fn a_dropped_stream_delivers<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 150_000;
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(&pattern(12, LEN)).await.unwrap();
        },
        |peer| assert_same(&peer.connect(server_addr()).read_to_end(), &pattern(12, LEN)),
    );
}

/// When the link goes, everyone who waits is told at once.
fn a_link_that_goes<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let _turn = take_turns();
    let (link, other_end) = MemoryLink::pair(MTU, MemoryLink::DEFAULT_DEPTH);
    runtime(flavour).block_on(async {
        let Started { mut listener, driver, .. } = S::start(link, &config()).unwrap();
        let driver = tokio::spawn(driver);
        let client = std::thread::spawn(move || {
            let peer = Peer::new(other_end);
            let stream = peer.connect(server_addr());
            stream.read_exact(&mut [0; 1]);
        });
        let ends = async {
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(b"x").await.unwrap();
            let mut buffer = [0; 10];
            let (read, accept) = tokio::join!(
                async {
                    // The peer's FIN may come before the link goes.
                    while stream.read(&mut buffer).await? > 0 {}
                    loop {
                        stream.write_all(b"y").await?;
                        tokio::task::yield_now().await;
                    }
                    #[expect(unreachable_code, reason = "gives the block its type")]
                    io::Result::Ok(())
                },
                async { listener.accept().await.map(drop) }
            );
            read.unwrap_err();
            assert_eq!(accept.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            assert_eq!(driver.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        };
        tokio::time::timeout(DEADLINE, ends).await.expect("somebody waits for ever");
        client.join().unwrap();
    });
}

/// A backlog of one takes one connection, and the next when that one is accepted.
fn a_full_backlog<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = mpsc::channel::<()>();
    run::<S>(
        flavour,
        &StackConfig { backlog: 1, ..config() },
        async move |mut listener| {
            // Nobody accepts until the second SYN has been sent, and dropped.
            tokio::task::spawn_blocking(move || told.recv()).await.unwrap().unwrap();
            for _ in 0..2 {
                let mut stream = listener.accept().await.unwrap();
                stream.write_all(b"served").await.unwrap();
                assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
            }
        },
        move |peer| {
            let first = peer.connect(server_addr());
            let second = peer.begin_connect(server_addr());
            tell.send(()).unwrap();
            for stream in [first, second] {
                stream.wait_established();
                stream.read_exact(&mut [0; 6]);
                stream.finish();
            }
        },
    );
}

macro_rules! contract {
    ($($test:ident)*) => {
        contract!(@stack lwip, "lwip", Lwip, $($test)*);
        contract!(@stack ipstack, "ipstack", Ipstack, $($test)*);
        contract!(@stack smoltcp, "smoltcp", Smoltcp, $($test)*);
    };
    (@stack $module:ident, $feature:literal, $stack:ident, $($test:ident)*) => {
        #[cfg(feature = $feature)]
        mod $module {
            mod current_thread {
                $(#[test] fn $test() { crate::$test::<netstacks::$stack>(crate::Flavour::CurrentThread); })*
            }
            mod multi_thread {
                $(#[test] fn $test() { crate::$test::<netstacks::$stack>(crate::Flavour::MultiThread); })*
            }
        }
    };
}

contract! {
    connect
    echo
    half_close_by_the_peer
    half_close_by_the_stack
    reset_wakes_a_parked_reader
    reset_wakes_a_parked_writer
    reset_after_our_fin
    a_stream_dropped_while_the_peer_sends
    bulk_both_ways_at_once
    one_after_another
    twenty_at_once
    any_address_and_port
    a_reader_that_stops_for_a_while
    a_peer_that_stops_for_a_while
    a_peer_that_vanishes
    a_dropped_stream_delivers
    a_link_that_goes
    a_full_backlog
}
