//! How connections end.

pub(super) mod window_zero;

use std::io::{self, ErrorKind};
use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH, RST};

use crate::lab::{WINDOW, exchange};
use crate::{Case, LATE, Offer, Out, SOON, Setup, Step, Then, check, distance, pattern, same};

pub(super) const CASES: &[Case] = &[
    Case::new("half-close", half_close, "RFC 9293, 3.6, case 2")
        .about("The client closes its half first, and still gets its answer")
        .expects("The server reads the end after all data. What it writes then arrives, and after it the stack's FIN."),
    Case::new("half-close-by-the-stack", half_close_by_the_stack, "RFC 9293, 3.6, case 1")
        .about("The server closes its half first, and still reads")
        .expects("A FIN after all data. The server reads what the client sends after it, and then the end."),
    Case::new("simultaneous-close", simultaneous_close, "RFC 9293, 3.6, case 3")
        .about("Both sides send a FIN at the same time")
        .expects("Each FIN is acknowledged, and no RST is sent."),
    Case::new("rst-to-reader", rst_to_reader, "RFC 9293, 3.10.7.4")
        .about("The client resets while the server waits to read")
        .expects("Reads fail with \"connection reset\"."),
    Case::new("rst-with-data", rst_with_data, "RFC 9293, 3.5.3; RFC 1122, 4.2.2.12")
        .about("The client resets the connection with a RST that has a text")
        .expects("The read fails with \"connection reset\". The text is not data."),
    Case::new("rst-to-writer", rst_to_writer, "RFC 9293, 3.10.7.4")
        .about("The client resets while the server waits for room to write")
        .expects("Writes fail with \"connection reset\"."),
    Case::new("rst-after-fin", rst_after_fin, "RFC 9293, 3.10.7.4")
        .about("The client resets after the stack's FIN")
        .expects("Reads fail with \"connection reset\"."),
    Case::new("rst-by-the-stack", rst_by_the_stack, "RFC 9293, 3.10.5")
        .about("The server resets its connection")
        .expects("A RST with the number that the client expects next, and no FIN."),
    Case::new("rst-with-unread-data", rst_with_unread_data, "RFC 9293, 3.6.1; RFC 2525, 2.17")
        .about("The server drops its stream with unread data")
        .expects("A RST, so that the client knows that data was lost."),
    Case::new("data-after-close", data_after_close, "RFC 9293, 3.6.1")
        .about("The server has dropped its stream, and the client goes on sending")
        .expects("A RST for the data that nobody reads."),
    Case::new("close-with-data-queued", close_with_data_queued, "RFC 9293, 3.10.4")
        .about("The server drops its stream with written data that is not sent yet")
        .expects("All data arrives, and then the FIN."),
    Case::new("shutdown-with-data-queued", shutdown_with_data_queued, "RFC 9293, 3.10.4")
        .about("The server ends its half with more data queued than the client's window takes")
        .expects("All data arrives as the window allows, and then the FIN."),
    Case::new("fin-in-a-held-segment", fin_in_a_held_segment, "RFC 9293, 3.10.7.4")
        .about("A segment comes again, now with a FIN")
        .expects("The stack takes the FIN and acknowledges it; the server reads the end."),
    Case::new("fin-out-of-order", fin_out_of_order, "RFC 9293, 3.10.7.4")
        .about("The FIN comes before the data in front of it")
        .expects("The server reads all data, and then the end."),
    Case::new("fin-again", fin_again, "RFC 9293, 3.10.7.4")
        .about("The client sends its FIN again, as if the ACK was lost; the server has not closed yet")
        .expects("Each FIN is acknowledged."),
    Case::new("fin-again-in-time-wait", fin_again_in_time_wait, "RFC 9293, 3.10.7.4")
        .about("The same in TIME-WAIT, after the server has closed first")
        .expects("Each FIN is acknowledged."),
    Case::new("fin-lost", fin_lost, "RFC 9293, 3.4; RFC 6298, 5")
        .about("The stack's FIN is lost")
        .expects("The FIN comes again within 4 seconds."),
    Case::new("data-in-fin-wait", data_in_fin_wait, "RFC 9293, 3.6, case 1; 3.8.6")
        .about("A window closes and opens after the stack's FIN")
        .expects("The server reads slowly what the client sends after the stack's FIN; nothing is lost."),
    Case::new("peer-vanishes", peer_vanishes, "RFC 9293, 3.8.3; the promise of StackConfig::user_timeout")
        .about("The client vanishes while the server writes; the timeout is 1 second")
        .expects("Writes fail with \"timed out\"."),
];

