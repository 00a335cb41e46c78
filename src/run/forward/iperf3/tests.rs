//! What iperf3 says, as it says it (3.12), and what is made of it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;

fn sum(end: f64, bytes: u64, retransmits: Option<u64>) -> String {
    let retransmits = retransmits.map(|count| format!(", \"retransmits\": {count}")).unwrap_or_default();
    format!("{{\"start\": 0, \"end\": {end}, \"seconds\": {end}, \"bytes\": {bytes}{retransmits}, \"sender\": true}}")
}

fn report(intervals: &[String], end: &str) -> Report {
    serde_json::from_str(&format!(
        "{{\"start\": {{}}, \"intervals\": [{}], \"end\": {{\"streams\": [], {end}}}}}",
        intervals.join(", ")
    ))
    .unwrap()
}

/// What a forwarder had spent by then.
fn spent(cpu_ms: u64) -> Spent {
    let forwarder_cpu = Some(Duration::from_millis(cpu_ms));
    Spent { forwarder_cpu, forwarder_rss_bytes: Some(cpu_ms), ..Spent::default() }
}

#[test]
fn what_was_received_counts() {
    let interval = |end, bytes| format!("{{\"streams\": [], \"sum\": {}}}", sum(end, bytes, Some(1)));
    let report = report(
        &[interval(1.0, 600), interval(2.0, 700)],
        &format!(
            "\"sum_sent\": {}, \"sum_received\": {}, \"cpu_utilization_percent\": {{\"host_total\": 30.0, \"remote_total\": 20.0}}",
            sum(2.0, 1300, Some(2)),
            sum(2.5, 1200, None)
        ),
    );
    let measured = Measured::of(&report, Direction::Forward).unwrap();
    assert_eq!((measured.bytes, measured.bytes_back, measured.retransmits), (1200, 0, Some(2)));
    assert_eq!(measured.elapsed, Duration::from_millis(2500));
    assert_eq!(measured.generator_seconds, Some(1.25));
    // The last interval is what is left of the bytes and of the time.
    let intervals = measured.intervals(spent(100), &[spent(30), spent(90)]);
    let parts: Vec<_> = intervals.iter().map(|part| (part.end.as_millis(), part.bytes, part.rss_bytes)).collect();
    assert_eq!(parts, [(1000, 600, Some(30)), (2500, 600, Some(100))]);
    let cpu: Vec<_> = intervals.iter().map(|part| part.cpu_seconds.unwrap()).collect();
    assert_eq!(cpu, [0.03, 0.07]);
}

#[test]
fn both_ways_are_added_and_the_way_back_is_told() {
    let interval = format!("{{\"sum\": {}, \"sum_bidir_reverse\": {}}}", sum(1.0, 100, Some(0)), sum(1.0, 50, None));
    let end = format!(
        "\"sum_sent\": {}, \"sum_received\": {}, \"sum_sent_bidir_reverse\": {}, \"sum_received_bidir_reverse\": {}",
        sum(1.0, 100, Some(3)),
        sum(1.0, 90, None),
        sum(1.0, 50, Some(4)),
        sum(1.1, 40, None)
    );
    let report = report(&[interval], &end);
    let measured = Measured::of(&report, Direction::Bidir).unwrap();
    assert_eq!((measured.bytes, measured.bytes_back, measured.retransmits), (130, 40, Some(7)));
    assert_eq!(measured.elapsed, Duration::from_millis(1100));
    assert_eq!(measured.intervals(spent(5), &[]).iter().map(|part| part.bytes).sum::<u64>(), 130);
}

#[test]
fn what_it_does_not_say_is_not_known() {
    let without = |end: &str| Measured::of(&report(&[], end), Direction::Forward);
    assert!(without("\"sum_sent\": null").err().unwrap().detail.contains("received"));
    let measured = without(&format!("\"sum_received\": {}", sum(1.0, 9, None))).unwrap();
    assert_eq!((measured.retransmits, measured.generator_seconds), (None, None));
    assert_eq!(measured.intervals(Spent::default(), &[]).len(), 1);
    let one_way = report(&[], &format!("\"sum_received\": {}", sum(1.0, 9, None)));
    assert!(Measured::of(&one_way, Direction::Bidir).is_err());
}
