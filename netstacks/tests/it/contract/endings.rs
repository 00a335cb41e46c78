//! Connections, peers and links that end early.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use netstacks::{Listener, Netstack, StackConfig, Started};
use platform::MemoryLink;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::peer::Peer;
use super::{DEADLINE, Flavour, config, link, pattern, run, runtime, server_addr, take_turns};

pub(crate) fn reset_wakes_a_parked_reader<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = mpsc::channel();
    run::<S>(
        flavour,
        &config(),
        async move |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            let mut buffer = [0; 10];
            let read = stream.read(&mut buffer);
            tell.send(()).unwrap();
            assert_eq!(read.await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(stream.write(b"x").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            stream.read_exact(&mut [0; 5]);
            told.recv().unwrap();
            stream.reset();
        },
    );
}

pub(crate) fn reset_wakes_a_parked_writer<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = tokio::sync::oneshot::channel();
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let bytes = pattern(6, 4 << 20);
            let mut tell = Some(tell);
            let error = loop {
                match tokio::time::timeout(Duration::from_millis(300), stream.write_all(&bytes)).await {
                    Ok(result) => break result.unwrap_err(),
                    // The write is parked, because the peer reads nothing.
                    Err(_) => drop(tell.take().map(|tell| tell.send(()))),
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            told.blocking_recv().unwrap();
            stream.reset();
        },
    );
}

/// Reader and writer time out, and the stack still works afterwards.
pub(crate) fn a_peer_that_vanishes<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let (tell, told) = mpsc::channel();
    let (back, is_back) = mpsc::channel();
    run::<S>(
        flavour,
        &StackConfig { user_timeout: Duration::from_secs(1), ..config() },
        async move |mut listener| {
            let mut writes = listener.accept().await.unwrap();
            let mut reads = listener.accept().await.unwrap();
            tell.send(()).unwrap();
            let begin = Instant::now();
            let write = async {
                let bytes = pattern(11, 64 << 10);
                loop {
                    if let Err(error) = writes.write_all(&bytes).await {
                        return error.kind();
                    }
                }
            };
            let read = async { reads.read(&mut [0; 10]).await.unwrap_err().kind() };
            assert_eq!(tokio::join!(write, read), (io::ErrorKind::TimedOut, io::ErrorKind::TimedOut));
            assert!(begin.elapsed() < Duration::from_secs(15), "it took {:?}", begin.elapsed());
            drop((writes, reads));
            back.send(()).unwrap();
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(b"alive").await.unwrap();
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        },
        move |peer| {
            let (first, second) = (peer.connect(server_addr(flavour)), peer.connect(server_addr(flavour)));
            peer.mute(true);
            told.recv().unwrap();
            is_back.recv().unwrap();
            peer.mute(false);
            let stream = peer.connect(server_addr(flavour));
            stream.read_exact(&mut [0; 5]);
            stream.finish();
            drop((first, second));
        },
    );
}

/// When the link closes, every waiting task gets an error at once.
pub(crate) fn a_link_that_closes<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let _turn = take_turns::<S>();
    let (link, other_end) = link(flavour);
    runtime(flavour).block_on(async {
        let Started { mut listener, driver, .. } = S::start(link, &config()).unwrap();
        let driver = tokio::spawn(driver);
        let client = std::thread::spawn(move || {
            let peer = Peer::new(other_end);
            let stream = peer.connect(server_addr(flavour));
            stream.read_exact(&mut [0; 1]);
        });
        let ends = async {
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(b"x").await.unwrap();
            let mut buffer = [0; 10];
            let (read, accept) = tokio::join!(
                async {
                    // The peer's FIN may come before the link closes.
                    while stream.read(&mut buffer).await? > 0 {}
                    loop {
                        stream.write_all(b"y").await?;
                        tokio::task::yield_now().await;
                    }
                    #[expect(unreachable_code, reason = "gives the block its type")]
                    io::Result::Ok(())
                },
                async { listener.accept().await.map(drop) }
            );
            read.unwrap_err();
            assert_eq!(accept.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            assert_eq!(driver.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        };
        tokio::time::timeout(DEADLINE, ends).await.expect("a task waits for ever");
        client.join().unwrap();
    });
}
