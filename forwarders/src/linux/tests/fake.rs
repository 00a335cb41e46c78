//! Tests the loops with a device in memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::BytesMut;
use platform::{Class, Error};
use tun_rs::{GROTable, VIRTIO_NET_HDR_LEN};

use super::super::counters::{Counter, Counters};
use super::super::device::{Device, Port};
use super::super::packets::{Batch, Format, PacketSink, PacketSource};
use super::super::pipe::{Sink, Source, Supply};
use super::super::tasks::{self, AsyncSink, AsyncSource};
use super::super::threads::{self, Stop};
use crate::{Carried, Handoff};

/// A device that delivers given packets in order, and records the packets that are sent to it.
#[derive(Clone)]
struct Fake {
    incoming: Arc<Mutex<VecDeque<io::Result<Vec<u8>>>>>,
    /// The error codes of the next packets that are sent. 0 means that the packet is accepted, as all later ones are.
    refusals: Arc<Mutex<VecDeque<i32>>>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Always readable.
    null: Arc<File>,
}

impl Default for Fake {
    fn default() -> Self {
        let null = Arc::new(File::open("/dev/null").unwrap());
        Self { incoming: Arc::default(), refusals: Arc::default(), sent: Arc::default(), null }
    }
}

impl Fake {
    /// A device that delivers these packets and is then gone.
    fn with(packets: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let fake = Self::default();
        fake.incoming.lock().unwrap().extend(packets.into_iter().map(Ok));
        fake
    }

    fn port(&self) -> Port<Self> {
        Port::new(self.clone(), "fake0")
    }
}

impl AsFd for Fake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.null.as_fd()
    }
}

