//! The shim by which a stack without a hook for segmentation offload makes super-packets all the same.
//!
//! Such a stack sends segments of the MSS that its peer names, or of its own MTU. So it is told an MTU
//! as large as a super-packet ([`Offload::largest_packet`]), the peer's MSS is raised on the way in, in
//! its SYN, to as many whole segments as fit, and its own MSS is put right on the way out, in its
//! SYN-ACK. What it then takes for one segment is a super-packet for the link.
//!
//! The MSS is raised only where the peer takes segments that fill the link's MTU.

use platform::vnet::TcpLayout;

use crate::offload::Offload;

const SYN: u8 = 0x02;
/// The kind of the maximum segment size option and its length (RFC 9293, 3.2).
const MSS_OPTION: [u8; 2] = [2, 4];
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const TCP_HEADER_LEN: usize = 20;

/// Raises the MSS in a SYN of the peer's. To be called for every packet that arrives; touches no other.
///
/// Its checksum is not mended: on a link that segments, the peer is the kernel of this host, and
/// nobody checks what comes from there ([`platform::ChecksumOffload::rx`]).
#[inline]
pub(crate) fn raise_mss(offload: &Offload, packet: &mut [u8]) {
    if let Some((layout, own, mss)) = offered_mss(offload, packet)
        && offload.segments(layout.ipv6)
        && u16::from_be_bytes(*mss) >= own
    {
        *mss = offload.largest_payload(layout.ipv6).to_be_bytes();
    }
}

/// Lowers the MSS in a SYN to what the link's MTU lets be, for a stack that was told a larger one. To be
/// called for every packet that leaves, before its checksum is left to the link, and for those that
/// arrive where the MSS is not raised: a stack with a hook would cut by what the peer names. Touches no
/// packet but a SYN.
#[inline]
pub(crate) fn lower_mss(offload: &Offload, headers: &mut [u8]) {
    if let Some((_, own, mss)) = offered_mss(offload, headers) {
        *mss = u16::from_be_bytes(*mss).min(own).to_be_bytes();
    }
}

/// In a SYN, on a link that segments: the layout, this end's own MSS, and the one that it names.
#[inline]
fn offered_mss<'a>(offload: &Offload, packet: &'a mut [u8]) -> Option<(TcpLayout, u16, &'a mut [u8; 2])> {
    if !offload.segments(false) && !offload.segments(true) {
        return None;
    }
    let layout = TcpLayout::parse(packet)?;
    let syn = packet.get(layout.tcp_at + 13)? & SYN != 0;
    if !syn {
        return None;
    }
    let mss = mss_option(packet, &layout)?;
    Some((layout, offload.mss(layout.tcp_at + TCP_HEADER_LEN), mss))
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
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use platform::Capabilities;

    use super::*;

    /// A TCP packet with these options.
    pub(crate) fn packet(ipv6: bool, flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
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
            raise_mss(&offload(mtu), &mut packet);
            assert_eq!(named(&mut packet), expected, "MTU {mtu}, IPv6 {ipv6}, a peer with {peer}");
        }
    }

    #[test]
    fn our_own_mss_is_lowered_to_the_links() {
        for (ipv6, named_before, expected) in [(false, 65_495, 1460), (true, 65_475, 1440), (true, 1000, 1000)] {
            let mut packet = syn(ipv6, named_before);
            lower_mss(&offload(1500), &mut packet);
            assert_eq!(named(&mut packet), expected);
        }
    }

    #[test]
    fn a_plain_link_and_other_packets_are_left_alone() {
        let mut changed = syn(false, 1460);
        raise_mss(&Offload::of(&Capabilities::plain(1500)), &mut changed);
        lower_mss(&Offload::of(&Capabilities::plain(1000)), &mut changed);
        assert_eq!(changed, syn(false, 1460));
        let mut data = packet(false, 0x10, &[2, 4, 5, 0xb4], 10);
        let before = data.clone();
        raise_mss(&offload(1500), &mut data);
        assert_eq!(data, before, "only a SYN has an MSS");
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
                raise_mss(&offload(1500), &mut packet[..len]);
            }
        }
    }
}
