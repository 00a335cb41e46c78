use std::time::Duration;

use netstacks::{Listener, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

use super::client::QuicSockets;
use super::server::QuicListener;
use super::*;
use crate::load::sockets::{Sockets, Turns};

fn quic() -> Quic {
    let words = "--program kernel -m rr --protocol quic".split(' ').map(ToOwned::to_owned);
    Quic::new(&Scenario::of_words(words.collect()).unwrap()).unwrap()
}

/// Tries until the socket does not block any longer, or with its error.
fn done<T>(sockets: &mut QuicSockets, attempt: impl Fn(&mut QuicSockets) -> io::Result<T>) -> io::Result<T> {
    let end = sockets.now() + Duration::from_secs(10);
    loop {
        match attempt(sockets) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && sockets.now() < end => {}
            done => return done,
        }
        sockets.wait(end, None, &mut Vec::new()).unwrap();
    }
}

fn connect(sockets: &mut QuicSockets, target: std::net::SocketAddr) -> io::Result<()> {
    sockets.connect(0, target).unwrap();
    done(sockets, |sockets| match sockets.is_connected(0) {
        Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
        connected => connected.map(drop),
    })
}

/// A server goes on after datagrams that are no QUIC, and a client that does not know its certificate. The end of a stream comes
/// behind its bytes, and the connection stays.
#[test]
fn a_stream_is_carried_whatever_others_send() {
    let [stranger, server] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let (target, quic) = (server.local_addr().unwrap(), quic());
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let entered = runtime.enter();
    let mut listener = QuicListener::new(vec![server], &quic).unwrap();
    drop(entered);
    let serving = runtime.spawn(async move {
        let mut stream = listener.accept().await.unwrap();
        let mut asked = [0; 4];
        stream.read_exact(&mut asked).await.unwrap();
        stream.write_all(&asked).await.unwrap();
        stream.shutdown().await.unwrap();
        (stream.local_addr(), listener)
    });
    for first in [0x00, 0x40, 0xc0, 0xc3, 0xe1, 0xff] {
        for len in [0, 1, 7, 30, 1200, 1452] {
            stranger.send_to(&vec![first; len], target).unwrap();
        }
    }
    let other = self::quic();
    assert!(
        connect(&mut QuicSockets::new(&other, Turns::new(Vec::new()), 1).unwrap(), target).is_err(),
        "it has another certificate"
    );

    let mut sockets = QuicSockets::new(&quic, Turns::new(Vec::new()), 1).unwrap();
    assert!(sockets.write(0, b"ping").is_err(), "it is not connected");
    connect(&mut sockets, target).unwrap();
    assert_eq!(done(&mut sockets, |sockets| sockets.write(0, b"ping")).unwrap(), 4);
    let read = |sockets: &mut QuicSockets| {
        done(sockets, |sockets| {
            let mut answer = [0; 9];
            sockets.read(0, &mut answer).map(|len| answer[..len].to_vec())
        })
        .unwrap()
    };
    assert_eq!(read(&mut sockets), b"ping");
    assert_eq!(read(&mut sockets), b"", "the end");
    let (local, _listener) = runtime.block_on(serving).unwrap();
    assert_eq!(local, target);
    assert!(sockets.statistics(0).rtt.is_some_and(|rtt| rtt < Duration::from_secs(5)));
}