impl Device for Fake {
    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let next = self.incoming.lock().unwrap().pop_front();
        let packet = next.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EBADFD)))?;
        buffer[..packet.len()].copy_from_slice(&packet);
        Ok(packet.len())
    }

    fn try_send(&self, packet: &[u8]) -> io::Result<usize> {
        if let Some(errno) = self.refusals.lock().unwrap().pop_front().filter(|errno| *errno != 0) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.sent.lock().unwrap().push(packet.to_vec());
        Ok(packet.len())
    }

    fn try_recv_multiple(&self, _: &mut [u8], _: &mut [BytesMut], _: &mut [usize]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn try_send_multiple(&self, _: &mut GROTable, _: &mut [BytesMut]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Super-packets as they are.
const WHOLE: Format = Format { header_len: VIRTIO_NET_HDR_LEN, max_len: VIRTIO_NET_HDR_LEN + 65_535, batch: 1 };

/// Carries packets from `from` to `to` until a device is gone.
fn carry(format: Format, from: &Fake, to: &Fake) -> (Error, Carried) {
    let counters = Counters::new(1);
    let (reader, writer) = (Counter::of_reader(&counters.to_far, 0), Counter::of_writer(&counters.to_far, 0));
    let source = PacketSource { port: from.port(), format, counter: reader, spare: Vec::new() };
    let sink = PacketSink { port: to.port(), format, counter: writer };
    let error = threads::direct(source, sink, &Stop::new().unwrap()).unwrap_err();
    (error, counters.read().to_far)
}

/// A `virtio_net_hdr` (`include/uapi/linux/virtio_net.h`), and a packet of `len` bytes.
fn described(flags: u8, gso_type: u8, hdr_len: u16, gso_size: u16, csum: [u16; 2], len: usize) -> Vec<u8> {
    let mut packet = vec![flags, gso_type];
    for field in [hdr_len, gso_size, csum[0], csum[1]] {
        packet.extend(field.to_ne_bytes());
    }
    packet.extend((0..len).map(|index| index as u8));
    packet
}

/// Covers every kind of header that a device may deliver: filled, partial and verified checksums, TCP over IPv4 and
/// IPv6, ECN, and UDP. The kernel may also set `hdr_len` to the length of the linear part, which is longer than the
/// headers.
#[test]
fn every_header_is_passed_on_byte_for_byte() {
    const NEEDS_CSUM: u8 = 1;
    const DATA_VALID: u8 = 2;
    let packets = [
        described(0, 0, 0, 0, [0, 0], 1500),
        described(DATA_VALID, 0, 0, 0, [0, 0], 52),
        described(NEEDS_CSUM, 0, 0, 0, [20, 16], 40),
        described(NEEDS_CSUM, 1, 52, 1448, [20, 16], 65_212),
        described(NEEDS_CSUM, 1, 1500, 1448, [20, 16], 65_535),
        described(NEEDS_CSUM, 4, 72, 1428, [40, 16], 64_000),
        described(NEEDS_CSUM, 1 | 0x80, 52, 1448, [20, 16], 4000),
        described(NEEDS_CSUM, 4 | 0x80, 72, 1428, [40, 16], 4000),
        described(NEEDS_CSUM, 5, 28, 1472, [20, 6], 30_000),
        described(NEEDS_CSUM, 5, 48, 1452, [40, 6], 30_000),
    ];
    for batch in [1, 4] {
        let (from, to) = (Fake::with(packets.clone()), Fake::default());
        let (error, carried) = carry(Format { batch, ..WHOLE }, &from, &to);
        let sent = to.sent.lock().unwrap();
        if batch == 1 {
            assert_eq!(*sent, packets);
            let bytes: usize = packets.iter().map(|packet| packet.len() - VIRTIO_NET_HDR_LEN).sum();
            let expected = Carried {
                read_packets: 10,
                read_bytes: bytes as u64,
                written_packets: 10,
                written_bytes: bytes as u64,
                lost_packets: 0,
                reordered: Some(0),
            };
            assert_eq!(carried, expected);
        }
        assert!(packets.starts_with(&sent), "of batches, the last one is lost with the device");
        assert!(error.to_string().contains("fake0"), "{error}");
    }
}

#[test]
fn a_packet_that_the_kernel_refuses_is_lost_alone() {
    let packets: Vec<_> = (1..=6).map(|index| vec![0x45; 20 * index]).collect();
    let (from, to) = (Fake::with(packets.clone()), Fake::default());
    to.refusals.lock().unwrap().extend([libc::ENOBUFS, libc::ENOMEM, libc::EINVAL, libc::EIO]);
    let plain = Format { header_len: 0, max_len: 1500, batch: 1 };
    let (_, carried) = carry(plain, &from, &to);
    assert_eq!(*to.sent.lock().unwrap(), packets[4..]);
    assert_eq!((carried.read_packets, carried.written_packets, carried.lost_packets), (6, 2, 4));
    assert_eq!((carried.read_bytes, carried.written_bytes), (20 * 21, 20 * 11));
}

#[test]
fn a_device_that_is_gone_ends_it() {
    for errno in [libc::EBADFD, libc::EFAULT, libc::EBADF] {
        for (batch, taken) in [(1, 0), (3, 0), (3, 1), (3, 2)] {
            let (from, to) = (Fake::with((0..3).map(|_| vec![0x45; 20])), Fake::default());
            to.refusals.lock().unwrap().extend([[0].repeat(taken), vec![errno]].concat());
            let plain = Format { header_len: 0, max_len: 1500, batch };
            let (error, carried) = carry(plain, &from, &to);
            let text = error.to_string();
            assert!(text.starts_with("write to TUN interface fake0: "), "{text}");
            // Packets that were sent before the failure are counted.
            assert_eq!((carried.written_packets, carried.written_bytes), (taken as u64, 20 * taken as u64));
        }
    }
}

/// A source that adds a number to each burst.
struct Numbered {
    port: Port<Fake>,
    count: u32,
}

impl Numbered {
    fn new() -> Self {
        Self { port: Fake::default().port(), count: 0 }
    }

    fn number(&mut self, burst: &mut Vec<u32>) {
        self.count += 1;
        burst.push(self.count);
    }
}

impl Source for Numbered {
    type Device = Fake;
    type Burst = Vec<u32>;

    const BATCHES: bool = false;

    fn port(&self) -> &Port<Fake> {
        &self.port
    }

    fn try_fill(&mut self, burst: &mut Vec<u32>) -> Result<usize, Error> {
        self.number(burst);
        Ok(1)
    }
}

/// The same as an async source.
struct Awaited(Numbered);

impl AsyncSource for Awaited {
    type Burst = Vec<u32>;

    async fn fill(&mut self, burst: &mut Vec<u32>) -> Result<(), Error> {
        self.0.number(burst);
        Ok(())
    }
}

/// Keeps a copy of each burst. A burst has a number for each time that it was used. Fails at the thousandth burst.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<Vec<u32>>>>);

impl Noted {
    fn note(&self, burst: &[u32]) -> Result<(), Error> {
        let mut noted = self.0.lock().unwrap();
        noted.push(burst.to_vec());
        if noted.len() == 1000 {
            return Err(Error::new(Class::Failed, "write", "", io::ErrorKind::Other.into()));
        }
        Ok(())
    }
}

/// A sink that has room only in every second call.
struct Hesitant(Port<Fake>, Noted, bool);

impl Sink for Hesitant {
    type Device = Fake;
    type Burst = Vec<u32>;

    fn port(&self) -> &Port<Fake> {
        &self.0
    }

    fn try_write(&mut self, burst: &mut Vec<u32>) -> Result<bool, Error> {
        self.2 = !self.2;
        if self.2 { Ok(false) } else { self.1.note(burst).map(|()| true) }
    }
}

impl AsyncSink for Noted {
    type Burst = Vec<u32>;

    async fn write(&mut self, burst: &mut Vec<u32>) -> Result<(), Error> {
        self.note(burst)
    }
}

const ROOM: usize = 2;

/// Carries bursts through a channel between threads.
fn carry_in_threads(handoff: Handoff) -> Vec<Vec<u32>> {
    let noted = Noted::default();
    let (bursts, received) = sync_channel(ROOM);
    let (supply, back) = Supply::new(handoff, ROOM, sync_channel);
    let sink = Hesitant(Fake::default().port(), noted.clone(), false);
    let writer = thread::spawn(move || threads::write(&received, sink, back.as_ref(), &Stop::new().unwrap()));
    threads::read(Numbered::new(), supply, &bursts, &Stop::new().unwrap()).unwrap();
    assert!(writer.join().unwrap().is_err());
    noted.0.lock().unwrap().clone()
}

/// The same between tasks.
fn carry_in_tasks(handoff: Handoff) -> Vec<Vec<u32>> {
    let noted = Noted::default();
    let (bursts, received) = tokio::sync::mpsc::channel(ROOM);
    let (supply, back) = Supply::new(handoff, ROOM, tokio::sync::mpsc::channel);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let writer = runtime.spawn(tasks::write(received, noted.clone(), back));
    runtime.block_on(tasks::read(Awaited(Numbered::new()), supply, bursts)).unwrap();
    assert!(runtime.block_on(writer).unwrap().is_err());
    noted.0.lock().unwrap().clone()
}

/// The pool never makes more bursts than it may have, however long it runs, and each burst comes back.
#[test]
fn a_pool_makes_no_more_bursts_than_it_may() {
    for noted in [carry_in_threads(Handoff::Pool), carry_in_tasks(Handoff::Pool)] {
        let last: Vec<u32> = noted.iter().filter_map(|burst| burst.last().copied()).collect();
        assert_eq!(last, (1..=1000).collect::<Vec<_>>(), "they stay in order");
        let fresh = noted.iter().filter(|burst| burst.len() == 1).count();
        assert!((1..=ROOM + 2).contains(&fresh), "{fresh} bursts were made");
    }
}

#[test]
fn a_channel_without_a_pool_makes_each_burst_anew() {
    for noted in [carry_in_threads(Handoff::Channel), carry_in_tasks(Handoff::Channel)] {
        assert_eq!(noted.concat(), (1..=1000).collect::<Vec<_>>());
        assert!(noted.iter().all(|burst| burst.len() == 1));
    }
}

/// If a packet finds no room at first, it is sent exactly once, and so are the packets before and after it.
#[test]
fn a_write_goes_on_where_it_found_no_room() {
    let packets: Vec<_> = (1..=5).map(|index| vec![0x45; 20 * index]).collect();
    let (from, to) = (Fake::with(packets.clone()), Fake::default());
    to.refusals.lock().unwrap().extend([0, libc::EAGAIN, 0, libc::EIO, libc::EAGAIN, libc::EAGAIN]);
    let plain = Format { header_len: 0, max_len: 1500, batch: 5 };
    let (_, carried) = carry(plain, &from, &to);
    assert_eq!(*to.sent.lock().unwrap(), [&packets[..2], &packets[3..]].concat());
    assert_eq!((carried.read_packets, carried.written_packets, carried.lost_packets), (5, 4, 1));
}

/// A reused buffer shows nothing of its former packet.
#[test]
fn a_batch_is_as_long_as_what_was_read() {
    let would_block = || Err(io::ErrorKind::WouldBlock.into());
    let format = Format { header_len: 0, max_len: 1500, batch: 8 };
    let counters = Counters::new(1);
    let fake = Fake::with([vec![1; 1500], vec![2; 20]]);
    fake.incoming.lock().unwrap().extend([would_block(), would_block(), Ok(vec![3; 5]), would_block()]);
    let counter = Counter::of_reader(&counters.to_far, 0);
    let mut source = PacketSource { port: fake.port(), format, counter, spare: Vec::new() };
    let mut batch = Batch::default();
    assert_eq!(source.try_fill(&mut batch).unwrap(), 2);
    assert_eq!(batch.packets().collect::<Vec<_>>(), [&[1; 1500][..], &[2; 20]]);
    assert_eq!(source.try_fill(&mut batch).unwrap(), 0);
    assert_eq!(source.try_fill(&mut batch).unwrap(), 1);
    assert_eq!(batch.packets().collect::<Vec<_>>(), [&[3; 5][..]]);
    assert_eq!(counters.read().to_far.read_packets, 3);
}
