//! Links that lose packets, deny room or fail, and links with a trace.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use netstacks::{Listener, Netstack, Started};
use platform::{FaultCounter, Faults, Faulty, Impairments, MemoryLink, Traced};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::peer::Peer;
use super::{
    DEADLINE, Flavour, assert_same, config, expect, link, pattern, run_over, runtime, server_addr, take_turns,
};

/// Returns the bytes in each direction. With offload a packet holds up to 45 segments, so there are more.
fn len(flavour: Flavour) -> usize {
    if flavour.offloading { 2 << 20 } else { 512 << 10 }
}

/// Sends bytes over a link with faults, in one direction and then in the other. Returns the counts of the link.
fn transfer<S: Netstack<Faulty<MemoryLink>>>(
    flavour: Flavour,
    impairments: Impairments,
    faults: Faults,
) -> Arc<FaultCounter> {
    let (link, other_end) = link(flavour);
    let link = Faulty::with_faults(link, impairments, 1, faults);
    let faults = link.faults();
    let (begin, len) = (Instant::now(), len(flavour));
    run_over::<_, S>(
        flavour,
        link,
        other_end,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            expect(&mut stream, 20, len).await;
            stream.write_all(&pattern(21, len)).await.unwrap();
            // The peer has all bytes before either side closes.
            stream.read_exact(&mut [0; 1]).await.unwrap();
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            stream.write_all(&pattern(20, len));
            stream.expect(&pattern(21, len));
            stream.write_all(b".");
        },
    );
    println!("{:?} after {:?}", faults.counts(), begin.elapsed());
    faults
}

/// The link itself adds no faults.
pub(crate) fn nothing_goes_wrong<S: Netstack<Faulty<MemoryLink>>>(flavour: Flavour) {
    let faults = transfer::<S>(flavour, Impairments::default(), Faults::default());
    assert_eq!(faults.counts(), platform::FaultCounts::default());
}

pub(crate) fn packets_are_lost<S: Netstack<Faulty<MemoryLink>>>(flavour: Flavour) {
    let faults = transfer::<S>(flavour, Impairments { loss_ppm: 20_000, ..Impairments::default() }, Faults::default());
    assert!(faults.counts().lost > 0);
}

pub(crate) fn room_is_denied<S: Netstack<Faulty<MemoryLink>>>(flavour: Flavour) {
    transfer::<S>(flavour, Impairments::default(), Faults { block_every: Some(3), ..Faults::default() });
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
        let peer = Peer::new(other_end);
        let client = std::thread::spawn(move || {
            let stream = peer.connect(server_addr(flavour));
            (peer, stream)
        });
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

/// The bytes that have been written, for the test to read.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Vec<u8>>>);

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A trace changes nothing, and contains every byte that crossed the link.
pub(crate) fn a_trace_is_written<S: Netstack<Traced<MemoryLink, Shared>>>(flavour: Flavour) {
    let (link, other_end) = link(flavour);
    let file = Shared::default();
    let link = Traced::new(link, file.clone());
    let trace = link.trace();
    run_over::<_, S>(
        flavour,
        link,
        other_end,
        &config(),
        async |mut listener| {
            let mut stream = listener.accept().await.unwrap();
            let mut bytes = vec![0; 100_000];
            stream.read_exact(&mut bytes).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            stream.shutdown().await.unwrap();
        },
        move |peer| {
            let stream = peer.connect(server_addr(flavour));
            stream.write_all(&pattern(23, 100_000));
            assert_same(&stream.read_to_end(), &pattern(23, 100_000));
        },
    );
    assert!(trace.take_error().is_none());
    let file = file.0.lock().unwrap();
    assert!(file.len() > 2 * 100_000, "{} bytes of trace", file.len());
    let last = pattern(23, 100_000).split_off(99_990);
    assert!(file.windows(last.len()).filter(|window| **window == last).count() >= 2, "the last bytes, both ways");
}
