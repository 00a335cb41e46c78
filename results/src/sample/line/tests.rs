mod forward;

use std::time::Duration;

use platform::{FaultCounts, Switches};
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::super::{
    CaptureFacts, CpuTime, DatagramFacts, DeviceFacts, Interval, Latency, Packets, QueueFacts, RequestFacts, Status,
    SwitchFacts, TcpFacts,
};
use super::*;
use crate::cell::Verify;
use crate::measure::fixture;

/// Every property that a stack has is set.
const WORDS: &str =
    "-n smoltcp -m writer --worker-threads 3 --offload on --parallel 4 --ipv6 --window 4MiB --buffer 999";

pub(in crate::sample) fn environment() -> Environment {
    let mut environment = fixture::environment();
    environment.machine.cpu = Some("Fast® \"9000\"".to_owned());
    environment.program.version = Some("1.2.3".to_owned());
    environment
}

/// A sample in which every field has a value that a stack has.
pub(in crate::sample) fn sample() -> Sample {
    Sample {
        cell: fixture::cell(WORDS),
        measured: Measurements {
            status: Status::Ok,
            detail: Some("it went\nwell".to_owned()),
            congestion: Some("cubic".to_owned()),
            warmup_bytes: 64_000_000,
            bytes: 1_000_000_007,
            elapsed: Duration::from_nanos(179_321_123),
            verified: Verify::Full,
            cpu: CpuTime { client_seconds: Some(0.171), subject_seconds: Some(0.1 + 0.2) },
            switches: SwitchFacts {
                client: Some(Switches { waits: 12_345, preemptions: 6 }),
                subject: Some(Switches { waits: 23_456, preemptions: 78 }),
            },
            stolen_share: Some(0.012),
            stopped_seconds: Some(0.0),
            peak_rss_bytes: Some(21_434_368),
            retransmits: Some(7),
            device_drops: Some(8),
            queue_facts: Some(QueueFacts { queues: 2, passed_on: 9 }),
            pcap: Some(CaptureFacts { packets: 3, lost: 1, is_full: true }),
            packets: Packets { rx: 700_001, rx_bytes: 1_036_400_123, tx: 15_600, tx_bytes: 811_200 },
            tcp: Some(TcpFacts { rtt_us: Some(33), send_window_bytes: Some(1 << 22), ..TcpFacts::default() }),
            thirds: Some([300_000_000, 400_000_000, 300_000_007]),
            intervals: vec![
                Interval { end: Duration::from_millis(100), bytes: 500_000_000, ..Interval::default() },
                Interval { end: Duration::from_nanos(179_321_123), bytes: 500_000_007, ..Interval::default() },
            ],
            started_unix_ms: Some(1_700_000_000_123),
            device: Some(DeviceFacts {
                name: "utun8".to_owned(),
                mtu: 1500,
                offload: true,
                tx_queue_len: Some(4308),
                qdisc: None,
            }),
            effective: Some(fixture::effective()),
            round: Some(3),
            ..Measurements::default()
        },
        environment: Arc::new(environment()),
    }
}

/// The words of a run.
pub(in crate::sample) fn words(line: &str) -> Vec<String> {
    line.split(' ').map(ToOwned::to_owned).collect()
}

pub(in crate::sample) fn head() -> Head {
    let plan = ["--layer=loopback --mode=writer", "--layer=loopback --mode=reader"].map(words);
    Head::new(environment(), vec!["matrix".to_owned()], 42, plan.to_vec())
}

/// A sample of a run that failed before its timed window.
fn failed() -> Sample {
    let measured = Measurements::failed(Status::Unavailable, "open /dev/net/tun: no such file");
    Sample { measured, ..sample() }
}

/// A sample of a layer that has neither stack, offload nor mode.
fn bare() -> Sample {
    Sample { cell: fixture::cell("--layer device"), ..failed() }
}

/// A sample of requests over a link with impairments.
fn requests() -> Sample {
    let words = "-n smoltcp -m rr --depth 4 --rate 5000 --delay 2500us --loss 0.0001 --workarounds=-partial-ack --stack-congestion cubic";
    let mut sample = Sample { cell: fixture::cell(words), ..sample() };
    let mut latency = Latency::default();
    (1..500).for_each(|index| latency.record(Duration::from_micros(index * index)));
    let errors = [("reset".to_owned(), 3)].into();
    sample.measured.requests = Some(RequestFacts { answered: 499, errors, latency, blackholes: None });
    sample.measured.link = Some(FaultCounts { lost: 3, duplicated: 2, ..FaultCounts::default() });
    sample
}

