//! How the driver and the tasks wake each other and take turns, with smoltcp as the engine.

use std::future::poll_fn;
use std::io::{IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use platform::Link;
use platform::{Capabilities, Counted, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::task::coop;
use tokio::time::Instant;

use super::stream::spend;
use super::turns::{BUDGET_BYTES, TURN_BYTES};
use super::*;
use crate::peer::{Client, Peers};
use crate::{Netstack, Smoltcp, StackConfig};

/// A link whose `poll_readable` fails when the test sets a flag. It could still move packets.
struct Unwatchable {
    link: MemoryLink,
    /// Whether each batch had packets of others.
    passes_on: bool,
    fails: Arc<AtomicBool>,
}

impl Link for Unwatchable {
    fn has_passed_on(&mut self) -> bool {
        self.passes_on
    }

    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        self.link.try_recv(buffers)
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.link.try_send(meta, slices)
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.fails.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::NetworkDown.into()));
        }
        self.link.poll_readable(cx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_writable(cx)
    }
}

#[test]
fn readiness_that_fails_wakes_a_parked_reader_and_accept() {
    let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    let fails = Arc::new(AtomicBool::new(false));
    let link = Unwatchable { link, passes_on: false, fails: Arc::clone(&fails) };
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let mut stack = Smoltcp::start(link, &StackConfig::default()).unwrap();
        let driver = tokio::spawn(stack.driver);
        let client = std::thread::spawn(|| {
            Client::connect(other_end, [10, 0, 0, 1].into(), ([10, 0, 0, 2], 80).into(), Duration::from_secs(10))
                .unwrap()
        });
        let mut stream = stack.listener.accept().await.unwrap();
        let reader = tokio::spawn(async move { stream.read_u8().await.unwrap_err().kind() });
        let acceptor = tokio::spawn(async move { stack.listener.accept().await.err().unwrap().kind() });
        // Both tasks wait now, and the client keeps the link open.
        let _client = client.join().unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        fails.store(true, Ordering::Release);
        let ends = tokio::time::timeout(Duration::from_secs(5), async {
            assert_eq!(driver.await.unwrap().unwrap_err().kind(), io::ErrorKind::NetworkDown);
            [reader.await.unwrap(), acceptor.await.unwrap()]
        });
        assert_eq!(ends.await.unwrap(), [io::ErrorKind::NetworkDown; 2]);
    });
}

#[test]
fn a_lone_task_makes_the_turns_unless_that_is_off_or_the_link_has_packets_of_others() {
    let off = "-task-turns".parse().unwrap();
    for (workarounds, passes_on, is_on) in
        [(Workarounds::ALL, false, true), (off, false, false), (Workarounds::ALL, true, false)]
    {
        let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
        let link = Unwatchable { link, passes_on, fails: Arc::default() };
        let client = std::thread::spawn(|| {
            let (local, remote) = ([10, 0, 0, 1].into(), ([10, 0, 0, 2], 80).into());
            let mut client = Client::connect(other_end, local, remote, Duration::from_secs(10)).unwrap();
            for _ in 0..20 {
                client.write_all(&[0]).unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        });
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let mut stack = Smoltcp::start(link, &StackConfig { workarounds, ..StackConfig::default() }).unwrap();
            let _driver = tokio::spawn(stack.driver);
            let mut stream = stack.listener.accept().await.unwrap();
            let mut has_driven = false;
            for _ in 0..20 {
                let byte = stream.read_u8().await.unwrap();
                stream.write_u8(byte).await.unwrap();
                has_driven |= matches!(stream.shared.lock().unwrap().owner, Owner::Task { .. });
            }
            assert_eq!(has_driven, is_on);
            while !client.is_finished() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        client.join().unwrap();
    }
}

#[test]
fn a_stream_that_shares_the_stack_spends_its_budget_by_bytes() {
    Builder::new_current_thread().build().unwrap().block_on(async {
        let polls = poll_fn(|cx| {
            let mut polls = 0;
            while let Poll::Ready(unit) = coop::poll_proceed(cx) {
                unit.made_progress();
                spend(TURN_BYTES / BUDGET_BYTES, cx);
                polls += 1;
            }
            Poll::Ready(polls)
        });
        assert_eq!(tokio::spawn(polls).await.unwrap(), 4, "1 MiB");
    });
}

#[test]
fn a_task_that_only_writes_does_not_stall_other_connections() {
    const SERVER: &str = "10.0.0.2:80";
    let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    let client = std::thread::spawn(move || {
        let mut peers = Peers::new(other_end, "10.0.0.1".parse().unwrap());
        let mut ready = Vec::new();
        let mut wait = |peers: &mut Peers<MemoryLink>| peers.wait(Duration::from_secs(5), &mut ready).unwrap();
        peers.connect(0, SERVER.parse().unwrap()).unwrap();
        for _ in 0..20 {
            while peers.write(0, &[0]).is_err() {
                wait(&mut peers);
            }
            while peers.read(0, &mut [0]).is_err() {
                wait(&mut peers);
            }
        }
        // By now the first task makes the turns. From now on it only writes.
        std::thread::sleep(Duration::from_millis(50));
        peers.connect(1, SERVER.parse().unwrap()).unwrap();
        let begin = Instant::now();
        while !peers.is_connected(1) {
            wait(&mut peers);
        }
        (begin.elapsed(), peers)
    });
    let serve = async {
        let mut stack = Smoltcp::start(link, &StackConfig::default()).unwrap();
        let _driver = tokio::spawn(stack.driver);
        let mut stream = stack.listener.accept().await.unwrap();
        for _ in 0..20 {
            let byte = stream.read_u8().await.unwrap();
            stream.write_u8(byte).await.unwrap();
        }
        while !client.is_finished() {
            stream.write_u8(0).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        client.join().unwrap().0
    };
    let took = Builder::new_current_thread().enable_all().build().unwrap().block_on(serve);
    assert!(took < Duration::from_secs(1), "a connection took {took:?}");
}

/// While packets wait, the acknowledgement of a batch waits for the readers. So each connection has one for all batches.
#[test]
fn a_batch_that_leaves_packets_on_the_link_is_not_acknowledged_before_the_readers_run() {
    const SERVER: &str = "10.0.0.2:80";
    // Each has less than 64 KiB in flight: a SYN-ACK has no larger window.
    const CLIENTS: usize = 4;
    let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    let link = Counted::new(link);
    let (traffic, batch) = (link.traffic(), link.capabilities().batch);
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let mut peers = Peers::new(other_end, "10.0.0.1".parse().unwrap());
        let stack = Smoltcp::start(link, &StackConfig::default()).unwrap();
        let driver = tokio::spawn(stack.driver);
        let mut listener = stack.listener;
        let mut ready = Vec::new();
        let mut streams = Vec::new();
        for client in 0..CLIENTS {
            peers.connect(client, SERVER.parse().unwrap()).unwrap();
            while streams.len() <= client {
                peers.wait(Duration::ZERO, &mut ready).unwrap();
                if let Ok(stream) = tokio::time::timeout(Duration::from_millis(1), listener.accept()).await {
                    streams.push(stream.unwrap());
                }
            }
        }
        let segment = [0; 1460];
        let full = 3 * batch / CLIENTS;
        for client in 0..CLIENTS {
            (0..full).for_each(|_| assert_eq!(peers.write(client, &segment).unwrap(), segment.len()));
        }
        let before = traffic.counts();
        let counts = || traffic.counts().since(before);
        while counts().rx_packets < (CLIENTS * full) as u64 || counts().tx_packets == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(counts().tx_packets, CLIENTS as u64, "acknowledgements of three batches");
        driver.abort();
    });
}
