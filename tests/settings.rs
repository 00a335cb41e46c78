//! Settings of the device of a run, and the time at rest. A test that cannot run prints SKIP with the reason.

use serde_json::Value;

use crate::machine::no_root;
use crate::pairs::product;
use crate::processes::{assert_said, run, success};
use crate::program::{bytes_per_packet, no_device};

/// Runs with every kind of device, all of whose bytes are compared.
const DEVICES: [&str; 7] = [
    "-n lwip -m reader --bytes 4MB --warmup 1MB",
    "-n smoltcp -m writer --shards 2 --bytes 4MB --warmup 1MB",
    "-n kernel -m reader --delay 100us --time 0.1",
    "--program smoltcp -m writer --bytes 4MB --warmup 1MB",
    "forward --io sync --time 0.2 --warmup 1MB",
    "forward --io async --reverse --ipv6 --time 0.2 --warmup 1MB",
    "forward --io uring --workers 2 --time 0.2 --warmup 1MB",
];

#[test]
fn napi_is_for_every_device_that_this_program_opens() {
    skip_if!(no_root());
    for [device, napi] in
        product([&[DEVICES.as_slice(), &["--layer device --bytes 4MB"]].concat(), &["on", "threaded"]])
    {
        let sample = success(&format!("{device} --offload off --napi {napi} --verify full"));
        assert_eq!((&sample["napi"], &sample["offload"]), (&napi.into(), &"off".into()), "{device}: {sample}");
    }
}

#[test]
fn a_device_has_the_queueing_discipline_that_was_asked_for_and_says_which_it_has() {
    skip_if!(no_device());
    for device in DEVICES {
        let qdisc = |options: &str| success(&format!("{device} {options}"))["device"]["qdisc"].clone();
        assert_eq!(qdisc("--qdisc noqueue"), "noqueue", "{device}");
        assert!(qdisc("").as_str().is_some_and(|name| name != "noqueue"), "{device}");
    }
    let output = run("-n lwip -m reader --bytes 1MB --qdisc fq_codel --json");
    if output.status.code() != Some(0) {
        assert_said(&output, 3, &["set the queueing discipline fq_codel of utun8", "modprobe sch_NAME"]);
    }
}

#[test]
fn without_super_packets_a_program_gets_packets_of_the_mtu() {
    skip_if!(no_device());
    let mean = |options: &str| bytes_per_packet(&success(&format!("--program {options} --mtu 1500")));
    let loads =
        ["smoltcp -m writer --bytes 8MB --warmup 1MB", "smoltcp -m writer --protocol udp --bitrate 50M --time 0.2"];
    for load in loads.into_iter().chain(["kernel -m writer --bytes 8MB --warmup 1MB"]) {
        // With the header of Ethernet.
        assert!(mean(&format!("{load} --gso off")) <= 1514.0, "{load}");
        for gso in ["", "--gso on"] {
            assert!(mean(&format!("{load} {gso}")) > 2000.0, "{load} {gso}");
        }
    }
    // TCP's and UDP's apart.
    for subject in ["-n smoltcp", "--program smoltcp"] {
        for (load, is_split) in [("--bytes 8MB --warmup 1MB", false), ("--protocol udp --bitrate 50M --time 0.2", true)]
        {
            let sample = success(&format!("{subject} -m writer {load} --offload tso"));
            assert_eq!(
                (bytes_per_packet(&sample) <= 1500.0, &sample["offload"]),
                (is_split, &"tso".into()),
                "{sample}"
            );
        }
    }
    let output = run("--program smoltcp -m writer --bytes 1MB --offload off --gso on");
    assert_said(&output, 3, &["switch on super-packets of utun8", "the program behind it takes none; leave out --gso"]);
}

#[test]
fn what_a_subject_costs_at_rest_is_known_before_the_load_and_after_it() {
    skip_if!(no_device());
    let asked = 300_000_000;
    for (options, place) in [
        ("--program smoltcp -m rr --time 0.1", "program_facts"),
        ("--program smoltcp -m idle --parallel 5 --time 0.1 --release 0.1", "program_facts"),
        ("-n smoltcp -m idle --parallel 5 --time 0.1 --release 0.1", "idle"),
        ("--layer loopback -m idle --parallel 5 --time 0.1 --release 0.1", "idle"),
    ] {
        let sample = success(&format!("{options} --rest 0.3"));
        assert_eq!(sample["rest_ns"], asked, "{options}: {sample}");
        for rest in ["before", "after"].map(|moment| &sample[place]["unloaded"][moment]) {
            assert!((asked..5 * asked).contains(&rest["time_ns"].as_u64().unwrap()), "{options}: {sample}");
            assert!(rest["cpu_ns"].is_u64() && rest["switches"]["waits"].is_u64(), "{options}: {sample}");
        }
        assert!(place == "idle" || sample["idle"]["unloaded"] == Value::Null, "{options}: {sample}");
    }
    let light = run("-v -n smoltcp -m rr --rate 20 --time 0.5");
    assert_said(&light, 0, &["switches: ", " /req."]);
}
