//! Super-packets cut into segments.

use std::num::NonZeroU16;

use super::checksum::sum;
use super::{CWR, FIN, IPV6_HEADER_LEN, Malformed, PSH, TCP_CHECKSUM_AT, TCP_FLAGS_AT, TcpLayout};
use super::{check_length, checksum_place, complete_checksum, leave_checksum, sequence};
use crate::{Checksum, PacketMeta};

/// The packets that a packet stands for, to be written one by one with [`Segments::next_into`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    packet: &'a [u8],
    work: Work,
    /// How many were written.
    index: usize,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// To be passed on as it is, once its checksum is complete.
    Whole(Checksum),
    /// To be cut.
    Cut { layout: TcpLayout, gso_size: usize },
}

/// The buffer is shorter than the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the segment is of {0} bytes, and its buffer is shorter")]
pub struct NoRoom(pub usize);

/// Cuts a packet into what a receiver without offloads would have got: a super-packet into its
/// segments, any other packet into itself, each with its checksums complete.
///
/// Segments are cut as Linux does it (`net/ipv4/tcp_offload.c`, `tcp_gso_segment`; `af_inet.c`,
/// `inet_gso_segment`): lengths and checksums of their own, sequence numbers that go on, an IPv4
/// identification that counts up, CWR in the first alone, FIN and PSH in the last alone. What the
/// super-packet's checksum field holds does not matter.
///
/// # Errors
///
/// [`Malformed`], where the packet is not as long as it says, is to be cut and is not TCP or has its
/// checksum done, or has a checksum to be done that is neither TCP's nor UDP's.
pub fn split(meta: PacketMeta, packet: &[u8]) -> Result<Segments<'_>, Malformed> {
    check_length(packet)?;
    let (work, count) = match meta.gso_size.map(NonZeroU16::get) {
        None => {
            if meta.checksum == Checksum::Partial {
                checksum_place(packet).ok_or(Malformed::ChecksumUnknown)?;
            }
            (Work::Whole(meta.checksum), 1)
        }
        Some(gso_size) => {
            if meta.checksum == Checksum::Complete {
                return Err(Malformed::SegmentationWithoutChecksum);
            }
            let layout = TcpLayout::parse(packet).ok_or(Malformed::SegmentationType)?;
            let gso_size = usize::from(gso_size);
            // Without payload there is still the header.
            let count = (packet.len() - layout.payload_at).div_ceil(gso_size).max(1);
            (Work::Cut { layout, gso_size }, count)
        }
    };
    Ok(Segments { packet, work, index: 0, count })
}

impl Segments<'_> {
    /// How many are still to be written.
    pub fn remaining(&self) -> usize {
        self.count - self.index
    }

    /// Writes the next segment to the front of `buffer` and answers its length; `None` once there
    /// are no more.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] for a buffer that is too short; the segment then is still the next.
    pub fn next_into(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, NoRoom> {
        if self.index == self.count {
            return Ok(None);
        }
        let len = match self.work {
            Work::Whole(checksum) => self.copy(checksum, buffer)?,
            Work::Cut { layout, gso_size } => self.cut(&layout, gso_size, buffer)?,
        };
        self.index += 1;
        Ok(Some(len))
    }

    fn copy(&self, checksum: Checksum, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let len = self.packet.len();
        let out = buffer.get_mut(..len).ok_or(NoRoom(len))?;
        out.copy_from_slice(self.packet);
        if checksum == Checksum::Partial {
            // `split` has seen that it can be done.
            let _done = complete_checksum(out);
        }
        Ok(len)
    }

    fn cut(&self, layout: &TcpLayout, gso_size: usize, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let (headers, payload) = self.packet.split_at(layout.payload_at);
        let from = self.index * gso_size;
        let payload = &payload[from..payload.len().min(from + gso_size)];
        let len = headers.len() + payload.len();
        let out = buffer.get_mut(..len).ok_or(NoRoom(len))?;
        out[..headers.len()].copy_from_slice(headers);
        out[headers.len()..].copy_from_slice(payload);
        set_ip_len(out, layout);
        if !layout.ipv6 {
            let identification = u16::from_be_bytes([out[4], out[5]]).wrapping_add(self.index as u16);
            out[4..6].copy_from_slice(&identification.to_be_bytes());
            set_ipv4_checksum(out, layout);
        }
        let tcp = &mut out[layout.tcp_at..];
        let sequence = sequence(tcp).wrapping_add(from as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if self.index > 0 {
            // It belongs to the first segment (RFC 3168, 6.1.2).
            tcp[TCP_FLAGS_AT] &= !CWR;
        }
        if self.index + 1 < self.count {
            // They belong to the last byte.
            tcp[TCP_FLAGS_AT] &= !(FIN | PSH);
        }
        leave_checksum(out, layout, len);
        // The field holds the sum of the pseudo-header now.
        let checksum = !sum(&out[layout.tcp_at..]);
        out[layout.tcp_at + TCP_CHECKSUM_AT..][..2].copy_from_slice(&checksum.to_be_bytes());
        Ok(len)
    }
}

/// Says the packet's length in its IP header. Of a length that it can say.
pub(super) fn set_ip_len(packet: &mut [u8], layout: &TcpLayout) {
    let len = packet.len();
    if layout.ipv6 {
        packet[4..6].copy_from_slice(&((len - IPV6_HEADER_LEN) as u16).to_be_bytes());
    } else {
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    }
}

/// Computes the checksum of an IPv4 header.
pub(super) fn set_ipv4_checksum(packet: &mut [u8], layout: &TcpLayout) {
    packet[10..12].fill(0);
    let checksum = !sum(&packet[..layout.tcp_at]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}
