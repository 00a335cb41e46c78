//! The packets and the unit of a utun socket (macOS), with the system calls behind [`Calls`], for tests on other systems.

use std::array;
use std::io::{self, IoSlice};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portable_atomic::AtomicU64;

use crate::link::{packet_len, with_header};
use crate::{Cause, Error, PacketBuffer, PacketMeta};

/// The address family in front of each packet, in network byte order (`bsd/net/if_utun.c`, `utun_output`).
pub(crate) const FAMILY_LEN: usize = 4;

/// IP versions and their families: `AF_INET` and `AF_INET6` of XNU's `bsd/sys/socket.h`.
const FAMILIES: [(u8, u32); 2] = [(4, 2), (6, 30)];

pub(crate) const BATCH: usize = 32;

/// The most bytes that wait for the call that sends them: they stay in a processor's cache.
const BATCH_BYTES: usize = 256 << 10;

/// The most units that are tried after a taken one.
const UNITS: u32 = 64;

/// The device of the first free unit, from that of `name` on. It is a later one only if `or_next`.
pub(crate) fn create_free<T>(
    name: &str,
    or_next: bool,
    mut create: impl FnMut(&str) -> Result<T, Error>,
) -> Result<T, Error> {
    let first = create(name);
    let unit = name.trim_start_matches("utun").parse::<u32>().ok().filter(|_| or_next);
    let (Err(error), Some(unit)) = (&first, unit) else { return first };
    if error.cause() != Cause::NameTaken {
        return first;
    }
    let others = (unit + 1..=unit + UNITS).map(|unit| create(&format!("utun{unit}")));
    let mut others = others.skip_while(|other| matches!(other, Err(error) if error.cause() == Cause::NameTaken));
    others.next().unwrap_or(first)
}