/// Samples over UDP: bulk bytes, and requests beside a stream.
fn over_udp() -> [Sample; 2] {
    let [mut bulk, mut asked] = [sample(), requests()];
    let datagrams = DatagramFacts {
        sent: 12,
        arrived: 12,
        reordered: 1,
        duplicated: 2,
        jitter_ns: Some(7),
        found_per_second: Some(5),
    };
    bulk.cell = fixture::cell("-n smoltcp -m reader --protocol udp --datagram 1200");
    bulk.measured.datagrams = Some(datagrams);
    asked.cell = fixture::cell("-n smoltcp -m rr --protocol udp --background both --bitrate 1M");
    asked.measured.datagrams = Some(DatagramFacts { found_per_second: None, ..datagrams });
    asked.measured.background_bytes = Some(77);
    [bulk, asked]
}

/// The object of a sample, to be changed.
fn object() -> Value {
    serde_json::from_str(&line_of_its_own(&sample())).unwrap()
}

fn refusal(value: &Value) -> String {
    parse_line(&value.to_string()).unwrap_err()
}

#[test]
fn a_sample_survives_writing_and_reading() {
    let all = [sample(), failed(), bare(), requests(), forward::forwarded()];
    for sample in all.into_iter().chain(over_udp()) {
        let line = line_of_its_own(&sample);
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(parse_line(&line).unwrap(), sample);
    }
}

/// Of 1000 datagrams of 1200 bytes a search accepts a loss of one. Late ones are in the counts, but their bytes are not.
#[test]
fn a_rate_that_its_window_did_not_hold_is_lossy() {
    let read = |words: &str, (arrived, in_time): (u64, u64)| {
        let mut sample =
            Sample { cell: fixture::cell(&format!("-n smoltcp -m reader --protocol udp {words}")), ..sample() };
        sample.measured.intervals.clear();
        (sample.measured.bytes, sample.measured.elapsed) = (in_time * 1200, Duration::from_secs(2));
        sample.measured.datagrams = Some(DatagramFacts { sent: 1000, arrived, ..DatagramFacts::default() });
        let Measurements { status, detail, .. } = parse_line(&line_of_its_own(&sample)).unwrap().measured;
        (status, detail)
    };
    let lossy = "0.200 % of 500 datagrams a second did not arrive in time, and a rate counts if at most 0.1 % do not";
    let searched = "--datagram 1200";
    assert_eq!(read(searched, (998, 998)), (Status::Lossy, Some(lossy.to_owned())));
    assert_eq!(read(searched, (1000, 998)).0, Status::Lossy, "two were late");
    assert_eq!(read(searched, (999, 999)).0, Status::Ok);
    assert_eq!(read("--datagram 1200 --bitrate 1M", (500, 500)).0, Status::Ok);
}

#[test]
fn figures_survive_to_the_last_digit() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..2000 {
        let mut sample = sample();
        sample.measured.intervals.clear();
        sample.measured.cpu.client_seconds = Some(random.random_range(0.0..100.0));
        sample.measured.cpu.subject_seconds = Some(random.random::<f64>() * 1e-6);
        sample.measured.bytes = random.random_range(0..=1_000_000_000_000_000);
        sample.measured.elapsed = Duration::from_nanos(random.random_range(0..=86_400_000_000_000));
        assert_eq!(parse_line(&line_of_its_own(&sample)).unwrap(), sample);
    }
}

#[test]
fn a_line_of_a_file_names_its_environment() {
    let line = line(&sample());
    let Line::Sample { cell, measured, id, environment } = parse(&line).unwrap() else { panic!("{line}") };
    assert_eq!((*cell, *measured), (sample().cell, sample().measured));
    assert_eq!((id, environment), (sample().environment.id(), None));
    assert_eq!(parse_line(&line).unwrap_err(), "does not say what environment it is of");
}

#[test]
fn a_head_survives_writing_and_reading() {
    let line = head().line();
    assert!(line.starts_with(Head::BEGIN) && !line.contains('\n'), "{line}");
    let Line::Head(head) = parse(&line).unwrap() else { panic!("{line}") };
    assert_eq!(*head, self::head());
    assert_eq!(parse_line(&line).unwrap_err(), "is no sample");
}

#[test]
fn a_head_that_was_changed_is_refused() {
    let mut value: Value = serde_json::from_str(&head().line()).unwrap();
    value["cpu"] = json!("Slow");
    let Err(reason) = parse(&value.to_string()) else { panic!("it was taken") };
    assert!(reason.contains("changed by hand") && reason.contains(&environment().id()), "{reason}");
}

