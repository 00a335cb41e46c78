use std::collections::BTreeSet;

use super::*;
use crate::measure::fixture::run;
use crate::measure::{Comparison, Summary, Verdict};
use crate::sample::{IdleFacts, Latency, Packets, RequestFacts, RestFacts, Warning};

#[test]
fn every_metric_has_a_name_of_its_own_a_head_and_a_meaning() {
    let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), METRICS.len());
    for Metric { name, title, unit, about, in_text, .. } in &METRICS {
        assert!(!name.is_empty() && !about.is_empty() && !format!("{title}{unit}").is_empty(), "{name}");
        assert!(in_text.is_none_or(|(_, words)| words.contains("{}")), "{name}");
    }
}

#[test]
fn the_speed_of_a_run_is_the_metric_of_its_cell() {
    let mut latency = Latency::default();
    (1..=1000).for_each(|tenths| latency.record(Duration::from_micros(tenths * 100)));
    for (words, name, expected) in [
        ("both", "gbps", 2.0),
        ("rr", "requests_per_second", 50.0),
        ("rr --rate 1000", "latency_p99_us", 99_000.0),
        ("rr --think 1s", "latency_p99_us", 99_000.0),
        ("crr --rate 1000", "latency_p99_us", 99_000.0),
        ("idle --parallel 2", "connections_per_mb_5s", 5_000.0),
    ] {
        let mut run = run(&format!("-n smoltcp -m {words}"), 2.0);
        run.measured.requests = Some(RequestFacts { answered: 100, latency: latency.clone(), ..Default::default() });
        run.measured.idle = Some(IdleFacts {
            connections: 11,
            rss_before_bytes: Some(0),
            rest: at_rest([1500, 1000, 900].map(Some), Some(1000)),
            ..IdleFacts::default()
        });
        let speed = speed_of(&run.cell);
        assert_eq!((speed.name, speed.is_speed()), (name, true));
        assert!(super::speed(&run).is_some_and(|speed| (speed / expected - 1.0).abs() < 0.001), "{name}");
    }
}

fn at_rest(rss_bytes: [Option<u64>; 3], kernel_bytes: Option<u64>) -> Vec<RestFacts> {
    let moments = IdleFacts::MOMENTS.into_iter().zip(rss_bytes);
    moments.map(|(after, rss_bytes)| RestFacts { after, rss_bytes, kernel_bytes }).collect()
}

/// Without the kernel's part there is no figure, and older files have none.
#[test]
fn the_memory_has_its_moment_and_the_kernels_part() {
    let names = [1, 5, 30].map(|seconds| format!("bytes_per_connection_{seconds}s"));
    for (rest, figures) in [
        (at_rest([Some(5000), Some(3000), Some(2000)], Some(1000)), [600.0, 400.0, 300.0].map(Some)),
        (at_rest([Some(5000), Some(3000), Some(2000)], Some(1000))[..1].to_vec(), [Some(600.0), None, None]),
        (at_rest([5000, 3000, 2000].map(Some), None), [None; 3]),
        (Vec::new(), [None; 3]),
    ] {
        let mut run = run("-n kernel -m idle --parallel 11", 0.0);
        let facts = IdleFacts { connections: 11, rss_before_bytes: Some(0), rest, ..IdleFacts::default() };
        let lacks_kernel = facts.rest.iter().any(|rest| rest.kernel_bytes.is_none());
        run.measured.idle = Some(facts);
        assert_eq!(names.each_ref().map(|name| figure(name, &run)), figures);
        assert_eq!(speed(&run), figures[1].map(|bytes| 1e6 / bytes));
        assert_eq!(run.warnings().contains(&Warning::NoKernelMemory), lacks_kernel);
    }
}

fn figure(name: &str, run: &Sample) -> Option<f64> {
    METRICS.iter().find(|metric| metric.name == name).and_then(|metric| metric.of_run(run))
}

#[test]
fn a_memory_that_did_not_grow_is_less_than_a_page_and_not_unknown() {
    let idle = |rss_bytes| {
        let mut run = run("-n smoltcp -m idle --parallel 2", 0.0);
        let (rss_before_bytes, rest) = (Some(5_000_000), at_rest([rss_bytes; 3], Some(0)));
        run.measured.idle = Some(IdleFacts { connections: 1001, rss_before_bytes, rest, ..IdleFacts::default() });
        run
    };
    let names = ["connections_per_mb_5s", "bytes_per_connection_5s", "released_share"];
    let bound = 1e6 / 4.096;
    for (rss, figures, speeds, verdict) in [
        (None, [None; 3], &[500.0][..], Verdict::NotRun),
        (Some(4_999_999), [Some(bound), Some(4.096), None], &[bound, 500.0], Verdict::TooFewRuns),
        (Some(5_000_000), [Some(bound), Some(4.096), None], &[bound, 500.0], Verdict::TooFewRuns),
    ] {
        let run = idle(rss);
        assert_eq!(names.map(|name| figure(name, &run)), figures);
        assert_eq!(speed(&run), figures[0]);
        let row = &Summary::of(&[run.clone(), idle(Some(7_000_000))]).cells[0];
        assert_eq!((row.runs, row.speeds.as_slice()), (2, speeds));
        let compared = Comparison::of(&[run], &[idle(Some(7_000_000))], 0.0).map(|table| table.cells);
        assert_eq!(compared.map(|cells| cells[0].verdict), Ok(verdict));
    }
}

#[test]
fn bytes_in_a_packet_are_of_the_directions_of_the_payload() {
    for (mode, bytes) in [("reader", 50.0), ("writer", 1000.0), ("both", 810.0)] {
        let mut run = run(&format!("-n smoltcp -m {mode}"), 1.0);
        run.measured.packets = Packets { rx: 8, rx_bytes: 8000, tx: 2, tx_bytes: 100 };
        assert_eq!(figure("packet_bytes", &run), Some(bytes), "{mode}");
    }
}

#[test]
fn values_are_written_with_their_units() {
    let text =
        |name, value| METRICS.iter().find(|metric| metric.name == name).map(|metric| metric.write_with_unit(value));
    assert_eq!(text("gbps", 44.613).as_deref(), Some("44.61 Gbps"));
    assert_eq!(text("peak_rss_bytes", 7_200_000.0).as_deref(), Some("7.20 MB"));
    assert_eq!(text("of_fastest", 0.505).as_deref(), Some("50 %"));
    assert_eq!(text("retransmits", 3.0).as_deref(), Some("3"));
}
