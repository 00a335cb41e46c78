use super::*;
use crate::fixture::ends;

#[test]
fn waiting_datagrams_are_bounded_and_in_order() {
    let (local, peer) = ends(false);
    let payload = |index: usize| (index as u64).to_be_bytes();
    let mut inbox = Inbox::new();
    for index in 0..2 * MAX_WAITING_DATAGRAMS {
        inbox.push(local, peer, &payload(index)[..index % 9], None);
    }
    let mut buffer = [0; 5];
    for index in 0..MAX_WAITING_DATAGRAMS {
        let datagram = inbox.pop(&mut buffer).unwrap();
        assert_eq!(datagram, Datagram { len: (index % 9).min(5), local, peer });
        assert_eq!(buffer[..datagram.len], payload(index)[..datagram.len]);
    }
    assert!(inbox.pop(&mut buffer).is_none() && inbox.payloads.is_empty());
    for _ in 0..200 {
        inbox.push(local, peer, &vec![7; 60_000], None);
    }
    assert_eq!(inbox.waiting.len(), MAX_WAITING_BYTES / 60_000);
    inbox.close();
    inbox.push(local, peer, b"", None);
    assert!(inbox.is_empty() && inbox.payloads.capacity() == 0);
}

#[test]
fn the_datagrams_of_a_super_packet_are_received_one_by_one_or_together() {
    let (local, peer) = ends(false);
    let mut inbox = Inbox::new();
    for payloads in [&b"aabbc"[..], b"ddeeff", b""] {
        inbox.push(local, peer, payloads, NonZeroU16::new(2));
    }
    let mut buffer = [0; 9];
    for payload in [&b"aa"[..], b"bb", b"c", b"dd"] {
        let datagram = inbox.pop(&mut buffer).unwrap();
        assert_eq!((&buffer[..datagram.len], datagram.peer), (payload, peer));
    }
    let rest = inbox.pop_batch(&mut buffer).unwrap();
    assert_eq!(rest, DatagramBatch { len: 4, segment_len: 2, local, peer });
    assert_eq!(rest.payloads(&buffer).collect::<Vec<_>>(), [b"ee", b"ff"]);
    let empty = inbox.pop_batch(&mut buffer).unwrap();
    assert_eq!(empty.payloads(&buffer).collect::<Vec<_>>(), [b""]);
    assert!(inbox.is_empty() && inbox.payloads.is_empty());
}

#[test]
fn an_invalid_datagram_is_refused_with_a_reason() {
    let (v4, v6) = (ends(false), ends(true));
    let refused = |local, peer, len| {
        let error = check(local, peer, len, MAX_PAYLOAD_V4, 1500).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    };
    refused(v4.0, v6.1, 1);
    refused(v4.0, "10.0.0.1:0".parse().unwrap(), 1);
    refused("0.0.0.0:9".parse().unwrap(), v4.1, 1);
    refused(v4.0, "255.255.255.255:9".parse().unwrap(), 1);
    refused(v4.0, v4.1, 65_508);
    refused(v6.0, v6.1, 1453);
    check(v4.0, v4.1, 65_507, MAX_PAYLOAD_V4, 1500).unwrap();
    check(v6.0, v6.1, 1452, MAX_PAYLOAD_V4, 1500).unwrap();
}
