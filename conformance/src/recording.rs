//! The packets of a case.

use std::io::{self, Write};
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use platform::packet::{PacketText, addresses};

use crate::link;

/// The most bytes of a recording. No case sends as many.
const MOST: usize = 64 << 20;

/// Lengths of the header of a recording, and of the header of a packet in it (draft-ietf-opsawg-pcap).
const HEADER_LEN: usize = 24;
const PACKET_HEADER_LEN: usize = 16;

/// The packets of a case in memory, in pcap format. Clones share them, so they can be read also while a case hangs.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<Mutex<Vec<u8>>>);

impl Recording {
    /// The bytes of a pcap file; empty if the stack did not start.
    pub fn pcap(&self) -> Vec<u8> {
        self.lock().clone()
    }

    /// A line for each packet of the case: the milliseconds since the first, and the text of [`PacketText`].
    pub fn lines(&self) -> Vec<String> {
        let (mut begin, mut text) = (None, PacketText::default());
        let line = |(at, packet): (Duration, &[u8])| {
            let (source, destination) = addresses(packet)?;
            if !link::is_of_a_case(source) && !link::is_of_a_case(destination) {
                return None;
            }
            let ms = at.saturating_sub(*begin.get_or_insert(at)).as_secs_f64() * 1e3;
            Some(format!("{ms:>10.3} {}", text.line(packet)?))
        };
        packets(&self.lock()).filter_map(line).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.lock();
        if all.len() + bytes.len() > MOST {
            return Err(io::ErrorKind::StorageFull.into());
        }
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The packets of a pcap file, and their times.
fn packets(pcap: &[u8]) -> impl Iterator<Item = (Duration, &[u8])> {
    let mut left = pcap.get(HEADER_LEN..).unwrap_or_default();
    iter::from_fn(move || {
        let (header, rest) = left.split_first_chunk::<PACKET_HEADER_LEN>()?;
        let (fields, _) = header.as_chunks::<4>();
        let [seconds, nanos, len] = [0, 1, 2].map(|index| u32::from_le_bytes(fields[index]));
        let (packet, rest) = rest.split_at_checked(len as usize)?;
        left = rest;
        Some((Duration::from_secs(seconds.into()) + Duration::from_nanos(nanos.into()), packet))
    })
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use platform::packet::flags::{ACK, PSH, SYN};
    use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders};
    use platform::{Checksum, Link, MemoryLink, PacketMeta, Traced};

    use super::*;
    use crate::packets::{datagram, error, fragments, with_ip_bytes};

    fn segment(from: &str, to: &str, fields: TcpFields, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut headers = [0; MAX_HEADERS_LEN];
        let template = TcpHeaders::new(from.parse().unwrap(), to.parse().unwrap()).unwrap();
        let len = template.write(fields, options, payload, Checksum::Filled, &mut headers);
        [&headers[..len], payload].concat()
    }

    /// The lines of these packets without their times.
    fn text(packets: &[Vec<u8>]) -> String {
        let recording = Recording::default();
        let (link, _peer) = MemoryLink::pair(9000, packets.len());
        let mut link = Traced::new(link, recording.clone());
        for packet in packets {
            link.try_send(PacketMeta::default(), &[IoSlice::new(packet)]).unwrap();
        }
        recording.lines().iter().map(|line| line[11..].to_owned() + "\n").collect()
    }

    #[test]
    fn numbers_count_from_the_first_of_each_side() {
        let (client, stack) = ("10.1.0.2:40000", "10.2.0.2:5201");
        let fields = |sequence, acknowledgement, flags| TcpFields { sequence, acknowledgement, flags, window: 1000 };
        let blocks = [1, 1, 5, 10, 0, 0, 0x11, 0, 0, 0, 0x12, 0];
        let mut damaged = segment(client, stack, fields(0xffff_fff1, 0x1001, ACK | PSH), &[], b"damaged");
        damaged[45] ^= 1;
        let text = text(&[
            segment(client, stack, fields(0xffff_fff0, 0, SYN), &[2, 4, 5, 0xb4, 3, 3, 7, 1, 4, 2, 253, 2], b""),
            segment(stack, client, fields(0x1000, 0xffff_fff1, SYN | ACK), &[], b""),
            segment(client, stack, fields(0xffff_fff1, 0x1001, ACK | PSH), &[], &[0; 100]),
            segment(client, stack, fields(0x55, 0x1001, ACK), &blocks, b""),
            segment(client, stack, fields(0xffff_ffe0, 0, 0), &[], b""),
            damaged,
        ]);
        let expected = "\
IP 10.1.0.2.40000 > 10.2.0.2.5201: Flags [S], seq 0, win 1000, options [mss 1460,wscale 7,sackOK,unknown-253 of 0 bytes], length 0
IP 10.2.0.2.5201 > 10.1.0.2.40000: Flags [S.], seq 0, ack 1, win 1000, length 0
IP 10.1.0.2.40000 > 10.2.0.2.5201: Flags [P.], seq 1:101, ack 1, win 1000, length 100
IP 10.1.0.2.40000 > 10.2.0.2.5201: Flags [.], seq 101, ack 1, win 1000, options [sack 1 {256:512}], length 0
IP 10.1.0.2.40000 > 10.2.0.2.5201: Flags [none], seq -16, win 1000, length 0
IP 10.1.0.2.40000 > 10.2.0.2.5201: Flags [P.], seq 1:8, ack 1, win 1000, length 7, bad checksum
";
        assert_eq!(text, expected);
    }

    #[test]
    fn packets_without_tcp_are_described() {
        let large = datagram("10.1.0.2:7".parse().unwrap(), "10.2.0.2:9".parse().unwrap(), &[0; 20]);
        let large_v6 = datagram("[fd10:0:1::2]:7".parse().unwrap(), "[fd10:0:2::2]:9".parse().unwrap(), &[0; 20]);
        let foreign = datagram("192.0.2.1:7".parse().unwrap(), "192.0.2.2:9".parse().unwrap(), b"");
        let mut all = vec![large.clone(), large_v6.clone(), foreign];
        all.extend(fragments(&large, 16));
        all.extend(fragments(&large_v6, 16));
        all.push(error(3, 4, 600, &large));
        all.push(error(2, 0, 1280, &large_v6));
        all.push(error(3, 1, 0, &large));
        all.push(with_ip_bytes(large, 9, &[99]));
        let expected = "\
IP 10.1.0.2.7 > 10.2.0.2.9: UDP, length 20
IP6 fd10:0:1::2.7 > fd10:0:2::2.9: UDP, length 20
IP 10.1.0.2 > 10.2.0.2: fragment 0x4711 at 0, more follow, length 36
IP 10.1.0.2 > 10.2.0.2: fragment 0x4711 at 16, length 32
IP6 fd10:0:1::2 > fd10:0:2::2: fragment 0x8154711 at 0, more follow, length 64
IP6 fd10:0:1::2 > fd10:0:2::2: fragment 0x8154711 at 16, length 60
IP 10.2.0.2 > 10.1.0.2: ICMP too big, mtu 600, length 36
IP6 fd10:0:2::2 > fd10:0:1::2: ICMP too big, mtu 1280, length 76
IP 10.2.0.2 > 10.1.0.2: ICMP type 3, code 1, length 36
IP 10.1.0.2 > 10.2.0.2: protocol 99, length 28
";
        assert_eq!(text(&all), expected);
        assert_eq!(packets(&[0; 39]).count(), 0, "a file that is cut");
    }
}
