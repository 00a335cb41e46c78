//! Samples for tests.

use std::sync::Arc;
use std::time::Duration;

use conformance::{Case, Layer, MTU, Outcome, Ran, Run};
use netstacks::{Effective, StackCongestion, StackKind, Workarounds};

use crate::cell::Cell;
use crate::program::Role;
use crate::sample::{
    Environment, Latency, Measurements, ProcessFacts, Program, ProgramFacts, RequestFacts, Sample, Score, Status,
};

/// The checked cell of a line of words.
pub(crate) fn cell(words: &str) -> Cell {
    Cell::parse(words).unwrap().checked().unwrap()
}

/// A machine about which little is known, and a program about which nothing is.
pub(crate) fn environment() -> Environment {
    let machine = platform::Environment {
        system: "linux".to_owned(),
        architecture: "x86_64".to_owned(),
        kernel: Some("6.1.0".to_owned()),
        cpu: Some("Fast".to_owned()),
        cpus: Some(2),
        governor: None,
        virtual_machine: Some(false),
        machine: None,
    };
    Environment { machine, program: Program::default() }
}

/// What a stack used that had its own choice in everything.
pub(crate) fn effective() -> Effective {
    Effective {
        stack_version: "1.2.3".into(),
        shards: 1,
        receive_buffer_bytes: 4 << 20,
        send_buffer_bytes: 4 << 20,
        window_scale: Some(7),
        largest_packet_bytes: 1500,
        congestion: "none".into(),
        checksum_verified: false,
        checksum_computed: true,
        workarounds: Vec::new(),
    }
}

/// The score of a case over a link in memory.
pub(crate) fn score(stack: StackKind, workarounds: Workarounds, case: &str, outcome: Outcome) -> Score {
    let case = Case::all().find(|one| one.id == case).unwrap();
    let (program, trace, layer, congestion) = (None, None, Layer::Stack, StackCongestion::None);
    let run = Run { stack, program, layer, shards: 1, offload: false, mtu: MTU, workarounds, congestion, trace };
    Score::new(&case, &run, &Ran { outcome, version: None, workarounds: Vec::new() })
}

/// A run of this rate, without warnings.
pub(crate) fn sample(cell: &Cell, gbps: f64) -> Sample {
    let elapsed = Duration::from_secs(2);
    let bytes = (gbps * 1e9 / 8.0 * elapsed.as_secs_f64()) as u64;
    let measured = Measurements { bytes, elapsed, ..Measurements::default() };
    Sample { cell: cell.clone(), measured, environment: Arc::new(environment()) }
}

/// The same of a line of words.
pub(crate) fn run(words: &str, gbps: f64) -> Sample {
    sample(&cell(words), gbps)
}

/// A run of a program as a reader. Only files have programs without a profile.
pub(crate) fn program(name: &str, role: Option<Role>, gbps: f64) -> Sample {
    let program = Some(name.parse::<crate::program::ProgramName>().unwrap().into());
    let mut run = sample(&Cell { program, ..cell("--program kernel -m reader") }, gbps);
    let at_rest = ProcessFacts { pss_bytes: Some(2_500_000), ..ProcessFacts::default() };
    let facts = ProgramFacts { role, start_seconds: 0.012, at_rest, ..ProgramFacts::default() };
    run.measured.program = Some(Box::new(facts));
    run
}

/// A run in which every request took this long.
pub(crate) fn answering(cell: &Cell, latency_us: f64) -> Sample {
    let mut latency = Latency::default();
    (0..1000).for_each(|_| latency.record(Duration::from_secs_f64(latency_us / 1e6)));
    let mut run = sample(cell, 0.0);
    run.measured.requests = Some(RequestFacts { answered: 1000, latency, ..RequestFacts::default() });
    run
}

/// A run that failed.
pub(crate) fn failed(cell: &Cell, status: Status) -> Sample {
    Sample { measured: Measurements::failed(status, "it did not go on"), ..sample(cell, 0.0) }
}

/// The sample, in a round.
pub(crate) fn in_round(mut sample: Sample, round: u32) -> Sample {
    sample.measured.round = Some(round);
    sample
}
