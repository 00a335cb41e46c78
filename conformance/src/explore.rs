//! Random play: a client that does anything that a peer may do, and an application that does anything that a program
//! may do. A few invariants hold in every play. A play that breaks one is shrunk to its fewest moves.
//!
//! A seed always makes the same play. lwIP and smoltcp take their time from tokio, so their plays of minutes take
//! milliseconds. All other stacks take the system's time.

mod app;
mod peer;
mod play;
mod script;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use netstacks::{StackConfig, StackKind};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use tokio::runtime::{Builder, Runtime};

use self::play::{Play, plays};
#[doc(hidden)]
pub use self::{
    play::{Fault, Forged, Move, Opening},
    script::{CLIENTS, Script, perform as perform_script},
};
use crate::known::{PLAYS_BREAK_IT, without_numbers};
use crate::{Case, Harm, Lab, Layer, Outcome, Ran, Run, Step, Stop, lab, pattern};

/// The most bytes of each direction of a play.
const LONGEST: usize = 64 << 10;

/// How many plays run side by side, if the stack can run more than once at a time. Plays in the system's time mostly wait.
const AT_ONCE: usize = 16;

/// How many smaller plays are tried for each kind of failure, and for how long in all.
const TRIES: u32 = 2_000;
const TRYING: Duration = Duration::from_mins(2);

type Stream = Arc<[u8]>;

/// Returns the streams of the client at a place, and of its server.
fn streams(at: u16) -> [Stream; 2] {
    static MADE: Mutex<BTreeMap<u64, Stream>> = Mutex::new(BTreeMap::new());
    let stream = |seed| Arc::clone(lock(&MADE).entry(seed).or_insert_with(|| pattern(seed, LONGEST).into()));
    [2 * u64::from(at) + 1, 2 * u64::from(at) + 2].map(stream)
}

/// Plays to run. Those of a seed are the same in each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exploration {
    /// How many.
    pub plays: u32,
    /// The seed of the first one. Each further play has the next seed.
    pub seed: u64,
}

/// Something that holds in every play, in the order of [`INVARIANTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Invariant {
    Bytes,
    Acks,
    Window,
    Size,
    Unasked,
    Progress,
    End,
    Freed,
    Lives,
}

/// The invariants, as the cases that tables list.
const INVARIANTS: [Case; 9] = [
    invariant("play-bytes", "MUST RFC 9293, 2.2: reliable and in order", "RFC 9293, 2.2")
        .about("Random play: the bytes of both directions")
        .expects("Each side reads the bytes that the other has written, in order, and its end after the last one."),
    invariant("play-acks", "MUST RFC 9293, 3.4: cumulative ACKs", "RFC 9293, 3.4")
        .about("Random play: acknowledgements")
        .expects("The stack acknowledges no byte that has not reached it undamaged."),
    invariant("play-window", "MUST RFC 9293, 3.8.6: within the window", "RFC 9293, 3.8.6")
        .about("Random play: the client's window")
        .expects("The stack sends nothing beyond the client's window, but for a probe of one byte."),
    invariant("play-size", "MUST-16", "RFC 9293, 3.7.1; RFC 6691, 2")
        .about("Random play: the sizes of segments")
        .expects("No segment has more bytes, with its options, than the client's MSS."),
    invariant("play-unasked", "MUST RFC 9293, 3.5.2: no reset in doubt", "RFC 9293, 3.10")
        .about("Random play: what nobody has asked for")
        .expects(
            "No data that the server has not written, no FIN before the server closes, and no RST without a reason.",
        ),
    invariant("play-progress", "MUST RFC 9293, 2.2: reliable and in order", "RFC 9293, 3.8")
        .about("Random play: progress")
        .expects("Once nothing is lost and both sides read, all bytes and the ends get through."),
    invariant("play-end", "MUST-12", "RFC 9293, 3.6.1; 3.10.7.4; 3.8.3")
        .about("Random play: the end of a connection")
        .expects("A reset, bytes that nobody reads, and a client that is gone are reported to the other side."),
    invariant("play-freed", "MUST RFC 9293, 3.6: the end of a connection", "RFC 9293, 3.6.1")
        .about("Random play: after the end")
        .expects("A new connection with the same ports is served."),
    invariant("play-lives", "ours", "RFC 9293; RFC 8200; RFC 791")
        .about("Random play: the stack itself")
        .expects("The stack runs on, and sends valid packets."),
];

