//! Numbers that an attacker could guess, and answers that tell them.

use super::received::answers;
use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("challenge-ack-limit", "SHOULD RFC 5961, 7", "RFC 5961, 7", |lab| {
        const COUNT: usize = 1000;
        let (mut client, mut served) = lab.connect_and_exchange()?;
        for (name, flags) in [("RST", RST), ("SYN", SYN)] {
            let out = forged(&client, flags);
            let count = named(answers(&mut client, COUNT, out), || format!("after each {name}"))?;
            if count == 0 && flags == RST {
                return none_comes();
            }
            check!(count <= 100, "{count} answers came to {COUNT} forged {name}s")?;
            named(exchange(&mut client, &mut served), || format!("after each {name}"))?;
        }
        Ok(())
    })
    .about("1,000 forged RSTs within the window of a connection, and 1,000 forged SYNs")
    .expects("Challenge ACKs are limited: at most 100 for each flood. The connection goes on."),
    Case::new("challenge-ack-not-shared", "ours", "RFC 5961, 3.2 and 7; CVE-2016-5696", |lab| {
        let (mut other, _held) = lab.connect_and_exchange()?;
        let (mut client, mut served) = lab.connect_and_exchange()?;
        let out = forged(&other, RST);
        if answers(&mut other, 300, out)? == 0 {
            return none_comes();
        }
        let out = forged(&client, RST);
        let count = answers(&mut client, 1, out)?;
        check!(count == 1, "{count} challenge ACKs came on the other connection")?;
        exchange(&mut client, &mut served)
    })
    .about("300 forged RSTs on a connection, and one on another")
    .expects(
        "The other connection answers with its challenge ACK: a limit that all share would tell an attacker of \
             it.",
    ),
    Case::new("isn-spread", "SHLD-1", "RFC 6528, 3; RFC 9293, 3.4.1", |lab| {
        let mut numbers = Vec::new();
        for _ in 0..32 {
            let (client, syn_ack) = lab.half_open()?;
            numbers.push(syn_ack.seq);
            client.put(Out { flags: RST, ack: 0, ..client.out() })?;
        }
        let mut steps: Vec<_> = numbers.windows(2).map(|pair| distance(pair[0], pair[1])).collect();
        let small = steps.iter().filter(|step| step.unsigned_abs() < 1 << 20).count();
        check!(small <= 2, "{small} of {} steps are small", steps.len())?;
        steps.sort_unstable();
        steps.dedup();
        check!(steps.len() >= 30, "31 steps have {} values", steps.len())
    })
    .about("The initial sequence numbers of 32 connections from different ports")
    .expects("None follows from the one before: neither a constant step nor a small one."),
    Case::new("isn-of-one-port", "MUST-8", "RFC 9293, 3.4.1; RFC 6528, 3", |lab| {
        let (mut client, mut served) = lab.connect()?;
        for number in 2..=5 {
            let before = client.stack_isn;
            named(exchange(&mut client, &mut served), || format!("connection {}", number - 1))?;
            client.rst()?;
            // Some stacks need a moment for a RST. The clock goes on meanwhile.
            thread::sleep(ms(50));
            client.forget()?;
            served = named(client.again().and_then(|()| lab.accept()), || format!("connection {number}"))?;
            let ahead = distance(before, client.stack_isn);
            check!((1..1 << 28).contains(&ahead), "the number of connection {number} is {ahead} ahead")?;
        }
        Ok(())
    })
    .about("The initial sequence numbers of five connections from the same port, one after another")
    .expects("They follow a clock: each is a little ahead of the one before."),
];

fn none_comes() -> Step {
    applies!(false, "the stack sends no challenge ACK for a RST, which other cases check")
}

/// Returns a forged segment within the stack's window.
fn forged(client: &Client, flags: u8) -> Out<'static> {
    Out { flags, seq: client.next.wrapping_add(100), ack: 0, ..client.out() }
}
