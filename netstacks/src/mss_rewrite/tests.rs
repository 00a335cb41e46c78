use super::*;
use crate::fixture::{packet, with_extension_headers};

fn syn(ipv6: bool, mss: u16) -> Vec<u8> {
    let [a, b] = mss.to_be_bytes();
    packet(ipv6, SYN, &[1, 3, 3, 7, 2, 4, a, b], 0)
}

fn named(packet: &[u8]) -> u16 {
    TcpSegment::parse(packet).unwrap().options().find_map(|option| option.mss()).unwrap()
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
        assert_eq!(named(&packet), expected, "MTU {mtu}, IPv6 {ipv6}, a peer with {peer}");
    }
}

#[test]
fn our_own_mss_is_lowered_to_the_links() {
    for (ipv6, named_before, expected) in [(false, 65_495, 1460), (true, 65_475, 1440), (true, 1000, 1000)] {
        let mut packet = syn(ipv6, named_before);
        lower_mss(&offload(1500), &mut packet);
        assert_eq!(named(&packet), expected);
    }
}

#[test]
fn without_the_workaround_the_mss_is_left_alone() {
    for (workarounds, expected) in [(Workarounds::ALL, 44 * 1460), (Workarounds::NONE, 1460)] {
        let mut packet = syn(false, 1460);
        raise_mss(&super::offload(&Capabilities::offloading(1500), workarounds), &mut packet);
        assert_eq!(named(&packet), expected);
    }
}

/// The peer's later segments may have other headers than its SYN, so the MSS does not depend on these.
#[test]
fn the_mss_is_rewritten_behind_extension_headers() {
    let mut packet = with_extension_headers(&syn(true, 1440), true);
    raise_mss(&offload(1500), &mut packet);
    assert_eq!(named(&packet), 45 * 1440);
    lower_mss(&offload(1500), &mut packet);
    assert_eq!(named(&packet), 1440);
    let mut smaller = with_extension_headers(&syn(true, 1439), true);
    raise_mss(&offload(1500), &mut smaller);
    assert_eq!(named(&smaller), 1439, "segments of 1440 bytes would be too long for the peer");
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
