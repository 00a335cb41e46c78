//! Selective acknowledgements.

use std::collections::HashSet;
use std::time::Duration;

use platform::packet::flags::ACK;

use super::segments::{part, repair};
use crate::client::SACK_PERMITTED;
use crate::lab::deliver;
use crate::wire::SACK;
use crate::wire::Segment;
use crate::{Case, Client, LATE, Lab, Offer, SOON, Served, Setup, Step, applies, check, patient, pattern, same};

pub(super) const CASES: &[Case] = &[
    Case::new("sack-not-offered", sack_not_offered, "RFC 2018, 4")
        .about("A segment is lost on a connection whose SYN did not permit SACK")
        .expects("No ACK has SACK blocks."),
    Case::new("sack-blocks", sack_blocks, "RFC 2018, 3 and 4")
        .about("One segment arrives out of order, and then the one before it")
        .expects(
            "The ACK reports exactly the first one. When the hole is filled, the ACK covers all and reports nothing.",
        ),
    Case::new("sack-latest-first", sack_latest_first, "RFC 2018, 4")
        .about("Segments arrive with two holes between them; then one of the holes is filled")
        .expects("The first block is always the one with the segment that has just come, and the others follow it."),
    Case::new("sack-duplicate", sack_duplicate, "RFC 2883, 4.1")
        .about("A segment comes again after it has been acknowledged")
        .expects(
            "If the ACK has SACK blocks, the first one is this segment. The RFC is optional: an ACK without is right, \
             too.",
        ),
    Case::new("sack-with-timestamps", sack_with_timestamps, "RFC 2018, 3; RFC 7323, 3.2")
        .about("Five holes on a connection with timestamps")
        .expects("Every ACK has a timestamp and up to three blocks, the latest first."),
    Case::new("sack-holes-resent", sack_holes_resent, "RFC 6675, 5; RFC 2018, 5")
        .about("Two segments of a flight are lost, and the client reports all others by SACK")
        .expects("Both come again without a timeout. At most two of the others come again, as probes."),
];

/// Connects with SACK, or ends the case if the stack does not permit it. `stamps` offers timestamps, too.
fn connect(setup: &Setup, stamps: bool) -> Step<(Lab, Client, Served)> {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.stamps = stamps.then_some([1000, 0]);
    let syn_ack = client.open(&Offer { extra: vec![SACK_PERMITTED, 2], ..Offer::default() })?;
    let served = lab.accept()?;
    applies(syn_ack.option(SACK_PERMITTED).is_some(), || "the stack does not permit SACK".to_owned())?;
    applies(!stamps || syn_ack.stamps().is_some(), || "the stack has no timestamps".to_owned())?;
    Ok((lab, client, served))
}

/// Sends one part of the bytes. Returns the ACK, and its blocks relative to the first byte.
fn send(client: &mut Client, bytes: &[u8], from: usize, to: usize) -> Step<(Segment, Vec<[u32; 2]>)> {
    client.forget()?;
    client.put(part(client, bytes, from, to))?;
    let ack = client.expect("ACK", |segment| segment.has(ACK))?;
    let next = client.next;
    let blocks = ack.blocks().into_iter().map(|block| block.map(|number| number.wrapping_sub(next)));
    let blocks = blocks.collect();
    Ok((ack, blocks))
}

fn sack_not_offered(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(130, 3000);
    for (from, to) in [(1000, 2000), (2000, 3000)] {
        let (ack, _) = send(&mut client, &bytes, from, to)?;
        check(ack.option(SACK).is_none(), || "the ACK has SACK blocks".to_owned())?;
    }
    repair(&mut client, &mut served, &bytes)?;
    lab.finish()
}

fn sack_blocks(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup, false)?;
    let bytes = pattern(131, 2000);
    let (_, blocks) = send(&mut client, &bytes, 1000, 2000)?;
    check(blocks == [[1000, 2000]], || format!("the blocks are {blocks:?}, and not 1000 to 2000"))?;
    client.put(part(&client, &bytes, 0, 1000))?;
    client.next = client.next.wrapping_add(2000);
    let ack = client.acked(SOON)?;
    check(ack.option(SACK).is_none(), || format!("the blocks are {:?}", ack.blocks()))?;
    same(&served.read(2000)?, &bytes)?;
    lab.finish()
}

fn sack_latest_first(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup, false)?;
    let bytes = pattern(132, 5000);
    let steps: [(usize, usize, &[[u32; 2]]); 4] = [
        (3000, 3500, &[[3000, 3500]]),
        (1000, 2000, &[[1000, 2000], [3000, 3500]]),
        (3500, 4000, &[[3000, 4000], [1000, 2000]]),
        (2000, 3000, &[[1000, 4000]]),
    ];
    for (from, to, expected) in steps {
        let (_, blocks) = send(&mut client, &bytes, from, to)?;
        check(blocks == expected, || format!("after {from} to {to} the blocks are {blocks:?}, and not {expected:?}"))?;
    }
    repair(&mut client, &mut served, &bytes)?;
    lab.finish()
}

fn sack_duplicate(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup, false)?;
    let bytes = pattern(133, 1000);
    client.write(&bytes)?;
    client.next = client.next.wrapping_sub(1000);
    let (ack, blocks) = send(&mut client, &bytes, 0, 1000)?;
    check(ack.ack == client.next.wrapping_add(1000), || "the ACK has another number".to_owned())?;
    check(blocks.is_empty() || blocks == [[0, 1000]], || format!("the blocks are {blocks:?}, and not 0 to 1000"))?;
    same(&served.read(1000)?, &bytes)?;
    lab.finish()
}

fn sack_with_timestamps(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup, true)?;
    let bytes = pattern(134, 6000);
    for index in 1..=5 {
        let from = index * 1000;
        let (ack, blocks) = send(&mut client, &bytes, from, from + 500)?;
        let first = [from as u32, from as u32 + 500];
        check(ack.stamps().is_some(), || "the ACK has no timestamp".to_owned())?;
        check(blocks.len() == index.min(3) && blocks[0] == first, || {
            format!("with {index} holes the blocks are {blocks:?}")
        })?;
    }
    repair(&mut client, &mut served, &bytes)?;
    lab.finish()
}

fn sack_holes_resent(setup: &Setup) -> Step {
    let (lab, mut client, served) = connect(setup, false)?;
    client.sack = true;
    let (mut seen, mut lost, mut again) = (HashSet::new(), Vec::new(), 0);
    deliver(&mut client, served, &pattern(135, 200_000), LATE, |segment| {
        if segment.payload.is_empty() {
            return false;
        }
        let is_new = seen.insert(segment.seq);
        let loses = is_new && [20, 23].contains(&seen.len());
        if loses {
            lost.push((segment.seq, segment.at, None));
        } else if let Some((.., came)) = lost.iter_mut().find(|(seq, ..)| *seq == segment.seq) {
            came.get_or_insert(segment.at);
        } else {
            again += usize::from(!is_new);
        }
        loses
    })?;
    for (_, at, came) in lost {
        let after = came.map(|came| came - at);
        check(after.is_some_and(|after| after < patient(Duration::from_millis(180))), || {
            format!("a lost segment came after {after:.2?}")
        })?;
    }
    check(again <= 2, || format!("{again} segments came again that were not lost"))?;
    lab.finish()
}
