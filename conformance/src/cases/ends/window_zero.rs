//! Ends while the client's window is closed.

use std::time::Duration;

use platform::packet::flags::RST;

use super::super::windows::{closed_with, opened};
use super::timed_out;
use crate::lab::WINDOW;
use crate::{Case, Client, LATE, Lab, Offer, SOON, Served, Setup, Step, Then, check, pattern, same};

pub(in super::super) const CASES: &[Case] = &[
    Case::new("close-at-window-zero", close_at_window_zero, "RFC 9293, 3.10.4; 3.8.6.1")
        .about(
            "The server drops its stream while the client's window is closed; the client answers two probes, and then \
             opens it",
        )
        .expects("No RST. All data arrives, and then the FIN."),
    Case::new("shutdown-at-window-zero", shutdown_at_window_zero, "RFC 9293, 3.10.4; 3.6, case 1")
        .about("The same with a server that ends only its half")
        .expects("All data arrives, and then the FIN. The server reads what the client sends after it."),
    Case::new("fin-at-window-zero", fin_at_window_zero, "RFC 9293, 3.8.6; 3.10.4")
        .about("The server's data fills the client's window, and then the server ends its half")
        .expects("The FIN arrives, at the latest when the window opens."),
    Case::new("half-close-at-window-zero", half_close_at_window_zero, "RFC 9293, 3.6, case 2; 3.8.6")
        .about("The client sends its FIN while its window is closed and the server has more to send")
        .expects("The FIN is acknowledged, and the server reads the end. All data arrives when the window opens."),
    Case::new(
        "peer-vanishes-at-window-zero",
        peer_vanishes_at_window_zero,
        "RFC 9293, 3.8.3; the promise of StackConfig::user_timeout",
    )
    .about("The client closes its window and vanishes; the timeout is 1 second")
    .expects("Writes fail with \"timed out\"."),
];

/// Ends the server's side while the client's window is closed, and opens the window after two probes. All data and a FIN
/// must arrive.
fn end(setup: &Setup, then: Then) -> Step<(Lab, Client, Option<Served>)> {
    const LEN: usize = 20_000;
    let (lab, mut client, sending, bytes) = closed_with(setup.start()?, 3000, LEN, then)?;
    let served = sending.finish()?;
    for _ in 0..2 {
        let probe = client.expect_within(LATE, "probe", |_| true)?;
        check(!probe.has(RST), || "a RST came".to_owned())?;
        client.ack()?;
    }
    opened(&mut client, bytes, LEN)?;
    Ok((lab, client, served))
}

fn close_at_window_zero(setup: &Setup) -> Step {
    let (lab, mut client, _) = end(setup, Then::Drop)?;
    client.fin()?;
    client.acked(SOON)?;
    lab.finish_serving()
}

fn shutdown_at_window_zero(setup: &Setup) -> Step {
    let (lab, mut client, served) = end(setup, Then::Shutdown)?;
    client.write(b"after the FIN")?;
    client.fin()?;
    client.acked(SOON)?;
    if let Some(mut served) = served {
        same(&served.read_to_end()?, b"after the FIN")?;
    }
    lab.finish()
}

fn fin_at_window_zero(setup: &Setup) -> Step {
    let (lab, mut client, sending, bytes) = closed_with(setup.start()?, 3000, 3000, Then::Shutdown)?;
    drop(sending.finish()?);
    same(&bytes, &pattern(5, 3000))?;
    std::thread::sleep(Duration::from_millis(300));
    client.window = 5000;
    client.ack()?;
    same(&client.receive_to_end()?, b"")?;
    lab.finish()
}

fn half_close_at_window_zero(setup: &Setup) -> Step {
    const LEN: usize = 20_000;
    let (lab, mut client, sending, bytes) = closed_with(setup.start()?, 3000, LEN, Then::Shutdown)?;
    client.fin()?;
    client.acked(SOON)?;
    if let Some(mut served) = sending.finish()? {
        same(&served.read_to_end()?, b"")?;
    }
    opened(&mut client, bytes, LEN)?;
    lab.finish()
}

fn peer_vanishes_at_window_zero(setup: &Setup) -> Step {
    let mut lab = setup.start_with(|config| config.user_timeout = Duration::from_secs(1))?;
    let mut client = lab.client();
    client.window = 0;
    client.open(&Offer::default())?;
    timed_out(lab.accept()?.send(pattern(126, 8 * WINDOW), Then::Keep).result()?)?;
    lab.finish_serving()
}
