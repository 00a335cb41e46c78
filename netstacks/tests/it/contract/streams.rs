//! Connections, and the bytes that cross them.

use std::future::poll_fn;
use std::io::{self, Write};

use netstacks::peer::Peers;
use netstacks::{Listener, Netstack, StackConfig, Stream, Workarounds};
use platform::MemoryLink;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    Flavour, addresses, assert_same, config, exchange, expect, lends, link, name_of, pattern, run, run_streams,
};

pub(crate) fn echo<S: Netstack<MemoryLink>>(flavour: Flavour) {
    echo_with::<S>(flavour, Workarounds::ALL);
}

/// A stack as it is carries plain data over a clean link.
pub(crate) fn echo_without_workarounds<S: Netstack<MemoryLink>>(flavour: Flavour) {
    echo_with::<S>(flavour, Workarounds::NONE);
}

fn echo_with<S: Netstack<MemoryLink>>(flavour: Flavour, workarounds: Workarounds) {
    let bytes = pattern(1, 100_000);
    run_streams::<S>(
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
            // tcp_ip has another error.
            let error = stream.write(b"more").await.unwrap_err().kind();
            assert!(error == io::ErrorKind::BrokenPipe || name_of::<S>() == "TcpIp", "{error}");
        },
        move |client| {
            for chunk in bytes.chunks(999) {
                client.write_all(chunk).unwrap();
                expect(client, chunk);
            }
        },
    );
}

/// Received bytes are lent in order, each once, to a sink that takes any number of them. A stack that cannot lend
/// returns an error each time.
pub(crate) fn received_bytes_are_lent<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 3 << 20;
    run_streams::<S>(
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
        |client| client.write_all(&pattern(9, LEN)).unwrap(),
    );
}

/// Room for bytes to send is lent to a source that fills any part of it. The bytes arrive in order, each once. A stack
/// that cannot lend returns an error each time.
pub(crate) fn room_is_lent<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 3 << 20;
    run_streams::<S>(
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
        |client| expect(client, &pattern(10, LEN)),
    );
}

pub(crate) fn bulk_both_ways_at_once<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const LEN: usize = 8 << 20;
    let (link, other_end) = link(flavour);
    let server = async |mut listener: S::Listener, _| {
        let (mut reader, mut writer) = tokio::io::split(listener.accept().await.unwrap());
        let mut bytes = vec![0; LEN];
        let sending = pattern(8, LEN);
        let (got, sent) = tokio::join!(reader.read_exact(&mut bytes), writer.write_all(&sending));
        assert_eq!((got.unwrap(), sent.unwrap()), (LEN, ()));
        assert_same(&bytes, &pattern(7, LEN));
    };
    run::<MemoryLink, S, _>(flavour, link, &config(), server, move || {
        let [local, server] = addresses(flavour);
        let mut peers = Peers::new(other_end, local.ip());
        peers.connect(0, server).unwrap();
        exchange(&mut peers, &pattern(7, LEN), &pattern(8, LEN));
        peers
    });
}
