//! How connections end, and how they do not begin.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

use super::lab::{Lab, SOON, connect, ends, is_reset, receive, reset, send, shut, stuck, words};
use super::{Manner, Of};
use crate::{Step, Stop, ms, pattern, secs};

const SEQUENCES: &str = "MUST RFC 5382, 4.2: all valid sequences of TCP are supported";

pub(super) const CASES: &[Manner] = &[
    Manner::new("half-close-client", SEQUENCES, Of::All, half_close_client)
        .expects("After the client's half-close the server gets the end, and the client all of the answer."),
    Manner::new("half-close-server", SEQUENCES, Of::All, half_close_server).expects(
        "After the server's half-close the client gets the end, and the server all that the client still sends.",
    ),
    Manner::new("half-close-late", SEQUENCES, Of::All, half_close_late)
        .expects("The answer to a half-closed request comes even if the server needs some seconds for it."),
    Manner::new("both-close", SEQUENCES, Of::All, both_close).expects("If both half-close at once, both get the end."),
    Manner::new("reset-client", SEQUENCES, Of::All, reset_client)
        .expects("The client's reset is a reset at the server, not an end."),
    Manner::new("reset-server", SEQUENCES, Of::All, reset_server)
        .expects("The server's reset is a reset at the client, not an end."),
    Manner::new("reset-half-closed", SEQUENCES, Of::All, reset_half_closed)
        .expects("A server that resets a half-closed connection resets it at the client."),
    Manner::new("close-unread", SEQUENCES, Of::All, close_unread)
        .expects("A client that closes with unread data resets the connection at the server."),
    Manner::new("send-after-close", SEQUENCES, Of::All, send_after_close)
        .expects("A server that sends on to a closed client gets an error."),
    Manner::new("close-in-flight-client", SEQUENCES, Of::All, close_in_flight_client)
        .expects("All that the client had sent before it closed comes to a slow server, and then the end."),
    Manner::new("close-in-flight-server", SEQUENCES, Of::All, close_in_flight_server)
        .expects("All that the server had sent before it closed comes to a slow client, and then the end."),
    Manner::new("refused", "ours", Of::All, refused).expects("A connection to a closed port is refused."),
    Manner::new("unreachable", "ours", Of::Sockets, unreachable).expects(
        "A connection to an address without a route ends with an error in some seconds, before the client gives up.",
    ),
    Manner::new("unanswered", "ours", Of::All, unanswered)
        .expects("While one connection gets no answer to its SYN, another one works."),
    Manner::new("silent-server", "ours", Of::All, silent_server)
        .expects("A client of a silent server waits, and another connection works meanwhile."),
];

/// Larger than the buffers of most programs.
const LONG: usize = 1 << 20;

/// Why a case needs an address that leads nowhere.
pub(super) const NO_ROUTE: &str = "its host has a route to every address, or passes none on";

fn half_close_client(lab: &mut Lab<'_>) -> Step {
    let (mut pair, answer) = (lab.pair()?, pattern(1, 100_000));
    send(&mut pair.client, b"request")?;
    shut(&pair.client)?;
    receive(&mut pair.server, b"request", "the server")?;
    ends(&mut pair.server, "the server")?;
    send(&mut pair.server, &answer)?;
    drop(pair.server);
    receive(&mut pair.client, &answer, "the client")?;
    ends(&mut pair.client, "the client")
}

fn half_close_server(lab: &mut Lab<'_>) -> Step {
    let (mut pair, upload) = (lab.pair()?, pattern(2, 100_000));
    send(&mut pair.server, b"go")?;
    shut(&pair.server)?;
    receive(&mut pair.client, b"go", "the client")?;
    ends(&mut pair.client, "the client")?;
    send(&mut pair.client, &upload)?;
    drop(pair.client);
    receive(&mut pair.server, &upload, "the server")?;
    ends(&mut pair.server, "the server")
}

fn half_close_late(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    send(&mut pair.client, b"request")?;
    shut(&pair.client)?;
    receive(&mut pair.server, b"request", "the server")?;
    // The server thinks.
    thread::sleep(secs(3));
    send(&mut pair.server, b"response")?;
    receive(&mut pair.client, b"response", "the client")
}

fn both_close(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    pair.works()?;
    shut(&pair.client)?;
    shut(&pair.server)?;
    ends(&mut pair.client, "the client")?;
    ends(&mut pair.server, "the server")
}

fn reset_client(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    pair.works()?;
    reset(pair.client);
    is_reset(&mut pair.server, "the server")
}

fn reset_server(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    pair.works()?;
    reset(pair.server);
    is_reset(&mut pair.client, "the client")
}

