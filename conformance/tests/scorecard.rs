//! Runs every case on every stack, over a link in memory, and compares the results with the list of known failures. Cases
//! that pass by a workaround are run without workarounds too.
//!
//! `UPDATE_KNOWN=1 cargo test -p rust-tun-perf-conformance` rewrites the list, and keeps the reasons that are there.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
#![cfg(any(
    feature = "lwip",
    feature = "ipstack",
    feature = "smoltcp",
    feature = "tcp_ip",
    feature = "netstack-smoltcp",
    feature = "lwip-published"
))]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::known::{self, Expected, How, Known, PAUSE};
use conformance::{Case, Layer, Outcome, Run};
use netstacks::{StackCongestion, StackKind, Workarounds};

/// How many cases run at once, if the stack can run more than once in a process. Cases wait most of the time.
const AT_ONCE: usize = 8;

fn run(stack: StackKind, case: &Case, how: How, shards: u16) -> Outcome {
    let layer = if stack == StackKind::Kernel { Layer::Path } else { Layer::Stack };
    let (How { offload, workarounds, congestion }, mtu, program) = (how, conformance::MTU, None);
    let run = Run { stack, program, layer, shards, offload, mtu, workarounds, congestion, trace: None };
    conformance::run(case, run).outcome
}

/// Runs cases, and returns the results that are not the known ones.
fn changes(stack: StackKind, known: &Known, runs: &[(Case, How)], shards: u16) -> Vec<(&'static str, How, Outcome)> {
    let (next, suspects) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let alone = conformance::patience() > 1 || matches!(stack, StackKind::Lwip | StackKind::LwipPublished);
    let workers = if alone { 1 } else { AT_ONCE };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if changed(stack, known, run, shards).is_some() {
                        suspects.lock().unwrap().push(run);
                    }
                }
            });
        }
    });
    // A busy machine may have caused them, so each is run again, alone.
    let again = |run: &(Case, How)| Some((run.0.id, run.1, changed(stack, known, run, shards)?));
    suspects.into_inner().unwrap().into_iter().filter_map(again).collect()
}

/// Runs a case, again if its first result is not enough, and returns the result that is not the known one.
fn changed(stack: StackKind, known: &Known, (case, how): &(Case, How), shards: u16) -> Option<Outcome> {
    let how = *how;
    let outcome = run(stack, case, how, shards);
    let expected = Expected::of(known, case.id, how);
    // With more time than usual, cases pass that fail by their time.
    if conformance::patience() > 1 && !matches!(expected, Expected::Pass) {
        return None;
    }
    expected.judge(outcome, || {
        std::thread::sleep(PAUSE);
        let outcome = run(stack, case, how, shards);
        println!("{stack} {} {how:?} once more: {outcome:?}", case.id);
        outcome
    })
}

/// The runs of all cases. With offload only the cases of its own lists may fail, so other failures are not tried. A case that
/// a workaround mends runs without workarounds on the link that it needs. A stack with a choice runs the cases of a sender with
/// congestion control too.
fn runs(stack: StackKind, known: &Known) -> Vec<(Case, How)> {
    let plain = How::default();
    let offloading = How { offload: true, ..plain };
    let (on_offload, others): (Vec<_>, Vec<_>) = Case::all().partition(|case| case.offload == Some(true));
    let both = others.iter().filter(|case| case.offload.is_none() && !known.failures.contains_key(case.id));
    let over_offloading = both.chain(&on_offload).map(|case| (*case, offloading));
    let mended = others.iter().chain(&on_offload).filter(|case| known.worked_around.contains_key(case.id));
    let as_it_is = |case: &Case| How {
        workarounds: Workarounds::NONE,
        ..if case.offload == Some(true) { offloading } else { plain }
    };
    let without = mended.map(|case| (*case, as_it_is(case)));
    let controlled = How { congestion: StackCongestion::Cubic, ..plain };
    let of_sender =
        |case: &&Case| stack == StackKind::Smoltcp && ["loss", "congestion", "windows"].contains(&case.subject);
    let with_control = others.iter().filter(of_sender).map(|case| (*case, controlled));
    others.iter().map(|case| (*case, plain)).chain(over_offloading).chain(without).chain(with_control).collect()
}

fn scorecard(stack: StackKind) {
    let known = known::of(stack);
    let changed = changes(stack, known, &runs(stack, known), 1);
    if std::env::var_os("UPDATE_KNOWN").is_some() {
        let mut known = known.clone();
        for (id, how, outcome) in changed {
            learn(&mut known, id, how, outcome);
        }
        return update(stack, known);
    }
    let text = described(known, changed);
    assert!(text.is_empty(), "{stack} has changed; UPDATE_KNOWN=1 rewrites known.json:\n{text}");
}

/// The results that are not the known ones, a line for each.
fn described(known: &Known, changed: Vec<(&str, How, Outcome)>) -> String {
    let mut text = String::new();
    for (id, how, outcome) in changed {
        let expected = Expected::of(known, id, how);
        writeln!(text, "{id} {how:?}: {outcome:?}; known: {expected:?}").unwrap();
    }
    text
}

