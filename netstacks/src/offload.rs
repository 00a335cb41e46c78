//! What a stack leaves to a link that offloads, and the shim by which a stack without a hook for it
//! makes super-packets all the same.
//!
//! A stack that knows nothing of segmentation offload sends segments of the MSS that its peer names,
//! or of its own MTU. So it is told an MTU as large as a super-packet, and the peer's MSS is raised
//! on the way in, in its SYN, to as many whole segments as fit. Its own MSS is put right on the way
//! out, in its SYN-ACK. What it then takes for one segment is a super-packet for the link.
//!
//! None of that needs a memory of the connections: the MSS is raised only where the peer takes
//! segments that fill the link's MTU. Towards any other peer a stack sends the segments that the
//! peer takes, one by one.

use std::num::NonZeroU16;

use platform::vnet::{self, TcpLayout};
use platform::{Capabilities, Checksum, PacketMeta, SegmentationOffload};

const SYN: u8 = 0x02;
/// The kind of the maximum segment size option and its length (RFC 9293, 3.2).
const MSS_OPTION: [u8; 2] = [2, 4];
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const TCP_HEADER_LEN: usize = 20;

/// What a stack has to know of its link to leave work to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offload {
    mtu: usize,
    max_packet_len: usize,
    checksum: bool,
    segmentation: SegmentationOffload,
}

impl Offload {
    pub(crate) fn of(capabilities: &Capabilities) -> Self {
        let checksum = capabilities.checksum.tx;
        // A segment cut off a super-packet needs a checksum; and a SYN that was changed on its way
        // in has a wrong one.
        let whole = checksum && capabilities.checksum.rx;
        Self {
            mtu: capabilities.mtu,
            max_packet_len: capabilities.max_packet_len.min(usize::from(u16::MAX)),
            checksum,
            segmentation: if whole { capabilities.segmentation } else { SegmentationOffload::default() },
        }
    }

    /// Whether super-packets of this IP version may be sent.
    pub(crate) fn segments(&self, ipv6: bool) -> bool {
        if ipv6 { self.segmentation.tcpv6 } else { self.segmentation.tcpv4 }
    }

    /// The MSS of this end of the link, in bytes, of segments with headers of so many bytes.
    pub(crate) fn mss(&self, headers: usize) -> u16 {
        self.mtu.saturating_sub(headers).min(usize::from(u16::MAX)) as u16
    }

    /// The payload of the largest super-packet with headers of so many bytes, in bytes: as many
    /// whole segments as fit, and at least one.
    pub(crate) fn largest_payload(&self, headers: usize) -> u16 {
        let mss = usize::from(self.mss(headers).max(1));
        let room = self.max_packet_len.saturating_sub(headers);
        (room - room % mss).max(mss) as u16
    }

    /// For a stack without a hook: the MTU that it is to be told.
    pub(crate) fn stack_mtu(&self) -> usize {
        let whole = self.segmentation != SegmentationOffload::default();
        if whole { self.max_packet_len.max(self.mtu) } else { self.mtu }
    }

    /// For a stack without a hook: raises the MSS in a SYN of the peer's, where the peer takes
    /// segments that fill the MTU. To be called for every packet that arrives; touches no other.
    #[inline]
    pub(crate) fn raise_mss(&self, packet: &mut [u8]) {
        let Some(layout) = self.offers_mss(packet) else { return };
        let headers = layout.tcp_at + TCP_HEADER_LEN;
        let (own, largest) = (self.mss(headers), self.largest_payload(headers));
        if let Some(mss) = mss_option(packet, &layout)
            && u16::from_be_bytes(*mss) >= own
        {
            *mss = largest.to_be_bytes();
        }
    }

    /// Makes a TCP packet of `len` bytes in all, whose headers these are, one that the link finishes:
    /// with the sum of its pseudo-header alone, and, where it is larger than the MTU, to be cut into
    /// segments that fill it. In a SYN the MSS becomes what the link's MTU lets be.
    ///
    /// On a link that offloads nothing, and for a packet that is not TCP, nothing happens.
    #[inline]
    pub(crate) fn prepare(&self, headers: &mut [u8], len: usize) -> PacketMeta {
        if !self.checksum {
            return PacketMeta::default();
        }
        let Some(layout) = TcpLayout::parse(headers) else { return PacketMeta::default() };
        if let Some(layout) = self.offers_mss(headers) {
            let own = self.mss(layout.tcp_at + TCP_HEADER_LEN);
            if let Some(mss) = mss_option(headers, &layout) {
                *mss = u16::from_be_bytes(*mss).min(own).to_be_bytes();
            }
        }
        vnet::leave_checksum(headers, &layout, len);
        let gso_size = NonZeroU16::new(self.mss(layout.payload_at)).filter(|_| len > self.mtu);
        PacketMeta { checksum: Checksum::Partial, gso_size }
    }

    /// The layout of a segment that may name an MSS, on a link that takes super-packets of it.
    #[inline]
    fn offers_mss(&self, packet: &[u8]) -> Option<TcpLayout> {
        if self.segmentation == SegmentationOffload::default() {
            return None;
        }
        let layout = TcpLayout::parse(packet)?;
        let syn = packet.get(layout.tcp_at + 13)? & SYN != 0;
        (syn && self.segments(layout.ipv6)).then_some(layout)
    }
}

