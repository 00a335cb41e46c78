//! Reports of iperf3 as version 3.12 prints them, and the figures in them.

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

fn ends(delivered: &Delivered) -> Vec<(u128, u64)> {
    let clock = delivered.clock.as_ref().unwrap();
    clock.parts.iter().map(|(end, bytes)| (end.as_millis(), *bytes)).collect()
}

#[test]
fn the_bytes_that_were_received_count() {
    let interval = |end, bytes| format!("{{\"streams\": [], \"sum\": {}}}", sum(end, bytes, Some(1)));
    let report = report(
        &[interval(1.0, 600), interval(2.0, 700)],
        &format!(
            "\"sum_sent\": {}, \"sum_received\": {}, \"cpu_utilization_percent\": {{\"host_total\": 30.0, \"remote_total\": 20.0}}",
            sum(2.0, 1300, Some(2)),
            sum(2.5, 1200, None)
        ),
    );
    let delivered = report.delivered(Some(Mode::Writer)).unwrap();
    assert_eq!(
        (delivered.figures.bytes, delivered.figures.bytes_back, delivered.figures.retransmits),
        (1200, None, Some(2))
    );
    assert_eq!(delivered.clock.as_ref().unwrap().elapsed, Duration::from_millis(2500));
    assert_eq!(delivered.cost.cpu, Some(Duration::from_millis(1250)));
    assert_eq!(ends(&delivered), [(1000, 600), (2000, 700)]);
}

#[test]
fn the_bytes_of_both_directions_are_added() {
    let interval = format!("{{\"sum\": {}, \"sum_bidir_reverse\": {}}}", sum(1.0, 100, Some(0)), sum(1.0, 50, None));
    let end = format!(
        "\"sum_sent\": {}, \"sum_received\": {}, \"sum_sent_bidir_reverse\": {}, \"sum_received_bidir_reverse\": {}",
        sum(1.0, 100, Some(3)),
        sum(1.0, 90, None),
        sum(1.0, 50, Some(4)),
        sum(1.1, 40, None)
    );
    let delivered = report(&[interval], &end).delivered(Some(Mode::Both)).unwrap();
    assert_eq!(
        (delivered.figures.bytes, delivered.figures.bytes_back, delivered.figures.retransmits),
        (130, Some(40), Some(7))
    );
    assert_eq!(delivered.clock.as_ref().unwrap().elapsed, Duration::from_millis(1100));
    assert_eq!(ends(&delivered), [(1000, 150)]);
}

/// Another program prints the report, so its numbers may be any.
#[test]
fn figures_that_are_too_large_are_refused() {
    let most = || sum(1.0, u64::MAX, Some(u64::MAX));
    let end = format!(
        "\"sum_sent\": {0}, \"sum_received\": {0}, \"sum_sent_bidir_reverse\": {0}, \"sum_received_bidir_reverse\": {0}",
        most()
    );
    let interval = format!("{{\"sum\": {0}, \"sum_bidir_reverse\": {0}}}", most());
    let report = report(&[interval], &end);
    assert!(report.delivered(Some(Mode::Both)).is_err());
    let delivered = report.delivered(Some(Mode::Writer)).unwrap();
    assert_eq!((delivered.figures.bytes, delivered.figures.retransmits), (u64::MAX, Some(u64::MAX)));
    assert_eq!(ends(&delivered), [(1000, u64::MAX)]);
}

#[test]
fn a_figure_that_is_not_reported_is_unknown() {
    let without = |end: &str| report(&[], end).delivered(Some(Mode::Writer));
    assert!(without("\"sum_sent\": null").unwrap_err().detail.contains("received"));
    let delivered = without(&format!("\"sum_received\": {}", sum(1.0, 9, None))).unwrap();
    assert_eq!((delivered.figures.retransmits, delivered.cost.cpu), (None, None));
    assert_eq!(ends(&delivered), []);
    let one_way = report(&[], &format!("\"sum_received\": {}", sum(1.0, 9, None)));
    assert!(one_way.delivered(Some(Mode::Both)).is_err());
}
