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

use conformance::known::{self, Expected, Known, PAUSE};
use conformance::{Case, Layer, Outcome, Ran, Run};
use netstacks::{Repairs, StackKind};

/// How many cases run at once, if the stack can run more than once in a process. Cases wait most of the time.
const AT_ONCE: usize = 8;

fn run(stack: StackKind, case: &Case, offload: bool) -> Ran {
    let layer = if stack == StackKind::Kernel { Layer::Path } else { Layer::Stack };
    conformance::run(
        case,
        Run { stack, program: None, layer, offload, mtu: conformance::MTU, repairs: Repairs::ALL, trace: None },
    )
}

/// Runs cases over one kind of link, and returns the results that are not the known ones.
fn changes(stack: StackKind, known: &Known, cases: &[Case], offload: bool) -> BTreeMap<&'static str, Outcome> {
    let (next, changes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let alone = conformance::patience() > 1 || matches!(stack, StackKind::Lwip | StackKind::LwipPublished);
    let workers = if alone { 1 } else { AT_ONCE };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(outcome) = changed(stack, known, case, offload) {
                        changes.lock().unwrap().insert(case.id, outcome);
                    }
                }
            });
        }
    });
    changes.into_inner().unwrap()
}

/// Runs a case, again if its first result is not enough, and returns the result that is not the known one.
fn changed(stack: StackKind, known: &Known, case: &Case, offload: bool) -> Option<Outcome> {
    let Ran { outcome, workarounds, .. } = run(stack, case, offload);
    let expected = Expected::of(known, case.id, offload);
    // With more time than usual, cases pass that fail by their time.
    if conformance::patience() > 1 && !matches!(expected, Expected::Pass) {
        return None;
    }
    if let Some(name) = known.workarounds.get(case.id)
        && outcome == Outcome::Pass
        && !workarounds.contains(name)
    {
        return Some(Outcome::NotApplicable(format!("the adapter has no repair {name}")));
    }
    expected.judge(outcome, || {
        std::thread::sleep(PAUSE);
        let outcome = run(stack, case, offload).outcome;
        println!("{stack} {} (offload: {offload}) once more: {outcome:?}", case.id);
        outcome
    })
}

fn scorecard(stack: StackKind) {
    let mut known = known::of(stack);
    let (offloading, plain): (Vec<_>, Vec<_>) = Case::all().partition(|case| case.offload() == Some(true));
    let over_plain = changes(stack, &known, &plain, false);
    // The list of failures is for links without offload. With offload only the cases of its own lists may fail.
    let both = plain.into_iter().filter(|case| case.offload().is_none() && !known.failures.contains_key(case.id));
    let both: Vec<_> = both.chain(offloading).collect();
    let over_offloading = changes(stack, &known, &both, true);
    let changed: Vec<_> = over_plain.into_iter().map(|change| (false, change)).collect();
    let changed = changed.into_iter().chain(over_offloading.into_iter().map(|change| (true, change)));
    if std::env::var_os("UPDATE_KNOWN").is_some() {
        for (offload, (id, outcome)) in changed {
            learn(&mut known, id, offload, outcome);
        }
        return update(stack, known);
    }
    let mut text = String::new();
    for (offload, (id, outcome)) in changed {
        let expected = Expected::of(&known, id, offload);
        writeln!(text, "{id} (offload: {offload}): {outcome:?}; known: {expected:?}").unwrap();
    }
    assert!(text.is_empty(), "{stack} has changed; UPDATE_KNOWN=1 rewrites known.json:\n{text}");
}

/// Notes a result. A new failure gets its observation as the reason.
fn learn(known: &mut Known, id: &str, offload: bool, outcome: Outcome) {
    if let Outcome::Fail(seen) = outcome {
        known.seen.insert(id.to_owned(), known::without_numbers(&seen));
        if known.fails_at_times(id, offload).is_none() {
            let failures = if offload { &mut known.failures_with_offload } else { &mut known.failures };
            failures.entry(id.to_owned()).or_insert(seen);
        }
    } else {
        for list in [&mut known.failures, &mut known.failures_with_offload, &mut known.seen] {
            list.remove(id);
        }
    }
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
        assert!(StackKind::ALL.into_iter().chain([StackKind::Gvisor, StackKind::Kernel]).any(is_its_name), "{stack}");
        let named = [&known.failures, &known.failures_with_offload, &known.at_times];
        let named =
            named.into_iter().chain([&known.when_busy, &known.when_busy_with_offload, &known.seen, &known.workarounds]);
        for id in named.flat_map(BTreeMap::keys) {
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
