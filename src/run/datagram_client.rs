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
use super::clock::{tick, with_clock};
use super::datagrams::{Arrivals, BATCH, Flow, Trial, stamp};
use super::error::RunError;
use super::kernel;
use super::load::Delivered;
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
const MAX_CONFIRMATIONS: usize = 8;

/// A search ends when a rate that is too high is less than so many times one that is not.
const PRECISION: f64 = 1.04;

/// The end of a wait, so that cancellation is noticed.
const WAIT: Duration = Duration::from_millis(5);

/// What has not come in this time after the last that came will not come.
const QUIET: Duration = Duration::from_millis(20);

/// How often the client says where it is, until the server knows.
const HELLO: Duration = Duration::from_millis(50);

/// How long the server may take to know it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The client's end of a flow.
pub(super) trait DatagramSocket: Send + 'static {
    /// Sends a datagram to the server.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()>;

    /// Makes sure that what was sent is on its way.
    fn flush(&mut self) -> io::Result<()>;

    /// Receives a datagram, or waits for some milliseconds and is told [`io::ErrorKind::WouldBlock`].
    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
}

impl DatagramSocket for UdpSocket {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        Self::send(self, datagram).map(drop)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Self::recv(self, buffer)
    }
}

/// The kernel's socket for datagrams to a target.
pub(super) fn kernel_socket(target: SocketAddr, buffer_bytes: usize) -> Result<UdpSocket, RunError> {
    let failed = |source| platform::Error::new(Class::Failed, "create", "a socket", source);
    let socket = UdpSocket::bind(kernel::any_port(target)).map_err(failed)?;
    socket.connect(target).map_err(failed)?;
    socket.set_read_timeout(Some(WAIT)).map_err(failed)?;
    set_buffers(&SockRef::from(&socket), buffer_bytes);
    Ok(socket)
}

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

/// Gives a socket buffers of that size, or as large as an ordinary user may have them.
pub(super) fn set_buffers(socket: &SockRef<'_>, bytes: usize) {
    // With smaller ones more is lost, which is seen.
    let _limited = socket.set_recv_buffer_size(bytes).and(socket.set_send_buffer_size(bytes));
}

struct DatagramClient<S> {
    flow: Arc<Flow>,
    socket: S,
    cancelled: Arc<AtomicBool>,
}

