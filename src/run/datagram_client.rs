//! The client's side of datagrams, which also leads the trials: one thread with one socket.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use platform::Class;
use socket2::SockRef;

use super::barrier::StartBarrier;
use super::client::{Client, Deliver};
use super::clock::with_clock;
use super::datagrams::{Arrived, Flow, MAX_RECEIVED_BYTES, TURN, Trial, Window, send_whole};
use super::error::RunError;
use super::kernel;
use super::meter::{Snapshot, difference};
use super::transfer::{Direction, TransferError};
use crate::sample::DatagramFacts;
use crate::scenario::MAX_LOST_SHARE;

/// How long a trial of a search lasts, and the one before the timed window.
const TRIAL: Duration = Duration::from_millis(100);

/// How long a rate that was found has to hold.
const CONFIRMATION: Duration = Duration::from_millis(300);

/// Trials of a search at most, and confirmations.
const MAX_TRIALS: usize = 14;
const MAX_CONFIRMATIONS: usize = 16;

/// A search ends when a rate that is too high is less than so many times one that is not.
const PRECISION: f64 = 1.04;

/// The end of a wait, so that cancellation is noticed.
const WAIT: Duration = Duration::from_millis(5);

/// How often the client says where it is, until the server knows.
const HELLO: Duration = Duration::from_millis(50);

/// The client's end of a flow.
pub(super) trait DatagramSocket: Send + 'static {
    /// Sends datagrams to the server that lie back to back, each of `segment_len` bytes. Returns the bytes of those that it
    /// sent: at least one.
    fn send(&mut self, datagrams: &[u8], segment_len: usize) -> io::Result<usize>;

    /// Makes sure that what was sent is on its way.
    fn flush(&mut self) -> io::Result<()>;

    /// Receives a datagram, or several. Returns the length of all, and of each but the last. If none comes for some
    /// milliseconds, returns [`io::ErrorKind::WouldBlock`].
    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<(usize, usize)>;
}

impl DatagramSocket for UdpSocket {
    fn send(&mut self, datagrams: &[u8], segment_len: usize) -> io::Result<usize> {
        platform::send_datagrams(&SockRef::from(&*self), None, datagrams, segment_len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
        let received = platform::recv_datagrams(&SockRef::from(&*self), buffer)?;
        Ok((received.len, received.segment_len))
    }
}

/// The kernel's socket for the datagrams of a flow to a target.
pub(super) fn kernel_socket(flow: &Flow, target: SocketAddr, buffer_bytes: usize) -> Result<UdpSocket, RunError> {
    let failed = |source| platform::Error::new(Class::Failed, "create", "a socket", source);
    let socket = UdpSocket::bind(kernel::any_port(target)).map_err(failed)?;
    socket.connect(target).map_err(failed)?;
    socket.set_read_timeout(Some(WAIT)).map_err(failed)?;
    set_up(&socket, Some(flow), buffer_bytes);
    Ok(socket)
}

/// Gives a socket buffers of so many bytes, and lets it receive the datagrams of a flow together if they are sent so.
pub(super) fn set_up(socket: &UdpSocket, flow: Option<&Flow>, buffer_bytes: usize) {
    let socket = SockRef::from(socket);
    // With smaller buffers more datagrams are lost, which is counted.
    let _limited = platform::set_socket_buffers(&socket, buffer_bytes);
    if flow.is_some_and(|flow| flow.batch > 1) {
        platform::coalesce_datagrams(&socket);
    }
}

/// CPU time of the client's thread up to the end of a trial, and the readings then, if it is the timed window.
type End = (Option<Duration>, Option<Snapshot>);

/// The client of a flow, over this socket.
pub(super) fn client(flow: &Arc<Flow>, socket: impl DatagramSocket) -> Client {
    let cancelled = Arc::new(AtomicBool::new(false));
    let cancel = {
        let cancelled = Arc::clone(&cancelled);
        Box::new(move || cancelled.store(true, Ordering::Release))
    };
    let flow = Arc::clone(flow);
    let deliver: Deliver = Box::new(move |barrier| {
        let mut client = DatagramClient { flow, socket, cancelled };
        let result = client.run(barrier);
        (Box::new(client.socket), result)
    });
    Client { deliver, cancel }
}

struct DatagramClient<S> {
    flow: Arc<Flow>,
    socket: S,
    cancelled: Arc<AtomicBool>,
}

/// A trial that has been made.
struct Outcome {
    sent: u64,
    /// How many of them had arrived in time.
    in_time: u64,
    arrived: Arrived,
    /// CPU time of the client's threads, and the readings when the last was sent.
    cpu: Option<Duration>,
    end: Option<Snapshot>,
}

impl Outcome {
    /// Whether next to nothing was lost or late.
    fn passes(&self) -> bool {
        self.sent > 0 && (self.sent - self.in_time) as f64 <= MAX_LOST_SHARE * self.sent as f64
    }
}

impl<S: DatagramSocket> DatagramClient<S> {
    fn run(&mut self, barrier: &StartBarrier) -> Result<(), TransferError> {
        platform::sharpen_timers();
        if self.flow.direction == Direction::ToClient {
            self.greet()?;
        }
        let rate = match self.flow.rate {
            Some(rate) => self.trial(Some(rate), TRIAL.min(self.flow.time), None).map(|_| Some(rate)),
            None => search(|rate, time| self.trial(rate, time, None)),
        }?;
        let made = self.trial(rate, self.flow.time, Some(barrier))?;
        let Some(end) = made.end.filter(|_| made.arrived.count > 0) else {
            return Err(TransferError::Silent { sent: made.sent });
        };
        self.flow.finish(&Window {
            bytes: made.in_time * self.flow.len as u64,
            cpu: made.cpu,
            end,
            facts: DatagramFacts {
                sent: made.sent,
                arrived: made.arrived.count,
                reordered: made.arrived.reordered,
                duplicated: made.arrived.duplicated,
                found_per_second: rate.filter(|_| self.flow.rate.is_none()).map(|rate| rate as u64),
            },
        });
        Ok(())
    }