/// The system calls of a utun socket that never block.
pub(crate) trait Calls {
    /// Receives a packet (`readv(2)`). Returns its length, family included.
    fn receive(&self, slot: &mut Slot<'_>) -> io::Result<usize>;

    /// Receives packets until none is left or all slots are full (`recvmsg_x`). Fails on a kernel without this call.
    fn receive_many(&self, slots: &mut [Slot<'_>]) -> io::Result<usize>;

    /// Sends a packet with its family in front (`writev(2)`). Returns the number of bytes that the kernel accepted.
    fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends packets, each with its family in front (`sendmsg_x`). Returns how many the kernel has sent, from the first on. After
    /// an error it may have sent any number of them, but none if it lacks this call or if there is one packet.
    fn send_many(&self, packets: &[IoSlice<'_>]) -> io::Result<usize>;
}

/// Room for a packet.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    /// Room for its family.
    pub(crate) family: [u8; FAMILY_LEN],
    /// Room for the packet itself.
    pub(crate) storage: &'a mut [u8],
    /// The length of the received packet, family included.
    pub(crate) len: usize,
}

impl<'a> Slot<'a> {
    fn new(storage: &'a mut [u8]) -> Self {
        Self { family: [0; FAMILY_LEN], storage, len: 0 }
    }
}

/// Receives and sends the packets of one socket.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    /// The kernel cannot receive many packets with one call.
    pub(crate) one_by_one: bool,
    /// The number of packets that the kernel had no memory for.
    pub(crate) refused: Arc<AtomicU64>,
    /// Packets that wait for the call that sends them, each with its family, and where each ends.
    pub(crate) queue: Vec<u8>,
    pub(crate) ends: Vec<usize>,
    /// Whether the kernel can send many packets with one call. `None` until that was tried.
    pub(crate) sends_many: Option<bool>,
}

impl Packets {
    /// As `Link::try_recv`.
    pub(crate) fn try_recv(&mut self, calls: &impl Calls, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let mut count = 0;
        while count < buffers.len() {
            match self.receive_some(calls, &mut buffers[count..]) {
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && count > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Receives at least one packet.
    fn receive_some(&mut self, calls: &impl Calls, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        if !self.one_by_one {
            match receive_many(calls, buffers) {
                Err(error) if is_unsupported(&error) => self.one_by_one = true,
                result => return result,
            }
        }
        let Some(buffer) = buffers.first_mut() else { return Ok(0) };
        let len = calls.receive(&mut Slot::new(buffer.storage_mut()))?;
        fill(buffer, len)?;
        Ok(1)
    }

    /// As `Link::try_send`. The packet may wait for [`Self::flush`].
    pub(crate) fn try_send(&mut self, calls: &impl Calls, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let family = family(slices)?;
        let len = FAMILY_LEN + packet_len(slices);
        if self.sends_many == Some(false) {
            return self.sent(len, with_header(&family, slices, |all| calls.send(all)));
        }
        if self.ends.len() == BATCH || self.queue.len() + len > BATCH_BYTES {
            self.flush(calls)?;
        }
        self.queue.extend(family);
        for slice in slices {
            self.queue.extend_from_slice(slice);
        }
        self.ends.push(self.queue.len());
        Ok(())
    }

    /// As `Link::flush`. Each packet is sent once or lost: after an error nobody knows how many the kernel has sent.
    pub(crate) fn flush(&mut self, calls: &impl Calls) -> io::Result<()> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let (queue, ends) = (mem::take(&mut self.queue), mem::take(&mut self.ends));
        let starts = [0].into_iter().chain(ends.iter().copied());
        let mut packets = [IoSlice::new(&[]); BATCH];
        starts
            .zip(&ends)
            .zip(&mut packets)
            .for_each(|((start, end), packet)| *packet = IoSlice::new(&queue[start..*end]));
        let result = self.send_all(calls, &packets[..ends.len().min(BATCH)]);
        // Their memory is used again.
        (self.queue, self.ends) = (queue, ends);
        self.queue.clear();
        self.ends.clear();
        result
    }

    fn send_all(&mut self, calls: &impl Calls, mut packets: &[IoSlice<'_>]) -> io::Result<()> {
        while let [packet, others @ ..] = packets {
            let (one, all) = (&packets[..1], packets);
            let (batch, sent) = match self.sends_many {
                Some(true) => (all, calls.send_many(all)),
                // The trial has one packet: after an error, it was not sent.
                None => (one, calls.send_many(one)),
                Some(false) => (one, calls.send(one).map(|len| usize::from(len == packet.len()))),
            };
            packets = match sent {
                Err(error) if self.sends_many.is_none() && is_unsupported(&error) => {
                    self.sends_many = Some(false);
                    continue;
                }
                Err(error) if !is_full(&error) => return Err(error),
                sent => {
                    // There was no memory for the next one, or for an unknown part of the batch.
                    let (count, lost) =
                        sent.map_or((0, batch.len()), |count| (count, usize::from(count < batch.len())));
                    self.refused.fetch_add(lost as u64, Ordering::Relaxed);
                    self.sends_many.get_or_insert(true);
                    if batch.len() == 1 { others } else { &packets[(count + lost).min(packets.len())..] }
                }
            };
        }
        Ok(())
    }

    /// The result of sending a packet of `len` bytes. If the kernel has no memory, it is lost. The socket stays writable.
    fn sent(&self, len: usize, result: io::Result<usize>) -> io::Result<()> {
        match result {
            Ok(sent) if sent == len => Ok(()),
            Ok(_) => Err(io::Error::new(io::ErrorKind::WriteZero, "the TUN device took only a part of a packet")),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn receive_many(calls: &impl Calls, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
    let room = buffers.len().min(BATCH);
    let mut storages = buffers[..room].iter_mut().map(PacketBuffer::storage_mut);
    let mut slots: [Slot<'_>; BATCH] = array::from_fn(|_| Slot::new(storages.next().unwrap_or_default()));
    let count = calls.receive_many(&mut slots[..room])?.min(room);
    let lens = slots.map(|slot| slot.len);
    for (buffer, len) in buffers.iter_mut().zip(lens).take(count) {
        fill(buffer, len)?;
    }
    // A count of 0 without an error means that there is no packet.
    if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
}

fn is_unsupported(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [libc::ENOSYS, libc::ENOTSUP, libc::EOPNOTSUPP, libc::EINVAL].into_iter().any(|none| code == Some(none))
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Declares a received packet. `len` includes its family.
fn fill(buffer: &mut PacketBuffer, len: usize) -> io::Result<()> {
    let no_family = || io::Error::new(io::ErrorKind::InvalidData, "a packet without its family");
    buffer.filled(len.checked_sub(FAMILY_LEN).ok_or_else(no_family)?, PacketMeta::default())
}

/// The family of a packet, by the version in its first byte.
fn family(slices: &[IoSlice<'_>]) -> io::Result<[u8; FAMILY_LEN]> {
    let version = slices.iter().find_map(|slice| slice.first()).map(|byte| byte >> 4);
    let family = FAMILIES.iter().find(|(of, _)| version == Some(*of)).map(|(_, family)| family.to_be_bytes());
    family.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "neither an IPv4 nor an IPv6 packet"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;

    /// A utun socket that behaves as XNU's sources say.
    #[derive(Default)]
    struct Fake {
        /// Packets to the program, each with its family.
        incoming: RefCell<VecDeque<Vec<u8>>>,
        /// Packets from the program.
        outgoing: RefCell<Vec<Vec<u8>>>,
        /// The error code of `recvmsg_x`.
        lacks_many: Option<i32>,
        /// The result of `writev`.
        send_result: Option<io::Result<usize>>,
        /// The code with which `sendmsg_x` fails, and how many packets it sends before that.
        fails_many: Option<(usize, i32)>,
        calls: RefCell<Vec<&'static str>>,
    }

    impl Fake {
        fn with(count: u8) -> Self {
            let packet = |number| vec![0, 0, 0, 2, 0x45, number];
            Self { incoming: RefCell::new((0..count).map(packet).collect()), ..Self::default() }
        }

        /// As a datagram socket does: the rest of a packet that does not fit is lost (`soreceive`,
        /// `bsd/kern/uipc_socket.c`).
        fn put(&self, slot: &mut Slot<'_>) -> io::Result<()> {
            let packet = self.incoming.borrow_mut().pop_front().ok_or(io::ErrorKind::WouldBlock)?;
            let (family, rest) = packet.split_at(FAMILY_LEN.min(packet.len()));
            slot.family[..family.len()].copy_from_slice(family);
            let len = rest.len().min(slot.storage.len());
            slot.storage[..len].copy_from_slice(&rest[..len]);
            slot.len = family.len() + len;
            Ok(())
        }
    }

    impl Calls for Fake {
        fn receive(&self, slot: &mut Slot<'_>) -> io::Result<usize> {
            self.calls.borrow_mut().push("one");
            self.put(slot).map(|()| slot.len)
        }

        fn receive_many(&self, slots: &mut [Slot<'_>]) -> io::Result<usize> {
            self.calls.borrow_mut().push("many");
            if let Some(code) = self.lacks_many {
                return Err(io::Error::from_raw_os_error(code));
            }
            assert!(slots.len() <= BATCH);
            let count = slots.iter_mut().map(|slot| self.put(slot)).take_while(Result::is_ok).count();
            // It fails only if there is no first packet (`recvmsg_x`).
            if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
        }

        /// It fails with the code of a later packet only if memory is not the reason (`sendmsg_x`).
        fn send_many(&self, packets: &[IoSlice<'_>]) -> io::Result<usize> {
            self.calls.borrow_mut().push("send many");
            let (most, code) = self.fails_many.unwrap_or((packets.len(), 0));
            let sent = packets.iter().take(most).map(|packet| packet.to_vec());
            self.outgoing.borrow_mut().extend(sent);
            match most.min(packets.len()) {
                count if count == packets.len() || (count > 0 && code == libc::ENOBUFS) => Ok(count),
                _ => Err(io::Error::from_raw_os_error(code)),
            }
        }

        fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            self.calls.borrow_mut().push("send");
            let packet: Vec<_> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let len = packet.len();
            self.outgoing.borrow_mut().push(packet);
            match &self.send_result {
                Some(Ok(len)) => Ok(*len),
                Some(Err(error)) => Err(error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error)),
                None => Ok(len),
            }
        }
    }

    fn buffers(count: usize) -> Vec<PacketBuffer> {
        (0..count).map(|_| PacketBuffer::new(100)).collect()
    }

    fn one_by_one() -> Packets {
        Packets { sends_many: Some(false), ..Packets::default() }
    }

    /// Sends as many packets, which are numbered, and flushes after each of these counts.
    fn send(fake: &Fake, packets: &mut Packets, counts: &[u8]) -> io::Result<()> {
        let mut number = 0;
        for count in counts {
            for _ in 0..*count {
                packets.try_send(fake, &[IoSlice::new(&[0x45, number])])?;
                number += 1;
            }
            packets.flush(fake)?;
        }
        Ok(())
    }

    fn numbers(fake: &Fake) -> Vec<u8> {
        fake.outgoing.borrow().iter().map(|packet| packet[FAMILY_LEN + 1]).collect()
    }

    #[test]
    fn packets_are_sent_together_after_a_trial_of_one() {
        let (fake, mut packets) = (Fake::default(), Packets::default());
        send(&fake, &mut packets, &[0, 3, 70]).unwrap();
        assert_eq!(numbers(&fake), (0..73).collect::<Vec<_>>());
        assert_eq!(*fake.calls.borrow(), ["send many"; 5]);
        // A kernel without the call is asked for it once.
        let fake = Fake { fails_many: Some((0, libc::ENOSYS)), ..Fake::default() };
        send(&fake, &mut Packets::default(), &[2, 1]).unwrap();
        assert_eq!(numbers(&fake), [0, 1, 2]);
        assert_eq!(*fake.calls.borrow(), ["send many", "send", "send", "send"]);
    }

    #[test]
    fn no_packet_is_sent_twice_after_an_error() {
        for (sent, code) in [(2, libc::ENOBUFS), (2, libc::EINVAL), (0, libc::ENOBUFS), (0, libc::EIO)] {
            let mut packets = Packets { sends_many: Some(true), ..Packets::default() };
            let fake = Fake { fails_many: Some((sent, code)), ..Fake::default() };
            let result = send(&fake, &mut packets, &[5]);
            assert_eq!(result.is_ok(), code == libc::ENOBUFS, "{result:?}");
            // They went out or were refused, and none waits.
            packets.flush(&fake).unwrap();
            let gone = numbers(&fake);
            assert!(gone.is_sorted_by(|one, next| one < next), "{gone:?}");
            let refused = packets.refused.load(Ordering::Relaxed);
            assert_eq!(gone.len() as u64 + refused, if result.is_ok() { 5 } else { sent as u64 });
        }
    }

    #[test]
    fn a_taken_unit_is_skipped_unless_the_user_named_it() {
        let taken = |name: &str, units: &[&str]| {
            let source = io::Error::from(io::ErrorKind::AlreadyExists);
            let error = Error::new(Cause::NameTaken, "create", name, source);
            if units.contains(&name) { Err(error) } else { Ok(name.to_owned()) }
        };
        let created = |name, or_next, units: &[&str]| {
            create_free(name, or_next, |name| taken(name, units)).map_err(|error| error.to_string())
        };
        assert_eq!(created("utun8", true, &["utun8", "utun9"]).unwrap(), "utun10");
        assert_eq!(created("utun8", true, &[]).unwrap(), "utun8");
        assert!(created("utun8", false, &["utun8"]).unwrap_err().contains("utun8"));
        // Other failures are those of every unit.
        let mut tried = 0;
        let failed = create_free("utun8", true, |name| {
            tried += 1;
            let source = io::Error::from(io::ErrorKind::PermissionDenied);
            Err::<(), _>(Error::new(Cause::NeedsSudo, "create", name, source))
        });
        assert_eq!((failed.unwrap_err().cause(), tried), (Cause::NeedsSudo, 1));
        let all = create_free("utun8", true, |name| Err::<(), _>(taken(name, &[name]).unwrap_err()));
        assert!(all.unwrap_err().to_string().contains("utun8"));
    }

    #[test]
    fn many_packets_take_few_calls_and_come_in_order() {
        let (fake, mut packets, mut all) = (Fake::with(70), Packets::default(), buffers(80));
        assert_eq!(packets.try_recv(&fake, &mut all).unwrap(), 70);
        assert_eq!(*fake.calls.borrow(), ["many"; 4]);
        for (number, buffer) in all[..70].iter().enumerate() {
            assert_eq!(buffer.packet(), [0x45, number as u8]);
        }
        assert_eq!(packets.try_recv(&fake, &mut all).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Packets without a buffer stay in the socket.
        let fake = Fake::with(3);
        assert_eq!(packets.try_recv(&fake, &mut buffers(2)).unwrap(), 2);
        assert_eq!(packets.try_recv(&fake, &mut []).unwrap(), 0);
        assert_eq!(packets.try_recv(&fake, &mut buffers(2)).unwrap(), 1);
    }

    #[test]
    fn a_kernel_without_the_call_is_asked_for_it_once() {
        for code in [libc::ENOSYS, libc::EOPNOTSUPP, libc::EINVAL] {
            let fake = Fake { lacks_many: Some(code), ..Fake::with(3) };
            let (mut packets, mut all) = (Packets::default(), buffers(2));
            assert_eq!(packets.try_recv(&fake, &mut all).unwrap(), 2);
            assert_eq!(all[1].packet(), [0x45, 1]);
            assert_eq!(packets.try_recv(&fake, &mut all).unwrap(), 1);
            assert_eq!(*fake.calls.borrow(), ["many", "one", "one", "one", "one"]);
        }
    }

    #[test]
    fn an_error_of_the_device_is_told() {
        let fake = Fake { lacks_many: Some(libc::ENXIO), ..Fake::with(3) };
        let error = Packets::default().try_recv(&fake, &mut buffers(2)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        let fake = Fake::default();
        fake.incoming.borrow_mut().push_back(vec![0, 0]);
        let error = Packets::default().try_recv(&fake, &mut buffers(2)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_packet_is_sent_with_its_family_in_one_call() {
        let (fake, mut packets) = (Fake::default(), one_by_one());
        packets.try_send(&fake, &[IoSlice::new(&[]), IoSlice::new(&[0x45, 7]), IoSlice::new(&[8])]).unwrap();
        packets.try_send(&fake, &[IoSlice::new(&[0x60])]).unwrap();
        let pieces: Vec<_> = (0..40).map(|_| IoSlice::new(&[0x45])).collect();
        packets.try_send(&fake, &pieces).unwrap();
        let sent = fake.outgoing.borrow();
        assert_eq!(sent[0], [0, 0, 0, 2, 0x45, 7, 8]);
        assert_eq!(sent[1], [0, 0, 0, 30, 0x60]);
        assert_eq!(sent[2].len(), 44);
        for none in [&[0x10][..], &[]] {
            let error = packets.try_send(&fake, &[IoSlice::new(none)]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(sent.len(), 3);
    }

    #[test]
    fn a_kernel_without_memory_loses_the_packet_and_others_are_errors() {
        let mut packets = one_by_one();
        let mut fake = Fake { send_result: Some(Err(io::Error::from_raw_os_error(libc::ENOBUFS))), ..Fake::default() };
        packets.try_send(&fake, &[IoSlice::new(&[0x45])]).unwrap();
        assert_eq!(packets.refused.load(Ordering::Relaxed), 1);
        for (result, kind) in
            [(Err(io::ErrorKind::WouldBlock.into()), io::ErrorKind::WouldBlock), (Ok(4), io::ErrorKind::WriteZero)]
        {
            fake.send_result = Some(result);
            assert_eq!(packets.try_send(&fake, &[IoSlice::new(&[0x45])]).unwrap_err().kind(), kind);
        }
        assert_eq!(packets.refused.load(Ordering::Relaxed), 1);
    }
}
