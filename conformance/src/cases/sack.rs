//! Selective acknowledgements.

use std::collections::HashSet;

use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("sack-not-offered", "MUST RFC 2018, 4: SACK-permitted", "RFC 2018, 4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        let bytes = pattern(130, 3000);
        for part in [1000..2000, 2000..3000] {
            let (ack, _) = send(&mut client, &bytes, part)?;
            check!(ack.option(SACK).is_none(), "the ACK has SACK blocks")?;
        }
        repair(&mut client, &mut served, &bytes)
    })
    .about("A segment is lost on a connection whose SYN did not permit SACK")
    .expects("No ACK has SACK blocks."),
    Case::new("sack-blocks", "SHOULD RFC 2018, 4: in all ACKs of a hole", "RFC 2018, 3 and 4", |lab| {
        let (mut client, mut served) = connect(lab, None)?;
        let bytes = pattern(131, 2000);
        let (_, blocks) = send(&mut client, &bytes, 1000..2000)?;
        check!(blocks == [[1000, 2000]], "the blocks are {blocks:?}, and not 1000 to 2000")?;
        client.put(client.part(&bytes, 0..1000))?;
        client.sent(2000);
        let ack = client.acked(SOON)?;
        check!(ack.option(SACK).is_none(), "the blocks are {:?}", ack.blocks())?;
        served.reads(&bytes)
    })
    .about("One segment arrives out of order, and then the one before it")
    .expects("The ACK reports exactly the first one. When the hole is filled, the ACK covers all and reports nothing."),
    Case::new("sack-latest-first", "MUST RFC 2018, 4: the first block", "RFC 2018, 4", |lab| {
        let (mut client, mut served) = connect(lab, None)?;
        let bytes = pattern(132, 5000);
        let steps: [(Range<usize>, &[[u32; 2]]); 4] = [
            (3000..3500, &[[3000, 3500]]),
            (1000..2000, &[[1000, 2000], [3000, 3500]]),
            (3500..4000, &[[3000, 4000], [1000, 2000]]),
            (2000..3000, &[[1000, 4000]]),
        ];
        for (part, expected) in steps {
            let Range { start, end } = part;
            let (_, blocks) = send(&mut client, &bytes, part)?;
            check!(blocks == expected, "after {start} to {end} the blocks are {blocks:?}, and not {expected:?}")?;
        }
        repair(&mut client, &mut served, &bytes)
    })
    .about("Segments arrive with two holes between them; then one of the holes is filled")
    .expects("The first block is always the one with the segment that has just come, and the others follow it."),
    Case::new("sack-duplicate", "MAY RFC 2883, 4", "RFC 2883, 4.1", |lab| {
        let (mut client, mut served) = connect(lab, None)?;
        let bytes = pattern(133, 1000);
        client.write(&bytes)?;
        client.next = client.next.wrapping_sub(1000);
        let (ack, blocks) = send(&mut client, &bytes, 0..1000)?;
        check!(ack.ack == client.next.wrapping_add(1000), "the ACK has another number")?;
        check!(blocks.is_empty() || blocks == [[0, 1000]], "the blocks are {blocks:?}, and not 0 to 1000")?;
        served.reads(&bytes)
    })
    .about("A segment comes again after it has been acknowledged")
    .expects(
        "If the ACK has SACK blocks, the first one is this segment. The RFC is optional: an ACK without is right, \
             too.",
    ),
    Case::new(
        "sack-with-timestamps",
        "SHOULD RFC 2018, 4: as many blocks as fit",
        "RFC 2018, 3; RFC 7323, 3.2",
        |lab| {
            let (mut client, mut served) = connect(lab, Some(1000))?;
            let bytes = pattern(134, 6000);
            for index in 1..=5 {
                let from = index * 1000;
                let (ack, blocks) = send(&mut client, &bytes, from..from + 500)?;
                let first = [from as u32, from as u32 + 500];
                check!(ack.stamps().is_some(), "the ACK has no timestamp")?;
                check!(
                    blocks.len() == index.min(3) && blocks[0] == first,
                    "with {index} holes the blocks are {blocks:?}"
                )?;
            }
            repair(&mut client, &mut served, &bytes)
        },
    )
    .about("Five holes on a connection with timestamps")
    .expects("Every ACK has a timestamp and up to three blocks, the latest first."),
    Case::new("sack-holes-resent", "SHOULD RFC 2018, 5: blocks are recorded", "RFC 6675, 5; RFC 2018, 5", |lab| {
        let (mut client, served) = connect(lab, None)?;
        client.sack = true;
        let (mut seen, mut lost, mut again) = (HashSet::new(), Vec::new(), 0);
        deliver_with(&mut client, served, &pattern(135, 200_000), LATE, |_, segment| {
            if segment.payload.is_empty() {
                return Ok(false);
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
            Ok(loses)
        })?;
        for (_, at, came) in lost {
            let after = came.map(|came| came - at);
            check!(after.is_some_and(|after| after < patient(ms(180))), "a lost segment came after {after:.2?}")?;
        }
        check!(again <= 2, "{again} segments came again that were not lost")
    })
    .about("Two segments of a flight are lost, and the client reports all others by SACK")
    .expects("Both come again without a timeout. At most two of the others come again, as probes."),
];

/// Connects with SACK, or ends the case if the stack does not permit it. `stamp` offers timestamps, too.
fn connect(lab: &mut Lab, stamp: Option<u32>) -> Step<(Client, Served)> {
    let (client, served) = lab.connect_with(&Offer { sack: true, stamp, ..Offer::default() })?;
    applies!(client.has_agreed(SACK_PERMITTED), "the stack does not permit SACK")?;
    applies!(stamp.is_none() || client.has_agreed(TIMESTAMPS), "the stack has no timestamps")?;
    Ok((client, served))
}

/// Sends one part of the bytes. Returns the ACK, and its blocks relative to the first byte.
fn send(client: &mut Client, bytes: &[u8], part: Range<usize>) -> Step<(Segment, Vec<[u32; 2]>)> {
    client.forget()?;
    client.put(client.part(bytes, part))?;
    let ack = client.expect("ACK", |segment| segment.has(ACK))?;
    let blocks = ack.blocks().into_iter().map(|block| block.map(|number| number.wrapping_sub(client.next)));
    let blocks = blocks.collect();
    Ok((ack, blocks))
}
