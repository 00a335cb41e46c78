//! The packets of a utun socket (macOS), with the system calls behind [`Calls`], for tests on other systems.

use std::array;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portable_atomic::AtomicU64;

use crate::link::{packet_len, with_header};
use crate::{PacketBuffer, PacketMeta};

/// The address family in front of each packet, in network byte order (`bsd/net/if_utun.c`, `utun_output`).
pub(crate) const FAMILY_LEN: usize = 4;

/// IP versions and their families: `AF_INET` and `AF_INET6` of XNU's `bsd/sys/socket.h`.
const FAMILIES: [(u8, u32); 2] = [(4, 2), (6, 30)];

pub(crate) const BATCH: usize = 32;

/// The system calls of a utun socket that never block.
pub trait Calls {
    /// Receives a packet (`readv(2)`). Returns its length, family included.
    fn receive(&self, slot: &mut Slot<'_>) -> io::Result<usize>;

    /// Receives packets until none is left or all slots are full (`recvmsg_x`). Fails on a kernel without this call.
    fn receive_many(&self, slots: &mut [Slot<'_>]) -> io::Result<usize>;

    /// Sends a packet with its family in front (`writev(2)`). Returns the number of bytes that the kernel accepted.
    fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

/// Room for a packet.
#[derive(Debug)]
pub struct Slot<'a> {
    /// Room for its family.
    pub family: [u8; FAMILY_LEN],
    /// Room for the packet itself.
    pub storage: &'a mut [u8],
    /// The length of the received packet, family included.
    pub len: usize,
}

impl<'a> Slot<'a> {
    fn new(storage: &'a mut [u8]) -> Self {
        Self { family: [0; FAMILY_LEN], storage, len: 0 }
    }
}

/// Receives and sends the packets of one socket.
#[derive(Debug, Default)]
pub struct Packets {
    /// The kernel cannot receive many packets with one call.
    pub(crate) one_by_one: bool,
    /// The number of packets that the kernel had no memory for.
    pub(crate) refused: Arc<AtomicU64>,
}

impl Packets {
    /// As `Link::try_recv`.
    pub fn try_recv(&mut self, calls: &impl Calls, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
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

    /// As `Link::try_send`. If the kernel has no memory, the packet is lost. The socket stays writable.
    pub fn try_send(&self, calls: &impl Calls, slices: &[IoSlice<'_>]) -> io::Result<()> {
        match with_header(&family(slices)?, slices, |all| calls.send(all)) {
            Ok(sent) if sent == FAMILY_LEN + packet_len(slices) => Ok(()),
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
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

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

        fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
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
        let (fake, packets) = (Fake::default(), Packets::default());
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
        let packets = Packets::default();
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
