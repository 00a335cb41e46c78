//! Rewrites the MSS option, so that a stack without segmentation offload makes super-packets.
//!
//! The stack gets the MTU of a super-packet ([`Offload::largest_packet`]). This raises the MSS in the peer's SYN to the
//! largest whole number of segments, if the peer fills the link's MTU, and lowers the stack's own to the real one.

use platform::Capabilities;
use platform::packet::TcpSegment;
use platform::packet::flags::SYN;

use crate::offload::{Offload, header_len};
use crate::{Workaround, Workarounds};

/// The offload of a stack that makes super-packets by this rewrite.
pub(crate) fn offload(capabilities: &Capabilities, workarounds: Workarounds) -> Offload {
    Offload::of(capabilities).cutting_if(workarounds.has(Workaround::MssRewrite))
}

/// Raises the MSS in a SYN from the peer. Returns whether it did. The checksum is wrong then, and nobody verifies it.
#[inline]
pub(crate) fn raise_mss(offload: &Offload, packet: &mut [u8]) -> bool {
    let Some((ipv6, mss)) = offered_mss(offload, packet) else { return false };
    let raises = offload.segments(ipv6) && u16::from_be_bytes(*mss) >= offload.mss(header_len(ipv6));
    if raises {
        *mss = offload.largest_payload(ipv6).to_be_bytes();
    }
    raises
}

/// Lowers the MSS in a SYN of the stack to the link's. Call it before [`Offload::prepare`].
#[inline]
pub(crate) fn lower_mss(offload: &Offload, headers: &mut [u8]) {
    if let Some((ipv6, mss)) = offered_mss(offload, headers) {
        *mss = u16::from_be_bytes(*mss).min(offload.mss(header_len(ipv6))).to_be_bytes();
    }
}

/// The IP version of a SYN and the MSS that it names. `None` on a link that does not cut super-packets.
#[inline]
fn offered_mss<'a>(offload: &Offload, packet: &'a mut [u8]) -> Option<(bool, &'a mut [u8; 2])> {
    if !offload.segments(false) && !offload.segments(true) {
        return None;
    }
    let segment = TcpSegment::parse(packet)?;
    if segment.flags() & SYN == 0 {
        return None;
    }
    let layout = segment.layout;
    let at = layout.mss_at(packet)?;
    Some((layout.ipv6, packet.get_mut(at..)?.first_chunk_mut()?))
}

#[cfg(test)]
mod tests;
