//! Compares implementations of the internet checksum (RFC 1071).
//!
//! | name | implementation |
//! |---|---|
//! | `smoltcp` | smoltcp's, `wire::checksum::data` |
//! | `lwip-1`, `-2`, `-3` | lwIP's, by `LWIP_CHKSUM_ALGORITHM`; the stack here is compiled with the third |
//! | `ipstack` | ipstack's, from the crate `etherparse` |
//! | `tun-rs` | from the crate `tun-rs`, which splits and joins super-packets with it; on Linux only |
//! | `ip4sum` | the crate `ip4sum`, the fastest known; `internet-checksum` and `fastcsum` are slower from 1500 bytes on |
//! | `platform` | ours, for segments of split super-packets, and for the peer of a link in memory |
//!
//! `warm` sums the same bytes again and again. `cold` sums many packets in random order (`cold.rs`). All are called
//! through a pointer, so that none is inlined into the loop of the bench.

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput};
use platform::packet::checksum;

use crate::cold::{self, Packets, random};
use crate::table::Table;

/// Lengths in bytes: a bare header, the packet that every host must accept (RFC 791, 3.1), the MTU of Ethernet, the MTU
/// of jumbo frames, and a super-packet.
const LENGTHS: [usize; 5] = [20, 576, 1500, 9000, 65_535];

/// Returns the sum in the machine's byte order, not complemented.
type Sum = fn(&[u8]) -> u16;

/// Returns all implementations that this build and this system have.
fn implementations() -> Vec<(&'static str, Sum)> {
    let mut all: Vec<(&'static str, Sum)> = Vec::new();
    #[cfg(feature = "smoltcp")]
    all.push(("smoltcp", smoltcp::wire::checksum::data));
    #[cfg(feature = "lwip")]
    all.extend(["lwip-1", "lwip-2", "lwip-3"].into_iter().zip(netstacks::lwip_checksum::ALGORITHMS));
    #[cfg(feature = "ipstack")]
    all.push(("ipstack", |bytes| {
        !u16::from_be(etherparse::checksum::Sum16BitWords::new().add_slice(bytes).ones_complement())
    }));
    all.extend(checksum::of_tun_rs().map(|sum| ("tun-rs", sum)));
    all.push(("ip4sum", |bytes| !ip4sum::checksum(bytes)));
    all.push(("platform", checksum::sum));
    all
}

pub(crate) fn bench(criterion: &mut Criterion, table: &mut Table) {
    let implementations = implementations();
    check(&implementations);
    let set = cold::set();
    let mut group = criterion.benchmark_group("checksum");
    for len in LENGTHS {
        group.throughput(Throughput::BytesDecimal(len as u64));
        let warm = random(len);
        let mut cold = Packets::new(&set, len);
        for &(name, sum) in &implementations {
            let mut time = |cache, work: &mut dyn FnMut(u64)| {
                let section = &mut table.checksums;
                group.bench_function(BenchmarkId::new(format!("{name}/{cache}"), len), |bencher| {
                    bencher.iter_custom(|iterations| {
                        let start = Instant::now();
                        work(iterations);
                        let elapsed = start.elapsed();
                        section.record(name, &format!("{len} {cache}"), elapsed, iterations * len as u64);
                        elapsed
                    });
                });
            };
            time("warm", &mut |iterations| {
                for _ in 0..iterations {
                    black_box(black_box(sum)(black_box(&warm)));
                }
            });
            time("cold", &mut |iterations| {
                for _ in 0..iterations {
                    black_box(black_box(sum)(black_box(cold.next())));
                }
            });
        }
    }
    group.finish();
}

/// Compares each implementation with the plain sum, at every length up to 1,600 and at the lengths of the bench, from
/// an even and from an odd address. A wrong one ends the bench before it is measured.
fn check(implementations: &[(&str, Sum)]) {
    let bytes = random(65_536);
    for len in (0..=1600).chain(LENGTHS) {
        for start in [0, 1] {
            let part = &bytes[start..][..len];
            let expected = plain(part);
            for (name, sum) in implementations {
                assert_eq!(sum(part), expected, "{name}: wrong sum of {len} bytes from offset {start}");
            }
        }
    }
}

/// RFC 1071, 1, word by word.
fn plain(bytes: &[u8]) -> u16 {
    let mut sum = 0;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
