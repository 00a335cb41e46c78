//! Counts the work of each stack for each megabyte (10^6 bytes) of payload: packets, their sizes, and allocations.
//! It measures no time, so the table is the same in each run, in debug and release builds. If a change makes a stack
//! split packets, acknowledge more often or allocate, this target fails until `work.snap` is updated.
//!
//! | command | |
//! |---|---|
//! | `cargo test -p rust-tun-perf-netstacks --bench work` | compares; `cargo test` does it too |
//! | `cargo bench -p rust-tun-perf-netstacks --bench work` | prints the table and compares |
//! | `INSTA_UPDATE=always cargo test -p rust-tun-perf-netstacks --bench work` | rewrites `work.snap` |
//!
//! The runtime's clock is paused, so no timer fires and nothing depends on the machine. The peer and
//! the link allocate nothing, so all allocations are of the stack, its adapter and tokio.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench may panic")]

mod cell;

use std::alloc::System;
use std::fmt::Write as _;
use std::process::ExitCode;

use netstacks::{Netstack, StackKind, Visitor};
use platform::{Counted, MemoryLink, PacketCounts};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::runtime::Builder;
use tokio::time::Instant;

use self::cell::{Cell, Direction, Session};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Payload before the count, in bytes. It fills all buffers, rings and windows.
fn warm_up(direction: Direction) -> usize {
    if direction == Direction::Requests { 10_000_000 } else { 32_000_000 }
}
/// Payload during the count, in bytes.
fn counted(direction: Direction) -> usize {
    if direction == Direction::Requests { 2_000_000 } else { 8_000_000 }
}

const SNAPSHOT: &str = include_str!("work.snap");
const SNAPSHOT_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/work.snap");

/// How much a figure may differ from the snapshot, relative to it. ipstack's tasks use `tokio::select!`, which chooses
/// at random whether to receive or to send a packet first. So its acknowledgements come in batches of different sizes,
/// and its figures differed by 2 % in trials. With a seed for tokio, which needs `tokio_unstable`, they are exact too.
fn tolerance(stack: StackKind) -> f64 {
    if stack == StackKind::Ipstack { 0.05 } else { 0.0 }
}

/// The number of lwIP's allocations in C so far.
#[cfg_attr(feature = "lwip", expect(clippy::unnecessary_wraps, reason = "without lwIP there is no number"))]
fn c_allocations() -> Option<u64> {
    #[cfg(feature = "lwip")]
    return Some(lwip_sys::allocations());
    #[cfg(not(feature = "lwip"))]
    None
}

/// The work for `payload_bytes` that crossed the link.
struct Work {
    payload_bytes: u64,
    packets: PacketCounts,
    /// Reads or writes of the application.
    calls: u64,
    allocations: usize,
    allocated_bytes: usize,
    c_allocations: Option<u64>,
}

/// The payload in the counted packets, which have no TCP options. Acknowledgements that travel alone have none.
fn payload_bytes(cell: Cell, counts: PacketCounts) -> u64 {
    let headers = if cell.ipv6 { 60 } else { 40 };
    match cell.direction {
        Direction::Reader => counts.tx_bytes - counts.tx_packets * headers,
        Direction::Writer => counts.rx_bytes - counts.rx_packets * headers,
        Direction::Requests => counts.rx_bytes + counts.tx_bytes - (counts.rx_packets + counts.tx_packets) * headers,
    }
}

struct Count(Cell);

impl Visitor<Counted<MemoryLink>> for Count {
    type Output = Work;

    fn visit<S: Netstack<Counted<MemoryLink>>>(self) -> Work {
        let (link, script) = self.0.ends();
        let link = Counted::new(link);
        let traffic = link.traffic();
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let mut session = Session::<S, _>::start(runtime, link, script);
        session.transfer(warm_up(self.0.direction));
        let time = session.runtime.block_on(async { Instant::now() });
        let (packets, c_before, heap) = (traffic.counts(), c_allocations(), ALLOCATOR.stats());
        let calls = session.transfer(counted(self.0.direction));
        let heap = ALLOCATOR.stats() - heap;
        let packets = traffic.counts().since(packets);
        let elapsed = session.runtime.block_on(async move { time.elapsed() });
        assert!(elapsed.is_zero(), "{}: all tasks waited, and timers fired", self.0);
        Work {
            payload_bytes: payload_bytes(self.0, packets),
            packets,
            calls,
            allocations: heap.allocations + heap.reallocations,
            allocated_bytes: heap.bytes_allocated,
            c_allocations: c_allocations().zip(c_before).map(|(after, before)| after - before),
        }
    }
}

