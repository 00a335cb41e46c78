//! Handshakes and ends of connections, as the gate sees them.

use std::pin::pin;

use platform::packet::TcpFields;

use super::*;
use crate::fixture;

/// A segment of the client with a valid checksum.
fn from_client(flags: u8, sequence: u32, acknowledgement: u32) -> Vec<u8> {
    segment(key(false, 4000).peer, key(false, 4000).local, flags, sequence, acknowledgement)
}

fn segment(from: SocketAddr, to: SocketAddr, flags: u8, sequence: u32, acknowledgement: u32) -> Vec<u8> {
    fixture::segment(from, to, TcpFields { sequence, acknowledgement, flags, window: 5000 }, &[], &[])
}

impl Bench {
    /// Sends a segment of the stack.
    fn stack_sends(&mut self, flags: u8, sequence: u32, acknowledgement: u32) {
        let FlowKey { local, peer } = key(false, 4000);
        let packet = segment(local, peer, flags, sequence, acknowledgement);
        self.gated.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
    }

    /// Sends segments of the client. Returns how many of them the stack gets.
    fn client_sends(&mut self, packets: &[(u8, u32, u32)]) -> usize {
        for (flags, sequence, acknowledgement) in packets {
            self.send(&from_client(*flags, *sequence, *acknowledgement));
        }
        self.delivered().len()
    }

    /// A connection whose SYN has the number 1000, and whose SYN-ACK the number 7000.
    fn answered_syn(&mut self) -> Admission {
        assert_eq!(self.client_sends(&[(SYN, 1000, 0)]), 0);
        let admission = self.request().unwrap().admit();
        assert_eq!(self.delivered().len(), 1);
        self.stack_sends(SYN | ACK, 7000, 1001);
        admission
    }

    fn opened(&mut self) -> Admission {
        let mut admission = self.answered_syn();
        assert_eq!(self.client_sends(&[(ACK, 1001, 7001)]), 1);
        assert!(now(admission.opened()).unwrap());
        admission
    }
}

/// The result of a future that is ready.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Some stacks would take them for a SYN, and no request would be made.
#[test]
fn a_syn_with_other_flags_is_dropped() {
    for more in [FIN, RST, ACK] {
        let mut bench = Bench::new(8);
        assert_eq!(bench.client_sends(&[(SYN | more, 1000, 0)]), 0);
        assert!(bench.request().is_none() && bench.peer.try_recv(&mut bench.buffers).is_err());
    }
}

#[tokio::test]
async fn a_client_that_begins_anew_in_its_handshake_makes_another_request() {
    let mut bench = Bench::new(8);
    let mut first = bench.answered_syn();
    assert_eq!(bench.client_sends(&[(SYN, 1000, 0)]), 1, "the same SYN again is for the stack");
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 0);
    assert_eq!(now(first.opened()), Some(false));
    let mut second = bench.request().unwrap().admit();
    drop(first);
    assert_eq!(bench.delivered().len(), 1);
    bench.stack_sends(SYN | ACK, 9000, 5001);
    assert_eq!(bench.client_sends(&[(ACK, 5001, 9001)]), 1);
    assert_eq!(now(second.opened()), Some(true));
}

#[tokio::test]
async fn a_reset_before_the_decision_ends_the_request() {
    for (sequence, ends) in [(1000, true), (1001, true), (999, false), (1002, false)] {
        let mut bench = Bench::new(8);
        bench.client_sends(&[(SYN, 1000, 0), (RST, sequence, 0)]);
        let mut request = bench.request().unwrap();
        assert_eq!(now(request.abandoned()).is_some(), ends, "{sequence}");
        let _admission = request.admit();
        assert_eq!(bench.delivered().len(), usize::from(!ends), "a SYN of a client that has given up is not delivered");
    }
}

#[tokio::test]
async fn only_an_exact_reset_ends_a_handshake() {
    for (sequence, ends) in [(1001, true), (1000, false), (1002, false)] {
        let mut bench = Bench::new(8);
        let mut admission = bench.answered_syn();
        assert_eq!(bench.client_sends(&[(RST, sequence, 0)]), 1, "the stack gets it, too");
        assert_eq!(now(admission.opened()), ends.then_some(false), "{sequence}");
    }
}

#[tokio::test]
async fn a_reset_and_a_syn_in_one_batch_make_a_request_and_keep_their_order() {
    let mut bench = Bench::new(8);
    let first = bench.opened();
    assert!(!first.is_reset());
    bench.send(&from_client(RST, 1007, 0));
    bench.send(&from_client(SYN, 5000, 0));
    assert_eq!(bench.delivered(), [from_client(RST, 1007, 0)]);
    assert!(first.is_reset());
    let second = bench.request().unwrap().admit();
    assert_eq!(bench.delivered(), [from_client(SYN, 5000, 0)]);
    drop(first);
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 1, "the end of the first leaves the second");
    drop(second);
}

#[tokio::test]
async fn a_syn_on_a_live_connection_passes_and_its_challenge_frees_the_addresses() {
    let mut bench = Bench::new(8);
    let _admission = bench.opened();
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 1);
    assert!(bench.request().is_none());
    // The stack's challenge ACK is not for this client, so it resets.
    bench.stack_sends(ACK, 7001, 1001);
    assert_eq!(bench.client_sends(&[(RST, 1001, 0), (SYN, 5000, 0)]), 1);
    assert!(bench.request().is_some());
}

