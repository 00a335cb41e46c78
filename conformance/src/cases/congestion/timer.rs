//! The retransmission timer.

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("timer-restarts", "SHOULD RFC 6298, 5.3", "RFC 6298, 5.3", |lab| {
        const ROUND_TRIP: Duration = ms(100);
        let mut client = lab.client();
        client.syn_with(&Offer { mss: Some(1000), ..Offer::default() })?;
        client.syn_ack(SOON)?;
        thread::sleep(ROUND_TRIP);
        client.ack()?;
        let mut served = lab.accept()?;
        for _ in 0..4 {
            served.write(b"data")?;
            let end = client.expect_data()?.end();
            thread::sleep(ROUND_TRIP);
            client.ack_to(end)?;
        }
        served.write(&pattern(144, 4000))?;
        let (mut sent, mut ends) = (client.expected, Vec::new());
        while sent != client.expected.wrapping_add(4000) {
            sent =
                client.expect("the next segment", |segment| segment.seq == sent && !segment.payload.is_empty())?.end();
            ends.push(sent);
        }
        for end in ends {
            // A probe (RFC 8985, 7) would not come before two round trips.
            client.expect_none(ms(150), "a segment", |segment| !segment.payload.is_empty())?;
            client.ack_to(end)?;
        }
        exchange(&mut client, &mut served)
    })
    .about("On a path of 100 ms, four segments are acknowledged one after the other, each 150 ms after the last")
    .expects("Each ACK restarts the timer: nothing is sent again."),
    Case::new("karn", "MUST-18", "RFC 9293, 3.8.1; RFC 6298, 3 and 5.5", |lab| {
        let (mut client, mut served) = lab.connect()?;
        exchanges(&mut client, &mut served, 5)?;
        let first = timeout(&mut client, &mut served, LATE)?;
        // The timer stays doubled, and is doubled again.
        let second = timeout(&mut client, &mut served, LATE.max(5 * first))?;
        check!(second > first.mul_f64(1.5), "the first timeout was {first:.2?}, and the second {second:.2?}")?;
        exchange(&mut client, &mut served)
    })
    .about(
        "A segment and its retransmission are lost, the second one is acknowledged at once, and then the same \
             again",
    )
    .expects(
        "The ACK is no sample of the round-trip time, so the doubled timeout stays: the second time takes longer.",
    ),
    Case::new("rto-restored", "MUST-18", "RFC 9293, 3.8.1; RFC 6298, 2 and 5", |lab| {
        let (mut client, mut served) = lab.connect()?;
        exchanges(&mut client, &mut served, 5)?;
        let first = timeout(&mut client, &mut served, LATE)?;
        exchanges(&mut client, &mut served, 10)?;
        let second = timeout(&mut client, &mut served, LATE)?;
        check!(second < patient(first.mul_f64(1.6)), "the first timeout was {first:.2?}, and the second {second:.2?}")
    })
    .about("The same with ten exchanges before the next loss")
    .expects("New samples bring the timeout back to its first value."),
];

fn exchanges(client: &mut Client, served: &mut Served, count: usize) -> Step {
    (0..count).try_for_each(|_| exchange(client, served))
}

/// Loses a segment of the server and its first retransmission, which may be a probe, and acknowledges the second one, each of
/// which must come `within` a time. Returns the time between the two retransmissions.
fn timeout(client: &mut Client, served: &mut Served, within: Duration) -> Step<Duration> {
    served.write(b"data")?;
    let first = client.expect_data()?;
    let mut at = Vec::new();
    for _ in 0..2 {
        at.push(client.expect_within(within, "retransmission", |segment| segment.seq == first.seq)?.at);
    }
    client.ack_to(first.end())?;
    Ok(at[1] - at[0])
}
