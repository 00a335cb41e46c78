//! The loops over a device in memory.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use tun_rs::{GROTable, VIRTIO_NET_HDR_LEN};

use super::super::carry::{Sink, Source, Supply, direct, read, write};
use super::super::channel::{Receiver, Sender};
use super::super::counters::{Counter, Counters};
use super::super::executor::complete;
use super::super::packets::{Batch, Format, PacketSink, PacketSource};
use super::super::port::Port;
use crate::{Carried, Counts};
use platform::Error;

/// What a device gives in turn, and what it was given.
#[derive(Clone, Default)]
struct Fake {
    incoming: Arc<Mutex<VecDeque<io::Result<Vec<u8>>>>>,
    /// What becomes of the next packets that it is given, as errno; 0 is one that is taken, as all others are.
    refusals: Arc<Mutex<VecDeque<i32>>>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Fake {
    /// Gives these packets, and then is gone.
    fn with(packets: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let fake = Self::default();
        fake.incoming.lock().unwrap().extend(packets.into_iter().map(Ok));
        fake
    }
}

impl Port for Fake {
    fn name(&self) -> &'static str {
        "fake0"
    }

    async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.try_recv(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.try_recv(buffer),
            result => result,
        }
    }

    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let next = self.incoming.lock().unwrap().pop_front();
        let packet = next.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EBADFD)))?;
        buffer[..packet.len()].copy_from_slice(&packet);
        Ok(packet.len())
    }

    async fn send(&self, packet: &[u8]) -> io::Result<usize> {
        if let Some(errno) = self.refusals.lock().unwrap().pop_front().filter(|errno| *errno != 0) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.sent.lock().unwrap().push(packet.to_vec());
        Ok(packet.len())
    }

    async fn recv_multiple(&self, _: &mut [u8], _: &mut [BytesMut], _: &mut [usize]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn send_multiple(&self, _: &mut GROTable, _: &mut [BytesMut]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Super-packets as they are.
const WHOLE: Format = Format { header_len: VIRTIO_NET_HDR_LEN, max_len: VIRTIO_NET_HDR_LEN + 65_535, batch: 1 };

/// Carries what `from` gives to `to` until it is gone.
fn carry(format: Format, from: &Fake, to: &Fake) -> (Error, Carried) {
    let counters = Counters::new(1);
    let counter = || Counter::new(&counters.to_far, 0);
    let source = PacketSource { port: from.clone(), format, counter: counter(), spare: Vec::new() };
    let sink = PacketSink { port: to.clone(), format, counter: counter() };
    let error = complete(direct(source, sink)).unwrap_err();
    (error, counters.read().to_far)
}

/// A `virtio_net_hdr` (`include/uapi/linux/virtio_net.h`) and so many bytes of a packet.
fn described(flags: u8, gso_type: u8, hdr_len: u16, gso_size: u16, csum: [u16; 2], len: usize) -> Vec<u8> {
    let mut packet = vec![flags, gso_type];
    for field in [hdr_len, gso_size, csum[0], csum[1]] {
        packet.extend(field.to_ne_bytes());
    }
    packet.extend((0..len).map(|index| index as u8));
    packet
}

/// Every kind that a device may give: nothing undone, a checksum undone, one already known to be right, TCP
/// over IPv4 and IPv6, with ECN, and UDP; with the length of headers that the kernel gives, also the whole
/// linear part, which is longer than them.
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
            // What went out before it is counted.
            assert_eq!((carried.written_packets, carried.written_bytes), (taken as u64, 20 * taken as u64));
        }
    }
}

/// Says which burst it was.
struct Numbered(u32);

impl Source for Numbered {
    type Burst = Vec<u32>;

    async fn fill(&mut self, burst: &mut Vec<u32>) -> Result<(), Error> {
        self.0 += 1;
        burst.push(self.0);
        Ok(())
    }
}

/// Notes how often each burst has been used.
struct Noted(Arc<Mutex<Vec<Vec<u32>>>>);

impl Sink for Noted {
    type Burst = Vec<u32>;

    async fn write(&mut self, burst: &mut Vec<u32>) -> Result<(), Error> {
        let mut noted = self.0.lock().unwrap();
        noted.push(burst.clone());
        if noted.len() == 1000 {
            return Err(Error::new(platform::Class::Failed, "write", "", io::ErrorKind::Other.into()));
        }
        Ok(())
    }
}

