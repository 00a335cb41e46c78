//! Every way in which a run can end, over the kernel's own loopback: without a device and without root.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use clap::Parser;
use futures_util::FutureExt;
use netstacks::{Listener, StackFault};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;

use super::*;
use crate::cell::Protocol;
use crate::cli::Cli;
use crate::load::Load;
use crate::meter::LinkMeter;
use crate::plan::scenario::{Amount, Scenario};
use crate::run::kernel_load;
use crate::run::server_side::server;

/// A fault of the stack, after a number of bytes of a stream.
#[derive(Clone, Copy)]
enum Fault {
    None,
    Corrupt(u64),
    End(u64),
    Reset(u64),
    Stall(u64),
    Panic(u64),
    PanicAtAccept,
    /// It leaks this number of bytes for each connection.
    Leak(usize),
    /// It does nothing for the first fifth of every half second.
    Pauses,
    /// It keeps the end of a stream to itself.
    NoEnd,
}

/// The length of its pauses, and how often they come.
const PAUSE: Duration = Duration::from_millis(100);
const PERIOD: Duration = Duration::from_millis(500);

/// The kernel in place of a stack, with a fault.
struct Loopback {
    listener: TcpListener,
    fault: Fault,
}

struct LoopbackStream {
    socket: tokio::net::TcpStream,
    fault: Fault,
    passed: u64,
    /// When it was accepted.
    since: Instant,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Listener for Loopback {
    type Stream = LoopbackStream;

    async fn accept(&mut self) -> io::Result<LoopbackStream> {
        let (socket, _) = self.listener.accept().await?;
        assert!(!matches!(self.fault, Fault::PanicAtAccept), "a bug in the listener");
        if let Fault::Leak(bytes) = self.fault {
            vec![1_u8; bytes].leak();
        }
        Ok(LoopbackStream { socket, fault: self.fault, passed: 0, since: Instant::now(), pause: None })
    }
}

impl LoopbackStream {
    /// The result of the fault, in place of a read or write; `None` without a fault.
    fn misbehave(&mut self, cx: &mut Context<'_>) -> Option<Poll<io::Result<usize>>> {
        match self.fault {
            Fault::Pauses => {
                let phase = self.since.elapsed().as_millis() % PERIOD.as_millis();
                if phase < PAUSE.as_millis() && self.pause.is_none() {
                    let rest = PAUSE.saturating_sub(Duration::from_millis(phase as u64));
                    self.pause = Some(Box::pin(tokio::time::sleep(rest)));
                }
                if self.pause.as_mut()?.as_mut().poll(cx).is_pending() {
                    return Some(Poll::Pending);
                }
                self.pause = None;
                None
            }
            Fault::End(after) if self.passed >= after => Some(Poll::Ready(Ok(0))),
            Fault::Reset(after) if self.passed >= after => {
                Some(Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())))
            }
            Fault::Stall(after) if self.passed >= after => Some(Poll::Pending),
            Fault::Panic(after) if self.passed >= after => panic!("a bug in the stack"),
            _ => None,
        }
    }

    fn corrupts(&self) -> bool {
        matches!(self.fault, Fault::Corrupt(after) if self.passed >= after)
    }
}

impl AsyncRead for LoopbackStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(result) = self.misbehave(cx) {
            return result.map(|result| result.map(drop));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        if self.corrupts() && buffer.filled().len() > before {
            buffer.filled_mut()[before] ^= 1;
        }
        self.passed += (buffer.filled().len() - before) as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LoopbackStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(result) = self.misbehave(cx) {
            return result;
        }
        let flipped;
        let bytes = if self.corrupts() {
            flipped = bytes.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>();
            &flipped
        } else {
            bytes
        };
        let len = ready!(Pin::new(&mut self.socket).poll_write(cx, bytes))?;
        self.passed += len as u64;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.fault, Fault::NoEnd) {
            return Poll::Pending;
        }
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl netstacks::Stream for LoopbackStream {
    fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.socket.peer_addr().unwrap()
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn reset(self) {
        self.socket.set_zero_linger().unwrap();
    }
}

