//! The readers of the output of other processes, for the fuzz targets alone. This is no part of the interface.

use std::time::{Duration, Instant};

use conformance::Ready;
use forwarders::Counts;
use platform::{Control, End, ProcessEnd, last_words, line, parse_ready};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::datagram_process;
use super::intervals::Intervals;
use super::process_executor::outcome;
use crate::cell::Mode;
use crate::error::RunError;
use crate::load::datagram::Flows;
use crate::load::iperf3;
use crate::meter::Usage;
use crate::plan::scenario::Scenario;
use crate::protocol::{self, Greeting, Message, StackReport};
use crate::sample::{Measurements, Sample};
use crate::subject::carrier::counters;
use crate::subject::forward::carried;
use crate::subject::go;

/// Reads a line of a child process or of its parent, and returns it as each reader that takes it would write it.
pub fn lines(line: &str) -> Vec<String> {
    let message = Message::parse(line).ok().map(|message| json(&message));
    let greeting = protocol::parse::<Greeting>(line, "the program").ok().map(|greeting| json(&greeting));
    let ready = parse_ready::<Ready>(line).map(|ready| format!("{{\"ready\":{}}}", json(&ready)));
    let report = parse::<Counts>(line).map(|report| json(&report));
    let _compared_as_it_is = parse::<StackReport>(line);
    [message, greeting, ready, report].into_iter().flatten().collect()
}

/// Obeys orders to the end, and returns the reports; `None` if one is no order.
pub fn orders(orders: &[u8]) -> Option<Vec<u8>> {
    let mut control = Control { orders, output: Vec::new(), report: Counts::default };
    control.until_end().ok().map(|()| control.output)
}

/// Takes two reports of a carrier, before and after, as the meter of a run does.
pub fn reports(before: &str, after: &str, mode: Option<Mode>) {
    let counters = |line| counters(parse(line), carried(mode), Some(1));
    let _added = counters(after).since(counters(before));
}

/// Takes the counts of a process that receives or sends datagrams, in a scenario of datagrams. Returns how many bytes
/// have arrived.
pub fn datagrams(scenario: &Scenario, lines: &str) -> Option<u64> {
    let flow = Flows::of(scenario)?;
    let trial = flow.begin(None, Duration::ZERO, true);
    let reports = lines.lines().filter_map(parse::<datagram_process::Report>);
    reports.for_each(|report| flow.set_counts(&report.datagrams, Instant::now()));
    let _sent = flow.sent(&trial);
    Some(flow.arrived_bytes().max(flow.timed_bytes()))
}

/// Reads the report of iperf3. Returns the bytes in all, those that were read back, and those of each interval.
pub fn iperf3(report: &str, mode: Mode) -> Option<(u64, u64, Vec<u64>)> {
    let delivered = parse::<iperf3::Report>(report)?.delivered(Some(mode)).ok()?;
    let clock = delivered.clock?;
    let mut intervals = Intervals::recorded(clock.parts.len());
    intervals.count_by(&clock.parts);
    let Measurements { bytes, bytes_back, .. } = delivered.figures;
    let intervals = intervals.finish(clock.elapsed, bytes, Usage::default());
    Some((bytes, bytes_back.unwrap_or_default(), intervals.iter().map(|interval| interval.bytes).collect()))
}

/// The sample of a process that printed this and ended with this code.
pub fn sample(scenario: &Scenario, stdout: &[u8], stderr: &[u8], code: i32) -> Result<Sample, String> {
    outcome(scenario, &end(stdout, stderr, code)).map_err(|error| error.to_string())
}

/// The words of each reader of standard error.
pub fn words(stderr: &str, code: i32) -> Vec<String> {
    let stated = RunError::stated(&end(&[], stderr.as_bytes(), code)).map(|error| error.to_string());
    stated.into_iter().chain([last_words("it ended", stderr), go::last_words(stderr)]).collect()
}

fn end(stdout: &[u8], stderr: &[u8], code: i32) -> End {
    let stderr = String::from_utf8_lossy(stderr).into_owned();
    End { by: ProcessEnd::Exited(code), stdout: stdout.to_vec(), stderr }
}

fn json(value: &impl Serialize) -> String {
    line(value).trim_end().to_owned()
}

fn parse<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str(line).ok()
}
