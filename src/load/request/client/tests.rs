//! When requests are due, by a clock of the test's own.

use std::sync::Mutex;

use clap::Parser;

use super::*;
use crate::cli::Cli;
use crate::load::sockets::Cancel;
use crate::load::window::Window;
use crate::meter::LinkMeter;
use crate::plan::scenario::Scenario;

/// Sockets with a clock of their own, which moves in [`Sockets::wait`] alone: to the moment when an answer comes,
/// or to the end of the wait. An answer takes `delay`.
struct Timed {
    now: Instant,
    delay: Duration,
    /// When the answer of each socket comes.
    answers: Vec<Option<Instant>>,
    /// When each request was sent.
    sent: Arc<Mutex<Vec<Instant>>>,
    made: Vec<usize>,
}

impl Sockets for Timed {
    fn connect(&mut self, index: usize, _: SocketAddr) -> io::Result<()> {
        self.made.push(index);
        Ok(())
    }

    fn is_connected(&mut self, _: usize) -> io::Result<bool> {
        Ok(true)
    }

    fn read(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<usize> {
        match self.answers[index] {
            Some(at) if at <= self.now => {
                self.answers[index] = None;
                buffer[0] = 0;
                Ok(1)
            }
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize> {
        self.answers[index] = Some(self.now + self.delay);
        self.sent.lock().unwrap().push(self.now);
        Ok(bytes.len())
    }

    fn close(&mut self, _: usize) {}

    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.append(&mut self.made);
        if ready.is_empty() {
            let next = self.answers.iter().flatten().min().copied();
            self.now = [Some(end), due, next].into_iter().flatten().min().unwrap().max(self.now);
            let due = self.answers.iter().enumerate().filter(|(_, at)| at.is_some_and(|at| at <= self.now));
            ready.extend(due.map(|(index, _)| index));
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn canceller(&self) -> Cancel {
        Box::new(|| ())
    }

    fn end_writing(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn statistics(&self, _: usize) -> platform::TcpStatistics {
        platform::TcpStatistics::default()
    }
}

/// Runs requests for two seconds. Returns when they were sent after the begin of the window, and their results.
fn run(options: &str, parallel: usize, delay: Duration) -> (Vec<Duration>, Requested) {
    run_thread(options, parallel, delay, (0, 1))
}

/// The same for one thread of several, which has its share of the connections.
fn run_thread(options: &str, parallel: usize, delay: Duration, thread: (usize, usize)) -> (Vec<Duration>, Requested) {
    let words = format!("x -m rr --layer loopback {options} --parallel {parallel} --time 2 --verify off");
    let scenario = Scenario::try_from(Cli::try_parse_from(words.split(' ')).unwrap().run);
    let exchange = Arc::new(Exchange::of(&scenario.unwrap(), &Arc::from([])).unwrap());
    let sent = Arc::new(Mutex::new(Vec::new()));
    let slots = parallel / thread.1;
    let sockets =
        Timed { now: Instant::now(), delay, answers: vec![None; slots], sent: Arc::clone(&sent), made: Vec::new() };
    let Client { deliver, .. } = client(&exchange, slots, vec![([127, 0, 0, 1], 1).into()], thread, sockets);
    deliver(&Window::new(1, Box::new(LinkMeter::new([], || None)))).1.unwrap();
    let answered = exchange.timed.load(Ordering::Relaxed) as usize;
    let mut sent = sent.lock().unwrap().clone();
    let timed = sent.split_off(sent.len() - answered);
    (timed.iter().map(|at| *at - timed[0]).collect(), exchange.finished().unwrap())
}

/// Runs requests at a rate. Returns when they were due and sent after the begin of the window.
fn schedule(rate: u32, parallel: usize, delay: Duration) -> Vec<(Duration, Duration)> {
    let (sent, _) = run(&format!("--rate {rate}"), parallel, delay);
    let due = |index: usize| Duration::from_nanos(index as u64 * 1_000_000_000 / u64::from(rate));
    sent.iter().enumerate().map(|(index, at)| (due(index), *at)).collect()
}

#[test]
fn a_request_starts_when_it_is_due() {
    for rate in [97, 150, 199, 333, 1000, 4999] {
        let schedule = schedule(rate, 1, Duration::from_micros(100));
        assert_eq!(schedule.len(), 2 * rate as usize, "{rate}");
        assert!(schedule.iter().all(|(due, at)| due == at), "{rate}: {schedule:?}");
    }
}

/// A request without an idle connection starts as soon as there is one, and counts from when it was due.
#[test]
fn a_late_answer_delays_the_next_request() {
    let late = schedule(1000, 1, Duration::from_micros(1500));
    assert!(late.iter().enumerate().all(|(index, (_, at))| *at == Duration::from_micros(1500) * index as u32));
    let two = schedule(1000, 2, Duration::from_micros(1500));
    assert!(two.iter().all(|(due, at)| due == at), "{two:?}");
}

/// A connection thinks between a response and its next request, and the first times to think are evenly spread.
#[test]
fn a_request_is_due_when_its_connection_has_thought() {
    let delay = Duration::from_millis(1);
    let (sent, made) = run("--think 299ms", 3, delay);
    let due = |index: u32| {
        let (turn, connection) = (index / 3, index % 3);
        Duration::from_millis(299).mul_f64(f64::from(connection) / 3.0) + Duration::from_millis(300) * turn
    };
    assert_eq!(sent, (0..21).map(due).collect::<Vec<_>>());
    // The last response comes after the window.
    assert_eq!((made.answered, made.latency.count()), (20, 21));
    // Latency counts from then. The histogram has three digits.
    assert!(made.latency.quantile_us(1.0).unwrap() <= 1001.0);
}

/// Nothing is due in its warm-up, which is no failure.
#[test]
fn a_thread_whose_first_request_is_due_late_has_a_window() {
    let (sent, made) = run_thread("--think 1s --client-threads 2", 4, Duration::from_millis(1), (1, 2));
    assert_eq!((sent.len(), made.answered), (4, 4));
}