/// A driver that never ends.
async fn healthy() -> io::Result<()> {
    future::pending().await
}

fn scenario(arguments: &str) -> Scenario {
    let has_no_warmup = ["rr", "idle", "udp"].iter().any(|word| arguments.contains(word));
    let buffer = if has_no_warmup { "" } else { "--buffer 10KB" };
    let warmup = if arguments.contains("--warmup") || has_no_warmup { "" } else { "--warmup 100KB" };
    let arguments = format!("x -n smoltcp {buffer} {warmup} {arguments}");
    Scenario::try_from(Cli::try_parse_from(arguments.split_whitespace()).unwrap().run).unwrap()
}

fn run(
    arguments: &str,
    fault: Fault,
    driver: impl Future<Output = io::Result<()>> + Send + 'static,
) -> Result<Outcome, RunError> {
    execute(&scenario(arguments), fault, driver)
}

fn execute(
    scenario: &Scenario,
    fault: Fault,
    driver: impl Future<Output = io::Result<()>> + Send + 'static,
) -> Result<Outcome, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        let load = Load::of(scenario).unwrap();
        let driver = async { Failure::of_driver(driver.await) }.boxed();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp_target = socket.local_addr().unwrap();
        let datagrams = kernel_load::datagrams_for(vec![socket], &load, scenario.cell.window_len()).unwrap();
        let server = server(Loopback { listener, fault }, datagrams, &load, |_| Some(0));
        let server = ServerSide::new(driver, server);
        let meter = Box::new(LinkMeter::new([], || Some(0)));
        let window = Arc::new(Window::new(load.threads(), meter));
        let is_udp = scenario.cell.protocol == Protocol::Udp;
        let targets = if is_udp { vec![udp_target] } else { vec![target] };
        let (clients, _) = kernel_load::clients(scenario, &load, &targets)?;
        let supervisor = Supervisor::new(scenario, load.into(), window, None);
        supervisor.supervise(server, clients, Interrupts::catch().unwrap()).await
    })
}

fn status(arguments: &str, fault: Fault) -> (Status, String) {
    let measured = run(arguments, fault, healthy()).unwrap().measured;
    (measured.status, measured.detail.unwrap_or_default())
}

/// The measurements of a scenario that succeeds.
fn good(scenario: &Scenario, fault: Fault) -> Measurements {
    let Outcome { measured, counters, .. } = execute(scenario, fault, healthy()).unwrap();
    assert_eq!((measured.status, counters.drops), (Status::Ok, Some(0)), "{scenario:?}: {:?}", measured.detail);
    measured
}

/// The client's clock decides.
#[test]
fn a_run_lasts_for_its_time_and_for_its_bytes() {
    for mode in ["reader", "writer"] {
        let time = Duration::from_millis(20);
        let amount = Amount::Time { time, bytes: 5_000_000 };
        let scenario = Scenario { amount, ..scenario(&format!("-m {mode} --verify full")) };
        let measured = good(&scenario, Fault::None);
        // Bytes that are far from enough after the longest time are not waited for. A busy machine may be so slow.
        let stretch = (time * Amount::STRETCH).as_secs_f64() / measured.elapsed.as_secs_f64();
        let is_slow = measured.bytes as f64 * stretch < 1.5 * 5e6;
        assert!(measured.bytes >= 5_000_000 || is_slow, "{mode}: {}", measured.bytes);
        assert!(measured.elapsed >= time, "{mode}: {:?}", measured.elapsed);
    }
}

#[test]
fn a_figure_needs_no_end_of_the_stream() {
    for arguments in ["-m reader --time 0.1", "-m writer --time 0.1", "-m reader --bytes 1MB"] {
        let measured = good(&scenario(arguments), Fault::NoEnd);
        assert!(measured.bytes > 0 && !measured.elapsed.is_zero(), "{arguments}: {measured:?}");
    }
}

