//! How fast each stack moves bytes over a link in memory, by the wall clock:
//!
//!     cargo bench -p rust-tun-perf-netstacks --bench throughput
//!     cargo bench -p rust-tun-perf-netstacks --bench throughput -- 'smoltcp/reader'
//!
//! There is no device and no kernel, and the peer is cheap. So a change of a stack or its adapter has a larger effect
//! here than in `matrix`. criterion compares with the last run; `--save-baseline NAME` and `--baseline NAME` compare
//! with another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench may panic")]

mod cell;

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use netstacks::{Netstack, Visitor};
use platform::MemoryLink;
use tokio::runtime::Builder;

use self::cell::{Cell, Session};

/// Payload before the measurement, in bytes. It fills all buffers, rings and windows.
const WARM_UP: usize = 16_000_000;
/// Payload of one iteration, in bytes: a few milliseconds.
const ITERATION: usize = 16_000_000;

struct Time<'a, 'b> {
    cell: Cell,
    group: &'a mut BenchmarkGroup<'b, WallTime>,
}

impl Visitor<MemoryLink> for Time<'_, '_> {
    type Output = ();

    fn visit<S: Netstack<MemoryLink>>(self) {
        let name = self.cell.to_string().split_whitespace().collect::<Vec<_>>().join("/");
        self.group.bench_function(name, |bencher| {
            let runtime = Builder::new_current_thread().enable_time().build().unwrap();
            let (link, script) = self.cell.ends();
            let mut session = Session::<S, _>::start(runtime, link, script);
            session.transfer(WARM_UP);
            bencher.iter(|| session.transfer(ITERATION));
        });
    }
}

fn main() {
    // 36 cells within three minutes.
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .without_plots()
        .configure_from_args();
    let mut group = criterion.benchmark_group("throughput");
    group.throughput(Throughput::BytesDecimal(ITERATION as u64));
    for cell in Cell::all() {
        // A stack that is not compiled in has no figure.
        let _ = cell.stack.visit(Time { cell, group: &mut group });
    }
    group.finish();
    criterion.final_summary();
}