/// Two instances are as one, whichever of them a packet comes to.
#[cfg(feature = "smoltcp")]
#[test]
fn smoltcp_in_two_shards() {
    let known = known::of(StackKind::Smoltcp);
    let is_usual = |(_, how): &(Case, How)| *how == How { offload: how.offload, ..How::default() };
    let runs: Vec<_> = runs(StackKind::Smoltcp, known).into_iter().filter(is_usual).collect();
    let text = described(known, changes(StackKind::Smoltcp, known, &runs, 2));
    assert!(text.is_empty(), "two shards differ from one:\n{text}");
}

/// Notes a result. A new failure gets its observation in place of a cause.
fn learn(known: &mut Known, id: &str, how: How, outcome: Outcome) {
    if let Outcome::Fail { seen, .. } = outcome {
        known.seen.insert(id.to_owned(), known::without_numbers(&seen));
        if known.failure(id, how).is_none() {
            let failures = match how {
                How { offload: true, .. } => &mut known.failures_with_offload,
                How { congestion: StackCongestion::None, .. } => &mut known.failures,
                _ => &mut known.failures_with_congestion,
            };
            failures.entry(id.to_owned()).or_insert(seen);
        }
    } else if how.workarounds == Workarounds::NONE {
        known.worked_around.remove(id);
    } else if how.congestion != StackCongestion::None {
        known.failures_with_congestion.remove(id);
    } else {
        for list in [&mut known.failures, &mut known.failures_with_offload, &mut known.seen] {
            list.remove(id);
        }
    }
}

/// Writes the known results of a stack.
fn update(stack: StackKind, known: Known) {
    static FILE: Mutex<()> = Mutex::new(());
    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/known.json");
    let _one_at_a_time = FILE.lock().unwrap();
    let mut all: BTreeMap<String, Known> = serde_json::from_slice(&std::fs::read(PATH).unwrap()).unwrap();
    all.insert(stack.name().to_owned(), known);
    std::fs::write(PATH, serde_json::to_string_pretty(&all).unwrap() + "\n").unwrap();
}

/// The list is JSON, and names only cases that exist. Each failure has a cause, and each cause a failure.
#[test]
fn the_list_names_cases_and_causes() {
    let ids: Vec<_> = Case::all().chain(conformance::invariants()).map(|case| case.id).collect();
    for (stack, known) in known::all() {
        let kinds = || StackKind::ALL.into_iter().chain([StackKind::Gvisor, StackKind::Kernel]);
        let Some(kind) = kinds().find(|kind| kind.name() == stack) else { panic!("{stack}") };
        let failures =
            [&known.failures, &known.failures_with_offload, &known.failures_with_congestion, &known.at_times];
        let failures: Vec<_> =
            failures.into_iter().chain([&known.when_busy, &known.when_busy_with_offload, &known.in_plays]).collect();
        let mended = known.worked_around.keys().chain(known.worked_around_at_times.keys());
        for id in failures.iter().copied().chain([&known.seen]).flat_map(BTreeMap::keys).chain(mended) {
            assert!(ids.contains(&id.as_str()), "{stack}: there is no case {id}");
        }
        for (id, cause) in failures.iter().copied().flatten() {
            assert!(known.causes.contains_key(cause), "{stack}: {id} has no cause: write it in the place of {cause:?}");
        }
        for cause in known.causes.keys() {
            assert!(failures.iter().any(|list| list.values().any(|its| its == cause)), "{stack}: {cause} does no harm");
        }
        for workarounds in mended_by(known) {
            assert_eq!(workarounds.check(kind), Ok(()));
        }
    }
    assert!(!known::all().is_empty());
}

fn mended_by(known: &Known) -> impl Iterator<Item = Workarounds> {
    let of_causes = known.causes.values().filter_map(|cause| cause.workarounds);
    known.worked_around.values().chain(known.worked_around_at_times.values()).copied().chain(of_causes)
}

#[test]
fn every_case_has_a_description_and_a_unique_name() {
    let mut ids: Vec<_> = Case::all().map(|case| case.id).collect();
    for case in Case::all() {
        assert!(case.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{}", case.id);
        for text in [case.title, case.rfc, case.expects, case.subject] {
            assert!(!text.is_empty(), "{}", case.id);
        }
    }
    let count = ids.len();
    assert!(count >= 60, "{count} cases");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

macro_rules! scorecards {
    ($($feature:literal $name:ident $stack:ident,)*) => {
        $(#[cfg(feature = $feature)]
        #[test]
        fn $name() {
            scorecard(StackKind::$stack);
        })*
    };
}

scorecards! {
    "lwip" lwip Lwip,
    "ipstack" ipstack Ipstack,
    "smoltcp" smoltcp Smoltcp,
    "tcp_ip" tcp_ip TcpIp,
    "netstack-smoltcp" netstack_smoltcp NetstackSmoltcp,
    "lwip-published" lwip_published LwipPublished,
}

/// Its own TCP judges the cases. It needs the right to make networks in a process with several threads, which root has.
#[test]
fn kernel() {
    use std::io::Write as _;

    let device = || platform::enter_netns().and_then(|()| conformance::try_device());
    match std::thread::spawn(device).join().unwrap() {
        Ok(()) => scorecard(StackKind::Kernel),
        // Past the test harness, which would hide it.
        Err(error) => drop(writeln!(std::io::stderr(), "SKIP {}::kernel: {error}", module_path!())),
    }
}