    /// Says where it is until the server knows.
    fn greet(&mut self) -> Result<(), TransferError> {
        let begin = Instant::now();
        while !self.flow.is_greeted() {
            if begin.elapsed() > self.flow.greeting {
                return Err(TransferError::Ungreeted);
            }
            let hello = b"hello";
            self.send(hello, hello.len())?;
            self.flush()?;
            let said = Instant::now();
            while !self.flow.is_greeted() && said.elapsed() < HELLO {
                self.wait(Duration::from_millis(1))?;
            }
        }
        Ok(())
    }

    /// Makes a trial. With a barrier it is the timed window, and begins there.
    fn trial(
        &mut self,
        rate: Option<f64>,
        time: Duration,
        timed: Option<&StartBarrier>,
    ) -> Result<Outcome, TransferError> {
        if let Some(barrier) = timed {
            barrier.wait()?;
        }
        let cpu = platform::cpu_of_thread();
        let trial = self.flow.begin(rate, time, timed.is_some());
        let end = || {
            let cpu = difference(platform::cpu_of_thread(), cpu);
            (cpu, timed.map(StartBarrier::read))
        };
        match (self.flow.direction, rate) {
            (Direction::ToServer, _) => {
                self.send_all(&trial)?;
                let end = end();
                self.settle(&trial, end, |this| this.wait(Duration::from_millis(1)))
            }
            (Direction::ToClient, None) => self.receive_all(&trial, end),
            (Direction::ToClient, Some(_)) => {
                let flow = Arc::clone(&self.flow);
                let ring = || {
                    flow.due.notify_one();
                    trial.next_due_at(trial.due(Instant::now()))
                };
                let (outcome, clock_cpu) = with_clock(ring, || self.receive_all(&trial, end));
                let outcome = outcome?;
                Ok(Outcome { cpu: outcome.cpu.map(|cpu| cpu + clock_cpu.unwrap_or_default()), ..outcome })
            }
        }
    }

    /// Sends the datagrams of a trial when they are due.
    fn send_all(&mut self, trial: &Trial) -> Result<(), TransferError> {
        let (mut batch, mut sent) = (self.flow.datagrams(trial), 0);
        let flow = Arc::clone(&self.flow);
        loop {
            let now = Instant::now();
            if now >= trial.end() {
                self.flow.complete(trial);
                return Ok(());
            }
            let due = trial.due(now);
            if due < sent + trial.burst {
                self.wait(trial.next_due_at(sent).min(trial.end()).saturating_duration_since(now).min(WAIT))?;
                continue;
            }
            let turn = sent + TURN.min(due - sent);
            while sent < turn {
                let numbered = flow.number(&mut batch, sent, turn - sent);
                let taken = send_whole(numbered, |rest| self.send(rest, flow.len))?;
                sent += (taken / flow.len) as u64;
                if taken < numbered.len() {
                    break;
                }
            }
            self.flush()?;
            self.flow.set_sent(sent);
            self.check()?;
        }
    }

    /// Receives the datagrams of a trial, to its end and beyond.
    fn receive_all(&mut self, trial: &Trial, end: impl FnOnce() -> End) -> Result<Outcome, TransferError> {
        let mut buffer = vec![0; MAX_RECEIVED_BYTES];
        let mut receive = |this: &mut Self| {
            for _ in 0..TURN {
                match this.socket.recv(&mut buffer) {
                    Ok((len, segment_len)) => this.flow.take(buffer[..len].chunks(segment_len.max(1)))?,
                    Err(error) if is_passing(&error) => break,
                    Err(error) => return Err(TransferError::io("receive a datagram")(error)),
                }
                // The window does not wait for the rest of a batch.
                if Instant::now() >= trial.end() {
                    break;
                }
            }
            this.check()
        };
        while Instant::now() < trial.end() {
            receive(self)?;
        }
        let end = end();
        self.settle(trial, end, receive)
    }

