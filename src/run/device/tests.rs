//! The turning around of packets, over a link in memory at whose other end something may go wrong.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use clap::Parser;
use platform::{MemoryLink, Offload, Traffic};

use super::*;
use crate::cli::Cli;

/// What the other end does to the packets that it sends back.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// One is not sent back.
    Lose,
    /// A byte of one is another one.
    Flip,
    /// Two change places.
    Swap,
    /// Others are among them.
    Strangers,
    /// The link ends.
    End,
}

/// The packet to which it happens.
const WHICH: usize = 20;

/// Sends everything back.
async fn reflect(mut link: MemoryLink, fault: Fault) {
    let mut buffers = [PacketBuffer::new(link.capabilities().max_packet_len)];
    let mut held: Option<(PacketMeta, Vec<u8>)> = None;
    for count in 0.. {
        if poll_fn(|cx| link.poll_readable(cx)).await.is_err() || link.try_recv(&mut buffers).is_err() {
            return;
        }
        let meta = buffers[0].meta();
        let mut packet = buffers[0].packet().to_vec();
        match fault {
            Fault::Lose if count == WHICH => continue,
            Fault::Flip if count == WHICH => *packet.last_mut().unwrap() ^= 1,
            Fault::Swap if count == WHICH => {
                held = Some((meta, packet));
                continue;
            }
            Fault::Strangers => send(&mut link, PacketMeta::default(), b"\x60 nobody's").await,
            Fault::End if count == WHICH => return,
            _ => {}
        }
        send(&mut link, meta, &packet).await;
        if let Some((meta, packet)) = held.take() {
            send(&mut link, meta, &packet).await;
        }
    }
}

async fn send(link: &mut MemoryLink, meta: PacketMeta, packet: &[u8]) {
    while link.try_send(meta, &[IoSlice::new(packet)]).is_err() {
        poll_fn(|cx| link.poll_writable(cx)).await.unwrap();
    }
}

/// What came of it, and how much is said to have come back.
fn turn(arguments: &str, fault: Fault) -> (Result<(), TransferError>, Option<Finish>) {
    let arguments = format!("x --layer device --warmup 100KB --bytes 2MB --verify full {arguments}");
    let scenario = Scenario::try_from(Cli::try_parse_from(arguments.split_whitespace()).unwrap().run).unwrap();
    let pair = if scenario.offload == Offload::On { MemoryLink::offloading_pair } else { MemoryLink::pair };
    let (near, far) = pair(scenario.mtu.into(), 64);
    let facts = DeviceFacts { name: "memory".to_owned(), mtu: 1500, offload: true, tx_queue_len: Some(1024) };
    let shuttle = Shuttle::new(near, &scenario, &facts).unwrap();
    let lane = Lane::split(&scenario).remove(0);
    let gate = StartingGate::new(1, ProcessMeter::new(Arc::new(Traffic::default()), || None));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        tokio::spawn(reflect(far, fault));
        shuttle.run(&lane, &gate).await
    });
    (result, lane.finished())
}

#[test]
fn every_byte_comes_back_whatever_else_does_and_in_any_order() {
    for fault in [Fault::None, Fault::Swap, Fault::Strangers] {
        for arguments in ["", "--offload on", "--ipv6 --buffer 999", "--offload on --ipv6 --window 256KiB --mtu 9000"] {
            let (result, finish) = turn(arguments, fault);
            assert!(result.is_ok(), "{arguments}: {result:?}");
            assert_eq!(finish.unwrap().bytes, 2_000_000, "{arguments}");
        }
    }
}

#[test]
fn a_lost_packet_is_found_and_not_waited_for() {
    let (result, finish) = turn("", Fault::Lose);
    let error = result.unwrap_err();
    assert!(matches!(error, TransferError::Lost { got, expected } if got + 1460 == expected), "{error}");
    assert_eq!(error.status(), Status::Short);
    assert!(finish.is_none());
}

#[test]
fn a_changed_byte_is_found() {
    let (result, _) = turn("", Fault::Flip);
    let last = (WHICH as u64 + 1) * 1460 - 1;
    assert!(matches!(result, Err(TransferError::Corrupt { offset }) if offset == last), "{result:?}");
}

#[test]
fn a_link_that_ends_is_a_lost_device() {
    let (result, _) = turn("", Fault::End);
    assert_eq!(failure(&result.unwrap_err()).status, Status::DeviceLost);
}

#[test]
fn a_time_is_kept() {
    let (near, far) = MemoryLink::pair(1500, 64);
    let cli = Cli::try_parse_from("x --layer device --warmup 0 --time 0.5 --verify full".split_whitespace()).unwrap();
    let scenario = Scenario::try_from(cli.run).unwrap();
    let facts = DeviceFacts { name: "memory".to_owned(), mtu: 1500, offload: false, tx_queue_len: None };
    let shuttle = Shuttle::new(near, &scenario, &facts).unwrap();
    let lane = Lane::split(&scenario).remove(0);
    let gate = StartingGate::new(1, ProcessMeter::new(Arc::new(Traffic::default()), || None));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::spawn(reflect(far, Fault::None));
        shuttle.run(&lane, &gate).await.unwrap();
    });
    let finish = lane.finished().unwrap();
    assert!(finish.bytes > 0);
    assert!(finish.end.at - gate.opened().unwrap().at >= Duration::from_millis(500));
    assert_eq!(lane.arrived(), finish.bytes, "what comes after the end is not counted");
}