/// A trial that has been made.
struct Outcome {
    sent: u64,
    /// How many of them had arrived shortly after the end.
    in_time: u64,
    arrivals: Arrivals,
    /// When the last was sent.
    end: Snapshot,
    /// CPU time of the clock's thread.
    clock_cpu: Option<Duration>,
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
            Some(rate) => self.trial(Some(rate), TRIAL.min(self.flow.time), None, barrier).map(|_| Some(rate)),
            None => search(|rate, time| self.trial(rate, time, None, barrier)),
        }?;
        let cpu = platform::cpu_of_thread();
        let made = self.trial(rate, self.flow.time, Some(barrier), barrier)?;
        let cpu = difference(platform::cpu_of_thread(), cpu).map(|cpu| cpu + made.clock_cpu.unwrap_or_default());
        if made.arrivals.count == 0 {
            return Err(TransferError::Silent { sent: made.sent });
        }
        self.flow.finish(Delivered {
            bytes: made.arrivals.count * self.flow.len as u64,
            cpu,
            end: Some(made.end),
            datagrams: Some(DatagramFacts {
                sent: made.sent,
                arrived: made.arrivals.count,
                reordered: made.arrivals.reordered,
                duplicated: made.arrivals.duplicated,
                found_per_second: rate.filter(|_| self.flow.rate.is_none()).map(|rate| rate as u64),
            }),
            ..Delivered::default()
        });
        Ok(())
    }

    /// Says where it is until the server knows.
    fn greet(&mut self) -> Result<(), TransferError> {
        let begin = Instant::now();
        while !self.flow.is_greeted() {
            if begin.elapsed() > HELLO_TIMEOUT {
                return Err(TransferError::Silent { sent: 1 });
            }
            self.send(b"hello")?;
            self.flush()?;
            let said = Instant::now();
            while !self.flow.is_greeted() && said.elapsed() < HELLO {
                self.wait(Duration::from_millis(1))?;
            }
        }
        Ok(())
    }

    /// Makes a trial. It waits for `start` first, and is the timed window then.
    fn trial(
        &mut self,
        rate: Option<f64>,
        time: Duration,
        start: Option<&StartBarrier>,
        barrier: &StartBarrier,
    ) -> Result<Outcome, TransferError> {
        if let Some(start) = start {
            start.wait()?;
        }
        let trial = self.flow.begin(rate, time, start.is_some());
        match (self.flow.direction, rate) {
            (Direction::ToServer, _) => {
                self.send_all(&trial)?;
                self.settle(&trial, barrier.read(), |this| this.wait(Duration::from_millis(1)))
            }
            (Direction::ToClient, None) => self.receive_all(&trial, barrier),
            (Direction::ToClient, Some(rate)) => {
                let flow = Arc::clone(&self.flow);
                let ring = || flow.due.notify_one();
                let (outcome, clock_cpu) = with_clock(tick(rate), ring, || self.receive_all(&trial, barrier));
                Ok(Outcome { clock_cpu, ..outcome? })
            }
        }
    }

    /// Sends the datagrams of a trial when they are due.
    fn send_all(&mut self, trial: &Trial) -> Result<(), TransferError> {
        let (mut datagram, mut sent) = (self.flow.datagram(trial), 0);
        loop {
            let now = Instant::now();
            if now >= trial.end() {
                self.flow.complete(trial);
                return Ok(());
            }
            let due = trial.due(now);
            if sent >= due {
                self.wait(trial.due_at(sent).min(trial.end()).saturating_duration_since(now).min(WAIT))?;
                continue;
            }
            for _ in 0..BATCH.min(due - sent) {
                stamp(&mut datagram, sent);
                sent += u64::from(self.send(&datagram)?);
            }
            self.flush()?;
            self.flow.set_sent(sent);
            self.check()?;
        }
    }

    /// Receives the datagrams of a trial, to its end and beyond.
    fn receive_all(&mut self, trial: &Trial, barrier: &StartBarrier) -> Result<Outcome, TransferError> {
        let mut buffer = vec![0; self.flow.len];
        let mut receive = |this: &mut Self| {
            for _ in 0..BATCH {
                match this.socket.recv(&mut buffer) {
                    Ok(len) => this.flow.take(&buffer[..len])?,
                    Err(error) if is_passing(&error) => break,
                    Err(error) => return Err(TransferError::io("receive a datagram")(error)),
                }
            }
            this.check()
        };
        while Instant::now() < trial.end() {
            receive(self)?;
        }
        let end = barrier.read();
        self.settle(trial, end, receive)
    }

    /// Waits until all that was sent has arrived, or nothing comes any more.
    fn settle(
        &mut self,
        trial: &Trial,
        end: Snapshot,
        mut wait: impl FnMut(&mut Self) -> Result<(), TransferError>,
    ) -> Result<Outcome, TransferError> {
        let (mut in_time, mut last) = (None, (self.flow.arrived().count, Instant::now()));
        loop {
            let ((sent, is_complete), arrivals) = (self.flow.sent(trial), self.flow.arrived());
            let now = Instant::now();
            if now > trial.end() + self.flow.grace {
                in_time.get_or_insert(arrivals.count);
            }
            if arrivals.count != last.0 {
                last = (arrivals.count, now);
            }
            let is_quiet = now.duration_since(last.1) > QUIET + self.flow.grace;
            if is_complete && (arrivals.count >= sent || is_quiet) {
                let in_time = in_time.unwrap_or(arrivals.count).min(sent);
                return Ok(Outcome { sent, in_time, arrivals, end, clock_cpu: None });
            }
            wait(self)?;
        }
    }

    /// Sends a datagram. Returns whether the kernel has taken it.
    fn send(&mut self, datagram: &[u8]) -> Result<bool, TransferError> {
        match self.socket.send(datagram) {
            Ok(()) => Ok(true),
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(TransferError::io("send a datagram")(error)),
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
    // macOS refuses a datagram where the device's queue is full.
    const NO_BUFFERS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };
    let kinds = [
        io::ErrorKind::WouldBlock,
        io::ErrorKind::TimedOut,
        io::ErrorKind::Interrupted,
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::ConnectionReset,
    ];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(NO_BUFFERS)
}

/// Searches for the highest rate that loses next to nothing, in datagrams a second (RFC 2544, 26.1, with a loss above
/// zero); `None` if all is delivered that the sender can send.
fn search(
    mut trial: impl FnMut(Option<f64>, Duration) -> Result<Outcome, TransferError>,
) -> Result<Option<f64>, TransferError> {
    let free = trial(None, TRIAL)?;
    if free.passes() && trial(None, CONFIRMATION)?.passes() {
        return Ok(None);
    }
    let per_second = |count: u64| count as f64 / TRIAL.as_secs_f64();
    if free.arrivals.count == 0 {
        return Err(TransferError::Silent { sent: free.sent });
    }
    let (mut low, mut high, mut rate) = (0.0, per_second(free.sent), per_second(free.in_time.max(1)));
    for _ in 0..MAX_TRIALS {
        if trial(Some(rate), TRIAL)?.passes() {
            low = rate;
        } else {
            high = rate;
        }
        if low > 0.0 && high / low < PRECISION {
            break;
        }
        rate = if low > 0.0 { (low * high).sqrt() } else { high / 2.0 };
    }
    // What held for a moment is to hold for longer.
    let mut rate = if low > 0.0 { low } else { rate };
    for _ in 0..MAX_CONFIRMATIONS {
        if trial(Some(rate), CONFIRMATION)?.passes() {
            break;
        }
        rate /= PRECISION * PRECISION;
    }
    Ok(Some(rate))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::run::meter::{Counters, Usage};

    /// A path that takes so many datagrams a second, from a sender that makes at most so many.
    fn path(takes: f64, makes: f64) -> impl Fn(Option<f64>, Duration) -> Result<Outcome, TransferError> {
        move |rate, time| {
            let count = |rate: f64| (rate * time.as_secs_f64()) as u64;
            let sent = rate.unwrap_or(makes).min(makes);
            let mut arrivals = Arrivals::new();
            arrivals.count = count(sent.min(takes));
            let end =
                Snapshot { at: Instant::now(), usage: Usage::default(), counters: Counters::default(), stolen: None };
            Ok(Outcome { sent: count(sent), in_time: arrivals.count, arrivals, end, clock_cpu: None })
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
}
