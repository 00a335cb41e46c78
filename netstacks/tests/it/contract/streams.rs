//! Connections, and the bytes that cross them.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use netstacks::{Listener, Netstack, StackConfig, Stream, Workarounds};
use platform::MemoryLink;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::peer::BUFFER;
use super::{Flavour, WINDOW, assert_same, config, expect, lends, pattern, run, server_addr};

pub(crate) fn echo<S: Netstack<MemoryLink>>(flavour: Flavour) {
    echo_with::<S>(flavour, Workarounds::ALL);
}

/// A stack as it is carries plain data over a clean link.
pub(crate) fn echo_without_workarounds<S: Netstack<MemoryLink>>(flavour: Flavour) {
    echo_with::<S>(flavour, Workarounds::NONE);
}

fn echo_with<S: Netstack<MemoryLink>>(flavour: Flavour, workarounds: Workarounds) {
    let bytes = pattern(1, 100_000);
    run::<S>(
        flavour,
        &StackConfig { workarounds, ..config() },
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let mut buffer = vec![0; 7_000];
            loop {
                match stream.read(&mut buffer).await.unwrap() {
                    0 => break,
                    len => stream.write_all(&buffer[..len]).await.unwrap(),
                }
            }
            stream.shutdown().await.unwrap();
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            for chunk in bytes.chunks(999) {
                stream.write_all(chunk);
                stream.expect(chunk);
            }
            stream.finish();
            assert_eq!(stream.read(&mut [0; 1]), 0);
        },
    );
}

/// The peer closes its half, and then reads slowly, so its window opens little by little. The stack has closed too, and
/// has more to send than the window takes.
pub(crate) fn a_slow_reader_after_both_have_closed<S: Netstack<MemoryLink>>(flavour: Flavour) {
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            assert_eq!(stream.read(&mut [0; 10]).await.unwrap(), 0);
            stream.write_all(&pattern(6, 300_000)).await.unwrap();
            stream.shutdown().await.unwrap();
            let error = stream.write(b"more").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            stream.finish();
            let mut bytes = Vec::new();
            let mut buffer = [0; 16 << 10];
            let begin = Instant::now();
            loop {
                match stream.read(&mut buffer) {
                    0 => break,
                    len => bytes.extend_from_slice(&buffer[..len]),
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_same(&bytes, &pattern(6, 300_000));
            // A machine that stalls for a second may cause one.
            let most = 1 + begin.elapsed().as_secs() as usize;
            assert!(peer.single_bytes() <= most, "the stack probes a window that is open");
        },
    );
}

/// Received bytes are lent in order, each once, to a sink that takes any number of them. A stack that cannot lend
/// returns an error each time.
pub(crate) fn received_bytes_are_lent<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 3 << 20;
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let (mut bytes, mut calls) = (Vec::new(), 0_usize);
            loop {
                let mut refused = false;
                let lent = poll_fn(|cx| {
                    let polled = stream.poll_read_with(cx, &mut |slices| {
                        calls += 1;
                        refused = calls.is_multiple_of(7);
                        if refused {
                            return Err(io::ErrorKind::WouldBlock.into());
                        }
                        let mut wanted = calls.wrapping_mul(7919) % 100_000 + 1;
                        let before = bytes.len();
                        for slice in slices {
                            let len = wanted.min(slice.len());
                            bytes.extend_from_slice(&slice[..len]);
                            wanted -= len;
                        }
                        Ok(bytes.len() - before)
                    });
                    // A sink that refuses must arrange its own wake-up.
                    if refused && polled.is_pending() {
                        cx.waker().wake_by_ref();
                    }
                    polled
                });
                match lent.await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                        assert!(bytes.is_empty() && !lends::<S>());
                        stream.read_to_end(&mut bytes).await.unwrap();
                        break;
                    }
                }
            }
            assert_same(&bytes, &pattern(9, LEN));
            let error = poll_fn(|cx| stream.poll_read_with(cx, &mut |_| panic!("there is nothing to lend"))).await;
            let expected = if lends::<S>() { Ok(0) } else { Err(io::ErrorKind::Unsupported) };
            assert_eq!(error.map_err(|error| error.kind()), expected);
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            stream.write_all(&pattern(9, LEN));
            stream.finish();
        },
    );
}

