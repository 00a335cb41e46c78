//! Links that deny room, fail or close.

use std::io::{self, Write};

use netstacks::peer::Client;
use netstacks::{Listener, Netstack, Started};
use platform::{Faults, Faulty, Impairments, MemoryLink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    DEADLINE, Flavour, PATIENCE, addresses, config, connect, expect, finish, link, pattern, run, runtime, take_turns,
};

/// A stack tries again once there is room, in both directions.
pub(crate) fn room_is_denied<S: Netstack<Faulty<MemoryLink>>>(flavour: Flavour) {
    const LEN: usize = 2 << 20;
    let (link, other_end) = link(flavour);
    let faults = Faults { block_every: Some(3), ..Faults::default() };
    let link = Faulty::with_faults(link, Impairments::default(), 1, faults);
    let server = async |mut listener: S::Listener, _| {
        let mut stream = listener.accept().await.unwrap();
        let mut bytes = vec![0; LEN];
        stream.read_exact(&mut bytes).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
    };
    run::<_, S, _>(flavour, link, &config(), server, move || {
        let mut client = connect(flavour, other_end);
        client.write_all(&pattern(20, LEN)).unwrap();
        expect(&mut client, &pattern(20, LEN));
        finish(client)
    });
}

/// After a device has failed, every waiting task gets an error.
pub(crate) fn a_device_that_fails<S: Netstack<Faulty<MemoryLink>>>(flavour: Flavour) {
    const EIO: i32 = 5;
    let _turn = take_turns::<S>();
    let (link, other_end) = link(flavour);
    let faults = Faults { fail: Some((2, EIO)), ..Faults::default() };
    let link = Faulty::with_faults(link, Impairments::default(), 1, faults);
    runtime(flavour).block_on(async {
        let Started { mut listener, driver, .. } = S::start(link, &config()).unwrap();
        let driver = tokio::spawn(driver);
        let [local, server] = addresses(flavour);
        // The link may be gone before it knows that it is connected.
        let client = std::thread::spawn(move || Client::connect(other_end, local.ip(), server, PATIENCE));
        let ends = async {
            let mut stream = listener.accept().await.unwrap();
            let bytes = pattern(22, 64 << 10);
            while stream.write_all(&bytes).await.is_ok() {}
            let error = driver.await.unwrap().unwrap_err();
            assert_eq!(error.to_string(), io::Error::from_raw_os_error(EIO).to_string());
            listener.accept().await.map(drop).unwrap_err();
        };
        tokio::time::timeout(DEADLINE, ends).await.expect("a task waits for ever");
        drop(client.join().unwrap());
    });
}

/// When the link closes, every waiting task gets an error at once.
pub(crate) fn a_link_that_closes<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let _turn = take_turns::<S>();
    let (link, other_end) = link(flavour);
    runtime(flavour).block_on(async {
        let Started { mut listener, driver, .. } = S::start(link, &config()).unwrap();
        let driver = tokio::spawn(driver);
        let client = std::thread::spawn(move || expect(&mut connect(flavour, other_end), b"x"));
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