/// Where a SYN names its maximum segment size.
fn mss_option<'a>(packet: &'a mut [u8], layout: &TcpLayout) -> Option<&'a mut [u8; 2]> {
    let mut options = packet.get_mut(layout.tcp_at + TCP_HEADER_LEN..layout.payload_at)?;
    loop {
        match *options.first()? {
            END_OF_OPTIONS => return None,
            NO_OPERATION => options = options.get_mut(1..)?,
            _ if options.get(..2)? == MSS_OPTION => return options.get_mut(2..4)?.try_into().ok(),
            _ => {
                let len = usize::from(*options.get(1)?).max(2);
                options = options.get_mut(len..)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    /// A TCP packet with these options.
    fn packet(ipv6: bool, flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
        let tcp_at = if ipv6 { 40 } else { 20 };
        let len = tcp_at + TCP_HEADER_LEN + options.len() + payload;
        let mut packet = vec![0; len];
        if ipv6 {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
            packet[6] = 6;
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            packet[9] = 6;
        }
        packet[tcp_at + 12] = ((TCP_HEADER_LEN + options.len()) as u8 / 4) << 4;
        packet[tcp_at + 13] = flags;
        packet[tcp_at + TCP_HEADER_LEN..][..options.len()].copy_from_slice(options);
        packet
    }

    fn syn(ipv6: bool, mss: u16) -> Vec<u8> {
        let [a, b] = mss.to_be_bytes();
        packet(ipv6, SYN, &[1, 3, 3, 7, 2, 4, a, b], 0)
    }

    fn named(packet: &mut [u8]) -> u16 {
        let layout = TcpLayout::parse(packet).unwrap();
        u16::from_be_bytes(*mss_option(packet, &layout).unwrap())
    }

    fn offload(mtu: usize) -> Offload {
        Offload::of(&Capabilities::offloading(mtu))
    }

    #[test]
    fn the_mss_of_a_peer_that_fills_the_mtu_is_raised_to_whole_segments() {
        for (mtu, ipv6, peer, expected) in [
            (1500, false, 1460, 44 * 1460),
            (1500, true, 1440, 45 * 1440),
            (1500, false, 65_495, 44 * 1460),
            (1500, false, 1459, 1459),
            (9000, false, 8960, 7 * 8960),
            (65_535, false, 65_495, 65_495),
            (40_000, false, 39_960, 39_960),
        ] {
            let mut packet = syn(ipv6, peer);
            offload(mtu).raise_mss(&mut packet);
            assert_eq!(named(&mut packet), expected, "MTU {mtu}, IPv6 {ipv6}, a peer with {peer}");
        }
    }

    #[test]
    fn our_own_mss_is_lowered_to_the_links() {
        let mut packet = syn(false, 65_495);
        let len = packet.len();
        let meta = offload(1500).prepare(&mut packet, len);
        assert_eq!((named(&mut packet), meta.gso_size), (1460, None));
        assert_eq!(meta.checksum, Checksum::Partial);
        let mut packet = syn(true, 1000);
        offload(1500).prepare(&mut packet, len);
        assert_eq!(named(&mut packet), 1000, "a lower one stays");
    }

    #[test]
    fn a_packet_above_the_mtu_is_cut_to_it() {
        for (ipv6, options, expected) in [(false, 0, 1460), (true, 0, 1440), (false, 12, 1448)] {
            let mut packet = packet(ipv6, 0x10, &vec![1; options], 20_000);
            let len = packet.len();
            let meta = offload(1500).prepare(&mut packet, len);
            assert_eq!(meta.gso_size.map(NonZeroU16::get), Some(expected));
        }
        let mut packet = packet(false, 0x10, &[], 1460);
        assert_eq!(offload(1500).prepare(&mut packet, 1500).gso_size, None);
    }

    #[test]
    fn a_plain_link_and_other_packets_are_left_alone() {
        let plain = Offload::of(&Capabilities::plain(1500));
        let mut changed = syn(false, 1460);
        plain.raise_mss(&mut changed);
        assert_eq!(plain.prepare(&mut changed, 48), PacketMeta::default());
        assert_eq!(changed, syn(false, 1460));
        assert_eq!(plain.stack_mtu(), 1500);
        let mut data = packet(false, 0x10, &[2, 4, 5, 0xb4], 10);
        let before = data.clone();
        offload(1500).raise_mss(&mut data);
        assert_eq!(data, before, "only a SYN has an MSS");
        let mut udp = syn(false, 1460);
        udp[9] = 17;
        assert_eq!(offload(1500).prepare(&mut udp, 48), PacketMeta::default());
    }

    #[test]
    fn options_that_run_out_of_the_header_are_no_mss() {
        for options in
            [&[2, 4, 5][..], &[3, 0, 0, 0], &[3, 200, 2, 4], &[2, 3, 5, 6], &[0, 2, 4, 5], &[1, 1, 1, 2], &[]]
        {
            let mut options = options.to_vec();
            options.resize(options.len().next_multiple_of(4), 0);
            let mut packet = packet(false, SYN, &options, 0);
            let layout = TcpLayout::parse(&packet).unwrap();
            let found = mss_option(&mut packet, &layout).copied();
            // The first is filled up to a whole option of value 0x0500.
            assert_eq!(found.is_some(), options == [2, 4, 5, 0], "{options:?}");
            for len in 0..packet.len() {
                offload(1500).raise_mss(&mut packet[..len]);
            }
        }
    }
}
