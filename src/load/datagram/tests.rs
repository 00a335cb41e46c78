use clap::Parser;

use super::arrivals::Arrived;
use super::*;
use crate::cli::Cli;

/// The counts that a process prints.
fn counts(text: &str) -> ProcessCounts {
    serde_json::from_str(text).unwrap()
}

fn flow(mode: &str) -> Flows {
    let words = format!("x -n gvisor -m {mode} --protocol udp --datagram 100");
    let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
    Flows::of(&Scenario::try_from(cli.run).unwrap()).unwrap()
}

#[test]
fn a_process_counts_what_arrives_at_it() {
    let flow = flow("writer");
    let first = flow.begin(None, Duration::ZERO, false);
    flow.set_counts(&counts(r#"{"trial":1,"arrived":7,"reordered":2,"duplicated":1}"#), first.end());
    let (arrived, counted_at) = flow.each[0].arrived_by();
    assert_eq!((arrived.count, arrived.reordered, arrived.duplicated, counted_at), (7, 2, 1, first.end()));
    // Of the second trial it has nothing yet, but it has looked.
    let later = first.end() + Duration::from_secs(1);
    flow.begin(None, Duration::ZERO, true);
    flow.set_counts(&counts(r#"{"trial":1,"arrived":8}"#), later);
    assert_eq!(flow.each[0].arrived_by(), (Arrived::default(), later));
    flow.set_counts(&counts(r#"{"trial":2,"arrived":5}"#), later);
    assert_eq!((flow.arrived_bytes(), flow.timed_bytes()), (1200, 500));
}

#[test]
fn a_process_says_how_many_it_sent_when_it_has_sent_all() {
    let flow = flow("reader");
    assert!(!flow.each[0].is_greeted());
    let trial = flow.begin(None, Duration::ZERO, false);
    for (text, sent) in [
        (r#"{"trial":0,"greeted":true,"sent":5}"#, (0, false)),
        (r#"{"trial":1,"sent":null,"arrived":9}"#, (0, false)),
        (r#"{"trial":1,"sent":6}"#, (6, true)),
    ] {
        flow.set_counts(&counts(text), Instant::now());
        assert_eq!(flow.sent(&trial), sent, "{text}");
    }
    // The client counts what arrives.
    assert!(flow.each[0].is_greeted() && flow.each[0].arrived_by().0 == Arrived::default());
}
