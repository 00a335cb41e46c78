//! The work that a stack leaves to a link with offloads. Super-packets go only to peers that accept segments as large
//! as the link's MTU. So the MTU and the headers give the size of their segments.

use std::num::NonZeroU16;

use platform::packet::{TcpLayout, write_partial_checksum, write_partial_udp_checksum};
use platform::{Capabilities, Checksum, Link, PacketMeta, SegmentationOffload};

/// Length of an IP and a TCP header without options, in bytes.
pub(crate) const fn header_len(ipv6: bool) -> usize {
    if ipv6 { 60 } else { 40 }
}

/// The capabilities of a link that matter to a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offload {
    mtu: usize,
    max_packet_len: usize,
    checksum: bool,
    segmentation: SegmentationOffload,
}

impl Offload {
    pub(crate) fn of(capabilities: &Capabilities) -> Self {
        let checksum = capabilities.checksum;
        // The link must fill in the checksum of each segment (tx), and must not verify that of a SYN with a rewritten
        // MSS, which is wrong (rx).
        let whole = checksum.tx && checksum.rx;
        Self {
            mtu: capabilities.mtu,
            max_packet_len: capabilities.max_packet_len.min(Capabilities::MAX_SUPER_PACKET),
            checksum: checksum.tx,
            segmentation: if whole { capabilities.segmentation } else { SegmentationOffload::default() },
        }
    }

    /// With super-packets of TCP, if `whether`.
    pub(crate) fn cutting_if(self, whether: bool) -> Self {
        if whether { self } else { Self { segmentation: SegmentationOffload::default(), ..self } }
    }

    /// Whether super-packets of TCP may be sent, over IPv4 or IPv6.
    pub(crate) fn cuts(&self) -> bool {
        self.segmentation.any()
    }

    /// Asks the link for UDP super-packets, if it leaves all checksums alone. Returns whether it has them.
    pub(crate) fn enable_udp(&self, link: &mut impl Link) -> bool {
        self.segmentation.any() && link.enable_udp_segmentation()
    }

    /// Whether super-packets of this IP version may be sent.
    pub(crate) fn segments(&self, ipv6: bool) -> bool {
        if ipv6 { self.segmentation.tcpv6 } else { self.segmentation.tcpv4 }
    }

    /// The largest packet that the link takes from a stack, in bytes.
    pub(crate) fn largest_packet(&self) -> usize {
        if self.cuts() { self.max_packet_len.max(self.mtu) } else { self.mtu }
    }

    /// The largest TCP packet that a stack makes for the link, over IPv4 or IPv6, in bytes.
    pub(crate) fn largest_tcp_packet(&self) -> usize {
        let largest = |ipv6| header_len(ipv6) + usize::from(self.largest_payload(ipv6));
        largest(false).max(largest(true))
    }

    /// The MSS of this end of the link, in bytes. `headers` is the length of the IP and TCP headers.
    pub(crate) fn mss(&self, headers: usize) -> u16 {
        self.mtu.saturating_sub(headers).min(usize::from(u16::MAX)) as u16
    }

    /// The largest payload of a packet without options, in bytes: as many segments as fit, or one.
    pub(crate) fn largest_payload(&self, ipv6: bool) -> u16 {
        let headers = header_len(ipv6);
        let mss = self.mss(headers).max(1);
        let room = self.max_packet_len.saturating_sub(headers).min(usize::from(u16::MAX)) as u16;
        if self.segments(ipv6) { (room - room % mss).max(mss) } else { mss }
    }

    /// Prepares a packet of `len` bytes for the link; `headers` are its first bytes. Writes a partial checksum, if the
    /// link fills it in. Returns how to cut TCP above the MTU, or datagrams of `udp_segment` bytes.
    #[inline]
    pub(crate) fn prepare(&self, headers: &mut [u8], len: usize, udp_segment: Option<NonZeroU16>) -> PacketMeta {
        if !self.checksum {
            return PacketMeta::default();
        }
        let Some(layout) = TcpLayout::parse(headers) else {
            return if write_partial_udp_checksum(headers, len) {
                PacketMeta { checksum: Checksum::Partial, gso_size: udp_segment }
            } else {
                PacketMeta::default()
            };
        };
        write_partial_checksum(headers, &layout, len);
        let gso_size = NonZeroU16::new(self.mss(layout.payload_at)).filter(|_| len > self.mtu);
        PacketMeta { checksum: Checksum::Partial, gso_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::packet;

    #[test]
    fn a_packet_above_the_mtu_is_cut_to_it() {
        let offload = Offload::of(&Capabilities::offloading(1500));
        for (ipv6, options, expected) in [(false, 0, 1460), (true, 0, 1440), (false, 12, 1448)] {
            let mut packet = packet(ipv6, 0x10, &vec![1; options], 20_000);
            let len = packet.len();
            let meta = offload.prepare(&mut packet, len, None);
            assert_eq!(meta.gso_size.map(NonZeroU16::get), Some(expected));
            assert_eq!(meta.checksum, Checksum::Partial);
        }
        let mut packet = packet(false, 0x10, &[], 1460);
        assert_eq!(offload.prepare(&mut packet, 1500, None).gso_size, None);
    }

    #[test]
    fn a_super_packet_is_of_whole_segments() {
        for (mtu, ipv6, expected) in [
            (1500, false, 44 * 1460),
            (1500, true, 45 * 1440),
            (9000, false, 7 * 8960),
            (40_000, false, 39_960),
            (65_535, true, 65_475),
        ] {
            assert_eq!(Offload::of(&Capabilities::offloading(mtu)).largest_payload(ipv6), expected);
        }
        let mut capabilities = Capabilities::offloading(1500);
        capabilities.segmentation.tcpv6 = false;
        assert_eq!(Offload::of(&capabilities).largest_payload(true), 1440);
        capabilities.checksum.tx = false;
        assert_eq!(Offload::of(&capabilities).largest_payload(false), 1460, "no link fills in the checksums");
    }

    #[test]
    fn a_plain_link_and_other_packets_are_left_alone() {
        let plain = Offload::of(&Capabilities::plain(1500));
        let mut data = packet(false, 0x10, &[], 10);
        let before = data.clone();
        assert_eq!(plain.prepare(&mut data, 50, None), PacketMeta::default());
        assert_eq!(data, before);
        let mut icmp = packet(false, 0x10, &[], 10);
        icmp[9] = 1;
        assert_eq!(Offload::of(&Capabilities::offloading(1500)).prepare(&mut icmp, 50, None), PacketMeta::default());
    }

    #[test]
    fn a_datagram_has_its_checksum_left_to_the_link_and_is_cut_only_if_asked() {
        for (first, len) in [(0, 50), (0, 3_000), (0x20, 50)] {
            let mut packet = packet(false, 0, &[], 10);
            (packet[6], packet[9]) = (first, 17);
            let meta = Offload::of(&Capabilities::offloading(1500)).prepare(&mut packet, len, None);
            let checksum = if first == 0 { Checksum::Partial } else { Checksum::Filled };
            assert_eq!(meta, PacketMeta { checksum, gso_size: None }, "{len} bytes");
        }
    }
}