const fn invariant(id: &'static str, level: &'static str, rfc: &'static str) -> Case {
    Case { subject: "random play", ..Case::new(id, level, rfc, |_| Ok(())) }
}

/// The invariants of random play, in the order of tables.
pub fn invariants() -> impl Iterator<Item = Case> {
    INVARIANTS.into_iter()
}

impl Invariant {
    /// Fails with the text of `seen`, unless it holds.
    fn holds(self, holds: bool, seen: impl FnOnce() -> String) -> Played {
        if holds { Ok(()) } else { Err(Broken::new(self, seen())) }
    }
}

/// An invariant that is broken, and what was seen.
#[derive(Clone, Debug)]
struct Broken {
    invariant: Invariant,
    seen: String,
}

impl Broken {
    fn new(invariant: Invariant, seen: String) -> Self {
        Self { invariant, seen }
    }

    fn kind(&self) -> Kind {
        let what = self.seen.split([':', ';']).next().unwrap_or_default();
        (self.invariant, without_numbers(what))
    }
}

/// The link has failed, or a packet is invalid.
impl From<Stop> for Broken {
    fn from(stop: Stop) -> Self {
        let (Stop::Fail { seen, .. } | Stop::NotApplicable(seen) | Stop::Unavailable(seen)) = stop;
        Self::new(Invariant::Lives, seen)
    }
}

type Played = Result<(), Broken>;

/// What plays have in common that are reported once: the invariant, and what was seen without its details.
type Kind = (Invariant, String);

/// The times of a play.
#[derive(Clone, Copy)]
struct Pace {
    /// The client sends unacknowledged bytes again after this time.
    retry: Duration,
    /// The limit of everything that has to happen once nothing is lost.
    bound: Duration,
    /// The limit for the end of TIME-WAIT.
    freed: Duration,
    /// Longer than the bound, so that a connection that hangs does not end by itself.
    user_timeout: Duration,
}

/// In tokio's time.
const UNHURRIED: Pace = Pace {
    retry: Duration::from_secs(1),
    bound: Duration::from_mins(2),
    freed: Duration::from_mins(5),
    user_timeout: Duration::from_mins(3),
};

/// In the system's time.
const HURRIED: Pace = Pace {
    retry: Duration::from_millis(400),
    bound: Duration::from_secs(8),
    freed: Duration::from_secs(8),
    user_timeout: Duration::from_secs(10),
};