    /// Waits until all that was sent has arrived, or nothing comes any more.
    fn settle(
        &mut self,
        trial: &Trial,
        (cpu, end): End,
        mut wait: impl FnMut(&mut Self) -> Result<(), TransferError>,
    ) -> Result<Outcome, TransferError> {
        let (mut in_time, mut last) = (None, (self.flow.arrived().count, Instant::now()));
        loop {
            let ((sent, is_complete), (arrived, now)) = (self.flow.sent(trial), self.flow.arrived_by());
            // A server in a process of its own may lie.
            if is_complete && arrived.next > sent {
                return Err(TransferError::Overcounted { sent, arrived: arrived.next });
            }
            if now > trial.end() + self.flow.grace {
                in_time.get_or_insert(arrived.count);
            }
            if arrived.count != last.0 {
                last = (arrived.count, now);
            }
            let is_quiet = now.duration_since(last.1) > self.flow.quiet;
            if is_complete && (arrived.count >= sent || is_quiet) {
                let in_time = in_time.unwrap_or(arrived.count).min(sent);
                return Ok(Outcome { sent, in_time, arrived, cpu, end });
            }
            wait(self)?;
        }
    }

    /// Sends datagrams. Returns the bytes of those that the kernel has taken.
    fn send(&mut self, datagrams: &[u8], segment_len: usize) -> Result<usize, TransferError> {
        match self.socket.send(datagrams, segment_len) {
            Err(error) if is_passing(&error) => Ok(0),
            sent => sent.map_err(TransferError::io("send a datagram")),
        }
    }

    fn flush(&mut self) -> Result<(), TransferError> {
        self.socket.flush().map_err(TransferError::io("send datagrams"))
    }

    fn wait(&self, time: Duration) -> Result<(), TransferError> {
        thread::sleep(time);
        self.check()
    }

    fn check(&self) -> Result<(), TransferError> {
        if self.cancelled.load(Ordering::Acquire) { Err(TransferError::Cancelled) } else { Ok(()) }
    }
}

/// Whether a socket says only that there is nothing, that there is no room, or what became of an earlier datagram.
fn is_passing(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::TimedOut,
        io::ErrorKind::Interrupted,
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::ConnectionReset,
    ];
    kinds.contains(&error.kind()) || kernel::has_no_room(error)
}

