//! The bytes of a fuzzer as choices and packets.

/// Bytes that begin with a printable character are text as it is. Others are choices.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok().filter(|text| text.starts_with(|first: char| first.is_ascii_graphic()))
}

/// Bytes that are taken from the front; when they run out, zeros come.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// At most so many.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        front
    }

    /// A packet: raw, or with as much set right as a bit of the first byte says, so that not every
    /// one fails at the first check.
    pub(crate) fn packet(&mut self) -> Vec<u8> {
        let shape = self.byte();
        let len = usize::from(self.word() % 512);
        let mut packet = self.take(len).to_vec();
        if shape & 1 != 0 {
            return packet;
        }
        let ipv6 = shape & 2 != 0;
        let tcp_at = if ipv6 { 40 } else { 20 };
        let longer = if shape & 0x20 == 0 { 0 } else { usize::from(self.word()) };
        packet.resize((packet.len() + longer).clamp(tcp_at + 20, 65_535), 0xa5);
        packet[0] = if ipv6 { 0x60 } else { 0x45 };
        if shape & 4 == 0 {
            packet[tcp_at + 12] &= 0x7f;
            packet[tcp_at + 12] |= 0x50;
        }
        packet[if ipv6 { 6 } else { 9 }] = if shape & 8 == 0 { 6 } else { 17 };
        if !ipv6 && shape & 0x10 == 0 {
            packet[6..8].fill(0);
        }
        if ipv6 && shape & 0x40 != 0 {
            extend(&mut packet, self.byte());
        }
        set_len(&mut packet);
        packet
    }
}

/// Puts an extension header into an IPv6 packet: options, routing or a fragment.
fn extend(packet: &mut Vec<u8>, choice: u8) {
    let mut extension = vec![packet[6], choice >> 6, 0, (choice >> 3) & 1, 0, 0, 0, 0];
    extension.resize(8 + usize::from(choice >> 6) * 8, 0);
    packet[6] = [0, 43, 44, 60][usize::from(choice & 3)];
    packet.truncate(65_535 - extension.len());
    packet.splice(40..40, extension);
}

/// Has the IP header say the length that the packet has.
pub(crate) fn set_len(packet: &mut [u8]) {
    let len = packet.len() as u16;
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => packet[2..4].copy_from_slice(&len.to_be_bytes()),
        Some(6) if packet.len() >= 40 => packet[4..6].copy_from_slice(&(len - 40).to_be_bytes()),
        _ => {}
    }
}

/// Completes the checksum of an IPv4 header without options.
pub(crate) fn set_header_checksum(packet: &mut [u8]) {
    if packet.first() != Some(&0x45) || packet.len() < 20 {
        return;
    }
    packet[10..12].fill(0);
    let mut sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
}
