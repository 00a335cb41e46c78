use std::thread;

use clap::Parser;
use platform::TcpStatistics;

use super::*;
use crate::cli::Cli;
use crate::load::sockets::Cancel;
use crate::meter::LinkMeter;
use crate::plan::scenario::Scenario;
use crate::sample::Status;

/// Sends to a server in a process that counts so many datagrams too many, and says so late. So many timed windows lose a tenth.
struct Process {
    flows: Arc<Flows>,
    more: u64,
    lossy: u32,
    /// The number of the trial, and how many were sent in it.
    taken: (u32, u64),
    is_new: bool,
}

impl Sockets for Process {
    fn connect(&mut self, _: usize, _: SocketAddr) -> io::Result<()> {
        self.is_new = true;
        Ok(())
    }

    fn is_connected(&mut self, _: usize) -> io::Result<bool> {
        Ok(true)
    }

    fn read(&mut self, _: usize, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&mut self, _: usize, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn write_datagrams(&mut self, _: usize, datagrams: &[u8], segment_len: usize) -> io::Result<usize> {
        let number = self.flows.trial().number;
        let earlier = if self.taken.0 == number { self.taken.1 } else { 0 };
        self.taken = (number, earlier + (datagrams.len() / segment_len) as u64);
        Ok(datagrams.len())
    }

    fn end_writing(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self, _: usize) {}

    fn statistics(&self, _: usize) -> TcpStatistics {
        TcpStatistics::default()
    }

    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.extend(std::mem::take(&mut self.is_new).then_some(0));
        let trial = self.flows.trial();
        if Instant::now() > trial.end() + Duration::from_millis(150) {
            let is_lossy = trial.is_timed && self.flows.again.load(Ordering::Acquire) < self.lossy;
            let arrived = if is_lossy { self.taken.1 * 9 / 10 } else { self.taken.1 + self.more };
            let text = format!("{{\"trial\":{},\"arrived\":{arrived}}}", trial.number);
            self.flows.set_counts(&serde_json::from_str(&text).unwrap(), Instant::now());
        }
        let until = due.map_or(end, |due| due.min(end)).min(Instant::now() + LOOK);
        thread::sleep(until.saturating_duration_since(Instant::now()));
        Ok(())
    }

    fn canceller(&self) -> Cancel {
        Box::new(|| ())
    }
}

/// The flows of a run after it, and how it ended.
fn run(words: &str, more: u64, lossy: u32) -> (Arc<Flows>, Result<(), LoadError>) {
    let words = format!("x -n gvisor -m writer --protocol udp --datagram 100 --time 0.05 {words}");
    let scenario = Scenario::try_from(Cli::try_parse_from(words.split_whitespace()).unwrap().run).unwrap();
    let flows = Arc::new(Flows::of(&scenario).unwrap());
    let socket = Process { flows: Arc::clone(&flows), more, lossy, taken: (0, 0), is_new: false };
    let client = client(&flows, 0..1, SocketAddr::from(([127, 0, 0, 1], 1)), socket);
    let result = (client.deliver)(&Window::new(1, Box::new(LinkMeter::new([], || None)))).1;
    (flows, result)
}

/// The sender finds no rate that is too high, so the first window has none.
#[test]
fn a_window_that_loses_too_many_is_made_again_at_a_lower_rate() {
    for (lossy, windows) in [(0, 1), (1, 2), (9, 4)] {
        let (flows, result) = run("", 0, lossy);
        result.unwrap();
        let facts = flows.finish.get().unwrap().facts;
        assert_eq!(flows.again.load(Ordering::Acquire) + 1, windows);
        assert_eq!((facts.lost() > 0, facts.found_per_second.is_some()), (windows == 4, windows > 1), "{facts:?}");
    }
    let (flows, _) = run("--bitrate 1M", 0, 9);
    assert!(flows.finish.get().unwrap().facts.lost() > 0 && flows.again.load(Ordering::Acquire) == 0);
}

#[test]
fn counts_of_a_process_may_come_late_and_not_be_too_high() {
    for more in [0, 1] {
        let (flows, result) = run("--bitrate 1M", more, 0);
        match result {
            Ok(()) => assert!(more == 0 && flows.finish.get().unwrap().facts.lost() == 0, "{more}"),
            Err(error) => assert!(more == 1 && error.status() == Status::Corrupt, "{error}"),
        }
    }
}
