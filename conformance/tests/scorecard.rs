//! Runs every case on every stack, over a link in memory, and compares the results with the list of known failures.
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

use conformance::known::{self, Known};
use conformance::{Case, Layer, Outcome, Run};
use netstacks::StackKind;

/// How many cases run at once, if the stack can run more than once in a process. Cases wait most of the time.
const AT_ONCE: usize = 8;

/// How often a case is repeated if its outcome is not the known one.
const AGAIN: usize = 4;

/// Returns the outcomes of cases, with or without offload.
fn outcomes(stack: StackKind, cases: &[Case], offload: bool) -> BTreeMap<&'static str, Outcome> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let alone = conformance::patience() > 1 || matches!(stack, StackKind::Lwip | StackKind::LwipPublished);
    let workers = if alone { 1 } else { AT_ONCE };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run(stack, case, offload);
                    results.lock().unwrap().insert(case.id, outcome);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

fn run(stack: StackKind, case: &Case, offload: bool) -> Outcome {
    conformance::run(case, Run { stack, program: None, layer: Layer::Stack, offload, trace: None }).outcome
}

/// Returns the final outcome of a case. If it is not the known one, the case is repeated: a busy machine can make a
/// case fail.
fn settled(stack: StackKind, id: &str, offload: bool, outcome: Outcome, fails: bool) -> Outcome {
    let is_as_known = |outcome: &Outcome| match outcome {
        Outcome::Pass => !fails,
        Outcome::Fail(_) => fails,
        Outcome::NotApplicable(_) => true,
    };
    let case = Case::all().find(|case| case.id == id).unwrap();
    let offload = case.offload().unwrap_or(offload);
    let mut outcome = outcome;
    for _ in 0..AGAIN {
        if is_as_known(&outcome) {
            break;
        }
        println!("{stack} {id} (offload: {offload}) once more: {outcome:?}");
        outcome = run(stack, &case, offload);
    }
    outcome
}

fn scorecard(stack: StackKind) {
    let Known { mut failures, at_times, workarounds } = known::of(stack);
    let mut changes = String::new();
    let (offloading, plain): (Vec<_>, Vec<_>) = Case::all().partition(|case| case.offload() == Some(true));
    let mut results = outcomes(stack, &plain, false);
    results.extend(outcomes(stack, &offloading, true));
    for (id, outcome) in results {
        if at_times.contains_key(id) {
            continue;
        }
        let is_known = failures.contains_key(id);
        let outcome = settled(stack, id, false, outcome, is_known);
        match (outcome, failures.get(id)) {
            (Outcome::Fail(seen), None) => {
                writeln!(changes, "{id} fails: {seen}").unwrap();
                failures.insert(id.to_owned(), seen);
            }
            // With more time than usual, cases pass that fail by their time.
            (Outcome::Pass, Some(reason)) if conformance::patience() == 1 => {
                writeln!(changes, "{id} passes, but known.json says that it fails: {reason}").unwrap();
                failures.remove(id);
            }
            _ => {}
        }
    }
    // The list is for links without offload. With offload no other case may fail.
    let both: Vec<_> =
        plain.into_iter().filter(|case| case.offload().is_none() && !failures.contains_key(case.id)).collect();
    let both: Vec<_> = both.into_iter().filter(|case| !at_times.contains_key(case.id)).collect();
    for (id, outcome) in outcomes(stack, &both, true) {
        if let Outcome::Fail(seen) = settled(stack, id, true, outcome, false) {
            writeln!(changes, "{id} fails with offload: {seen}").unwrap();
        }
    }
    if std::env::var_os("UPDATE_KNOWN").is_some() {
        return update(stack, Known { failures, at_times, workarounds });
    }
    assert!(changes.is_empty(), "{stack} has changed; UPDATE_KNOWN=1 rewrites known.json:\n{changes}");
}

/// Writes the known results of a stack. A new failure gets its observation as the reason.
fn update(stack: StackKind, known: Known) {
    static FILE: Mutex<()> = Mutex::new(());
    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/known.json");
    let _one_at_a_time = FILE.lock().unwrap();
    let mut all: BTreeMap<String, Known> = serde_json::from_slice(&std::fs::read(PATH).unwrap()).unwrap();
    all.insert(stack.name().to_owned(), known);
    std::fs::write(PATH, serde_json::to_string_pretty(&all).unwrap() + "\n").unwrap();
}

/// The list is JSON, and names only cases that exist.
#[test]
fn the_list_names_cases() {
    let ids: Vec<_> = Case::all().map(|case| case.id).collect();
    for (stack, known) in known::all() {
        let is_its_name = |kind: StackKind| kind.name() == stack;
        assert!(StackKind::ALL.into_iter().chain([StackKind::Gvisor]).any(is_its_name), "{stack}");
        for id in known.failures.keys().chain(known.at_times.keys()).chain(known.workarounds.keys()) {
            assert!(ids.contains(&id.as_str()), "{stack}: there is no case {id}");
        }
    }
    assert!(!known::all().is_empty());
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

#[cfg(feature = "lwip")]
#[test]
fn lwip() {
    scorecard(StackKind::Lwip);
}

#[cfg(feature = "ipstack")]
#[test]
fn ipstack() {
    scorecard(StackKind::Ipstack);
}

#[cfg(feature = "smoltcp")]
#[test]
fn smoltcp() {
    scorecard(StackKind::Smoltcp);
}

#[cfg(feature = "tcp_ip")]
#[test]
fn tcp_ip() {
    scorecard(StackKind::TcpIp);
}

#[cfg(feature = "netstack-smoltcp")]
#[test]
fn netstack_smoltcp() {
    scorecard(StackKind::NetstackSmoltcp);
}

#[cfg(feature = "lwip-published")]
#[test]
fn lwip_published() {
    scorecard(StackKind::LwipPublished);
}
