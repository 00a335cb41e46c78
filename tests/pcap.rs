//! The packets of a run in a file. A test that cannot run prints SKIP with the reason.

use std::fs;

use crate::processes::{assert_said, folder, run, success};
use crate::program::no_device;

/// The lengths of the packets in a pcap file, and the protocol of each.
fn packets(file: &[u8]) -> Vec<(u32, u8)> {
    assert_eq!(file[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    let (mut at, mut packets) = (24, Vec::new());
    while at < file.len() {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let protocol = if file[at + 16] >> 4 == 4 { 9 } else { 6 };
        packets.push((word(at + 12), file[at + 16 + protocol]));
        at += 16 + word(at + 8) as usize;
    }
    packets
}

#[test]
fn the_packets_of_the_device_are_in_a_file() {
    skip_if!(no_device());
    for subject in ["-n smoltcp", "-n kernel", "--program smoltcp"] {
        let file = folder("pcap").join("run.pcap");
        let sample =
            success(&format!("-m rr {subject} --protocol udp --request 700 --time 0.1 --pcap {}", file.display()));
        let packets = packets(&fs::read(&file).unwrap());
        let facts = &sample["pcap"];
        assert_eq!(
            (facts["packets"].as_u64(), &facts["is_full"]),
            (Some(packets.len() as u64), &false.into()),
            "{facts}"
        );
        // The requests of the timed window, and those before it.
        let requests = packets.iter().filter(|packet| **packet == (20 + 8 + 700, 17)).count() as u64;
        let answered = sample["requests"]["answered"].as_u64().unwrap();
        assert!(
            requests >= answered.saturating_sub(facts["lost"].as_u64().unwrap()),
            "{subject}: {requests}: {sample}"
        );
    }
}

#[test]
fn what_cannot_be_written_is_refused() {
    for (subject, code, reason) in [
        ("--layer loopback", 2, "--pcap: there is no device"),
        ("--layer stack -n smoltcp", 2, "--pcap: there is no device"),
        ("--program kernel", 2, "--pcap: there is no device"),
    ] {
        assert_said(&run(&format!("-m rr {subject} --time 0.1 --pcap x.pcap")), code, &[reason]);
    }
    assert_said(&run("matrix -n smoltcp -m rr --pcap x.pcap"), 2, &["--pcap"]);
    skip_if!(no_device());
    let refused = run("-m rr -n smoltcp --time 0.1 --pcap /no/such/folder/x.pcap");
    assert_said(&refused, 2, &["write /no/such/folder/x.pcap"]);
}
