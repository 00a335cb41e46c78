//! The whole path of a byte through a stack: from one end of a connection to the other, over a link in
//! memory, between an application at the stack and a scripted peer in the same thread.
//!
//! There is no kernel and no device, so the share of checksums is an upper bound of their share on a real path. The two
//! directions differ:
//!
//! | direction | with checksums |
//! |---|---|
//! | `reader` | the stack sums what it sends; the peer verifies nothing |
//! | `writer` | the peer sums what it sends, with our sum, and the stack verifies it with its own |
//!
//! The packets are IPv4 packets as large as the MTU, 1500 or 65,535 bytes. With and without checksums they are
//! otherwise the same. At an MTU of 1500 there are also super-packets without checksums, as with the offloads of a TUN
//! device. The checksum of the IP header is always computed. ipstack always sums the packets that it sends and never
//! verifies one, so its paths without checksums lack only the peer's sum.

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput};
use netstacks::{Netstack, Visitor};
use platform::{Capabilities, ChecksumOffload, MemoryLink, SegmentationOffload};
use tokio::runtime::Builder;

use crate::cell::{Cell, Direction, Session};
use crate::table::{DONE, LEFT_OUT, SUPER_PACKETS, Table};

/// Payload, in bytes, of one iteration. Ten samples of at least one iteration are a gigabyte.
const ITERATION: usize = 100_000_000;
/// Payload, in bytes, after which all buffers, rings and windows have been full.
const WARM_UP: usize = 16_000_000;
/// Payload, in bytes, of a path that is not measured, only tried.
const TRIAL: usize = 100_000;

pub(crate) fn bench(criterion: &mut Criterion, table: &mut Table, measure: bool) {
    let mut group = criterion.benchmark_group("path");
    group.sample_size(10).measurement_time(Duration::from_secs(2)).sampling_mode(SamplingMode::Flat);
    let is_measured = |cell: &Cell| {
        let streams = cell.direction != Direction::Requests;
        streams && !cell.ipv6 && cell.capabilities == Capabilities::plain(1500)
    };
    for cell in Cell::all().filter(is_measured) {
        for (name, capabilities) in links() {
            let cell = Cell { capabilities, ..cell };
            let (iteration, warm_up) = if measure { (ITERATION, WARM_UP) } else { (TRIAL, TRIAL) };
            group.throughput(Throughput::BytesDecimal(iteration as u64));
            // A stack that is not compiled in has no figure.
            let _ = cell.stack.visit(Time { cell, name, iteration, warm_up, group: &mut group, table: &mut *table });
        }
    }
    group.finish();
}

/// Returns the links, with the names of their columns. Links of the same MTU differ only in the checksums.
fn links() -> [(String, Capabilities); 5] {
    let of = |mtu: usize, checksum| {
        let all = ChecksumOffload { rx: checksum == LEFT_OUT, tx: checksum == LEFT_OUT };
        let capabilities =
            Capabilities { checksum: all, segmentation: SegmentationOffload::default(), ..Capabilities::plain(mtu) };
        (format!("{mtu} {checksum}"), capabilities)
    };
    [
        of(1500, DONE),
        of(1500, LEFT_OUT),
        of(65_535, DONE),
        of(65_535, LEFT_OUT),
        (SUPER_PACKETS.to_owned(), Capabilities::offloading(1500)),
    ]
}

struct Time<'a, 'b> {
    cell: Cell,
    name: String,
    iteration: usize,
    warm_up: usize,
    group: &'a mut BenchmarkGroup<'b, WallTime>,
    table: &'a mut Table,
}

impl Visitor<MemoryLink> for Time<'_, '_> {
    type Output = ();

    fn visit<S: Netstack<MemoryLink>>(self) {
        let Self { cell, name, iteration, warm_up, group, table } = self;
        let row = format!("{}/{}", cell.stack, cell.direction.name());
        // The session starts once, and not at all if the command line leaves this cell out.
        let mut session = None;
        // A program that parses the lines would take a name with a space for two names.
        group.bench_function(BenchmarkId::new(&row, name.replace(' ', "-")), |bencher| {
            let session = session.get_or_insert_with(|| {
                let runtime = Builder::new_current_thread().enable_time().build().unwrap();
                let (link, script) = cell.ends();
                let mut session = Session::<S, _>::start(runtime, link, script);
                session.transfer(warm_up);
                session
            });
            bencher.iter_custom(|iterations| {
                let start = Instant::now();
                for _ in 0..iterations {
                    session.transfer(iteration);
                }
                let elapsed = start.elapsed();
                table.paths.record(&row, &name, elapsed, iterations * iteration as u64);
                elapsed
            });
        });
    }
}