/// Bytes that would take more than ten times its time do not make it longer.
#[test]
fn a_run_at_a_low_rate_has_an_end() {
    for mode in ["reader", "writer"] {
        let time = Duration::from_millis(200);
        let amount = Amount::Time { time, bytes: 1_000_000_000 };
        let scenario = Scenario { amount, ..scenario(&format!("-m {mode} --bitrate 10M --warmup 0")) };
        let measured = good(&scenario, Fault::None);
        assert!(measured.elapsed >= time && measured.bytes < 5_000_000, "{mode}: {:?}", measured.elapsed);
    }
}

#[test]
fn requests_are_answered_and_each_has_its_latency() {
    for arguments in [
        "-m rr --parallel 3 --request 70000 --response 1 --depth 8 --verify full",
        "-m rr --parallel 5 --rate 2000",
        "-m crr --parallel 20 --request 100 --response 20000 --verify full",
        "-m crr --parallel 4 --rate 500",
        "-m rr --protocol udp --parallel 20 --request 100 --response 1400 --verify full",
        "-m rr --protocol udp --parallel 5 --rate 500",
    ] {
        let measured = good(&scenario(&format!("{arguments} --time 0.3")), Fault::None);
        let made = measured.requests.unwrap();
        assert!(made.answered > 50 && made.errors.is_empty(), "{arguments}: {made:?}");
        let count = made.latency.count();
        match (measured.datagrams, arguments.split_once("--rate ")) {
            // A lost request has a latency, too: the time until it was given up.
            (Some(datagrams), _) => {
                assert_eq!((datagrams.sent, datagrams.duplicated), (count, 0), "{arguments}: {datagrams:?}");
                assert!(datagrams.lost() * 20 < datagrams.sent, "{arguments}: {datagrams:?}");
            }
            // At a rate all that were due have one, and else those that are under way at the end.
            (None, Some((_, rate))) => {
                let due = 0.3 * rate.parse::<f64>().unwrap();
                assert!((count as f64 - due).abs() <= 1.0, "{arguments}: {made:?}");
            }
            (None, None) => assert!((made.answered..made.answered + 41).contains(&count), "{arguments}: {made:?}"),
        }
    }
}

#[test]
fn datagrams_are_sent_at_their_rate_and_counted() {
    for arguments in ["-m reader --datagram 1000", "-m writer --datagram 1000", "-m writer --datagram 12 --verify full"]
    {
        let arguments = format!("{arguments} --protocol udp --bitrate 4M --time 0.5");
        let measured = good(&scenario(&arguments), Fault::None);
        let (datagrams, bytes) = (measured.datagrams.unwrap(), measured.bytes);
        let len = if arguments.contains("1000") { 1000 } else { 12 };
        let due = 4_000_000.0 * 0.5 / 8.0 / len as f64;
        assert!((0.9 * due..=due + 1.0).contains(&(datagrams.sent as f64)), "{arguments}: {datagrams:?}");
        // On a busy machine, the last datagrams may come after the end. They count as lost.
        assert!(datagrams.lost() * 20 < datagrams.sent, "{arguments}: {datagrams:?}");
        let counts = (datagrams.reordered, datagrams.duplicated, bytes);
        assert_eq!(counts, (0, 0, datagrams.arrived * len), "{arguments}");
    }
}

#[test]
fn a_stream_sends_at_its_bit_rate() {
    for arguments in ["-m reader --time 0.5", "-m writer --time 0.5", "-m reader --bytes 5MB", "-m writer --bytes 5MB"]
    {
        let measured = good(&scenario(&format!("{arguments} --bitrate 80M --warmup 20MB")), Fault::None);
        let bits = measured.bytes as f64 * 8.0 / measured.elapsed.as_secs_f64();
        // The kernel's buffers hold no bytes of the warm-up: the server has acknowledged it.
        assert!((40e6..=85e6).contains(&bits), "{arguments}: {bits}");
    }
}

