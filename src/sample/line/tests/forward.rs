//! Lines of forwarders.

use std::num::NonZeroU16;

use forwarders::{ForwardConfig as Way, Handoff as Hop, Io, Offload};

use super::*;
use crate::plan::{Direction, Forwarder, Generator, ROWS};

/// A sample of a forwarder in which every field has a value that such a one has.
pub(in crate::sample) fn forwarded() -> Sample {
    let stack = sample();
    let way = ForwardCell {
        forwarder: Forwarder::Rust(Way {
            io: Io::Async,
            offload: Offload::On,
            hop: Hop::Pool,
            workers: NonZeroU16::MIN,
            threads: NonZeroU16::new(3),
        }),
        direction: Direction::Bidir,
        generator: Generator::Own,
        mtu: 1500,
        parallel: 2,
        ipv6: true,
        buffer_bytes: 131_072,
        queue_packets: 500,
    };
    let intervals = stack.facts.intervals.iter().zip([(0.05, 3_000_000), (0.1 + 0.2, 4_000_000)]);
    let intervals = intervals.map(|(interval, (seconds, bytes))| Interval {
        cpu_seconds: Some(seconds),
        rss_bytes: Some(bytes),
        ..*interval
    });
    let facts = Facts {
        bytes_back: Some(400_000_003),
        reordered: Some(9),
        cpu: CpuTime { client_seconds: Some(0.171), stack_seconds: None, forwarder_seconds: Some(0.1 + 0.7) },
        effective: None,
        intervals: intervals.collect(),
        ..stack.facts
    };
    Sample { cell: way.into(), facts, environment: stack.environment }
}

/// The object of such a sample, to be changed.
fn object() -> Value {
    serde_json::from_str(&line_of_its_own(&forwarded())).unwrap()
}

/// Any forwarder and load there can be.
fn any(random: &mut ChaCha8Rng) -> ForwardCell {
    let offload = [Offload::Off, Offload::On, Offload::Whole][random.random_range(0..3)];
    let hop = [Hop::Direct, Hop::Channel, Hop::Pool][random.random_range(0..3)];
    let io = [Io::Sync, Io::Async, Io::Framed][random.random_range(0..3)];
    let workers = NonZeroU16::MIN.saturating_add(random.random_range(0..5));
    let threads = NonZeroU16::new(random.random_range(0..3));
    let way = Way { io, offload, hop, workers, threads };
    let forwarder = match offload {
        Offload::Off | Offload::On if random.random() => Forwarder::Go { offload, hop },
        _ if way.check().is_err() => return any(random),
        _ => Forwarder::Rust(way),
    };
    ForwardCell {
        forwarder,
        direction: [Direction::Forward, Direction::Reverse, Direction::Bidir][random.random_range(0..3)],
        generator: if random.random() { Generator::Own } else { Generator::Iperf3 },
        mtu: random.random_range(576..=65_535),
        parallel: random.random_range(1..=128),
        ipv6: random.random(),
        buffer_bytes: random.random_range(1..=1 << 24),
        queue_packets: random.random_range(1..=1 << 18),
    }
}

#[test]
fn every_forwarder_comes_back_as_it_was() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for index in 0..2000 {
        let mut sample = Sample { cell: any(&mut random).into(), ..forwarded() };
        sample.facts.bytes = random.random_range(0..=1_000_000_000_000_000);
        sample.facts.bytes_back = random.random::<bool>().then(|| random.random_range(0..=sample.facts.bytes));
        sample.facts.reordered = random.random::<bool>().then(|| random.random());
        sample.facts.cpu.forwarder_seconds = random.random::<bool>().then(|| random.random_range(0.0..100.0));
        sample.facts.intervals.truncate(1);
        sample.facts.intervals[0].bytes = sample.facts.bytes;
        sample.facts.intervals[0].cpu_seconds = random.random::<bool>().then(|| random.random_range(0.0..100.0));
        if index % 5 == 0 {
            sample.facts = failed().facts;
        }
        let line = line_of_its_own(&sample);
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(parse_line(&line).unwrap(), sample);
    }
}

#[test]
fn a_line_begins_with_its_kind_and_its_axes() {
    let check = |forwarder: Forwarder, axes: &str| {
        let sample = forwarded();
        let cell = ForwardCell { forwarder, ..sample.cell.forward().unwrap().clone() };
        let text = line(&Sample { cell: cell.into(), ..sample });
        assert!(
            text.starts_with(&format!("{{\"schema\":1,\"kind\":\"forward\",{axes},\"direction\":\"bidir\"")),
            "{text}"
        );
    };
    let concurrent = r#""forwarder":"rust","io":"sync","offload":"on","hop":"direct","workers":2,"threads":null"#;
    check(ROWS[11], concurrent);
    check(ROWS[16], r#""forwarder":"go","offload":"on","hop":"pool""#);
    let whole = line(&forwarded());
    let load = r#""direction":"bidir","generator":"own","mtu":1500,"parallel":2,"ipv6":true,"buffer_bytes":131072,"queue_packets":500,"status""#;
    assert!(whole.contains(load), "{whole}");
}

#[test]
fn a_forwarder_that_cannot_be_is_refused() {
    for (changes, reason) in [
        (json!({"forwarder": "go", "offload": "whole"}), "the forwarder go with offload whole, which it does not know"),
        (json!({"io": "sync", "threads": 2}), "--thread: not with --io sync"),
        (json!({"io": "framed", "hop": "pool"}), "--hop: not pool with --io framed"),
        (json!({"workers": 0}), "invalid value: integer `0`, expected a nonzero u16"),
        (json!({"forwarder": "c"}), "unknown variant `c`, expected `rust` or `go`"),
        (json!({"hop": null}), "invalid type: null, expected string or map"),
        (json!({"direction": "up"}), "unknown variant `up`, expected one of `forward`, `reverse`, `bidir`"),
    ] {
        let mut object = object();
        for (name, value) in changes.as_object().unwrap() {
            object[name] = value.clone();
        }
        assert!(refusal(&object).starts_with(reason), "{changes}: {}", refusal(&object));
    }
    for field in ["forwarder", "direction", "generator", "mtu", "parallel", "ipv6", "buffer_bytes", "queue_packets"] {
        let mut object = object();
        object.as_object_mut().unwrap().remove(field);
        assert!(refusal(&object).contains(&format!("missing field `{field}`")), "{field}: {}", refusal(&object));
    }
}

#[test]
fn figures_of_a_forwarder_that_cannot_be_are_refused() {
    for seconds in [-0.001, 1e308] {
        let mut object = object();
        object["cpu"]["forwarder_seconds"] = json!(seconds);
        assert!(refusal(&object).starts_with("cpu.forwarder_seconds is "), "{}", refusal(&object));
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
    for field in ["bytes_back", "reordered", "forwarder_seconds", "cpu_seconds", "rss_bytes", "hop"] {
        assert!(!text.contains(&format!("\"{field}\"")), "{field}: {text}");
    }
}
