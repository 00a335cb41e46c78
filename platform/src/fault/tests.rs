use std::num::{NonZeroU16, NonZeroU64};
use std::task::Waker;
use std::time::Duration;

use super::*;
use crate::packet::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, MAX_HEADERS_LEN, TcpFields, TcpHeaders, UDP, write_ip};
use crate::{Checksum, MemoryLink};

const MTU: usize = 100;

fn none() -> Impairments {
    Impairments::default()
}

const ALL: u32 = 1_000_000;

fn impaired(link: Impairments, depth: usize) -> (Faulty<MemoryLink>, MemoryLink) {
    let (inner, other) = MemoryLink::pair(MTU, depth);
    (Faulty::new(inner, link, 1), other)
}

fn faulty(faults: Faults, depth: usize) -> (Faulty<MemoryLink>, MemoryLink) {
    let (link, other) = MemoryLink::pair(MTU, depth);
    (Faulty::with_faults(link, none(), 1, faults), other)
}

fn once(number: u64, fate: Fate) -> Faults {
    Faults { once: Some((number, fate)), ..Faults::default() }
}

fn send(link: &mut impl Link, packet: u8) -> io::Result<()> {
    link.try_send(PacketMeta::default(), &[IoSlice::new(&[packet]), IoSlice::new(&[0])])
}

fn blocked(result: io::Result<()>) {
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// The first byte of each packet that one call receives.
fn received(link: &mut impl Link) -> Vec<u8> {
    let mut buffers: Vec<_> = (0..300).map(|_| PacketBuffer::new(MTU)).collect();
    match link.try_recv(&mut buffers) {
        Ok(count) => buffers[..count].iter().map(|buffer| buffer.packet()[0]).collect(),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            Vec::new()
        }
    }
}

fn readable(link: &mut impl Link) -> bool {
    link.poll_readable(&mut Context::from_waker(Waker::noop())).map(Result::unwrap).is_ready()
}

fn writable(link: &mut impl Link) -> bool {
    link.poll_writable(&mut Context::from_waker(Waker::noop())).map(Result::unwrap).is_ready()
}

/// Sends the packets 0 to 9 through the link, or receives them through it. Returns the packets that come out.
fn ten((mut link, mut other): (Faulty<MemoryLink>, MemoryLink), inward: bool) -> (Vec<u8>, FaultCounts) {
    let faults = link.faults();
    let mut out = Vec::new();
    if inward {
        (0..10).for_each(|packet| send(&mut other, packet).unwrap());
        while readable(&mut link) {
            out.extend(received(&mut link));
        }
    } else {
        (0..10).for_each(|packet| send(&mut link, packet).unwrap());
        assert!(!readable(&mut link));
        out.extend(received(&mut other));
    }
    (out, faults.counts())
}

#[test]
fn single_packets_are_lost_repeated_and_overtaken_either_way() {
    let counts = FaultCounts::default();
    let cases: [(u64, Fate, &[u8], FaultCounts); 4] = [
        (3, Fate::Lose, &[0, 1, 2, 4, 5, 6, 7, 8, 9], FaultCounts { lost: 1, ..counts }),
        (9, Fate::Duplicate, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9], FaultCounts { duplicated: 1, ..counts }),
        (1, Fate::Reorder, &[0, 2, 3, 4, 1, 5, 6, 7, 8, 9], FaultCounts { reordered: 1, ..counts }),
        // No packet overtakes it, and it arrives nevertheless.
        (9, Fate::Reorder, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], FaultCounts { reordered: 1, ..counts }),
    ];
    for inward in [false, true] {
        for (number, fate, order, counts) in cases {
            assert_eq!(ten(faulty(once(number, fate), 100), inward), (order.to_vec(), counts), "{fate:?} {inward}");
        }
        let (out, counts) = ten(impaired(Impairments { reorder_ppm: ALL, ..none() }, 100), inward);
        assert_eq!((out, counts.reordered), ((0..10).collect(), 10));
    }
}