/// However long it runs: no more bursts than the pool has are ever made, and each comes back.
#[test]
fn a_pool_makes_no_more_than_it_may() {
    const POOL: usize = 4;
    let (hop_in, hop_out) = sync_channel(POOL - 2);
    let (back_in, back_out) = sync_channel(POOL);
    let noted = Arc::new(Mutex::new(Vec::new()));
    let sink = Noted(Arc::clone(&noted));
    let writer = std::thread::spawn(move || complete(write(hop_out, sink, Some(back_in))));
    complete(read(Numbered(0), Supply::Returned(back_out, POOL), hop_in)).unwrap();
    assert!(writer.join().unwrap().is_err());
    let noted = noted.lock().unwrap();
    let last: Vec<u32> = noted.iter().filter_map(|burst| burst.last().copied()).collect();
    assert_eq!(last, (1..=1000).collect::<Vec<_>>(), "they stay in order");
    let fresh = noted.iter().filter(|burst| burst.len() == 1).count();
    assert!((1..=POOL).contains(&fresh), "{fresh} bursts were made");
}

/// Without one, each is new.
#[test]
fn a_channel_makes_each_burst_anew() {
    let (hop_in, hop_out) = sync_channel(2);
    let noted = Arc::new(Mutex::new(Vec::new()));
    let sink = Noted(Arc::clone(&noted));
    let writer = std::thread::spawn(move || complete(write(hop_out, sink, None::<std::sync::mpsc::SyncSender<_>>)));
    complete(read(Numbered(0), Supply::<std::sync::mpsc::Receiver<_>>::New, hop_in)).unwrap();
    assert!(writer.join().unwrap().is_err());
    assert!(noted.lock().unwrap().iter().all(|burst| burst.len() == 1));
}

/// The two kinds of channels keep one contract.
async fn keeps_the_contract(mut sender: impl Sender<u32>, mut receiver: impl Receiver<u32>) {
    assert_eq!(receiver.try_recv(), None);
    for item in [1, 2] {
        assert!(sender.send(item).await.is_ok());
    }
    assert_eq!((receiver.try_recv(), receiver.recv().await, receiver.try_recv()), (Some(1), Some(2), None));
    assert!(sender.send(3).await.is_ok());
    drop(sender);
    assert_eq!((receiver.recv().await, receiver.recv().await), (Some(3), None));
}

#[test]
fn channels_are_bounded_and_close() {
    let (sender, receiver) = sync_channel(2);
    complete(keeps_the_contract(sender, receiver));
    let (sender, receiver) = tokio::sync::mpsc::channel(2);
    complete(keeps_the_contract(sender, receiver));
    let (mut sender, receiver) = tokio::sync::mpsc::channel(2);
    drop(receiver);
    assert!(complete(Sender::send(&mut sender, 1)).is_err());
}

#[test]
fn counters_add_up_over_workers() {
    let counters = Counters::new(3);
    for worker in 0..3 {
        let counter = Counter::new(&counters.to_near, worker);
        counter.read(2, 100);
        counter.written(1, 60);
        counter.unwritten(1);
    }
    Counter::new(&counters.to_near, 1).unread();
    let counts = counters.read();
    let expected = Carried {
        read_packets: 6,
        read_bytes: 300,
        written_packets: 3,
        written_bytes: 180,
        lost_packets: 4,
        reordered: Some(0),
    };
    assert_eq!(counts.to_near, expected);
    assert_eq!(counts.to_far, Carried { reordered: Some(0), ..Carried::default() });
    let json = serde_json::to_string(&counts).unwrap();
    assert_eq!(serde_json::from_str::<Counts>(&json).unwrap(), counts);
}

/// Buffers that are used again show nothing of what was in them.
#[test]
fn a_batch_is_as_long_as_what_was_read() {
    let format = Format { header_len: 0, max_len: 1500, batch: 8 };
    let counters = Counters::new(1);
    let port = Fake::with([vec![1; 1500], vec![2; 20]]);
    port.incoming.lock().unwrap().extend([Err(io::ErrorKind::WouldBlock.into()), Ok(vec![3; 5])]);
    port.incoming.lock().unwrap().extend([Err(io::ErrorKind::WouldBlock.into())]);
    let mut source = PacketSource { port, format, counter: Counter::new(&counters.to_far, 0), spare: Vec::new() };
    let mut batch = Batch::default();
    complete(source.fill(&mut batch)).unwrap();
    assert_eq!(batch.packets().collect::<Vec<_>>(), [&[1; 1500][..], &[2; 20]]);
    complete(source.fill(&mut batch)).unwrap();
    assert_eq!(batch.packets().collect::<Vec<_>>(), [&[3; 5][..]]);
}