#[test]
fn a_head_with_a_field_of_a_later_program_is_read() {
    let mut value: Value = serde_json::from_str(&head().line()).unwrap();
    value["page_size"] = json!(4096);
    let mut fields = value.as_object().unwrap().clone();
    fields.retain(|name, _| !NO_ENVIRONMENT.contains(&name.as_str()));
    let id = environment::id(&fields);
    assert_ne!(id, environment().id());
    value["id"] = json!(id);
    let Ok(Line::Head(head)) = parse(&value.to_string()) else { panic!("{value} was refused") };
    assert_eq!((head.id, head.environment), (id, environment()));
    // Unknown fields must not be changed either.
    value["page_size"] = json!(16384);
    let Err(reason) = parse(&value.to_string()) else { panic!("it was taken") };
    assert!(reason.contains("changed by hand"), "{reason}");
}

#[test]
fn a_line_of_another_kind_is_refused_with_the_reason() {
    let whole = line_of_its_own(&sample());
    for (text, reason) in [
        ("", "not JSON"),
        ("44.6 Gbps", "not JSON"),
        (&whole[..whole.len() / 2], "not JSON"),
        (&format!("{whole}{whole}"), "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("{}", "no \"kind\""),
        ("{\"kind\":5,\"schema\":3}", "no \"kind\""),
        ("{\"kind\":\"sample\"}", "no \"schema\""),
        ("{\"kind\":\"sample\",\"schema\":2}", "schema 2, and this program knows 3"),
        ("{\"kind\":\"forwarding\",\"schema\":3}", "kind \"forwarding\""),
        ("{\"kind\":\"environment\",\"schema\":3}", "missing field `id`"),
        ("{\"kind\":\"sample\",\"schema\":3}", "no \"gbps\""),
    ] {
        let Err(error) = parse(text) else { panic!("{text:?} was taken") };
        assert!(error.contains(reason), "{text:?}: {error}");
    }
}

#[test]
fn values_that_cannot_be_are_refused_with_the_reason() {
    let no_stack = "--netstack: only the layers stack and path have one";
    let no_sum = "the intervals do not add up to the 1000000007 bytes: they were changed by hand";
    let no_environment = "no \"environment\" with an \"id\"";
    for (place, values, reason) in [
        ("/gbps", vec![json!(44.7)], "gbps is 44.7, but 1000000007 bytes in 179321123 ns are"),
        ("/bytes", vec![json!(1)], "gbps is "),
        ("/elapsed_ns", vec![json!(1)], "gbps is "),
        ("/cpu/client_seconds", vec![json!(-0.001), json!(1e308)], "cpu.client_seconds is "),
        ("/cpu/subject_seconds", vec![json!(-0.001), json!(1e308)], "cpu.subject_seconds is "),
        ("/intervals/0/bytes", vec![json!(7), json!(u64::MAX)], no_sum),
        ("/netstack", vec![Value::Null], "--netstack: a run needs it, or --program in its place"),
        ("/mode", vec![Value::Null], "--mode: a run needs it: reader, writer, both, rr, crr or idle"),
        ("/layer", vec![json!("loopback"), json!("device")], no_stack),
        // A chart with a logarithmic axis has no place for it.
        ("/parallel", vec![json!(0)], "invalid value: integer `0`, expected a nonzero u16"),
        ("/environment", vec![Value::Null, json!({}), json!({"id": 5}), json!("128186be880c5a9a")], no_environment),
    ] {
        for value in values {
            let mut object = object();
            *object.pointer_mut(place).unwrap() = value;
            let refused = refusal(&object);
            let end = match reason {
                reason if reason.starts_with("gbps") => "it was changed by hand",
                reason if reason.starts_with("cpu") => "no time",
                whole => whole,
            };
            assert!(refused.starts_with(reason) && refused.ends_with(end), "{place}: {refused}");
        }
    }
}

#[test]
fn a_field_that_is_missing_or_wrong_is_named() {
    let measured = ["status", "bytes", "elapsed_ns", "cpu", "packets", "verified"];
    for field in ["layer", "netstack", "mode", "runtime", "offload"].iter().chain(&measured) {
        let mut object = object();
        object[field] = json!("strange");
        assert!(refusal(&object).contains("strange"), "{field}: {}", refusal(&object));
    }
    for field in measured {
        let mut object = object();
        object.as_object_mut().unwrap().remove(field);
        assert!(refusal(&object).contains(&format!("`{field}`")), "{field}: {}", refusal(&object));
    }
}