/// Runs plays on a stack. Returns the result of each invariant, with the first play of each kind of failure, made
/// small.
pub fn explore(exploration: Exploration, run: &Run) -> Vec<(Case, Ran)> {
    let Exploration { plays, seed } = exploration;
    let Run { stack, layer, .. } = *run;
    // A program that does not start shows nothing of a stack.
    if run.program.is_some()
        && let Err(Stop::Unavailable(why)) = try_start(run.clone())
    {
        let unavailable = |case| (case, Ran::of(Outcome::Unavailable { seen: why.clone() }, None));
        return invariants().map(unavailable).collect();
    }
    let is_alone = layer == Layer::Path || matches!(stack, StackKind::Lwip | StackKind::LwipPublished);
    let turn = Mutex::new(());
    let perform = |play: &Play| {
        let _turn = is_alone.then(|| lock(&turn));
        perform(play, run.clone())
    };
    let (next, broken) = (AtomicU64::new(0), Mutex::new(BTreeMap::<Kind, BTreeSet<u64>>::new()));
    let play_some = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= plays.into() {
                return;
            }
            let seed = seed.wrapping_add(index);
            if let Some(Err(found)) = drawn(seed).map(|tree| perform(&tree.current())) {
                lock(&broken).entry(found.kind()).or_default().insert(seed);
            }
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(play_some))));
    let texts = Mutex::new(BTreeMap::new());
    let describe = |kind: &Kind, seeds: &BTreeSet<u64>| {
        let first = seeds.first().copied().unwrap_or(seed);
        let text = match shrunk(first, |play| perform(play).err().filter(|found| found.kind() == *kind)) {
            Some((play, Broken { seen, .. })) => format!("{seen};\nshrunk from seed {first}:\n{play}"),
            None => format!("{}; seed {first} did not do so once more", kind.1),
        };
        lock(&texts).insert(kind.clone(), format!("{} of {plays} {PLAYS_BREAK_IT}{text}", seeds.len()));
    };
    let kinds = lock(&broken);
    thread::scope(|scope| kinds.iter().for_each(|(kind, seeds)| drop(scope.spawn(|| describe(kind, seeds)))));
    let texts = lock(&texts);
    let outcome = |index: usize| {
        let harm = match index {
            _ if index <= Invariant::Acks as usize => Harm::Data,
            _ if index <= Invariant::Unasked as usize => Harm::Manners,
            _ => Harm::Hang,
        };
        let of_it = texts.iter().filter(|((invariant, _), _)| *invariant as usize == index);
        let texts: Vec<_> = of_it.map(|(_, text)| text.as_str()).collect();
        if texts.is_empty() { Outcome::Pass } else { Outcome::Fail { seen: texts.join(";\n"), harm } }
    };
    let ran = |(index, case)| (case, Ran::of(outcome(index), None));
    invariants().enumerate().map(ran).collect()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Draws the play of a seed. No play is rejected, so there is one.
fn drawn(seed: u64) -> Option<impl ValueTree<Value = Play>> {
    let config = Config { rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() };
    plays().new_tree(&mut TestRunner::new(config)).ok()
}

/// Makes the play of a seed smaller for as long as `breaks` returns what it breaks. `None` if it does not at first.
fn shrunk<T>(seed: u64, breaks: impl Fn(&Play) -> Option<T>) -> Option<(Play, T)> {
    let mut tree = drawn(seed)?;
    let (until, mut smallest) = (Instant::now() + TRYING, None);
    for _ in 0..TRIES {
        let play = tree.current();
        let has_next = if let Some(what) = breaks(&play) {
            smallest = Some((play, what));
            tree.simplify()
        } else {
            tree.complicate()
        };
        if !has_next || Instant::now() > until {
            break;
        }
    }
    smallest
}

fn try_start(run: Run) -> Step {
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(1);
    lab::perform("start", runtime, false, run, |_| (), |_, _| Ok(())).0
}

/// Performs a play on a stack of its own.
fn perform(play: &Play, run: Run) -> Played {
    let in_its_time = matches!(run.stack, StackKind::Lwip | StackKind::Smoltcp);
    let (runtime, pace) = if in_its_time && run.layer == Layer::Stack {
        let mut runtime = Builder::new_current_thread();
        runtime.start_paused(true);
        (runtime, UNHURRIED)
    } else {
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(1);
        (runtime, HURRIED)
    };
    let (play, ipv6, buffers) = (play.clone(), play.opening.ipv6, play.buffers);
    let configure = move |config: &mut StackConfig| (config.window, config.user_timeout) = (buffers, pace.user_timeout);
    let script = move |lab: &mut Lab, runtime: &Runtime| {
        let played = runtime.block_on(stage::perform(&play, lab, pace));
        Ok(played.and_then(|()| Ok(lab.finish()?)))
    };
    lab::perform("play", runtime, ipv6, run, configure, script).0?
}

#[cfg(test)]
mod tests;
