//! Packets over a link in memory, with faults at its other end.

use clap::Parser;
use platform::MemoryLink;

use super::*;
use crate::cell::Offload;
use crate::cli::Cli;
use crate::load::Sides;
use crate::load::stream::Streams;
use crate::meter::LinkMeter;
use crate::plan::scenario::{Devices, Tun};

/// A fault of the other end when it sends packets back.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// One packet is not sent back.
    Lose,
    /// A byte of one packet is changed.
    Flip,
    /// Two packets swap places.
    Swap,
    /// Foreign packets are among them.
    Strangers,
    /// The link ends.
    End,
}

/// The index of the packet that the fault hits.
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
            Fault::Strangers => send(&mut link, PacketMeta::default(), b"\x60 no packet").await,
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

fn tun(scenario: &Scenario) -> &Tun {
    let Devices::Tun(tun) = &scenario.devices else { panic!("a pair of devices") };
    tun
}

/// The result of a run, and the end of its stream.
fn turn(arguments: &str, fault: Fault) -> (Result<(), LoadError>, Option<Finish>) {
    let arguments = format!("x --layer device --warmup 100KB --bytes 2MB --verify full {arguments}");
    let scenario = Scenario::try_from(Cli::try_parse_from(arguments.split_whitespace()).unwrap().run).unwrap();
    let pair = if scenario.cell.offload == Offload::On { MemoryLink::offloading_pair } else { MemoryLink::pair };
    let (near, far) = pair(scenario.cell.mtu().into(), 64);
    let facts =
        DeviceFacts { name: "memory".to_owned(), mtu: 1500, offload: true, tx_queue_len: Some(1024), qdisc: None };
    let shuttle = Shuttle::new(near, &scenario, tun(&scenario).network.peer, &facts).unwrap();
    let streams = Streams::of(&scenario).unwrap().each;
    let stream = &streams[0];
    let window = Window::new(1, Box::new(LinkMeter::new([], || None)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        tokio::spawn(reflect(far, fault));
        shuttle.run(stream, &window).await
    });
    (result, stream.finished())
}

#[test]
fn every_byte_comes_back_also_among_other_packets_and_in_another_order() {
    for fault in [Fault::None, Fault::Swap, Fault::Strangers] {
        for arguments in ["", "--offload on", "--ipv6 --buffer 999", "--offload on --ipv6 --window 256KiB --mtu 9000"] {
            let (result, finish) = turn(arguments, fault);
            assert!(result.is_ok(), "{arguments}: {result:?}");
            assert_eq!(finish.unwrap().bytes, 2_000_000, "{arguments}");
        }
    }
}

#[test]
fn a_lost_packet_ends_the_run() {
    let (result, finish) = turn("", Fault::Lose);
    let error = result.unwrap_err();
    assert!(matches!(error, LoadError::Lost { got, expected } if got + 1460 == expected), "{error}");
    assert_eq!(error.status(), Status::Short);
    assert!(finish.is_none());
}

#[test]
fn a_changed_byte_is_found() {
    let (result, _) = turn("", Fault::Flip);
    let last = (WHICH as u64 + 1) * 1460 - 1;
    assert!(matches!(result, Err(LoadError::Corrupt { offset }) if offset == last), "{result:?}");
}

#[test]
fn a_link_that_ends_is_a_lost_device() {
    let (result, _) = turn("", Fault::End);
    assert_eq!(failure(&result.unwrap_err()).status, Status::DeviceLost);
}