/// Without a rate, no request is made while the server pauses, so the pause is hardly seen. With a rate, requests are
/// due all the same.
#[test]
fn a_pause_of_the_server_is_in_the_latencies_of_a_rate() {
    // Half of the requests that are due in a pause wait for half of its length or more.
    let share = 1.0 - PAUSE.div_duration_f64(PERIOD) / 2.0;
    let [at_a_rate, without] = ["--rate 500", ""].map(|arguments| {
        let measured = good(&scenario(&format!("-m rr --time 1 {arguments}")), Fault::Pauses);
        Duration::from_micros(measured.requests.unwrap().latency.quantile_us(share).unwrap() as u64)
    });
    assert!(at_a_rate >= PAUSE / 3 && without < PAUSE / 3, "{at_a_rate:?} and {without:?}");
}

/// Each run has a process of its own, because a run could reuse the memory that an earlier run has freed.
#[test]
fn a_leak_for_each_connection_is_found() {
    const LEAK: usize = 1 << 10;
    let name = "run::supervise::tests::the_memory_of_a_connection";
    let bytes_with = |leak: usize| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", name, "--nocapture"]).env("LEAK", leak.to_string());
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let (_, bytes) = text.split_once("bytes: ").unwrap_or_else(|| panic!("{text}"));
        bytes.lines().next().unwrap().parse::<f64>().ok()
    };
    // Other processes change what the kernel counts for this one. A leak that is not seen is not seen in any try.
    let mut tries = Vec::new();
    while tries.len() < 4 {
        let (Some(sound), Some(leaking)) = (bytes_with(0), bytes_with(LEAK)) else {
            return println!("SKIP: this system does not say how much memory a process has");
        };
        if ((leaking - sound) / LEAK as f64 - 1.0).abs() < 0.2 {
            return;
        }
        tries.push((sound, leaking));
    }
    panic!("without and with a leak, in bytes: {tries:?}");
}

#[test]
#[ignore = "the test above runs it in a process of its own"]
fn the_memory_of_a_connection() {
    let leak = std::env::var("LEAK").unwrap().parse().unwrap();
    let measured = good(&scenario("-m idle --parallel 2000 --time 0.1"), Fault::Leak(leak));
    let bytes = measured.idle.unwrap().bytes_per_connection(Duration::from_millis(100));
    println!("bytes: {}", bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string()));
}

#[test]
fn every_failure_of_a_request_has_a_status_and_a_count() {
    for (fault, expected, kind) in [
        (Fault::Corrupt(3000), &[Status::Corrupt][..], "differs"),
        // The client sees the end of the connection, or a reset for bytes that it sends afterwards.
        (Fault::End(3000), &[Status::Short, Status::Reset], "early"),
        (Fault::Reset(3000), &[Status::Short, Status::Reset], "early"),
        (Fault::Stall(3000), &[Status::Stalled], "unanswered"),
        (Fault::Panic(3000), &[Status::Panicked], "a bug in the stack"),
        (Fault::PanicAtAccept, &[Status::Panicked], "a bug in the listener"),
    ] {
        let (status, detail) = status("-m rr --time 1 --request 10 --response 10 --verify full", fault);
        assert!(expected.contains(&status), "{status}: {detail}");
        let is_said = [kind, "reset", "wait for a response"].iter().any(|words| detail.contains(words));
        assert!(is_said, "{detail}");
    }
}

