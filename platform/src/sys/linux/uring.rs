//! Several reads or writes of packets in one system call (`io_uring(7)`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::Entry;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use crate::{Cause, Error};

/// A ring for packets of devices. It never waits for one: what cannot be done at once fails with
/// [`io::ErrorKind::WouldBlock`].
pub struct PacketRing {
    /// `None` after it has failed.
    ring: Option<IoUring>,
    /// Of the last packets, in their order: how many bytes, or the number of an error, which is negative.
    results: Vec<i32>,
}

impl PacketRing {
    /// A ring for at most this many packets at once.
    pub fn new(packets: u32) -> Result<Self, Error> {
        let ring = IoUring::new(packets).map_err(unavailable)?;
        Ok(Self { ring: Some(ring), results: Vec::with_capacity(packets as usize) })
    }

    /// Fails if this system or the device has no such reads. A packet that waits in the device may be lost.
    pub fn check(device: BorrowedFd<'_>) -> Result<(), Error> {
        let mut buffers = [vec![0; 1]];
        let outcome = Self::new(1)?.read(device, &mut buffers).and_then(|mut results| results.next().transpose());
        match outcome {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(unavailable(error)),
            _ => Ok(()),
        }
    }

    /// Reads a packet into each buffer. Returns their lengths, in order; a packet may come behind a read that found none.
    pub fn read<'r>(
        &'r mut self,
        device: BorrowedFd<'_>,
        buffers: &mut [Vec<u8>],
    ) -> io::Result<impl Iterator<Item = io::Result<usize>> + use<'r>> {
        let read = |buffer: &mut Vec<u8>| {
            let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
            opcode::Read::new(Fd(device.as_raw_fd()), buffer.as_mut_ptr(), len).rw_flags(libc::RWF_NOWAIT).build()
        };
        // SAFETY: each entry writes to a buffer of its own, of this length, and the buffers outlive the call.
        Ok(unsafe { self.perform(buffers.iter_mut().map(read)) }?.iter().copied().map(outcome))
    }

    /// Writes packets. Returns how many bytes of each were written, in order.
    pub fn write<'a>(
        &mut self,
        device: BorrowedFd<'_>,
        packets: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<impl Iterator<Item = io::Result<usize>>> {
        let write = |packet: &[u8]| {
            let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            opcode::Write::new(Fd(device.as_raw_fd()), packet.as_ptr(), len).rw_flags(libc::RWF_NOWAIT).build()
        };
        // SAFETY: each entry reads a packet of this length, and the packets outlive the call.
        Ok(unsafe { self.perform(packets.map(write)) }?.iter().copied().map(outcome))
    }

    /// # Safety
    ///
    /// The entries have `RWF_NOWAIT`, so the kernel is done with each when the call that submits it returns. Their memory must
    /// be valid until this function returns. If it fails, the ring goes away with the entries that were not submitted.
    unsafe fn perform(&mut self, entries: impl Iterator<Item = Entry>) -> io::Result<&[i32]> {
        let mut ring = self.ring.take().ok_or(io::ErrorKind::BrokenPipe)?;
        self.results.clear();
        for entry in entries {
            let entry = entry.user_data(self.results.len() as u64);
            // SAFETY: by the contract of this function.
            let pushed = unsafe { ring.submission().push(&entry) };
            pushed.map_err(|_| io::Error::other("there are more packets than places in the ring"))?;
            self.results.push(-libc::ECANCELED);
        }
        let mut left = self.results.len();
        while left > 0 {
            match ring.submit_and_wait(left) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for completion in ring.completion() {
                let place = usize::try_from(completion.user_data()).ok().and_then(|at| self.results.get_mut(at));
                if let Some(place) = place {
                    *place = completion.result();
                }
                left = left.saturating_sub(1);
            }
        }
        self.ring = Some(ring);
        Ok(&self.results)
    }
}

fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn unavailable(source: io::Error) -> Error {
    Error::new(Cause::NoUring, "read packets by", "io_uring", source)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn packets_go_and_come_in_order_and_none_is_waited_for() {
        let (near, far) = UnixDatagram::pair().unwrap();
        let mut ring = match PacketRing::new(4) {
            Ok(ring) => ring,
            Err(error) => return drop(io::Write::write_fmt(&mut io::stderr(), format_args!("SKIP uring: {error}\n"))),
        };
        for round in 0..3 {
            let packets: Vec<Vec<u8>> = (1..4).map(|len| vec![round; len]).collect();
            let written = ring.write(near.as_fd(), packets.iter().map(Vec::as_slice)).unwrap();
            assert_eq!(written.map(Result::unwrap).collect::<Vec<_>>(), [1, 2, 3]);
            let mut buffers = vec![vec![9; 8]; 4];
            let lens: Vec<_> = ring.read(far.as_fd(), &mut buffers).unwrap().collect();
            assert_eq!(lens[..3].iter().flatten().collect::<Vec<_>>(), [&1, &2, &3]);
            assert_eq!(lens[3].as_ref().unwrap_err().kind(), io::ErrorKind::WouldBlock);
            for (buffer, packet) in buffers.iter().zip(&packets) {
                assert_eq!(buffer[..packet.len()], packet[..]);
            }
        }
        let many = [[0_u8]; 5];
        assert!(ring.write(near.as_fd(), many.iter().map(|packet| &packet[..])).is_err());
        assert!(ring.write(near.as_fd(), many[..1].iter().map(|packet| &packet[..])).is_err(), "it has failed");
    }
}
