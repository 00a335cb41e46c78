//! The number of packets and bytes that a forwarder has carried.

use serde::{Deserialize, Serialize};

/// The traffic from one device to the other so far. A super-packet counts as one packet, except with
/// [`Io::Framed`](crate::Io::Framed) and the forwarder in Go, which see only its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Packets that were read.
    pub read_packets: u64,
    /// Bytes of these packets, with IP headers, without `virtio_net_hdr`.
    pub read_bytes: u64,
    /// Packets that were written.
    pub written_packets: u64,
    /// Bytes of these packets.
    pub written_bytes: u64,
    /// Packets that were read and then lost: the kernel did not take them, or they were malformed.
    pub lost_packets: u64,
    /// TCP packets with payload that were written after a later packet of their flow. Retransmitted segments are among
    /// them. `None` if the forwarder does not count them.
    pub reordered: Option<u64>,
}

/// The traffic in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// From the near device to the far one.
    pub to_far: Carried,
    /// From the far device to the near one.
    pub to_near: Carried,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_without_a_number_of_reordered_packets_are_read() {
        let text = r#"{"read_packets":1,"read_bytes":2,"written_packets":3,"written_bytes":4,"lost_packets":5,"reordered":null}"#;
        let carried: Carried = serde_json::from_str(text).unwrap();
        let expected = Carried {
            read_packets: 1,
            read_bytes: 2,
            written_packets: 3,
            written_bytes: 4,
            lost_packets: 5,
            reordered: None,
        };
        assert_eq!(carried, expected);
    }
}
