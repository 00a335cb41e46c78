//! Fuzz target: the output of child processes, and the orders of a parent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fuzz target fails by panic")]

use std::sync::LazyLock;

use clap::Parser;
use rust_tun_perf::cell::Mode;
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::Plan;
use rust_tun_perf::plan::scenario::Scenario;
use rust_tun_perf::run::fuzzing;
use serde_json::Value;

use super::input::{self, Input};
use super::json::change;

/// A line of each kind, all of which are read.
const LINES: [&str; 10] = [
    include_str!("../seeds/child/accepted.txt"),
    include_str!("../seeds/child/datagram.txt"),
    include_str!("../seeds/child/datagrams.txt"),
    include_str!("../seeds/child/hello.txt"),
    include_str!("../seeds/child/iperf3.txt"),
    include_str!("../seeds/child/iperf3-both.txt"),
    include_str!("../seeds/child/ready.txt"),
    include_str!("../seeds/child/report.txt"),
    include_str!("../seeds/child/run.txt"),
    include_str!("../seeds/child/sent.txt"),
];

/// A scenario of datagrams to a process.
static SCENARIO: LazyLock<Scenario> = LazyLock::new(|| {
    let words = "x -n gvisor -m writer --protocol udp --datagram 100 --bitrate 1M";
    let plan = Plan::try_from(Cli::try_parse_from(words.split(' ')).unwrap()).unwrap();
    let Plan::Run { scenario, .. } = plan else { unreachable!("{plan:?}") };
    *scenario
});

/// Text is the output of a process. Other bytes choose lines and change them.
pub(crate) fn read(bytes: &[u8]) {
    if let Some(text) = input::text(bytes) {
        return output(text, 1);
    }
    let mut input = Input::new(bytes);
    let code = i32::from(input.byte() % 5);
    let mut text = String::new();
    for _ in 0..=input.byte() % 3 {
        let line = LINES[usize::from(input.byte()) % LINES.len()];
        let mut value: Value = serde_json::from_str(line).unwrap();
        for _ in 0..input.byte() % 4 {
            change(&mut value, &mut input);
        }
        text += &value.to_string();
        text.push('\n');
    }
    output(&text, code);
}

/// Every reader takes the output. A line that is read says the same when it is written and read again.
fn output(text: &str, code: i32) {
    for line in text.lines() {
        for again in fuzzing::lines(line) {
            assert!(fuzzing::lines(&again).contains(&again), "{line}\n{again}");
        }
        for mode in [Mode::Reader, Mode::Writer, Mode::Both] {
            // The bytes of a run without an interval are its last one.
            if let Some((bytes, read_bytes, intervals)) = fuzzing::iperf3(line, mode) {
                assert!(read_bytes <= bytes);
                assert!(intervals.is_empty() || intervals.iter().sum::<u64>() == bytes, "{bytes}: {intervals:?}");
            }
        }
    }
    let mut lines = text.lines();
    let (before, after) = (lines.next().unwrap_or_default(), lines.next_back().unwrap_or_default());
    for mode in [None, Some(Mode::Writer), Some(Mode::Reader)] {
        fuzzing::reports(before, after, mode);
    }
    fuzzing::datagrams(&SCENARIO, text).unwrap();
    if let Some(printed) = fuzzing::orders(text.as_bytes()) {
        let reports = text.lines().filter(|line| line.trim_end() == "\"report\"");
        assert_eq!(printed.split(|byte| *byte == b'\n').count() - 1, reports.count(), "{text}");
    }
    for words in fuzzing::words(text, code) {
        assert!(!words.contains('\n'), "{words}");
    }
    let sample = fuzzing::sample(&SCENARIO, text.as_bytes(), text.as_bytes(), code);
    assert!(code != 0 || sample.is_ok_and(|sample| !sample.is_ok() || text.contains("gbps")));
    let (connections, datagrams, _end) = conformance::fuzzing::read_output(text.as_bytes());
    assert!(connections + datagrams <= text.lines().count());
}
