//! The layer `proxy`: kernel clients and servers with a proxy on a stack between them, in the run's own networks. A
//! test that cannot run prints SKIP with the reason.

use serde_json::Value;

use crate::pairs::pairwise;
use crate::processes::{assert_said, run, success};
use crate::program::no_device;

/// Returns the sample of a run, which must succeed and check every byte.
fn sample(arguments: &str) -> Value {
    let sample = success(&format!("--layer proxy {arguments} --verify full"));
    assert_eq!(sample["verified"], "full", "{arguments}");
    sample
}

/// The mean size of the packets in the payload's direction.
fn bytes_per_packet(sample: &Value) -> f64 {
    let way = if sample["mode"] == "reader" { "tx" } else { "rx" };
    let [bytes, packets] = [format!("{way}_bytes"), way.to_owned()].map(|name| sample["packets"][name].as_f64());
    bytes.unwrap() / packets.unwrap()
}

#[test]
fn every_stack_passes_every_byte() {
    skip_if!(no_device());
    let runtimes = ["", "--current-thread", "--worker-threads 2"];
    let options = ["", "--parallel 3", "--mtu 9000 --window 64KiB", "--mtu 65535 --parallel 2"];
    let lengths = ["--bytes 8MB --warmup 1MB", "--time 0.1 --warmup 1MB"];
    let stacks = ["lwip", "ipstack", "smoltcp"];
    let axes = [
        &stacks[..],
        &["reader", "writer"],
        &["on", "off"],
        &["", "--ipv6"],
        &runtimes[..],
        &options[..],
        &lengths[..],
    ];
    for [stack, mode, offload, version, runtime, options, length] in pairwise(axes) {
        let arguments = format!("-n {stack} -m {mode} --offload {offload} {version} {runtime} {options} {length}");
        let sample = sample(&arguments);
        for (name, expected) in [("layer", "proxy"), ("netstack", stack), ("mode", mode), ("congestion", "cubic")] {
            assert_eq!(sample[name], expected, "{arguments}: {sample}");
        }
        let offload = offload == "on";
        assert_eq!((&sample["offload"], &sample["device"]["offload"]), (&offload.into(), &offload.into()), "{sample}");
        assert_eq!(sample["device"]["name"], "utun8", "{sample}");
        assert!(sample["effective"]["stack_version"].is_string(), "{sample}");
        assert!(sample["bytes"].as_u64().unwrap() > 0, "{sample}");
        assert!(
            sample["cpu"]["subject_seconds"].is_number() && sample["cpu"]["client_seconds"].is_number(),
            "{sample}"
        );
        assert!(sample["peak_rss_bytes"].as_u64().unwrap() > 1_000_000, "{sample}");
        assert!(sample["device_drops"].is_u64(), "{sample}");
        for way in ["rx", "tx"] {
            assert!(sample["packets"][way].as_u64().unwrap() > 0, "{sample}");
        }
        let (size, mtu) = (bytes_per_packet(&sample), sample["mtu"].as_f64().unwrap());
        if offload && mtu < 2000.0 {
            assert!(size > mtu, "{size}: {sample}");
        } else if !offload {
            assert!(size <= mtu, "{size}: {sample}");
        }
    }
}

/// The servers get another network than the device, or no route to them would work.
#[test]
fn a_device_may_have_any_addresses() {
    skip_if!(no_device());
    for network in [
        "--tun-addr 198.18.1.9 --tun-dest 198.18.1.10 --tun-mask 255.255.255.0 --tun-name tun0",
        "--tun-addr 198.0.0.9 --tun-dest 198.0.0.10 --tun-mask 255.0.0.0",
        "--tun-addr 10.18.1.1 --tun-dest 10.18.1.2 --tun-mask 255.255.255.252",
        "--ipv6 --tun-addr 2001:2:0:2::2 --tun-dest 2001:2:0:2::3 --tun-mask ffff:ffff:ffff:ffff::",
    ] {
        assert!(sample(&format!("-n smoltcp -m reader --time 0.05 {network}"))["bytes"].as_u64().unwrap() > 0);
    }
}

#[test]
fn the_network_of_the_host_is_refused() {
    assert_said(&run("--layer proxy -n smoltcp -m reader --netns host"), 3, &["--netns"]);
}

#[test]
fn the_name_of_the_veth_interface_is_refused() {
    skip_if!(no_device());
    assert_said(&run("--layer proxy -n smoltcp -m reader --tun-name to-far"), 2, &["to-far", "--tun-name"]);
}