const HEADER: &str = "\
For each megabyte (10^6 bytes) of payload                                       allocations           in C
stack   mode   link       ip   |  calls   packets in bytes each  packets out bytes each    count       bytes    count
";

impl Work {
    fn row(&self, cell: Cell) -> String {
        let per_megabyte = |count: u64| count as f64 * 1e6 / self.payload_bytes as f64;
        let each = |bytes: u64, packets: u64| bytes as f64 / packets as f64;
        let PacketCounts { rx_packets, rx_bytes, tx_packets, tx_bytes } = self.packets;
        let mut row = format!("{cell} |");
        let figures = [
            (7, per_megabyte(self.calls)),
            (13, per_megabyte(rx_packets)),
            (11, each(rx_bytes, rx_packets)),
            (13, per_megabyte(tx_packets)),
            (11, each(tx_bytes, tx_packets)),
            (9, per_megabyte(self.allocations as u64)),
            (12, per_megabyte(self.allocated_bytes as u64)),
        ];
        for (width, figure) in figures {
            write!(row, "{figure:width$.1}").unwrap();
        }
        match self.c_allocations.filter(|_| cell.stack == StackKind::Lwip) {
            Some(count) => write!(row, "{:9.1}", per_megabyte(count)).unwrap(),
            None => row.push_str("        -"),
        }
        row
    }
}

/// Whether a row equals the snapshot's, within the tolerance of its stack.
fn is_same(row: &str, old: &str, tolerance: f64) -> bool {
    let figures = |row: &str| row.split_whitespace().map(|word| word.parse().ok()).collect::<Vec<Option<f64>>>();
    let (new, old) = (figures(row), figures(old));
    new.len() == old.len()
        && new.iter().zip(&old).all(|pair| match pair {
            (Some(new), Some(old)) => (new - old).abs() <= old * tolerance,
            (new, old) => new == old,
        })
}

fn main() -> ExitCode {
    let asked = |argument: &str| std::env::args().any(|given| given == argument);
    if asked("--list") {
        return ExitCode::SUCCESS;
    }
    let (mut measured, mut kept, mut changes) = (HEADER.to_owned(), HEADER.to_owned(), String::new());
    for cell in Cell::all() {
        let name = cell.to_string();
        let old = SNAPSHOT.lines().find(|line| line.starts_with(&name)).unwrap_or("nothing");
        // A stack that is not compiled in keeps its row of the snapshot.
        let row = cell.stack.visit(Count(cell)).map_or_else(|_| old.to_owned(), |work| work.row(cell));
        measured = measured + &row + "\n";
        if is_same(&row, old, tolerance(cell.stack)) {
            kept = kept + old + "\n";
        } else {
            kept = kept + &row + "\n";
            write!(changes, "- {old}\n+ {row}\n").unwrap();
        }
    }
    if asked("--bench") {
        print!("{measured}");
    }
    if kept == SNAPSHOT.replace("\r\n", "\n") {
        println!("work: as in {SNAPSHOT_PATH}");
        return ExitCode::SUCCESS;
    }
    print!("work: not as in {SNAPSHOT_PATH}:\n{HEADER}{changes}");
    if std::env::var_os("INSTA_UPDATE").is_some_and(|value| value == "always") {
        std::fs::write(SNAPSHOT_PATH, kept).unwrap();
        return ExitCode::SUCCESS;
    }
    println!("If that is meant to be: INSTA_UPDATE=always cargo test -p rust-tun-perf-netstacks --bench work");
    ExitCode::FAILURE
}