fn half_close(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    client.write(&pattern(2, 30_000))?;
    client.fin()?;
    client.acked(SOON)?;
    same(&served.read_to_end()?, &pattern(2, 30_000))?;
    same(&served.read_to_end()?, b"")?;
    let sending = served.send(pattern(3, 300_000), Then::Shutdown);
    same(&client.receive_to_end()?, &pattern(3, 300_000))?;
    drop(sending.finish()?);
    lab.finish()
}

fn half_close_by_the_stack(setup: &Setup) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    let sending = served.send(pattern(4, 20_000), Then::Shutdown);
    same(&client.receive_to_end()?, &pattern(4, 20_000))?;
    let Some(mut served) = sending.finish()? else { return Ok(()) };
    client.write(&pattern(5, 40_000))?;
    client.fin()?;
    client.acked(SOON)?;
    same(&served.read_to_end()?, &pattern(5, 40_000))?;
    lab.finish()
}

fn simultaneous_close(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    served.shutdown()?;
    let fin = client.expect("FIN", |segment| segment.has(FIN))?;
    // It acknowledges nothing of the stack's FIN, as if it was sent before that arrived.
    client.fin()?;
    client.acked(SOON)?;
    client.expected = fin.end();
    client.ack()?;
    client.expect_none(Duration::from_millis(200), "a RST", |segment| segment.has(RST))?;
    same(&served.read_to_end()?, b"")?;
    lab.finish()
}

/// Checks that a write to a client that has vanished timed out.
pub(super) fn timed_out<T>(result: io::Result<T>) -> Step {
    match result {
        Ok(_) => check(false, || "all was written to a peer that does not answer".to_owned()),
        Err(error) => check(error.kind() == ErrorKind::TimedOut, || format!("the error is \"{}\"", error.kind())),
    }
}

fn expect_reset(kind: ErrorKind) -> Step {
    check(kind == ErrorKind::ConnectionReset, || format!("the error is \"{kind}\""))
}

fn rst_to_reader(setup: &Setup) -> Step {
    let (lab, client, mut served) = setup.connect()?;
    check(served.is_quiet(Duration::from_millis(20)), || "a read returned without data".to_owned())?;
    client.rst()?;
    expect_reset(served.read_error()?)?;
    lab.finish_serving()
}

fn rst_with_data(setup: &Setup) -> Step {
    let (lab, client, mut served) = setup.connect()?;
    client.put(Out { flags: RST | ACK, payload: b"the server's time is over", ..client.out() })?;
    expect_reset(served.read_error()?)?;
    lab.finish_serving()
}

fn rst_to_writer(setup: &Setup) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    let sending = served.send(pattern(6, 8 * WINDOW), Then::Keep);
    // The client acknowledges nothing, so the server fills the client's window and then its own send buffer.
    client.expect("data", |segment| !segment.payload.is_empty())?;
    std::thread::sleep(Duration::from_millis(100));
    client.rst()?;
    match sending.result()? {
        Ok(_) => check(false, || "all was written".to_owned())?,
        Err(error) => expect_reset(error.kind())?,
    }
    lab.finish()
}

fn rst_after_fin(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    served.shutdown()?;
    client.receive_to_end()?;
    client.rst()?;
    expect_reset(served.read_error()?)?;
    lab.finish()
}

fn rst_by_the_stack(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    served.reset();
    let end = client.expect("RST", |segment| segment.has(RST) || segment.has(FIN))?;
    check(!end.has(FIN), || "a FIN came".to_owned())?;
    check(end.seq == client.expected, || "the RST has another number than the client expects".to_owned())?;
    lab.finish()
}

fn rst_with_unread_data(setup: &Setup) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    client.data(b"nobody reads this")?;
    client.acked(SOON)?;
    drop(served);
    client.expect("RST", |segment| segment.has(RST))?;
    lab.finish()
}

fn data_after_close(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    drop(served);
    client.receive_to_end()?;
    client.data(b"is anyone there?")?;
    client.expect("RST", |segment| segment.has(RST))?;
    lab.finish()
}