/// Searches for the highest rate that loses next to nothing, in datagrams a second (RFC 2544, 26.1, with a loss above
/// zero); `None` if all is delivered that the sender can send.
fn search(
    mut trial: impl FnMut(Option<f64>, Duration) -> Result<Outcome, TransferError>,
) -> Result<Option<f64>, TransferError> {
    // The first of all is slower than the others.
    let _cold = trial(None, TRIAL)?;
    let free = trial(None, TRIAL)?;
    if free.passes() && trial(None, CONFIRMATION)?.passes() {
        return Ok(None);
    }
    if free.arrived.count == 0 {
        return Err(TransferError::Silent { sent: free.sent });
    }
    // The rate that was really sent, if it passes, for a sender may be too slow for the one that it was told.
    let mut attempt = |rate: f64, time: Duration| -> Result<Option<f64>, TransferError> {
        let made = trial(Some(rate), time)?;
        Ok(made.passes().then(|| rate.min(made.sent as f64 / time.as_secs_f64())))
    };
    let per_second = |count: u64| count as f64 / TRIAL.as_secs_f64();
    let (mut low, mut high, mut rate) = (0.0_f64, per_second(free.sent), per_second(free.in_time.max(1)));
    for _ in 0..MAX_TRIALS {
        // A second time, since a machine has other work, too.
        match attempt(rate, TRIAL)?.map_or_else(|| attempt(rate, TRIAL), |rate| Ok(Some(rate)))? {
            Some(sent) => low = low.max(sent),
            None => high = rate,
        }
        if low > 0.0 && high / low < PRECISION {
            break;
        }
        rate = if low > 0.0 { (low * high).sqrt() } else { high / 2.0 };
    }
    // The rate has to hold for longer than one trial.
    let mut rate = if low > 0.0 { low } else { rate };
    for _ in 0..MAX_CONFIRMATIONS {
        if let Some(sent) = attempt(rate, CONFIRMATION)? {
            return Ok(Some(sent));
        }
        rate /= PRECISION * PRECISION;
    }
    Err(TransferError::Unsteady { per_second: rate as u64 })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    #[cfg(target_os = "linux")]
    use crate::{cli::Cli, scenario::Scenario};
    #[cfg(target_os = "linux")]
    use portable_atomic::AtomicU64;

    /// A path that takes so many datagrams a second, from a sender that makes at most so many.
    fn path(takes: f64, makes: f64) -> impl FnMut(Option<f64>, Duration) -> Result<Outcome, TransferError> {
        move |rate, time| {
            let count = |rate: f64| (rate * time.as_secs_f64()) as u64;
            let sent = rate.unwrap_or(makes).min(makes);
            let arrived = Arrived { count: count(sent.min(takes)), ..Arrived::default() };
            Ok(Outcome { sent: count(sent), in_time: arrived.count, arrived, cpu: None, end: None })
        }
    }

    #[test]
    fn a_search_finds_the_highest_rate_that_loses_next_to_nothing() {
        for takes in [3_000.0, 50_000.0, 499_000.0] {
            let found = search(path(takes, 500_000.0)).unwrap().unwrap();
            assert!((takes / PRECISION..=takes * 1.002).contains(&found), "{found} of {takes}");
        }
        assert_eq!(search(path(600_000.0, 500_000.0)).unwrap(), None);
        assert!(search(path(0.0, 500_000.0)).is_err());
    }

    /// Sends to a server in a process that counts so many datagrams too many, and says so late.
    #[cfg(target_os = "linux")]
    struct Process {
        flow: Arc<Flow>,
        more: u64,
        taken: Arc<AtomicU64>,
    }

    #[cfg(target_os = "linux")]
    impl DatagramSocket for Process {
        fn send(&mut self, datagrams: &[u8], segment_len: usize) -> io::Result<usize> {
            let count = (datagrams.len() / segment_len) as u64;
            if self.taken.fetch_add(count, Ordering::Relaxed) == 0 {
                let (flow, taken, more) = (Arc::clone(&self.flow), Arc::clone(&self.taken), self.more);
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(200));
                    let arrived = taken.load(Ordering::Relaxed) + more;
                    let text = format!("{{\"trial\":1,\"arrived\":{arrived}}}");
                    flow.set_counts(&serde_json::from_str(&text).unwrap(), Instant::now());
                });
            }
            Ok(datagrams.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn recv(&mut self, _: &mut [u8]) -> io::Result<(usize, usize)> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn counts_of_a_process_may_come_late_and_not_be_too_high() {
        use clap::Parser;
        let words = "x -n gvisor -m writer --protocol udp --datagram 100 --bitrate 1M";
        let scenario = Scenario::try_from(Cli::try_parse_from(words.split(' ')).unwrap().run).unwrap();
        for more in [0, 1] {
            let flow = Arc::new(Flow::of(&scenario).unwrap());
            let socket = Process { flow: Arc::clone(&flow), more, taken: Arc::default() };
            let mut client = DatagramClient { flow, socket, cancelled: Arc::default() };
            match client.trial(Some(1000.0), Duration::from_millis(50), None) {
                Ok(made) => assert!(more == 0 && made.passes(), "{more}: {}", made.sent),
                Err(error) => assert!(more == 1 && error.status() == crate::sample::Status::Corrupt, "{error}"),
            }
        }
    }

    #[test]
    fn a_moment_of_loss_does_not_lower_the_rate_that_is_found() {
        let (mut takes, mut trials) = (path(50_000.0, 500_000.0), 0);
        let found = search(|rate, time| {
            trials += 1;
            let outcome = takes(rate, time)?;
            // Every third trial loses a tenth, whatever its rate.
            let lost = if trials % 3 == 0 { outcome.sent / 10 } else { 0 };
            Ok(Outcome { in_time: outcome.in_time - lost.min(outcome.in_time), ..outcome })
        });
        assert!((45_000.0..=50_050.0).contains(&found.unwrap().unwrap()));
    }

    #[test]
    fn a_rate_that_was_never_sent_is_not_found() {
        // It sends at once what it is asked for, and no more than a third of it evenly.
        let mut free = path(50_000.0, 500_000.0);
        let mut even = path(50_000.0, 20_000.0);
        let found = search(|rate, time| if rate.is_some() { even(rate, time) } else { free(rate, time) });
        assert!((19_000.0..=20_000.0).contains(&found.unwrap().unwrap()));
    }

    #[test]
    fn a_path_on_which_no_rate_holds_has_no_rate() {
        let found = search(|rate, time| {
            let outcome = path(f64::MAX, 500_000.0)(rate, time)?;
            Ok(Outcome { in_time: outcome.in_time / 2, ..outcome })
        });
        assert!(matches!(found, Err(TransferError::Unsteady { .. })));
    }
}
