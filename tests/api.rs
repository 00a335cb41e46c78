//! A stack that the program does not know, run through the library, without a device or root.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};

use netstacks::{Netstack, Smoltcp, StackConfig, StackKind, StartError, Started};
use platform::{Link, Offload};
use rust_tun_perf::run::{Executor, StackExecutor};
use rust_tun_perf::sample::Status;
use rust_tun_perf::scenario::{Amount, Layer, Mode, Scenario, Subject, Verify};

/// smoltcp under another name.
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
fn a_stack_of_another_crate_delivers_every_byte() {
    let mut runs = 0;
    for mode in [Mode::Reader, Mode::Writer] {
        for offload in [Offload::On, Offload::Off] {
            let mut scenario = Scenario::new(StackKind::Smoltcp, mode).unwrap();
            scenario.subject = Subject::Stack(StackKind::Smoltcp);
            scenario.offload = offload;
            scenario.warmup_bytes = 1_000_000;
            scenario.amount = Amount::Bytes(NonZeroU64::new(10_000_000).unwrap());
            scenario.verify = Verify::Full;
            let sample = StackExecutor::<Mine>::new().execute(&scenario).unwrap();
            runs += 1;
            let measured = &sample.measured;
            assert_eq!(measured.status, Status::Ok, "{mode}: {:?}", measured.detail);
            assert_eq!((measured.bytes, measured.verified), (10_000_000, Verify::Full), "{mode}");
            assert!(sample.gbps() > 0.0, "{mode}");
            let cell = &sample.cell;
            assert_eq!(cell.layer(), Layer::Stack);
            assert_eq!((cell.offload, cell.mtu), (Some(offload == Offload::On), Some(1500)), "{mode}");
            assert_eq!(measured.effective.as_ref().unwrap().stack_version, "0.0.1 of mine");
            // The packets with payload are as large as the link allows.
            let largest = sample.bytes_per_packet().unwrap();
            assert!(if offload == Offload::On { largest > 20_000.0 } else { largest > 1400.0 }, "{mode}: {largest}");
        }
    }
    assert_eq!(STARTED.load(Ordering::Relaxed), runs);
}

#[test]
fn loopback_runs_without_the_stack() {
    let mut scenario = Scenario::new(StackKind::Smoltcp, Mode::Reader).unwrap();
    scenario.subject = Subject::Loopback;
    // In the network of this process: a namespace would change the thread that runs the test.
    scenario.isolated = false;
    scenario.warmup_bytes = 0;
    scenario.amount = Amount::Bytes(NonZeroU64::new(10_000_000).unwrap());
    scenario.verify = Verify::Full;
    let sample = StackExecutor::<Mine>::new().execute(&scenario).unwrap();
    assert_eq!(sample.measured.status, Status::Ok, "{:?}", sample.measured.detail);
    assert_eq!((sample.measured.bytes, sample.measured.effective), (10_000_000, None));
    assert_eq!((sample.cell.stack(), sample.cell.mtu), (None, None));
}
