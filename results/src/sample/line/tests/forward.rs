//! Lines of forwarders.

use super::*;
use crate::cell::ROWS;

/// A sample of a forwarder in which every field has a value that a forwarder has.
pub(super) fn forwarded() -> Sample {
    let words = "--forwarder rust --io async --offload on --hop pool --thread 3 -m both --parallel 2";
    let stack = sample();
    let intervals = stack.measured.intervals.iter().zip([(0.05, 3_000_000), (0.1 + 0.2, 4_000_000)]);
    let intervals = intervals.map(|(interval, (seconds, bytes))| Interval {
        cpu_seconds: Some(seconds),
        rss_bytes: Some(bytes),
        ..*interval
    });
    let measured = Measurements {
        bytes_back: Some(400_000_003),
        reordered: Some(9),
        cpu: CpuTime { client_seconds: Some(0.171), subject_seconds: Some(0.1 + 0.7) },
        effective: None,
        intervals: intervals.collect(),
        ..stack.measured
    };
    Sample { cell: fixture::cell(words), measured, environment: stack.environment }
}

/// The object of such a sample, to be changed.
fn object() -> Value {
    serde_json::from_str(&line_of_its_own(&forwarded())).unwrap()
}

#[test]
fn a_line_begins_with_the_fields_of_its_cell() {
    for (words, fields) in [
        (
            WORDS,
            r#""buffer_bytes":999,"ipv6":true,"layer":"path","mode":"writer","mtu":1500,"netstack":"smoltcp","offload":"on","parallel":4,"protocol":"tcp","runtime":"multi-thread","shards":1,"stack_congestion":"none","window_bytes":4194304,"workarounds":"all","worker_threads":3"#,
        ),
        (
            ROWS[11],
            r#""buffer_bytes":131072,"forwarder":"rust","generator":"own","hop":"direct","io":"sync","mode":"writer","mtu":1500,"offload":"on","parallel":1,"queue_packets":500,"workers":2"#,
        ),
        (
            ROWS[16],
            r#""buffer_bytes":131072,"forwarder":"go","generator":"own","hop":"pool","mode":"writer","mtu":1500,"offload":"on","parallel":1,"queue_packets":500"#,
        ),
    ] {
        let text = line(&Sample { cell: fixture::cell(words), ..sample() });
        let expected = format!(r#"{{"schema":3,"kind":"sample",{fields},"status":"ok""#);
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[test]
fn an_impossible_forwarder_is_refused() {
    let too_many = "bytes_back is 1000000008, which is more than the 1000000007 bytes both ways";
    for (changes, reason) in [
        (json!({"intervals": [{"end_ns": 1, "bytes": 1, "cpu_seconds": -0.001}]}), "cpu_seconds of an interval is "),
        (json!({"intervals": [{"end_ns": 1, "bytes": 1, "cpu_seconds": 1e308}]}), "cpu_seconds of an interval is "),
        (json!({"bytes_back": 1_000_000_008_u64}), too_many),
        (json!({"io": "framed", "hop": "pool"}), "--hop: not pool with --io framed"),
        (json!({"workers": 0}), "invalid value: integer `0`, expected a nonzero u16"),
        (json!({"forwarder": "c"}), "unknown variant `c`, expected `rust` or `go`"),
    ] {
        let mut object = object();
        for (name, value) in changes.as_object().unwrap() {
            object[name] = value.clone();
        }
        assert!(refusal(&object).starts_with(reason), "{changes}: {}", refusal(&object));
    }
}
