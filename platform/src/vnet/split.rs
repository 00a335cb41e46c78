//! Super-packets cut into segments.

use std::num::NonZeroU16;

use super::{Layout, Malformed, check_length};
use crate::packet::flags::{CWR, FIN, PSH};
use crate::packet::{
    TCP, Transport, fill_checksum, fill_checksum_at, offset, pseudo_header_sum, write_ip_len, write_ipv4_checksum,
};
use crate::{Checksum, PacketMeta};

/// The segments of a packet, to be written one by one with [`Segments::next_into`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    packet: &'a [u8],
    work: Work,
    index: usize,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// To be passed through, with its checksum filled.
    Whole(Checksum),
    Cut {
        layout: Layout,
        gso_size: usize,
    },
}

/// The buffer is shorter than the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Cuts a super-packet into its segments, any other packet into itself, each with filled checksums, as Linux does it
/// (`net/ipv4/tcp_offload.c`, `tcp_gso_segment`; `udp_offload.c`, `__udp_gso_segment`): the IPv4 identification counts
/// up, sequence numbers continue, CWR is in the first alone, FIN and PSH are in the last alone.
pub fn split(meta: PacketMeta, packet: &[u8]) -> Result<Segments<'_>, Malformed> {
    check_length(packet)?;
    let (work, count) = match meta.gso_size.map(NonZeroU16::get) {
        None => {
            if meta.checksum == Checksum::Partial {
                Transport::checksum_place(packet).ok_or(Malformed::ChecksumUnknown)?;
            }
            (Work::Whole(meta.checksum), 1)
        }
        Some(gso_size) => {
            if meta.checksum == Checksum::Filled {
                return Err(Malformed::SegmentationWithoutChecksum);
            }
            let layout = Layout::parse(packet).ok_or(Malformed::SegmentationType)?;
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

    /// Writes the next segment and returns its length; `None` after the last. After [`NoRoom`] it is the same one.
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
        let out = buffer.get_mut(..len).ok_or(NoRoom)?;
        out.copy_from_slice(self.packet);
        if checksum == Checksum::Partial {
            // `split` has checked that the packet has one.
            fill_checksum(out);
        }
        Ok(len)
    }

    fn cut(&self, layout: &Layout, gso_size: usize, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let (headers, payload) = self.packet.split_at(layout.payload_at);
        let from = self.index * gso_size;
        let payload = &payload[from..payload.len().min(from + gso_size)];
        let len = headers.len() + payload.len();
        let out = buffer.get_mut(..len).ok_or(NoRoom)?;
        out[..headers.len()].copy_from_slice(headers);
        out[headers.len()..].copy_from_slice(payload);
        write_ip_len(out, layout.ipv6, len);
        if !layout.ipv6 {
            let identification = u16::from_be_bytes([out[4], out[5]]).wrapping_add(self.index as u16);
            out[4..6].copy_from_slice(&identification.to_be_bytes());
            write_ipv4_checksum(out, layout.transport_at);
        }
        let transport = &mut out[layout.transport_at..];
        if layout.protocol == TCP {
            self.continue_tcp(transport, from);
        } else {
            let udp_len = transport.len() as u16;
            transport[4..6].copy_from_slice(&udp_len.to_be_bytes());
        }
        let (start, offset) = (layout.transport_at, layout.checksum_offset());
        let pseudo_header = pseudo_header_sum(layout.protocol, out, start, len);
        out[start + offset..][..2].copy_from_slice(&pseudo_header.to_be_bytes());
        fill_checksum_at(out, start, offset);
        Ok(len)
    }

    /// Changes the TCP header of the super-packet into the next segment's, which begins `from` bytes into the payload.
    fn continue_tcp(&self, tcp: &mut [u8], from: usize) {
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(from as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if self.index > 0 {
            // It belongs to the first segment (RFC 3168, 6.1.2).
            tcp[offset::FLAGS] &= !CWR;
        }
        if self.index + 1 < self.count {
            // They belong to the last byte.
            tcp[offset::FLAGS] &= !(FIN | PSH);
        }
    }
}
