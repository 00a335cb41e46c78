//! The processes of a program: all that live in its network.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use platform::{FaultCounter, ProcessMeter, SocketCount};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::meter::{Cost, Counters, Meter, Usage};
use crate::sample::ProcessFacts;

const MOST_MEMORY: u64 = 4 << 30;

/// How often its processes are looked for during a run.
const LOOK: Duration = Duration::from_millis(500);

/// How often processes are killed until none is left: a program may start others while they are killed.
const KILL_PASSES: u32 = 50;

const KILL_PAUSE: Duration = Duration::from_millis(1);

/// The processes in some networks other than this one. Dropping it kills them.
pub(super) struct Residents {
    /// For each network, the folder under `/proc` of a thread in it.
    networks: Vec<PathBuf>,
    known: Mutex<Vec<ProcessMeter>>,
    /// Their state at the last reading of the meter.
    read: Mutex<ProcessFacts>,
}

impl Residents {
    pub(super) fn new(networks: Vec<PathBuf>) -> Self {
        Self { networks, known: Mutex::default(), read: Mutex::default() }
    }

    pub(super) fn find(&self) {
        let found = self.networks.iter().flat_map(|network| platform::processes_in(network)).collect();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn known(&self) -> Vec<ProcessMeter> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks for them again. Returns whether any has something to do.
    pub(super) fn is_busy(&self) -> bool {
        self.find();
        self.known().into_iter().any(ProcessMeter::is_busy)
    }

    pub(super) fn cpu(&self) -> Duration {
        self.known().into_iter().filter_map(ProcessMeter::cpu).sum()
    }

    pub(super) fn limit_files(&self, more: Option<u64>) -> io::Result<()> {
        self.find();
        self.known().into_iter().try_for_each(|process| {
            let open = process.condition().and_then(|condition| condition.open_files).unwrap_or_default();
            process.limit_open_files(more.map_or(u64::MAX, |more| open + more))
        })
    }

    fn rss_bytes(&self) -> u64 {
        self.known().into_iter().filter_map(ProcessMeter::rss_bytes).sum()
    }

    /// Looks for them again, and says what they have.
    pub(super) fn facts(&self) -> ProcessFacts {
        self.find();
        let conditions: Vec<_> = self.known().into_iter().filter_map(ProcessMeter::condition).collect();
        ProcessFacts {
            processes: conditions.len() as u64,
            pss_bytes: conditions.iter().map(|one| one.pss_bytes).sum(),
            threads: conditions.iter().map(|one| one.threads).sum(),
            open_files: conditions.iter().map(|one| one.open_files).sum(),
            switches: conditions.iter().map(|one| one.switches).sum(),
        }
    }

    /// The state at the end of the timed window, when the meter was read last.
    pub(super) fn read(&self) -> ProcessFacts {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn terminate(&self) {
        for process in self.known() {
            process.terminate();
        }
    }

    /// Kills them, and those that they start meanwhile. Returns how many there were at first.
    pub(super) fn kill(&self) -> u64 {
        self.find();
        let first = self.known().len();
        for _ in 0..KILL_PASSES {
            let left = self.known();
            if left.is_empty() {
                break;
            }
            for process in left {
                process.kill();
            }
            thread::sleep(KILL_PAUSE);
            self.find();
        }
        first as u64
    }

    /// Waits until they take too much memory, or all of them are gone.
    pub(super) async fn misbehave(self: Arc<Self>) -> String {
        loop {
            sleep(LOOK).await;
            // It reads a file for each process of the machine, and packets may be waiting for this task's thread.
            let looking = Arc::clone(&self);
            let _lost = spawn_blocking(move || looking.find()).await;
            if self.rss_bytes() > MOST_MEMORY {
                return format!("takes more than {} GiB of memory", MOST_MEMORY >> 30);
            }
            if self.is_empty() {
                return "has ended".to_owned();
            }
        }
    }
}

impl Drop for Residents {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The meter of a program: the cost of its processes, and the packets of its device.
pub(super) struct ProgramMeter {
    /// None for the kernel alone.
    pub(super) residents: Option<Arc<Residents>>,
    /// The folder under `/proc` of a thread in the near network.
    pub(super) network: PathBuf,
    pub(super) device: String,
    pub(super) drops: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    pub(super) far: Option<Arc<Residents>>,
    pub(super) faults: Option<Arc<FaultCounter>>,
    /// The same of the network in which it has its sockets.
    pub(super) sockets: PathBuf,
}

impl Meter for ProgramMeter {
    fn usage(&self) -> Usage {
        Usage {
            own: Cost::of_process(),
            carrier_cpu: self.residents.as_ref().map(|residents| residents.cpu()),
            carrier_rss_bytes: self.residents.as_ref().map(|residents| residents.rss_bytes()),
        }
    }

    fn counters(&self) -> Counters {
        let counts = platform::interface_counts(&self.network, &self.device);
        for residents in [&self.residents, &self.far].into_iter().flatten() {
            *residents.read.lock().unwrap_or_else(PoisonError::into_inner) = residents.facts();
        }
        let counters = Counters {
            packets: counts.map(|counts| counts.packets),
            drops: (self.drops)(),
            faults: self.faults.as_ref().map(|faults| faults.counts()),
            far_cpu: self.far.as_ref().map(|residents| residents.cpu()),
            ..Counters::default()
        };
        let Some(residents) = &self.residents else { return counters };
        let peaks = residents.known().into_iter().filter_map(ProcessMeter::peak_rss_bytes);
        let carrier_switches = Some(residents.read().switches);
        Counters { carrier_peak_rss_bytes: Some(peaks.sum()), carrier_switches, ..counters }
    }

    fn sockets(&self) -> Option<SocketCount> {
        platform::sockets_of(&self.sockets)
    }
}