#[test]
fn every_failure_of_a_stream_has_a_status() {
    for (arguments, fault, expected, detail) in [
        ("--bytes 1MB --verify full", Fault::Corrupt(500_000), Status::Corrupt, "byte 5"),
        ("--bytes 1MB", Fault::Corrupt(50_000), Status::Corrupt, "byte 5"),
        ("--bytes 1MB", Fault::Reset(500_000), Status::Reset, "stack"),
        ("--bytes 1MB --timeout 3", Fault::Stall(500_000), Status::Stalled, "nothing arrived"),
        ("--bytes 1TB --timeout 0.5", Fault::None, Status::Timeout, ""),
    ] {
        for mode in ["reader", "writer"] {
            let (found, said) = status(&format!("-m {mode} {arguments}"), fault);
            assert_eq!(found, expected, "{mode} {arguments}: {said}");
            assert!(said.contains(detail), "{mode} {arguments}: {said}");
        }
    }
    assert_eq!(status("-m writer --bytes 1MB", Fault::End(500_000)).0, Status::Short);
    // No connection is accepted: the kernel completes the handshake by itself, but no bytes follow the go.
    assert_eq!(status("-m reader --bytes 1MB --timeout 3", Fault::Stall(0)).0, Status::Stalled);
}

#[test]
fn a_panic_ends_the_run_at_once_with_its_message() {
    for (fault, message) in
        [(Fault::Panic(500_000), "a bug in the stack"), (Fault::PanicAtAccept, "a bug in the listener")]
    {
        let begin = Instant::now();
        let (found, detail) = status("-m writer --bytes 1MB", fault);
        assert_eq!(found, Status::Panicked);
        assert!(detail.contains(message), "{detail}");
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
    let begin = Instant::now();
    let outcome = run("-m reader --bytes 1MB", Fault::Stall(0), async { panic!("a bug in the driver") }).unwrap();
    assert_eq!(outcome.measured.status, Status::Panicked);
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_driver_that_fails_ends_the_run_at_once_with_its_error() {
    let begin = Instant::now();
    let fault = io::Error::other(StackFault("an assertion failed".into()));
    let corrupt = io::Error::new(io::ErrorKind::InvalidData, "the ring is corrupt");
    let lost = io::Error::other("the device is gone");
    for (error, status) in [(lost, Status::DeviceLost), (corrupt, Status::Corrupt), (fault, Status::Panicked)] {
        let message = error.to_string();
        let outcome = run("-m reader --bytes 1TB", Fault::None, async { Err(error) }).unwrap();
        assert_eq!(outcome.measured.status, status);
        assert!(outcome.measured.detail.unwrap().contains(&message));
    }
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn an_unknown_congestion_control_is_reported_as_missing() {
    let error = run("-m reader --congestion no-such-thing", Fault::None, healthy()).err().unwrap();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("no-such-thing"), "{error}");
}

/// A thread that runs a stack may be stuck in it.
#[tokio::test]
async fn a_client_that_does_not_end_is_left_behind() {
    let scenario = Scenario { timeout: Duration::from_millis(10), ..scenario("-m writer") };
    let load = Load::of(&scenario).unwrap();
    let window = Arc::new(Window::new(1, Box::new(LinkMeter::new([], || Some(0)))));
    let server = ServerSide::new(future::pending().boxed(), future::pending().boxed());
    let deliver = Box::new(|_: &Window| {
        loop {
            thread::park();
        }
    });
    let client = Client { deliver, cancel: Box::new(|| ()) };
    let supervisor = Supervisor::new(&scenario, load.into(), window, None);
    let outcome = supervisor.supervise(server, vec![client], Interrupts::catch().unwrap()).await.unwrap();
    assert_eq!(outcome.measured.status, Status::Timeout, "{:?}", outcome.measured.detail);
}

/// A connection at rest must live, also one that is half-closed.
#[test]
fn a_connection_that_ends_at_rest_fails_the_run() {
    for arguments in ["-m idle --parallel 5 --time 0.3", "-m idle --half-closed --parallel 5 --time 0.3"] {
        assert_eq!(status(arguments, Fault::None).0, Status::Ok, "{arguments}");
        // It breaks after a byte each way.
        let (status, detail) = status(arguments, Fault::Reset(2));
        assert!(matches!(status, Status::Short | Status::Reset), "{arguments}: {status}: {detail}");
        assert!(detail.contains("hold a connection open"), "{arguments}: {detail}");
    }
}