fn reset_half_closed(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    send(&mut pair.client, b"request")?;
    shut(&pair.client)?;
    receive(&mut pair.server, b"request", "the server")?;
    ends(&mut pair.server, "the server")?;
    reset(pair.server);
    is_reset(&mut pair.client, "the client")
}

fn close_unread(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    pair.works()?;
    send(&mut pair.server, b"unread")?;
    // It is there, and stays unread.
    let peeked = pair.client.peek(&mut [0; 6]);
    check!(peeked.is_ok(), Hang, "the client got no data")?;
    drop(pair.client);
    is_reset(&mut pair.server, "the server")
}

fn send_after_close(lab: &mut Lab<'_>) -> Step {
    let mut pair = lab.pair()?;
    pair.works()?;
    drop(pair.client);
    ends(&mut pair.server, "the server")?;
    let begun = Instant::now();
    while begun.elapsed() < SOON {
        if pair.server.write_all(b"more").is_err() {
            return Ok(());
        }
        // The reset comes meanwhile.
        thread::sleep(ms(10));
    }
    fail!("the server could send for {} s to a client that had closed", SOON.as_secs())
}

/// Sends much and closes, while the other side reads slowly at first.
fn close_in_flight(mut from: TcpStream, mut to: TcpStream, who: &str) -> Step {
    let bytes = pattern(3, LONG);
    let expected = bytes.clone();
    let sending = thread::spawn(move || send(&mut from, &bytes));
    thread::sleep(ms(200));
    receive(&mut to, &expected, who)?;
    ends(&mut to, who)?;
    sending.join().unwrap_or_else(|_| fail!("the sender panicked"))
}

fn close_in_flight_client(lab: &mut Lab<'_>) -> Step {
    let pair = lab.pair()?;
    close_in_flight(pair.client, pair.server, "the server")
}

fn close_in_flight_server(lab: &mut Lab<'_>) -> Step {
    let pair = lab.pair()?;
    close_in_flight(pair.server, pair.client, "the client")
}

fn refused(lab: &mut Lab<'_>) -> Step {
    let closed = lab.server(Lab::CLOSED);
    match TcpStream::connect_timeout(&closed, SOON) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => fail!(Hang, "the client got {} in place of a refusal", words(&error)),
        Ok(mut stream) => {
            let _slower = stream.set_read_timeout(Some(SOON));
            let then = match stream.read(&mut [0; 16]) {
                Ok(_) => "an end".to_owned(),
                Err(error) => words(&error),
            };
            fail!("the client was connected, and then got {then}")
        }
    }
}

fn unreachable(lab: &mut Lab<'_>) -> Step {
    const PATIENCE: u64 = 8;
    let Some(nobody) = lab.nobody else { return Err(Stop::NotApplicable(NO_ROUTE.to_owned())) };
    let nobody = SocketAddr::new(nobody, Lab::CLOSED);
    let begun = Instant::now();
    // The kernel asks for a neighbour for three seconds, and a SOCKS5 server may wait for longer.
    let ended = match TcpStream::connect_timeout(&nobody, secs(PATIENCE)) {
        Err(error) => error.kind() != ErrorKind::TimedOut,
        Ok(mut stream) => {
            let left = secs(PATIENCE).saturating_sub(begun.elapsed()).max(ms(1));
            let _slower = stream.set_read_timeout(Some(left));
            !stream
                .read(&mut [0; 16])
                .is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
        }
    };
    check!(ended, Hang, "the client heard nothing in {PATIENCE} s")
}

fn unanswered(lab: &mut Lab<'_>) -> Step {
    let listener = lab.listen_on(Lab::CLOSED - 1, 0)?;
    let address = listener.address;
    // A full accept queue drops SYNs.
    let held = lab.beyond(move || {
        Ok((0..3).filter_map(|_| TcpStream::connect_timeout(&address, ms(100)).ok()).collect::<Vec<_>>())
    })?;
    let waiting = thread::spawn(move || TcpStream::connect_timeout(&address, SOON).is_ok());
    thread::sleep(ms(100));
    lab.works("while one gets no answer")?;
    drop((held, waiting.join()));
    Ok(())
}

fn silent_server(lab: &mut Lab<'_>) -> Step {
    let listener = lab.listen()?;
    let mut pair = lab.pair_to(&listener)?;
    send(&mut pair.client, b"request")?;
    receive(&mut pair.server, b"request", "the server")?;
    let mut other = connect(listener.address)?;
    let mut served = lab.accept(&listener)?;
    send(&mut other, b"other")?;
    receive(&mut served, b"other", "the server of another connection")?;
    match pair.client.read(&mut [0; 16]) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
        Ok(_) => fail!("the client got an end"),
        Err(error) => fail!("the client got {}", words(&error)),
    }?;
    pair.server.write_all(b"late").map_err(stuck("the server"))?;
    receive(&mut pair.client, b"late", "the client")
}
