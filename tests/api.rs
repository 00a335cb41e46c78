//! A stack that is not one of this program's, run from a test of its own: no device, no root.

#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![cfg(feature = "smoltcp")]

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};

use netstacks::{Netstack, Smoltcp, StackConfig, StackKind, StartError, Started};
use platform::{Link, Offload};
use rust_tun_perf::plan::{Amount, Layer, Mode, Scenario, Subject, Verify};
use rust_tun_perf::run::{Executor, StackExecutor};
use rust_tun_perf::sample::Status;

/// A stack of one's own: smoltcp, but for its name.
struct Mine;

static STARTED: AtomicUsize = AtomicUsize::new(0);

impl<L: Link> Netstack<L> for Mine {
    type Stream = <Smoltcp as Netstack<L>>::Stream;
    type Listener = <Smoltcp as Netstack<L>>::Listener;
    type Datagrams = <Smoltcp as Netstack<L>>::Datagrams;

    fn start(link: L, config: &StackConfig) -> Result<Started<Self::Listener, Self::Datagrams>, StartError> {
        STARTED.fetch_add(1, Ordering::Relaxed);
        let mut started = <Smoltcp as Netstack<L>>::start(link, config)?;
        started.effective.stack_version = "0.0.1 of mine".into();
        Ok(started)
    }
}

#[test]
fn a_stack_of_ones_own_delivers_every_byte() {
    let mut runs = 0;
    for mode in [Mode::Reader, Mode::Writer] {
        for offload in [Offload::On, Offload::Off] {
            let mut scenario = Scenario::new(StackKind::Smoltcp, mode).unwrap();
            scenario.subject = Subject::Stack(StackKind::Smoltcp, mode);
            scenario.offload = offload;
            scenario.warmup_bytes = 1_000_000;
            scenario.amount = Amount::Bytes(NonZeroU64::new(10_000_000).unwrap());
            scenario.verify = Verify::Full;
            let sample = StackExecutor::<Mine>::new().execute(&scenario).unwrap();
            runs += 1;
            let facts = &sample.facts;
            assert_eq!(facts.status, Status::Ok, "{mode}: {:?}", facts.detail);
            assert_eq!((facts.bytes, facts.verified), (10_000_000, Verify::Full), "{mode}");
            assert!(sample.gbps() > 0.0, "{mode}");
            let cell = sample.cell.stack().unwrap();
            assert_eq!(cell.layer, Layer::Stack);
            assert_eq!((cell.offload, cell.mtu), (Some(offload == Offload::On), Some(1500)), "{mode}");
            assert_eq!(facts.effective.as_ref().unwrap().stack_version, "0.0.1 of mine");
            // A packet each way of the payload is as large as the link lets it be.
            let largest = sample.bytes_per_packet().unwrap();
            assert!(if offload == Offload::On { largest > 20_000.0 } else { largest > 1400.0 }, "{mode}: {largest}");
        }
    }
    assert_eq!(STARTED.load(Ordering::Relaxed), runs);
}

#[test]
fn layers_without_a_stack_run_too() {
    let mut scenario = Scenario::new(StackKind::Smoltcp, Mode::Reader).unwrap();
    scenario.subject = Subject::Loopback(Mode::Reader);
    // The network of the test's own process: a namespace would be for the thread of the test.
    scenario.isolated = false;
    scenario.warmup_bytes = 0;
    scenario.amount = Amount::Bytes(NonZeroU64::new(10_000_000).unwrap());
    scenario.verify = Verify::Full;
    let sample = StackExecutor::<Mine>::new().execute(&scenario).unwrap();
    assert_eq!(sample.facts.status, Status::Ok, "{:?}", sample.facts.detail);
    assert_eq!((sample.facts.bytes, sample.facts.effective), (10_000_000, None));
    let cell = sample.cell.stack().unwrap();
    assert_eq!((cell.netstack, cell.mtu), (None, None));
}
