//! Ends while the client's window is closed.

use super::super::windows::{closed_with, opened};
use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("close-at-window-zero", "MUST-36", "RFC 9293, 3.10.4; 3.8.6.1", |lab| {
        let (mut client, _) = end(lab, Then::Drop)?;
        client.close()?;
        lab.still_serves()
    })
    .about(
        "The server drops its stream while the client's window is closed; the client answers two probes, and then \
             opens it",
    )
    .expects("No RST. All data arrives, and then the FIN."),
    Case::new("shutdown-at-window-zero", "MUST-36", "RFC 9293, 3.10.4; 3.6, case 1", |lab| {
        let (mut client, served) = end(lab, Then::Shutdown)?;
        client.write(b"after the FIN")?;
        client.close()?;
        served.map_or(Ok(()), |mut served| served.reads_to_end(b"after the FIN"))
    })
    .about("The same with a server that ends only its half")
    .expects("All data arrives, and then the FIN. The server reads what the client sends after it."),
    Case::new("fin-at-window-zero", "MUST RFC 9293, 3.6: FIN until acknowledged", "RFC 9293, 3.8.6; 3.10.4", |lab| {
        let (mut client, sending, bytes) = closed_with(lab, 3000, 3000, Then::Shutdown)?;
        sending.finish()?;
        same(&bytes, &pattern(5, 3000))?;
        thread::sleep(ms(300));
        client.window = 5000;
        client.ack()?;
        client.receives_to_end(b"")
    })
    .about("The server's data fills the client's window, and then the server ends its half")
    .expects("The FIN arrives, at the latest when the window opens."),
    Case::new(
        "half-close-at-window-zero",
        "MUST RFC 9293, 3.6: no FIN before CLOSE",
        "RFC 9293, 3.6, case 2; 3.8.6",
        |lab| {
            let (mut client, sending, bytes) = closed_with(lab, 3000, 20_000, Then::Shutdown)?;
            client.close()?;
            sending.served()?.reads_to_end(b"")?;
            opened(&mut client, bytes, 20_000)
        },
    )
    .about("The client sends its FIN while its window is closed and the server has more to send")
    .expects("The FIN is acknowledged, and the server reads the end. All data arrives when the window opens."),
    Case::new(
        "peer-vanishes-at-window-zero",
        "MUST RFC 9293, 3.10.8: user timeout",
        "RFC 9293, 3.8.3; the promise of StackConfig::user_timeout",
        |lab| {
            let (_client, served) = lab.connect_with(&Offer { window: 0, ..Offer::default() })?;
            served.send(pattern(126, 8 * WINDOW), Then::Keep).times_out()?;
            lab.still_serves()
        },
    )
    .about("The client closes its window and vanishes; the timeout is 1 second")
    .expects("Writes fail with \"timed out\".")
    .with(|config| config.user_timeout = SOON),
];

/// Ends the server's side at a closed window, and opens it after two probes. All data and a FIN must arrive.
fn end(lab: &mut Lab, then: Then) -> Step<(Client, Option<Served>)> {
    let (mut client, sending, bytes) = closed_with(lab, 3000, 20_000, then)?;
    let served = sending.finished()?;
    for _ in 0..2 {
        let probe = client.expect_within(LATE, "probe", |_| true)?;
        check!(!probe.has(RST), Data, "a RST came")?;
        client.ack()?;
    }
    opened(&mut client, bytes, 20_000)?;
    Ok((client, served))
}
