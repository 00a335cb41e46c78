//! The packets of an interface, by a packet socket (`packet(7)`).

use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, SockAddr, Socket, Type};

use super::socket_option;
use crate::trace::Trace;

/// Bytes of a packet that are kept: all headers, and some of the payload.
const KEPT: usize = 256;

/// Room for packets that wait to be written. An ordinary user gets at most `net.core.rmem_max`.
const ROOM: usize = 32 << 20;

/// How often the end is noticed without packets.
const LOOK: Duration = Duration::from_millis(20);

/// Packets of an interface that are being written as pcap. Dropping it ends that.
#[derive(Debug)]
pub struct Capture {
    is_over: Arc<AtomicBool>,
    writing: Option<JoinHandle<io::Result<Captured>>>,
}

/// What a [`Capture`] has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The packets in the file.
    pub packets: u64,
    /// Those that came too fast.
    pub lost: u64,
    /// Whether it ended because the file was full.
    pub is_full: bool,
}

impl Capture {
    /// Writes the first bytes of each IP packet of an interface of the calling thread's network, both ways, from now on, up to
    /// this many bytes of a file.
    pub fn start(interface: &str, writer: impl Write + Send + 'static, most_bytes: u64) -> io::Result<Self> {
        let socket = open(interface)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let write = move || write(&socket, writer, most_bytes, &over);
        let writing = thread::Builder::new().name("capture".to_owned()).spawn(write)?;
        Ok(Self { is_over, writing: Some(writing) })
    }

    /// Ends it.
    pub fn finish(mut self) -> io::Result<Captured> {
        self.end().unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn end(&mut self) -> Option<io::Result<Captured>> {
        self.is_over.store(true, Ordering::Release);
        self.writing.take()?.join().ok()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _unread = self.end();
    }
}

fn open(interface: &str) -> io::Result<Socket> {
    // Without a protocol it gets no packet before it is bound.
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
    socket.set_read_timeout(Some(LOOK))?;
    socket.set_recv_buffer_size(ROOM)?;
    // Beyond the limit of an ordinary user.
    let _privileged = setsockopt(&socket, sockopt::RcvBufForce, &ROOM);
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    let name = CString::new(interface)?;
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros are an address without a family, and what is written is a whole `sockaddr_ll`.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, len| {
            let address = storage.cast::<libc::sockaddr_ll>();
            (*address).sll_family = libc::AF_PACKET as u16;
            (*address).sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            (*address).sll_ifindex = index.cast_signed();
            *len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }?;
    socket.bind(&address)?;
    Ok(socket)
}

fn write(socket: &Socket, writer: impl Write, most_bytes: u64, is_over: &AtomicBool) -> io::Result<Captured> {
    let trace = Trace::begin(io::BufWriter::new(writer));
    let (mut captured, mut bytes) = (Captured::default(), 0);
    let (mut buffer, mut control) = ([0; KEPT], cmsg_space!(TimeSpec));
    while !captured.is_full {
        // Packets from before the end are still read.
        let was_over = is_over.load(Ordering::Acquire);
        let mut slices = [IoSliceMut::new(&mut buffer)];
        // With this flag the length is that of the whole packet.
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_TRUNC);
        let (len, time) = match received {
            Ok(message) => {
                let stamp = message.cmsgs()?.find_map(|control| match control {
                    ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                    _ => None,
                });
                (message.bytes, stamp)
            }
            Err(Errno::EAGAIN) if was_over => break,
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            // The interface has gone.
            Err(Errno::ENETDOWN | Errno::ENXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let kept = &buffer[..len.min(KEPT)];
        if !matches!(kept.first().map(|first| first >> 4), Some(4 | 6)) {
            continue;
        }
        trace.packet_at(time.unwrap_or_default(), &[IoSlice::new(kept)], len);
        captured.packets += 1;
        bytes += (16 + kept.len()) as u64;
        captured.is_full = bytes + (16 + KEPT) as u64 > most_bytes;
    }
    trace.finish()?;
    captured.lost = lost(socket).unwrap_or_default();
    Ok(captured)
}

/// `PACKET_STATISTICS`: two numbers, of which the second counts packets without room.
fn lost(socket: &Socket) -> Option<u64> {
    let mut statistics = [0; 8];
    socket_option(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut statistics).ok()?;
    Some(u32::from_ne_bytes(statistics[4..].try_into().ok()?).into())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::net::UdpSocket;

    use super::*;

    /// Sends datagrams over the loopback of a network of its own, whose packets go out and come in. None without the right.
    fn captured(payloads: &[usize], most_bytes: u64) -> Option<(Captured, Vec<u8>)> {
        let network = crate::Namespace::new().ok()?;
        let (file, mut written) = (tempfile::tempfile().unwrap(), Vec::new());
        let (writer, payloads): (File, Vec<_>) = (file.try_clone().unwrap(), payloads.to_vec());
        let captured = network.run(move || {
            crate::set_loopback_up().unwrap();
            let capture = Capture::start("lo", writer, most_bytes).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            for len in payloads {
                socket.send_to(&vec![7; len], socket.local_addr().unwrap()).unwrap();
            }
            capture.finish().unwrap()
        });
        let mut file = file;
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut written).unwrap();
        Some((captured.unwrap(), written))
    }

    #[test]
    fn the_beginnings_of_packets_are_written_with_their_lengths() {
        let Some((captured, written)) = captured(&[100, 1000], u64::MAX) else {
            println!("SKIP {}: no network of its own", module_path!());
            return;
        };
        // Each is seen on its way out and on its way in.
        assert_eq!(captured, Captured { packets: 4, lost: 0, is_full: false });
        assert_eq!(written.len(), 24 + 4 * 16 + 2 * (28 + 100) + 2 * KEPT);
        let word = |at: usize| u32::from_le_bytes(written[at..at + 4].try_into().unwrap());
        assert!(word(24) > 1_700_000_000, "the time of the kernel");
        assert_eq!((word(24 + 8), word(24 + 12)), (128, 128));
        let third = 24 + 2 * (16 + 128);
        assert_eq!((word(third + 8), word(third + 12)), (256, 1028));
    }

    #[test]
    fn a_file_has_a_limit_and_an_interface_must_be_there() {
        let Some((captured, written)) = captured(&[1000; 20], 2000) else {
            println!("SKIP {}: no network of its own", module_path!());
            return;
        };
        assert_eq!((captured.packets, captured.is_full), (7, true));
        assert!(written.len() <= 24 + 2000, "{}", written.len());
        assert!(Capture::start("no-such", Vec::new(), 1).is_err());
    }
}
