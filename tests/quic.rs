//! QUIC through programs. A test that cannot run prints SKIP with the reason.

use crate::processes::{count, success};
use crate::program::{bytes_per_packet, no_device};

#[test]
fn every_load_over_quic_goes_through_the_kernel_and_our_proxy() {
    skip_if!(no_device());
    for program in ["kernel", "smoltcp"] {
        for options in [
            "-m reader --bytes 4MB --warmup 1MB --ipv6",
            "-m writer --time 0.1 --warmup 1MB --parallel 3 --client-threads 2",
            "-m both --time 0.1 --warmup 1MB --mtu 1280",
            "-m rr --time 0.1 --parallel 20 --depth 4 --request 100 --response 10KB --background writer",
        ] {
            let sample = success(&format!("--program {program} --protocol quic {options} --verify full"));
            assert_eq!((&sample["protocol"], &sample["verified"]), (&"quic".into(), &"full".into()), "{sample}");
            assert!(sample["congestion"].is_null() && count(&sample["bytes"]) > 0.0, "{options}: {sample}");
            assert_eq!(sample["ends_withheld"], serde_json::Value::Null, "{options}: {sample}");
            assert!(sample["retransmits"].is_u64(), "{options}: {sample}");
            if sample["mode"] != "rr" {
                assert!(sample["tcp"]["rtt_us"].is_u64(), "{options}: {sample}");
            }
        }
    }
}

/// Without it each datagram is a packet by itself.
#[test]
fn datagrams_of_quic_cross_together_unless_gso_is_off() {
    skip_if!(no_device());
    let packet = |gso: &str| {
        let words = format!("--program kernel --protocol quic -m reader --time 0.2 --warmup 1MB --gso {gso}");
        bytes_per_packet(&success(&words))
    };
    let [on, off] = ["on", "off"].map(packet);
    assert!(on > 3000.0 && off <= 1500.0, "{on} and {off} bytes in a packet");
}