/// Room for bytes to send is lent to a source that fills any part of it. The bytes arrive in order, each once. A stack
/// that cannot lend returns an error each time.
pub(crate) fn room_is_lent<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 3 << 20;
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let bytes = pattern(10, LEN);
            let (mut left, mut calls) = (&bytes[..], 0_usize);
            loop {
                let mut refused = false;
                let filled = poll_fn(|cx| {
                    let polled = stream.poll_write_with(cx, &mut |room| {
                        calls += 1;
                        refused = calls.is_multiple_of(7);
                        if refused {
                            return Err(io::ErrorKind::WouldBlock.into());
                        }
                        let wanted = calls.wrapping_mul(7919) % 100_000 + 1;
                        let (now, later) = left.split_at(wanted.min(room.len()).min(left.len()));
                        room[..now.len()].copy_from_slice(now);
                        left = later;
                        Ok(now.len())
                    });
                    // A source that refuses must arrange its own wake-up.
                    if refused && polled.is_pending() {
                        cx.waker().wake_by_ref();
                    }
                    polled
                });
                match filled.await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!((error.kind(), left.len()), (io::ErrorKind::Unsupported, LEN));
                        assert!(!lends::<S>());
                        stream.write_all(left).await.unwrap();
                        break;
                    }
                }
            }
            stream.shutdown().await.unwrap();
            let error = poll_fn(|cx| stream.poll_write_with(cx, &mut |_| panic!("there is no room to lend"))).await;
            let expected = if lends::<S>() { io::ErrorKind::BrokenPipe } else { io::ErrorKind::Unsupported };
            assert_eq!(error.unwrap_err().kind(), expected);
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            stream.expect(&pattern(10, LEN));
            stream.finish();
        },
    );
}

pub(crate) fn bulk_both_ways_at_once<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 8 << 20;
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let (mut reader, mut writer) = tokio::io::split(listener.accept().await.unwrap());
            let receive = async {
                expect(&mut reader, 7, LEN).await;
            };
            let send = async { writer.write_all(&pattern(8, LEN)).await.unwrap() };
            tokio::join!(receive, send);
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            std::thread::scope(|scope| {
                scope.spawn(|| stream.write_all(&pattern(7, LEN)));
                stream.expect(&pattern(8, LEN));
            });
            let super_packets = peer.super_packets();
            assert_eq!(super_packets.from_the_stack > 100, flavour.offloading, "{super_packets:?}");
            assert_eq!(super_packets.to_the_stack > 100, flavour.offloading, "{super_packets:?}");
        },
    );
}

pub(crate) fn twenty_at_once<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 200_000;
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..20 {
                let mut stream = listener.accept().await.unwrap();
                tasks.spawn(async move {
                    let seed = u64::from(stream.local_addr().port());
                    expect(&mut stream, seed, LEN).await;
                    stream.write_all(&pattern(seed + 1, LEN)).await.unwrap();
                    stream.shutdown().await.unwrap();
                    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
                });
            }
            while let Some(result) = tasks.join_next().await {
                result.unwrap();
            }
        },
        move |peer| {
            std::thread::scope(|scope| {
                for port in 1_000..1_020 {
                    scope.spawn(move || {
                        let stream = peer.connect(SocketAddr::from(([10, 0, 0, 2], port)));
                        stream.write_all(&pattern(port.into(), LEN));
                        assert_same(&stream.read_to_end(), &pattern(u64::from(port) + 1, LEN));
                        stream.finish();
                    });
                }
            });
        },
    );
}

/// The window closes while nobody reads, takes no more bytes than it has announced, and opens again.
pub(crate) fn a_reader_that_stops_for_a_while<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 2 << 20;
    let (tell, told) = tokio::sync::oneshot::channel();
    run::<S>(
        flavour,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let taken: usize = told.await.unwrap();
            assert!(taken <= WINDOW + BUFFER, "{taken} bytes went into a window of {WINDOW} and a buffer of {BUFFER}");
            expect(&mut stream, 9, LEN).await;
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            let bytes = pattern(9, LEN);
            let taken = stream.write_until_blocked(&bytes, Duration::from_millis(400));
            tell.send(taken).unwrap();
            stream.write_all(&bytes[taken..]);
        },
    );
}

/// The writer stops while the peer does not read, and goes on when the peer reads again.
pub(crate) fn a_peer_that_stops_for_a_while<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 2 << 20;
    let (tell, told) = mpsc::channel();
    run::<S>(
        flavour,
        &config(),
        async move |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let bytes = pattern(10, LEN);
            let mut written = 0;
            while let Ok(len) = tokio::time::timeout(Duration::from_millis(400), stream.write(&bytes[written..])).await
            {
                written += len.unwrap();
            }
            assert!(
                written <= WINDOW + BUFFER,
                "{written} bytes went into a window of {WINDOW} and a buffer of {BUFFER}"
            );
            tell.send(()).unwrap();
            stream.write_all(&bytes[written..]).await.unwrap();
            stream.shutdown().await.unwrap();
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            told.recv().unwrap();
            assert_same(&stream.read_to_end(), &pattern(10, LEN));
        },
    );
}