#[test]
fn chance_is_the_seeds_and_about_as_often_as_it_says() {
    let lost = |seed: u64, loss| {
        let (inner, mut other) = MemoryLink::pair(MTU, 256);
        let mut link = Faulty::new(inner, Impairments { loss_ppm: loss, ..none() }, seed);
        (0..100_u8).for_each(|packet| send(&mut link, packet).unwrap());
        let arrived = received(&mut other);
        assert_eq!(arrived.len() as u64 + link.faults().counts().lost, 100);
        arrived
    };
    assert_eq!(lost(1, ALL / 4), lost(1, ALL / 4));
    assert_ne!(lost(1, ALL / 4), lost(2, ALL / 4));
    assert_eq!((lost(1, 0).len(), lost(1, ALL).len()), (100, 0));
    for (loss, range) in [(ALL / 4, 7_300..7_700), (10_000, 9_840..9_960)] {
        let sum: usize = (0..100).map(|seed| lost(seed, loss).len()).sum();
        assert!(range.contains(&sum), "{sum} of 10,000 arrived with {loss}");
    }
}

/// The fate of a packet is decided once, however often it is offered.
#[test]
fn a_full_link_does_not_throw_again() {
    let (mut link, mut other) = faulty(once(2, Fate::Lose), 1);
    send(&mut link, 0).unwrap();
    for _ in 0..5 {
        blocked(send(&mut link, 1));
    }
    assert_eq!(received(&mut other), [0]);
    send(&mut link, 1).unwrap();
    send(&mut link, 2).unwrap();
    assert_eq!(received(&mut other), [1]);
    assert_eq!(link.faults().counts().lost, 1);
}

/// A packet that was overtaken while the link was full is sent by the next call that finds room.
#[test]
fn overtaken_packets_wait_for_room() {
    let (mut link, mut other) = faulty(once(0, Fate::Reorder), 1);
    send(&mut link, 0).unwrap();
    send(&mut link, 1).unwrap();
    assert!(!readable(&mut link));
    assert_eq!(received(&mut other), [1]);
    link.flush().unwrap();
    assert_eq!(received(&mut other), [0]);
}