#[tokio::test]
async fn fins_of_both_sides_or_a_reset_of_the_stack_free_the_addresses() {
    let mut bench = Bench::new(8);
    let _admission = bench.opened();
    bench.client_sends(&[(FIN | ACK, 1001, 7001)]);
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 1, "half-closed");
    bench.stack_sends(FIN | ACK, 7001, 1002);
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 0);
    assert!(bench.request().is_some());
    let mut bench = Bench::new(8);
    let _admission = bench.opened();
    bench.stack_sends(RST, 7001, 0);
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 0);
    assert!(bench.request().is_some());
}

/// A stack without a call for a RST closes instead.
#[tokio::test]
async fn a_client_that_ends_after_a_rst_has_not_sent_it() {
    let mut bench = Bench::new(8);
    let admission = bench.opened();
    for (flags, is_reset) in [(RST, true), (ACK, true), (FIN | ACK, false)] {
        assert_eq!(bench.client_sends(&[(flags, 9999, 7051)]), 1, "the stack decides");
        assert_eq!(admission.is_reset(), is_reset);
    }
}

#[tokio::test]
async fn after_a_reset_by_the_proxy_the_fin_of_the_stack_is_a_rst_for_both() {
    let rst = |packet: &[u8]| {
        let segment = TcpSegment::parse(packet).unwrap();
        assert!(is_checksum_right(packet) && segment.flags() == RST);
        (segment.destination_port(), segment.sequence())
    };
    for was_closed in [false, true] {
        let mut bench = Bench::new(8);
        let admission = bench.opened();
        if was_closed {
            bench.stack_sends(FIN | ACK, 7051, 1001);
        }
        while bench.peer.try_recv(&mut bench.buffers).is_ok() {}
        admission.reset();
        assert_eq!(bench.client_sends(&[(ACK, 1051, 7051)]), 1);
        bench.stack_sends(FIN | ACK, 7051, 1051);
        let to_stack = bench.delivered();
        assert_eq!(
            to_stack.iter().map(|packet| rst(packet)).collect::<Vec<_>>(),
            [(80, 1051)][usize::from(was_closed)..]
        );
        bench.peer.try_recv(&mut bench.buffers[..1]).unwrap();
        assert_eq!(rst(bench.buffers[0].packet()), (4000, 7051 + u32::from(was_closed)));
        assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 0);
        assert!(bench.request().is_some(), "the addresses are free");
    }
}

#[tokio::test]
async fn a_syn_with_another_number_takes_the_place_of_the_one_that_waits() {
    let mut bench = Bench::new(8);
    assert_eq!(bench.client_sends(&[(SYN, 1000, 0), (SYN, 5000, 0)]), 0);
    let request = bench.request().unwrap();
    assert!(bench.request().is_none());
    let _admission = request.admit();
    assert_eq!(bench.delivered(), [from_client(SYN, 5000, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_silent_for_too_long_has_given_up() {
    let mut bench = Bench::new(8);
    let start = Instant::now();
    bench.client_sends(&[(SYN, 1000, 0)]);
    let mut request = bench.request().unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(3), request.abandoned()).await.is_err());
    bench.client_sends(&[(SYN, 1000, 0)]);
    request.abandoned().await;
    // The next one was due six seconds later.
    assert_eq!(start.elapsed().as_secs(), 13);
}

#[tokio::test(start_paused = true)]
async fn a_syn_without_an_answer_of_the_stack_fails_after_a_second() {
    let mut bench = Bench::new(8);
    let start = Instant::now();
    bench.client_sends(&[(SYN, 1000, 0)]);
    let mut admission = bench.request().unwrap().admit();
    assert_eq!(bench.delivered().len(), 1);
    assert!(!admission.opened().await);
    assert_eq!(start.elapsed().as_secs(), ANSWER.as_secs());
    drop(admission);
    // With an answer, the client has more time.
    let mut admission = bench.answered_syn();
    let start = Instant::now();
    assert!(!admission.opened().await);
    assert_eq!(start.elapsed().as_secs(), HANDSHAKE.as_secs());
}

#[tokio::test]
async fn a_segment_with_a_wrong_checksum_changes_nothing_where_the_link_does_not_verify() {
    let (link, mut peer) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    let (mut gated, _gate) = gate(link, 8);
    gated.verify = true;
    let mut buffers = [PacketBuffer::new(1500)];
    for (wrong, passes) in [(0, true), (1, false)] {
        let mut reset = from_client(RST, 1000, 0);
        reset[36] ^= wrong;
        peer.try_send(PacketMeta::default(), &[IoSlice::new(&reset)]).unwrap();
        assert_eq!(gated.try_recv(&mut buffers).is_ok(), passes);
    }
}

#[test]
fn the_connections_in_the_handshake_are_counted_right() {
    let mut bench = Bench::new(8);
    for end in 0..4 {
        let mut admission = Some(bench.answered_syn());
        assert_eq!(bench.gated.shared.lock().opening, 1);
        match end {
            0 => drop(bench.client_sends(&[(RST, 1001, 0)])),
            1 => drop(bench.client_sends(&[(ACK, 1001, 7001)])),
            2 => bench.stack_sends(RST, 7001, 0),
            _ => admission = None,
        }
        assert_eq!(bench.gated.shared.lock().opening, 0, "end {end}");
        drop(admission);
    }
}
