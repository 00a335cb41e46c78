//! Several datagrams in one packet, and checksums that are left to the link.

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("udp-partial-checksum", "ours", "virtio 1.2, 5.1.6.4", |lab| {
        for len in [0, 1, 2, 400, usize::from(lab.mtu) - 28] {
            let payload = pattern(180 + len as u64, len);
            lab.wire().send_unsummed(lab.to_server(&payload), 0)?;
            lab.receives(lab.peer(), lab.server(), &payload)?;
        }
        Ok(())
    })
    .about("Datagrams with a partial checksum, of 0 to 1,472 bytes")
    .expects("Each is received.")
    .offloading(),
    Case::new("udp-super-packets-received", "ours", "virtio 1.2, 5.1.6", |lab| {
        for (len, seed) in BATCHES.into_iter().zip(190..) {
            let payloads = pattern(seed, len);
            lab.wire().send_unsummed(lab.to_server(&payloads), LEN)?;
            payloads.chunks(LEN).try_for_each(|payload| lab.receives(lab.peer(), lab.server(), payload))?;
        }
        lab.arrives(b"one alone")
    })
    .about("Five datagrams joined into a super-packet; the last is as long as the others, shorter, or one byte")
    .expects("Each datagram is received on its own, whole and in order.")
    .offloading()
    .over_ipv6("udp-super-packets-received-ipv6", "ours", "The same over IPv6", "virtio 1.2, 5.1.6"),
    Case::new("udp-batches-sent", "ours", "RFC 768; the promise of Datagrams::try_send_batch", |lab| {
        // Some stacks only answer.
        lab.arrives(b"question")?;
        for (len, seed) in BATCHES.into_iter().zip(200..) {
            let payloads = pattern(seed, len);
            let sent = lab.send_datagrams([lab.server(), lab.peer()], &payloads, LEN);
            check!(sent.as_ref().is_ok_and(|sent| *sent == len), "sending {len} bytes returned {sent:?}")?;
            payloads.chunks(LEN).try_for_each(|payload| lab.comes(lab.server(), payload))?;
        }
        Ok(())
    })
    .about("The server sends batches of five datagrams; the last is as long as the others, shorter, or one byte")
    .expects("Each datagram arrives on its own, whole.")
    .over_ipv6(
        "udp-batches-sent-ipv6",
        "ours",
        "The same over IPv6",
        "RFC 768; the promise of Datagrams::try_send_batch",
    ),
];

/// Payload of each datagram of a batch but the last.
const LEN: usize = 1200;

/// Payloads of batches.
const BATCHES: [usize; 4] = [5 * LEN, 4 * LEN + 500, 4 * LEN + 1, 2 * LEN];
