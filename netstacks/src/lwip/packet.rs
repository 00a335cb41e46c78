//! The little that is read and written of packets outside lwIP.

const TCP: u8 = 6;
const FIN: u8 = 0x01;

/// Whether this is a TCP segment without data and FIN: one that lwIP has no reason to keep.
pub(super) fn is_bare_segment(packet: &[u8]) -> bool {
    let Some((header_len, payload_len)) = tcp_bounds(packet) else { return false };
    let Some(segment) = packet.get(header_len..) else { return false };
    match (segment.get(12), segment.get(13)) {
        (Some(offset), Some(flags)) => usize::from(offset >> 4) * 4 >= payload_len && flags & FIN == 0,
        _ => false,
    }
}

/// Lengths of the IP header and of what follows it, for a TCP packet without extension headers.
fn tcp_bounds(packet: &[u8]) -> Option<(usize, usize)> {
    match packet.first()? >> 4 {
        4 if *packet.get(9)? == TCP => {
            let header_len = usize::from(packet[0] & 0x0f) * 4;
            let total_len = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            Some((header_len, total_len.checked_sub(header_len)?))
        }
        6 if *packet.get(6)? == TCP => Some((40, usize::from(u16::from_be_bytes([packet[4], packet[5]])))),
        _ => None,
    }
}

/// Puts the sum of the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1) into the checksum field of a
/// TCP packet whose headers begin at `headers`. `false`: it is not TCP, and nothing was done.
pub(super) fn seed_checksum(headers: &mut [u8]) -> bool {
    let Some((header_len, payload_len)) = tcp_bounds(headers) else { return false };
    let addresses = if headers[0] >> 4 == 4 { 12..20 } else { 8..40 };
    let Some(addresses) = headers.get(addresses) else { return false };
    let words = addresses.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    // A length above 65,535 does not occur, so its upper half adds nothing.
    let mut sum = words.sum::<u32>() + u32::from(TCP) + payload_len as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match headers.get_mut(header_len + 16..header_len + 18) {
        Some(field) => {
            field.copy_from_slice(&(sum as u16).to_be_bytes());
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(flags: u8, payload: usize) -> Vec<u8> {
        let mut packet = vec![0; 40 + payload];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(40 + payload as u16).to_be_bytes());
        packet[9] = TCP;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[32] = 5 << 4;
        packet[33] = flags;
        packet
    }

    fn v6(payload: usize) -> Vec<u8> {
        let mut packet = vec![0; 60 + payload];
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(20 + payload as u16).to_be_bytes());
        packet[6] = TCP;
        packet[8..40].fill(0xfd);
        packet[52] = 5 << 4;
        packet
    }

    #[test]
    fn only_segments_that_nobody_keeps_are_bare() {
        assert!(is_bare_segment(&v4(0x10, 0)));
        assert!(!is_bare_segment(&v4(0x11, 0)), "a FIN may be kept out of order");
        assert!(!is_bare_segment(&v4(0x10, 1)));
        assert!(is_bare_segment(&v6(0)));
        assert!(!is_bare_segment(&v6(1)));
        for len in 0..40 {
            assert!(!is_bare_segment(&v4(0x10, 0)[..len.min(33)]), "cut short at {len}");
        }
    }

    #[test]
    fn the_seed_is_the_sum_of_the_pseudo_header() {
        let mut packet = v4(0x10, 100);
        assert!(seed_checksum(&mut packet));
        let expected = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 6 + 120;
        assert_eq!(u16::from_be_bytes([packet[36], packet[37]]), expected);
        let mut packet = v6(0);
        assert!(seed_checksum(&mut packet));
        let mut sum = 16 * 0xfdfd + 6 + 20u32;
        sum = (sum & 0xffff) + (sum >> 16);
        assert_eq!(u32::from(u16::from_be_bytes([packet[56], packet[57]])), sum);
        let mut udp = v4(0, 0);
        udp[9] = 17;
        assert!(!seed_checksum(&mut udp));
    }
}
