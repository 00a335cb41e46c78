//! How connections end.

pub(super) mod window_zero;

use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("half-close", "MUST RFC 9293, 3.6: no FIN before CLOSE", "RFC 9293, 3.6, case 2", |lab| {
        let (mut client, mut served) = lab.connect()?;
        client.write(&pattern(2, 30_000))?;
        client.close()?;
        served.reads_to_end(&pattern(2, 30_000))?;
        served.reads_to_end(b"")?;
        let sending = served.send(pattern(3, 300_000), Then::Shutdown);
        client.receives_to_end(&pattern(3, 300_000))?;
        sending.finish()
    })
    .about("The client closes its half first, and still gets its answer")
    .expects("The server reads the end after all data. What it writes then arrives, and after it the stack's FIN."),
    Case::new(
        "half-close-by-the-stack",
        "MUST RFC 9293, 3.10.7.4: data after our FIN",
        "RFC 9293, 3.6, case 1",
        |lab| {
            let (mut client, served) = lab.connect()?;
            let sending = served.send(pattern(4, 20_000), Then::Shutdown);
            client.receives_to_end(&pattern(4, 20_000))?;
            let mut served = sending.served()?;
            client.write(&pattern(5, 40_000))?;
            client.close()?;
            served.reads_to_end(&pattern(5, 40_000))
        },
    )
    .about("The server closes its half first, and still reads")
    .expects("A FIN after all data. The server reads what the client sends after it, and then the end."),
    Case::new("simultaneous-close", "MUST RFC 9293, 3.6: case 3", "RFC 9293, 3.6, case 3", |lab| {
        let (mut client, mut served) = lab.connect()?;
        served.shutdown()?;
        let fin = client.expect("FIN", |segment| segment.has(FIN))?;
        // It acknowledges nothing of the stack's FIN, as if it was sent before that arrived.
        client.close()?;
        client.ack_to(fin.end())?;
        client.no_rst(ms(200))?;
        served.reads_to_end(b"")
    })
    .about("Both sides send a FIN at the same time")
    .expects("Each FIN is acknowledged, and no RST is sent."),
    Case::new("rst-to-reader", "MUST-12", "RFC 9293, 3.10.7.4", |lab| {
        let (client, mut served) = lab.connect()?;
        check!(served.is_quiet(ms(20)), "a read returned without data")?;
        client.rst()?;
        served.reads_reset()?;
        lab.still_serves()
    })
    .about("The client resets while the server waits to read")
    .expects("Reads fail with \"connection reset\"."),
    Case::new("rst-with-data", "SHLD-2", "RFC 9293, 3.5.3; RFC 1122, 4.2.2.12", |lab| {
        let (client, mut served) = lab.connect()?;
        client.put(Out { flags: RST | ACK, payload: b"the server's time is over", ..client.out() })?;
        served.reads_reset()?;
        lab.still_serves()
    })
    .about("The client resets the connection with a RST that has a text")
    .expects("The read fails with \"connection reset\". The text is not data."),
    Case::new("rst-to-writer", "MUST-12", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, served) = lab.connect()?;
        let sending = served.send(pattern(6, 8 * WINDOW), Then::Keep);
        // The client acknowledges nothing, so the server fills the client's window and then its own send buffer.
        client.expect_data()?;
        thread::sleep(ms(100));
        client.rst()?;
        match sending.result()? {
            Ok(_) => fail!("all was written"),
            Err(error) => check!(error.kind() == ErrorKind::ConnectionReset, "the error is \"{}\"", error.kind()),
        }
    })
    .about("The client resets while the server waits for room to write")
    .expects("Writes fail with \"connection reset\"."),
    Case::new("rst-after-fin", "MUST-12", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        served.shutdown()?;
        client.receive_to_end()?;
        client.rst()?;
        served.reads_reset()
    })
    .about("The client resets after the stack's FIN")
    .expects("Reads fail with \"connection reset\"."),
    Case::new("rst-by-the-stack", "MUST RFC 9293, 3.9.1.6", "RFC 9293, 3.10.5", |lab| {
        let (mut client, served) = lab.connect_and_exchange()?;
        served.reset();
        let end = client.expect_rst_or_fin()?;
        check!(!end.has(FIN), "a FIN came")?;
        check!(end.seq == client.expected, "the RST has another number than the client expects")
    })
    .about("The server resets its connection")
    .expects("A RST with the number that the client expects next, and no FIN."),
    Case::new("rst-with-unread-data", "SHLD-3", "RFC 9293, 3.6.1; RFC 2525, 2.17", |lab| {
        let (mut client, served) = lab.connect()?;
        client.data(b"nobody reads this")?;
        client.acked(SOON)?;
        drop(served);
        client.expect_rst().map(drop)
    })
    .about("The server drops its stream with unread data")
    .expects("A RST, so that the client knows that data was lost."),
    Case::new("data-after-close", "SHLD-3", "RFC 9293, 3.6.1", |lab| {
        let (mut client, served) = lab.connect_and_exchange()?;
        drop(served);
        client.receive_to_end()?;
        client.data(b"is anyone there?")?;
        client.expect_rst().map(drop)
    })
    .about("The server has dropped its stream, and the client goes on sending")
    .expects("A RST for the data that nobody reads."),
    Case::new("close-with-data-queued", "MUST RFC 9293, 3.6: data before CLOSE", "RFC 9293, 3.10.4", |lab| {
        let (mut client, served) = lab.connect()?;
        let _sending = served.send(pattern(12, 150_000), Then::Drop);
        client.receives_to_end(&pattern(12, 150_000))
    })
    .about("The server drops its stream with written data that is not sent yet")
    .expects("All data arrives, and then the FIN."),
    Case::new("shutdown-with-data-queued", "MUST RFC 9293, 3.6: data before CLOSE", "RFC 9293, 3.10.4", |lab| {
        let (mut client, served) = lab.connect_with(&Offer { window: 4000, ..Offer::default() })?;
        let sending = served.send(pattern(13, 40_000), Then::Shutdown);
        // The FIN is a byte of its own.
        let within = |client: &mut Client, segment: &Segment| client.within(4001, segment).map(|()| false);
        same(&client.receive_until(None, LATE, within)?, &pattern(13, 40_000))?;
        sending.finish()
    })
    .about("The server ends its half with more data queued than the client's window takes")
    .expects("All data arrives as the window allows, and then the FIN."),
    Case::new("fin-in-a-held-segment", "MUST RFC 9293, 3.10.7.4: old and new parts", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        let data = client.part(b"the last bytes", 0..14);
        client.send(data)?;
        client.acked(SOON)?;
        client.send(Out { flags: ACK | PSH | FIN, ..data })?;
        client.acked(SOON)?;
        served.reads_to_end(b"the last bytes")
    })
    .about("A segment comes again, now with a FIN")
    .expects("The stack takes the FIN and acknowledges it; the server reads the end."),
    Case::new("fin-out-of-order", "MUST RFC 9293, 3.10.7.4: FIN", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        let bytes = pattern(1, 1000);
        let last = Out { flags: ACK | PSH | FIN, ..client.part(&bytes, 500..1000) };
        client.put(last)?;
        thread::sleep(ms(20));
        client.put(client.part(&bytes, 0..500))?;
        client.sent(1001);
        // A stack that keeps no segments out of order gets the second one again.
        if client.acked(ms(300)).is_err() {
            client.put(last)?;
            client.acked(SOON)?;
        }
        served.reads_to_end(&bytes)
    })
    .about("The FIN comes before the data in front of it")
    .expects("The server reads all data, and then the end."),
    Case::new("fin-again", "MUST RFC 9293, 3.5.2: group 3", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        client.close()?;
        client.fin_again()?;
        client.acked(SOON)?;
        served.shutdown()?;
        client.receive_to_end().map(drop)
    })
    .about("The client sends its FIN again, as if the ACK was lost; the server has not closed yet")
    .expects("Each FIN is acknowledged."),
    Case::new("fin-again-in-time-wait", "MUST RFC 9293, 3.10.7.4: FIN in TIME-WAIT", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        served.shutdown()?;
        client.receive_to_end()?;
        client.close()?;
        client.fin_again()?;
        client.acked(SOON).map(drop)
    })
    .about("The same in TIME-WAIT, after the server has closed first")
    .expects("Each FIN is acknowledged."),
    Case::new("fin-lost", "MUST RFC 9293, 3.6: FIN until acknowledged", "RFC 9293, 3.4; RFC 6298, 5", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        served.shutdown()?;
        let first = client.expect("FIN", |segment| segment.has(FIN))?;
        let again = client.expect_within(secs(4), "second FIN", |segment| segment.has(FIN))?;
        check!(first.seq == again.seq, "the second FIN has another number")?;
        client.expected = again.end();
        client.close()
    })
    .about("The stack's FIN is lost")
    .expects("The FIN comes again within 4 seconds."),
    Case::new(
        "data-in-fin-wait",
        "MUST RFC 9293, 3.10.7.4: data after our FIN",
        "RFC 9293, 3.6, case 1; 3.8.6",
        |lab| {
            let (mut client, mut served) = lab.connect()?;
            served.shutdown()?;
            client.receive_to_end()?;
            let bytes = pattern(14, 200_000);
            let (mut read, mut window) = (0, 4000);
            while read < bytes.len() {
                let chunk = &bytes[read..bytes.len().min(read + window)];
                client.data(chunk)?;
                served.reads(chunk)?;
                read += chunk.len();
                window = match client.acked(LATE)?.window.into() {
                    0 => 4000,
                    window => 4000.min(window),
                };
            }
            Ok(())
        },
    )
    .about("A window closes and opens after the stack's FIN")
    .expects("The server reads slowly what the client sends after the stack's FIN; nothing is lost.")
    .with(SMALL_WINDOW),
    Case::new("peer-vanishes", "MUST-21", "RFC 9293, 3.8.3; the promise of StackConfig::user_timeout", |lab| {
        let (_client, served) = lab.connect()?;
        served.send(pattern(11, 8 * WINDOW), Then::Keep).times_out()?;
        lab.still_serves()
    })
    .about("The client vanishes while the server writes; the timeout is 1 second")
    .expects("Writes fail with \"timed out\".")
    .with(|config| config.user_timeout = SOON),
];