/// A reader must not sleep while a packet is held back: the link stays readable until then.
#[test]
fn overtaken_packets_are_delivered_at_the_second_look_and_before_the_end() {
    let (mut link, mut other) = faulty(once(0, Fate::Reorder), 8);
    assert!(!readable(&mut link));
    send(&mut other, 0).unwrap();
    assert!(readable(&mut link));
    assert!(received(&mut link).is_empty() && readable(&mut link));
    assert!(received(&mut link).is_empty() && readable(&mut link));
    assert_eq!(received(&mut link), [0]);
    assert!(!readable(&mut link));

    let (mut link, mut other) = faulty(once(0, Fate::Reorder), 8);
    send(&mut other, 0).unwrap();
    assert!(received(&mut link).is_empty());
    drop(other);
    assert_eq!(received(&mut link), [0]);
    assert_eq!(link.try_recv(&mut [PacketBuffer::new(MTU)]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_link_that_has_gone_says_so_from_every_call() {
    let (mut link, other) = faulty(once(0, Fate::Reorder), 8);
    send(&mut link, 0).unwrap();
    drop(other);
    assert_eq!(send(&mut link, 1).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(readable(&mut link) && writable(&mut link));
}

/// Wakes a thread.
struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn every_packet_takes_its_time_either_way_and_none_overtakes_another() {
    let (delay, jitter) = (Duration::from_millis(20), Duration::from_millis(5));
    for inward in [false, true] {
        let (mut link, mut other) = impaired(Impairments { delay, jitter, ..none() }, 100);
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let begin = Instant::now();
        for packet in 0..50 {
            if inward { send(&mut other, packet) } else { send(&mut link, packet) }.unwrap();
        }
        let mut out = Vec::new();
        while out.len() < 50 {
            if link.poll_readable(&mut Context::from_waker(&waker)).map(Result::unwrap).is_ready() {
                out.extend(received(&mut link));
            }
            if !inward {
                out.extend(received(&mut other));
            }
            assert!(out.is_empty() || begin.elapsed() + jitter >= delay, "after {:?}", begin.elapsed());
            if out.len() < 50 {
                std::thread::park_timeout(Duration::from_secs(1));
            }
        }
        assert_eq!(out, (0..50).collect::<Vec<_>>());
    }
}

#[test]
fn a_limited_rate_has_packets_wait_and_drops_what_would_wait_too_long() {
    // Two bytes take a millisecond.
    let (mut link, mut other) = impaired(Impairments { rate_limit: NonZeroU64::new(16_000), ..none() }, 300);
    let begin = Instant::now();
    for packet in 0..200 {
        send(&mut link, packet).unwrap();
    }
    let overflowed = link.faults().counts().overflowed;
    // Some packets left the queue while others were sent.
    assert!((1..=99).contains(&overflowed), "{overflowed} of 200");
    let mut out = Vec::new();
    while (out.len() as u64) < 200 - overflowed {
        link.flush().unwrap();
        out.extend(received(&mut other));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(begin.elapsed() >= Duration::from_millis(out.len() as u64), "{} in {:?}", out.len(), begin.elapsed());
}

#[test]
fn one_bit_of_a_packet_is_changed_behind_its_header_and_somebody_has_to_verify() {
    let (mut link, mut other) = impaired(Impairments { corrupt_ppm: ALL, ..none() }, 100);
    assert!(other.capabilities().checksum.rx && !link.capabilities().checksum.rx);
    let mut buffers = [PacketBuffer::new(MTU)];
    for _ in 0..50 {
        for inward in [false, true] {
            let packet = &[IoSlice::new(&[0; 60])];
            if inward {
                other.try_send(PacketMeta::default(), packet).unwrap();
                link.try_recv(&mut buffers).unwrap();
            } else {
                link.try_send(PacketMeta::default(), packet).unwrap();
                other.try_recv(&mut buffers).unwrap();
            }
            let packet = buffers[0].packet();
            assert_eq!(packet.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            assert!(packet[..20].iter().all(|byte| *byte == 0));
        }
    }
    assert_eq!(link.faults().counts(), FaultCounts { corrupted: 100, ..FaultCounts::default() });
}

#[test]
fn a_link_that_is_cut_loses_everything_until_it_is_joined_again() {
    let (mut link, mut other) = impaired(none(), 100);
    let switch = link.switch();
    for (is_cut, arrived) in [(false, vec![1]), (true, vec![]), (false, vec![1])] {
        switch.cut(is_cut);
        send(&mut link, 1).unwrap();
        send(&mut other, 1).unwrap();
        assert_eq!([received(&mut other), received(&mut link)], [arrived.clone(), arrived]);
    }
    assert_eq!(link.faults().counts(), FaultCounts { lost: 2, ..FaultCounts::default() });
}

/// A waiting task is also woken for a packet that was sent after it began to wait.
#[test]
fn a_packet_that_is_sent_while_the_task_waits_wakes_it_when_it_is_due() {
    let (mut link, mut other) = impaired(Impairments { delay: Duration::from_millis(10), ..none() }, 8);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let begin = Instant::now();
    assert!(link.poll_readable(&mut Context::from_waker(&waker)).is_pending());
    send(&mut link, 7).unwrap();
    let mut out = Vec::new();
    while out.is_empty() {
        std::thread::park_timeout(Duration::from_secs(20));
        assert!(link.poll_readable(&mut Context::from_waker(&waker)).is_pending());
        out.extend(received(&mut other));
    }
    assert_eq!(out, [7]);
    assert!(begin.elapsed() < Duration::from_secs(10), "nobody woke it");
}

fn path_mtu(len: u16) -> Impairments {
    Impairments { path_mtu: NonZeroU16::new(len), ..none() }
}

/// A packet of so many bytes from the first address to the second, which must not be fragmented.
fn datagram(addresses: [&str; 2], len: usize) -> Vec<u8> {
    let [source, destination] = addresses.map(|address| address.parse().unwrap());
    let mut packet = vec![0; len];
    let header = if addresses[0].contains(':') { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
    write_ip(&mut packet, source, destination, UDP, len - header);
    packet
}

#[test]
fn a_packet_that_is_too_long_for_the_path_is_dropped_and_its_sender_is_told_either_way() {
    const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
    const V6: [&str; 2] = ["fd00::1", "fd00::2"];
    for (tells, inward, ends) in [(true, true, V4), (true, false, V6), (false, true, V6), (false, false, V4)] {
        let (link, mut other) = MemoryLink::pair(1500, 8);
        let mut link = Faulty::new(link, Impairments { no_icmp: !tells, ..path_mtu(1280) }, 1);
        let waker = Arc::new(Unpark(std::thread::current())).into();
        assert!(link.poll_readable(&mut Context::from_waker(&waker)).is_pending());
        for len in [1280, 1281] {
            let (packet, meta) = (datagram(ends, len), PacketMeta::default());
            let slices = [IoSlice::new(&packet[..40]), IoSlice::new(&packet[40..])];
            if inward { other.try_send(meta, &slices) } else { link.try_send(meta, &slices) }.unwrap();
        }
        let mut buffers: Vec<_> = (0..4).map(|_| PacketBuffer::new(1500)).collect();
        let mut lens = |link: &mut dyn FnMut(&mut [PacketBuffer]) -> io::Result<usize>| {
            let count = link(&mut buffers).unwrap_or(0);
            buffers[..count].iter().map(|buffer| buffer.packet().len()).collect::<Vec<_>>()
        };
        let mut at_link = lens(&mut |buffers| link.try_recv(buffers));
        // The error in the other direction goes out before the task sleeps.
        let is_told = link.poll_readable(&mut Context::from_waker(&waker)).is_ready();
        let mut at_other = lens(&mut |buffers| other.try_recv(buffers));
        if inward {
            std::mem::swap(&mut at_link, &mut at_other);
        }
        let error_len = if ends == V6 { 1280 } else { 576 };
        assert_eq!(at_other, [1280], "the other end of the direction");
        assert_eq!(at_link, if tells { vec![error_len] } else { Vec::new() }, "the sender");
        assert!(!is_told, "nothing is left");
        assert_eq!(link.faults().counts(), FaultCounts { too_big: 1, ..FaultCounts::default() });
    }
}

#[test]
fn a_super_packet_is_as_long_as_its_segments_and_a_packet_that_may_be_fragmented_passes() {
    let stops = |len, gso_size, packet: &[u8]| {
        let meta = PacketMeta { gso_size: NonZeroU16::new(gso_size), ..PacketMeta::default() };
        Limit::new(&path_mtu(len)).stops(meta, packet)
    };
    let headers = TcpHeaders::new("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()).unwrap();
    let payload = [0; 4000];
    let mut header = [0; MAX_HEADERS_LEN];
    let len = headers.write(TcpFields::default(), &[0; 12], &payload, Checksum::Partial, &mut header);
    let mut packet = [&header[..len], &payload].concat();
    assert!(!stops(1452, 1400, &packet) && stops(1451, 1400, &packet));
    assert!(stops(4051, 0, &packet) && !stops(4052, 0, &packet));
    assert!(!stops(4052, u16::MAX, &packet));
    packet[6] = 0;
    assert!(!stops(1451, 1400, &packet));
    assert!(stops(5, 0, &[0x45; 6]), "a scrap");
}

#[test]
fn errors_are_limited() {
    let mut limit = Limit::new(&path_mtu(1280));
    let packet = datagram(["fd00::1", "fd00::2"], 1281);
    let begin = Instant::now();
    let told = (0..10_000).filter(|_| limit.error(&packet).is_some()).count();
    assert!(told as u128 <= begin.elapsed().as_millis() + 1, "{told} in {:?}", begin.elapsed());
}

#[test]
fn the_links_of_shards_share_a_rate_and_count_together() {
    let link = Impairments { loss_ppm: ALL, rate_limit: NonZeroU64::new(9_000_001), ..none() };
    let (links, _ends): (Vec<_>, Vec<_>) = (0..2).map(|_| MemoryLink::pair(1500, 16)).unzip();
    let mut links = Faulty::of_shards(links, link, 7);
    for link in &mut links {
        link.try_send(PacketMeta::default(), &[IoSlice::new(&[0; 40])]).unwrap();
    }
    assert_eq!(links[0].faults().counts().lost, 2);
    let rate = |link: &Faulty<MemoryLink>| link.state.as_ref().unwrap().tx.link.rate_limit.map(NonZeroU64::get);
    assert!(links.iter().all(|link| rate(link) == Some(4_500_000)));
}
