//! Makes `tests/data/forward.jsonl`: plausible samples of the forwarders on a machine that does not exist.

use std::sync::Arc;
use std::time::Duration;

use forwarders::{Io, Offload};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rust_tun_perf::cell::{Forwarder, ROWS, Verify};
use rust_tun_perf::sample::{
    CpuTime, DeviceFacts, Environment, Head, Interval, Measurements, Packets, Sample, Status, line,
};

use super::data::{STARTED_UNIX_MS, fail, words_of};
use crate::fixture;

/// For each row: its rate in Gbps, retransmissions per second, share of a processor, memory in MB, and reordered
/// packets per second.
const TYPICAL: [(f64, u64, f64, f64, u64); 18] = [
    (8.8, 33, 0.88, 3.7, 0),
    (12.1, 351, 1.27, 10.0, 0),
    (12.0, 397, 1.27, 11.5, 0),
    (35.7, 0, 0.65, 7.4, 0),
    (24.9, 0, 0.85, 24.8, 0),
    (31.4, 0, 0.93, 16.0, 0),
    (23.7, 0, 0.88, 26.3, 0),
    (10.0, 80, 0.80, 2.2, 0),
    (13.0, 558, 1.37, 4.0, 0),
    (36.4, 0, 0.58, 6.8, 0),
    (29.5, 0, 0.90, 14.9, 0),
    (40.6, 2_748, 1.24, 10.7, 9_120),
    (8.3, 54, 0.85, 4.5, 0),
    (8.6, 443, 1.59, 7.9, 0),
    (28.8, 0, 0.64, 5.2, 0),
    (24.0, 0, 1.10, 40.1, 0),
    (30.1, 0, 1.02, 39.5, 0),
    (65.2, 0, 0.61, 2.4, 0),
];

/// How often each row is run.
const ROUNDS: u32 = 5;
/// How long a run takes, in whole seconds. It takes a little longer.
const SECONDS: u64 = 3;

/// Returns a file of all rows. One run of the second row stalls, the seventh always fails, and the last one in Go is
/// unavailable.
pub(crate) fn file(environment: &Environment) -> String {
    let arguments = ["forward", "--all", "--time", "3", "--runs", "5"].map(ToOwned::to_owned).to_vec();
    let plan = ROWS.map(|words| words_of(&format!("{words} --time=3"))).to_vec();
    let head = Head::new(environment.clone(), arguments, 7, plan);
    let mut text = head.line() + "\n";
    let environment = Arc::new(environment.clone());
    let mut random = ChaCha8Rng::seed_from_u64(11);
    for round in 1..=ROUNDS {
        for (index, words) in ROWS.into_iter().enumerate() {
            let cell = fixture::cell(words);
            let place = (round as usize - 1) * ROWS.len() + index;
            let measured = Measurements {
                round: Some(round),
                started_unix_ms: Some(STARTED_UNIX_MS + place as u64 * 3_900),
                ..measured(cell.forwarder().unwrap(), TYPICAL[index], &mut random)
            };
            let mut sample = Sample { cell, measured, environment: Arc::clone(&environment) };
            match (index + 1, round) {
                (2, 4) => fail(&mut sample, Status::Stalled, "nothing arrived for the last 2.0 of 3 seconds"),
                (7, _) => fail(&mut sample, Status::DeviceLost, "the forwarder: <b>read tun11</b>: no such | device"),
                (17, _) => fail(&mut sample, Status::Unavailable, "go is not installed; install it, or leave out Go"),
                _ => {}
            }
            text += &(line(&sample) + "\n");
        }
    }
    text
}

fn measured(forwarder: Forwarder, typical: (f64, u64, f64, f64, u64), random: &mut impl Rng) -> Measurements {
    let (gbps, sent_again, cpu, megabytes, reordered) = typical;
    let mut vary = |value: f64, share: f64| value * random.random_range(1.0 - share..1.0 + share);
    let gbps = vary(gbps, 0.03);
    let elapsed = Duration::from_millis(SECONDS * 1000 + 12);
    let (mut bytes, mut forwarder_seconds) = (0, 0.0);
    let ends = (1..=SECONDS).map(Duration::from_secs).chain([elapsed]);
    let intervals = ends.map(|end| {
        let length = if end == elapsed { 0.012 } else { 1.0 };
        let part = (vary(gbps, 0.05) * 1e9 / 8.0 * length) as u64;
        // The kernel counts in ticks of 10 ms.
        let seconds = (vary(cpu, 0.06) * length * 100.0).round() / 100.0;
        bytes += part;
        forwarder_seconds += seconds;
        let rss_bytes = (vary(megabytes, 0.04) * 1e6) as u64 / 4096 * 4096;
        Interval { end, bytes: part, cpu_seconds: Some(seconds), rss_bytes: Some(rss_bytes) }
    });
    let intervals: Vec<_> = intervals.collect();
    let peak = intervals.iter().filter_map(|interval| interval.rss_bytes).max();
    let size = if forwarder.config.offload == Offload::Off { 1_500 } else { 61_000 };
    let (rx, tx) = (bytes / size, bytes / size);
    Measurements {
        status: Status::Ok,
        detail: None,
        congestion: Some("cubic".to_owned()),
        verified: Verify::Off,
        bytes,
        elapsed,
        cpu: CpuTime { client_seconds: Some(2.2), subject_seconds: Some(forwarder_seconds) },
        stolen_share: Some(0.0),
        stopped_seconds: Some(0.0),
        peak_rss_bytes: peak.map(|bytes| bytes + 262_144),
        retransmits: Some(vary((sent_again * SECONDS) as f64, 0.2).round() as u64),
        reordered: forwarder.io().map(|_| vary((reordered * SECONDS) as f64, 0.3).round() as u64),
        device_drops: Some(if forwarder.io() == Some(Io::Sync) { 0 } else { sent_again / 4 }),
        packets: Packets { rx, tx, rx_bytes: rx * size, tx_bytes: tx * size },
        intervals,
        device: Some(DeviceFacts {
            name: "tun11, tun22".to_owned(),
            mtu: 1500,
            offload: forwarder.config.offload != Offload::Off,
            tx_queue_len: Some(500),
        }),
        ..Measurements::failed(Status::Ok, "")
    }
}