fn close_with_data_queued(setup: &Setup) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    let sending = served.send(pattern(12, 150_000), Then::Drop);
    same(&client.receive_to_end()?, &pattern(12, 150_000))?;
    drop(sending);
    lab.finish()
}

fn shutdown_with_data_queued(setup: &Setup) -> Step {
    const LEN: usize = 40_000;
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.window = 4000;
    client.open(&Offer::default())?;
    let sending = lab.accept()?.send(pattern(13, LEN), Then::Shutdown);
    let mut bytes = Vec::new();
    while !client.ended {
        let segment = client.expect_within(LATE, "more data or the FIN", |_| true)?;
        let right = distance(client.expected, segment.end());
        check(right <= 4001, || format!("data came {right} bytes ahead of a window of 4000"))?;
        client.take(segment, &mut bytes)?;
    }
    same(&bytes, &pattern(13, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}

fn fin_in_a_held_segment(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    let data = Out { flags: ACK | PSH, payload: b"the last bytes", ..client.out() };
    client.put(data)?;
    client.next = client.next.wrapping_add(14);
    client.acked(SOON)?;
    client.put(Out { flags: ACK | PSH | FIN, ..data })?;
    client.next = client.next.wrapping_add(1);
    client.acked(SOON)?;
    same(&served.read_to_end()?, b"the last bytes")?;
    lab.finish()
}

fn fin_out_of_order(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    let (first, second) = (pattern(1, 500), pattern(2, 500));
    let out = client.out();
    client.put(Out { flags: ACK | PSH | FIN, seq: out.seq.wrapping_add(500), payload: &second, ..out })?;
    std::thread::sleep(Duration::from_millis(20));
    client.put(Out { flags: ACK | PSH, payload: &first, ..out })?;
    client.next = out.seq.wrapping_add(1001);
    // A stack that keeps no segments out of order gets the second one again.
    if client.acked(Duration::from_millis(300)).is_err() {
        client.put(Out { flags: ACK | PSH | FIN, seq: out.seq.wrapping_add(500), payload: &second, ..out })?;
        client.acked(SOON)?;
    }
    same(&served.read_to_end()?, &[first, second].concat())?;
    lab.finish()
}

fn fin_again(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    client.fin()?;
    client.acked(SOON)?;
    let fin = Out { flags: FIN | ACK, seq: client.next.wrapping_sub(1), ..client.out() };
    client.put(fin)?;
    client.acked(SOON)?;
    served.shutdown()?;
    client.receive_to_end()?;
    lab.finish()
}

fn fin_again_in_time_wait(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    served.shutdown()?;
    client.receive_to_end()?;
    client.fin()?;
    client.acked(SOON)?;
    client.put(Out { flags: FIN | ACK, seq: client.next.wrapping_sub(1), ..client.out() })?;
    client.acked(SOON)?;
    lab.finish()
}

fn fin_lost(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    served.shutdown()?;
    let first = client.expect("FIN", |segment| segment.has(FIN))?;
    let again = client.expect_within(Duration::from_secs(4), "second FIN", |segment| segment.has(FIN))?;
    check(first.seq == again.seq, || "the second FIN has another number".to_owned())?;
    client.expected = again.end();
    client.fin()?;
    client.acked(SOON)?;
    lab.finish()
}

fn data_in_fin_wait(setup: &Setup) -> Step {
    const LEN: usize = 200_000;
    let mut lab = setup.start_with(|config| config.window = 16 << 10)?;
    let (mut client, mut served) = lab.connect()?;
    served.shutdown()?;
    client.receive_to_end()?;
    let bytes = pattern(14, LEN);
    let (mut sent, mut read) = (0, Vec::new());
    let mut window = 0;
    while read.len() < LEN {
        if window == 0 {
            window = 4000;
        }
        let chunk = &bytes[sent..(sent + window.min(4000)).min(LEN)];
        client.data(chunk)?;
        sent += chunk.len();
        read.extend(served.read(chunk.len())?);
        let ack = client.acked(LATE)?;
        window = usize::from(ack.window);
    }
    same(&read, &bytes)?;
    lab.finish()
}

fn peer_vanishes(setup: &Setup) -> Step {
    let mut lab = setup.start_with(|config| config.user_timeout = Duration::from_secs(1))?;
    let (_client, served) = lab.connect()?;
    timed_out(served.send(pattern(11, 8 * WINDOW), Then::Keep).result()?)?;
    lab.finish_serving()
}
