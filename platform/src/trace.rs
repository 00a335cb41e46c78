//! A link that writes its packets to a pcap file.

use std::io::{self, IoSlice, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::link::packet_len;
use crate::{PacketBuffer, Tap, Tapped};

/// The header of a file: times in nanoseconds, version 2.4, packets of any length, which begin with their IP headers
/// (`LINKTYPE_RAW`).
const FILE_HEADER: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 256 << 10, 101];

/// Writes every packet of both directions to `W` as pcap (draft-ietf-opsawg-pcap), until an error; see [`Trace`].
pub type Traced<L, W> = Tapped<L, Tracer<W>>;

/// The tap of a [`Traced`] link.
#[derive(Debug)]
pub struct Tracer<W: Write>(Trace<W>);

/// The state of the trace of a [`Traced`] link. Any thread can read it.
#[derive(Debug)]
pub struct Trace<W>(Arc<Mutex<State<W>>>);

#[derive(Debug)]
struct State<W> {
    /// `None` once the trace has ended.
    writer: Option<W>,
    error: Option<io::Error>,
}

impl<L, W: Write> Traced<L, W> {
    /// Writes all packets of `link` from now on.
    pub fn new(link: L, writer: W) -> Self {
        Self { link, tap: Tracer(Trace::begin(writer)) }
    }

    /// A handle to the state of the trace.
    pub fn trace(&self) -> Trace<W> {
        Trace(Arc::clone(&self.tap.0.0))
    }
}

impl<W: Write + Send + 'static> Tap for Tracer<W> {
    fn received(&self, packets: &[PacketBuffer]) {
        for buffer in packets {
            self.0.packet_now(&[IoSlice::new(buffer.packet())]);
        }
    }

    fn sent(&self, slices: &[IoSlice<'_>]) {
        self.0.packet_now(slices);
    }
}

impl<W: Write> Drop for Tracer<W> {
    fn drop(&mut self) {
        self.0.write(Write::flush);
    }
}

impl<W> Trace<W> {
    /// Takes the error that has ended the trace, if there was one.
    pub fn take_error(&self) -> Option<io::Error> {
        self.lock().error.take()
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        // A writer that panicked may have written a part of a packet, like one that failed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write> Trace<W> {
    fn write(&self, write: impl FnOnce(&mut W) -> io::Result<()>) {
        let mut state = self.lock();
        let Some(writer) = &mut state.writer else { return };
        if let Err(error) = write(writer) {
            state.writer = None;
            state.error = Some(error);
        }
    }

    /// Writes the header of a file.
    pub(crate) fn begin(writer: W) -> Self {
        let trace = Self(Arc::new(Mutex::new(State { writer: Some(writer), error: None })));
        trace.write(|writer| writer.write_all(FILE_HEADER.map(u32::to_le_bytes).as_flattened()));
        trace
    }

    /// Writes what is left, and returns the first error.
    #[cfg(target_os = "linux")]
    pub(crate) fn finish(self) -> io::Result<()> {
        self.write(Write::flush);
        self.take_error().map_or(Ok(()), Err)
    }

    fn packet_now(&self, slices: &[IoSlice<'_>]) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.packet_at(now, slices, packet_len(slices));
    }

    /// Writes the first bytes of a packet of this length, which has come at this time since 1970.
    pub(crate) fn packet_at(&self, time: Duration, slices: &[IoSlice<'_>], len: usize) {
        self.write(|writer| {
            // The length of the captured bytes, and of the packet.
            let header = [time.as_secs() as u32, time.subsec_nanos(), packet_len(slices) as u32, len as u32];
            writer.write_all(header.map(u32::to_le_bytes).as_flattened())?;
            slices.iter().try_for_each(|slice| writer.write_all(slice))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, MemoryLink, PacketMeta};

    /// A file of limited size that outlives its writer.
    #[derive(Clone, Debug)]
    struct File {
        bytes: Arc<Mutex<Vec<u8>>>,
        room: usize,
    }

    impl File {
        fn of(room: usize) -> Self {
            Self { bytes: Arc::default(), room }
        }
    }

    impl Write for File {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut file = self.bytes.lock().unwrap();
            let room = self.room - file.len();
            if room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let len = bytes.len().min(room);
            file.extend(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn both_directions_are_written_and_unsent_packets_are_not() {
        let (left, mut right) = MemoryLink::pair(100, 1);
        let file = File::of(1_000);
        let mut left = Traced::new(left, io::BufWriter::new(file.clone()));
        let trace = left.trace();
        left.try_send(PacketMeta::default(), &[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap();
        left.try_send(PacketMeta::default(), &[IoSlice::new(b"no room")]).unwrap_err();
        right.try_send(PacketMeta::default(), &[IoSlice::new(b"there")]).unwrap();
        left.try_recv(&mut [PacketBuffer::new(100), PacketBuffer::new(100)]).unwrap();
        assert!(file.bytes.lock().unwrap().is_empty(), "the writer buffers");
        drop(left);
        assert!(trace.take_error().is_none());
        let bytes = file.bytes.lock().unwrap();
        assert_eq!(bytes.len(), 24 + 16 + 3 + 16 + 5);
        assert_eq!((word(&bytes, 0), word(&bytes, 4), word(&bytes, 20)), (0xa1b2_3c4d, 0x0004_0002, 101));
        for (at, packet) in [(24, &b"abc"[..]), (24 + 16 + 3, b"there")] {
            let len = packet.len() as u32;
            assert!(word(&bytes, at) > 1_700_000_000 && word(&bytes, at + 4) < 1_000_000_000);
            assert_eq!((word(&bytes, at + 8), word(&bytes, at + 12)), (len, len));
            assert_eq!(&bytes[at + 16..][..packet.len()], packet);
        }
    }

    #[test]
    fn a_full_disk_ends_the_trace_and_not_the_link() {
        for room in [0, 10, 24, 30, 24 + 16, 24 + 16 + 1] {
            let (left, mut right) = MemoryLink::pair(100, 8);
            let file = File::of(room);
            let mut left = Traced::new(left, file.clone());
            for _ in 0..3 {
                left.try_send(PacketMeta::default(), &[IoSlice::new(b"abc")]).unwrap();
            }
            let mut buffers: Vec<_> = (0..4).map(|_| PacketBuffer::new(100)).collect();
            assert_eq!(right.try_recv(&mut buffers).unwrap(), 3);
            let trace = left.trace();
            drop(left);
            assert_eq!(trace.take_error().unwrap().kind(), io::ErrorKind::StorageFull);
            assert!(trace.take_error().is_none(), "it is told once");
            assert_eq!(file.bytes.lock().unwrap().len(), room);
        }
    }
}
