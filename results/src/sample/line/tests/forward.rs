//! Lines of forwarders.

use std::num::NonZeroU16;

use forwarders::{ForwardConfig, Handoff, Io, Offload};

use super::*;
use crate::cell::{Forwarder, ROWS};

/// A sample of a forwarder in which every field has a value that a forwarder has.
pub(in crate::sample) fn forwarded() -> Sample {
    let stack = sample();
    let forwarder = Forwarder::Rust(ForwardConfig {
        io: Io::Async,
        offload: Offload::On,
        hop: Handoff::Pool,
        workers: NonZeroU16::MIN,
        threads: NonZeroU16::new(3),
    });
    let cell = Cell {
        subject: Subject::Forward(forwarder),
        workload: Workload::Stream(Mode::Both),
        runtime: None,
        offload: None,
        parallel: 2,
        window_bytes: None,
        buffer_bytes: 131_072,
        queue_packets: Some(500),
        ..stack_cell()
    };
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
    Sample { cell, measured, environment: stack.environment }
}

/// The object of such a sample, to be changed.
fn object() -> Value {
    serde_json::from_str(&line_of_its_own(&forwarded())).unwrap()
}

/// A random forwarder and load.
fn any(random: &mut ChaCha8Rng) -> Cell {
    let offload = [Offload::Off, Offload::On, Offload::Whole][random.random_range(0..3)];
    let hop = [Handoff::Direct, Handoff::Channel, Handoff::Pool][random.random_range(0..3)];
    let io = [Io::Sync, Io::Async, Io::Framed][random.random_range(0..3)];
    let workers = NonZeroU16::MIN.saturating_add(random.random_range(0..5));
    let threads = NonZeroU16::new(random.random_range(0..3));
    let config = ForwardConfig { io, offload, hop, workers, threads };
    let forwarder = match offload {
        Offload::Off | Offload::On if random.random() => Forwarder::Go { offload, hop },
        _ if config.check().is_err() => return any(random),
        _ => Forwarder::Rust(config),
    };
    Cell {
        subject: Subject::Forward(forwarder),
        workload: Workload::Stream([Mode::Reader, Mode::Writer, Mode::Both][random.random_range(0..3)]),
        impairments: Impairments::default(),
        runtime: None,
        offload: None,
        mtu: Some(random.random_range(576..=65_535)),
        parallel: random.random_range(1..=128),
        shards: NonZeroU16::MIN,
        queues: None,
        client_threads: None,
        pin: None,
        bitrate: None,
        background: None,
        ipv6: random.random(),
        window_bytes: None,
        buffer_bytes: random.random_range(1..=1 << 24),
        repairs: Repairs::ALL,
        stack_congestion: StackCongestion::None,
        queue_packets: Some(random.random_range(1..=1 << 18)),
        generator: if random.random() { Generator::Own } else { Generator::Iperf3 },
    }
}

#[test]
fn every_forwarder_survives_writing_and_reading() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for index in 0..2000 {
        let mut sample = Sample { cell: any(&mut random), ..forwarded() };
        sample.measured.bytes = random.random_range(0..=1_000_000_000_000_000);
        sample.measured.bytes_back = random.random::<bool>().then(|| random.random_range(0..=sample.measured.bytes));
        sample.measured.reordered = random.random::<bool>().then(|| random.random());
        sample.measured.cpu.subject_seconds = random.random::<bool>().then(|| random.random_range(0.0..100.0));
        sample.measured.intervals.truncate(1);
        sample.measured.intervals[0].bytes = sample.measured.bytes;
        sample.measured.intervals[0].cpu_seconds = random.random::<bool>().then(|| random.random_range(0.0..100.0));
        if index % 5 == 0 {
            sample.measured = failed().measured;
        }
        let line = line_of_its_own(&sample);
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(parse_line(&line).unwrap(), sample);
    }
}

#[test]
fn a_line_begins_with_the_fields_of_its_cell() {
    let check = |forwarder: Forwarder, fields: &str| {
        let sample = forwarded();
        let text =
            line(&Sample { cell: Cell { subject: Subject::Forward(forwarder), ..sample.cell.clone() }, ..sample });
        let expected = format!(
            "{{\"schema\":2,\"kind\":\"sample\",\"layer\":\"forward\",\"netstack\":null,\"forwarder\":{{{fields}}},\"mode\":\"both\""
        );
        assert!(text.starts_with(&expected), "{text}");
    };
    let concurrent = r#""program":"rust","io":"sync","offload":"on","hop":"direct","workers":2,"threads":null"#;
    check(ROWS[11], concurrent);
    check(ROWS[16], r#""program":"go","offload":"on","hop":"pool""#);
    let text = line(&sample());
    let fields = r#"{"schema":2,"kind":"sample","layer":"path","netstack":"smoltcp","mode":"writer","runtime":"multi-thread","worker_threads":3,"offload":true,"mtu":1500,"parallel":4,"ipv6":true,"window_bytes":4194304,"buffer_bytes":999,"status":"ok""#;
    assert!(text.starts_with(fields), "{text}");
}

#[test]
fn an_impossible_forwarder_is_refused() {
    for (changes, reason) in [
        (json!({"program": "go", "offload": "whole"}), "the forwarder go cannot have the offload whole"),
        (json!({"io": "sync", "threads": 2}), "--thread: not with --io sync"),
        (json!({"io": "framed", "hop": "pool"}), "--hop: not pool with --io framed"),
        (json!({"workers": 0}), "invalid value: integer `0`, expected a nonzero u16"),
        (json!({"program": "c"}), "unknown variant `c`, expected `rust` or `go`"),
    ] {
        let mut object = object();
        for (name, value) in changes.as_object().unwrap() {
            object["forwarder"][name] = value.clone();
        }
        assert!(refusal(&object).starts_with(reason), "{changes}: {}", refusal(&object));
    }
}

#[test]
fn impossible_figures_of_a_forwarder_are_refused() {
    for seconds in [-0.001, 1e308] {
        let mut object = object();
        object["cpu"]["subject_seconds"] = json!(seconds);
        assert!(refusal(&object).starts_with("cpu.subject_seconds is "), "{}", refusal(&object));
        let mut object = self::object();
        object["intervals"][1]["cpu_seconds"] = json!(seconds);
        assert!(refusal(&object).starts_with("cpu_seconds of an interval is "), "{}", refusal(&object));
    }
    let mut object = object();
    object["bytes_back"] = json!(1_000_000_008_u64);
    assert_eq!(refusal(&object), "bytes_back is 1000000008, which is more than the 1000000007 bytes both ways");
}

#[test]
fn the_line_of_a_stack_has_no_field_of_a_forwarder() {
    let text = line_of_its_own(&sample());
    for field in ["bytes_back", "reordered", "forwarder", "cpu_seconds", "rss_bytes", "queue_packets"] {
        assert!(!text.contains(&format!("\"{field}\"")), "{field}: {text}");
    }
}
