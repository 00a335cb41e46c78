//! The Internet checksum (RFC 1071).

/// The one's complement sum of 16-bit words in network byte order, not complemented, up to 16 GiB. Words of the
/// machine's byte order only swap the two bytes of the sum (RFC 1071, 2).
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let whole: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    u16::from_be(fold(whole + u64::from(u32::from_ne_bytes(last))))
}

/// This sum in the crate `tun-rs`, for a bench. It has one on Linux only.
pub const fn of_tun_rs() -> Option<fn(&[u8]) -> u16> {
    #[cfg(target_os = "linux")]
    return Some(|bytes| tun_rs::checksum(bytes, 0));
    #[cfg(not(target_os = "linux"))]
    None
}

/// Updates a checksum after words with the sum `old` became words with the sum `new` (RFC 1624, equation 3).
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// The end-around carry of RFC 1071, 2.
#[inline]
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::reference;

    /// One's complement has two zeros. For bytes that are not all zero, both sums return 0xffff and not 0.
    #[test]
    fn the_fast_sum_is_the_slow_one_for_every_length_at_both_alignments() {
        let bytes = reference::bytes(3, 65_536 + 1);
        for start in [0, 1] {
            let bytes = &bytes[start..];
            // The slow sum of the whole words so far. A last odd byte is added separately.
            let mut words = 0;
            for len in 0..=65_535 {
                let odd = if len % 2 == 1 { u64::from(bytes[len - 1]) << 8 } else { 0 };
                assert_eq!(sum(&bytes[..len]), reference::carry(words + odd), "{len} bytes from {start}");
                if len % 2 == 1 {
                    words += u64::from(u16::from_be_bytes([bytes[len - 1], bytes[len]]));
                }
            }
            assert_eq!(reference::sum(&bytes[..65_535]), sum(&bytes[..65_535]));
        }
    }

    #[test]
    fn sums_at_the_edge_of_the_carry() {
        for byte in [0, 1, 0x7f, 0x80, 0xfe, 0xff] {
            for len in 0..200 {
                let bytes = vec![byte; len];
                assert_eq!(sum(&bytes), reference::sum(&bytes), "{len} of {byte:#x}");
            }
        }
        // The example of RFC 1071, 3.
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn the_sum_of_tun_rs_is_there_where_its_offload_is() {
        let bytes = reference::bytes(5, 1500);
        assert_eq!(of_tun_rs().map(|sum| sum(&bytes)), crate::offload_supported().then(|| sum(&bytes)));
    }
}
