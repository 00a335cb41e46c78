//! Requests and datagrams on every stack and layer, and links with conditions. Each run has its own network. A test
//! that cannot run prints SKIP with the reason.

use std::fs;

use rust_tun_perf::sample::Latency;
use serde_json::Value;

use crate::machine::no_device;
use crate::pairs::pairwise;
use crate::processes::{STACKS, count, sample, success};

#[test]
fn requests_are_answered_on_every_stack_and_layer() {
    skip_if!(no_device());
    let options = [
        "--parallel 20",
        "--request 100 --response 30000 --parallel 3",
        "--request 70000 --response 10",
        "--rate 300 --parallel 4",
        "--parallel 300",
    ];
    let axes = [
        // Over a link in memory the first request comes with the ACK of the handshake, and tcp_ip leaves it until the next
        // packet, which never comes.
        &STACKS[..3],
        &["rr", "crr"],
        &["-n STACK", "--program STACK", "--layer loopback", "-n kernel", "--layer stack -n STACK"],
        &["on", "off"],
        &["", "--ipv6"],
        &options,
    ];
    for [stack, mode, subject, offload, version, options] in pairwise(axes) {
        let offload = if subject == "--layer loopback" { String::new() } else { format!("--offload {offload}") };
        let window = if subject.contains("STACK") { "--window 256KiB" } else { "" };
        let subject = subject.replace("STACK", stack);
        let arguments = format!("-m {mode} {subject} {offload} {window} {version} {options} --verify full");
        let run = |time| success(&format!("{arguments} --time {time}"));
        // A busy machine may answer none in a short window.
        let is_answered = |sample: &Value| sample["requests"]["latency"]["p50_us"].is_number();
        let sample = Some(run(0.3)).filter(is_answered).unwrap_or_else(|| run(10.0));
        let requests = &sample["requests"];
        assert!(count(&requests["latency"]["max_us"]) > 0.0, "{arguments}\n{sample}");
        assert!(requests.get("errors").is_none(), "{arguments}\n{sample}");
        assert!(
            count(&requests["latency"]["p50_us"]) <= count(&requests["latency"]["max_us"]),
            "{arguments}\n{sample}"
        );
        assert_eq!((&sample["mode"], &sample["verified"]), (&mode.into(), &"full".into()), "{arguments}\n{sample}");
    }
}

/// More clients connect at once than an accept queue usually holds: a run's has a place for each.
#[test]
fn thousands_of_clients_connect_at_once() {
    skip_if!(no_device());
    // A debug build takes up to a millisecond for a connection, and a run waits 5 s for answers and ends.
    for stack in ["lwip", "ipstack", "smoltcp"] {
        let sample = success(&format!("-m crr --parallel 1500 -n {stack} --time 0.3 --window 16KiB"));
        assert!(sample["requests"].get("errors").is_none(), "{stack}\n{sample}");
    }
}

/// More connections than a proxy takes by default.
#[test]
fn a_proxy_takes_every_connection_of_a_run() {
    skip_if!(no_device());
    let sample = success("-m rr --program ipstack --parallel 1500 --time 1 --window 64KiB");
    assert!(count(&sample["requests"]["answered"]) >= 1500.0, "{sample}");
}

#[test]
fn streams_in_both_directions_deliver_every_byte() {
    skip_if!(no_device());
    for stack in STACKS {
        for subject in ["-n", "--program", "--layer stack -n"] {
            let sample = success(&format!("-m both {subject} {stack} --time 0.3 --warmup 1MB --verify full"));
            let (all, back) = (count(&sample["bytes"]), count(&sample["bytes_back"]));
            assert!(back > 0.0 && all > back, "{sample}");
        }
    }
}

/// Each connection takes memory, even over the kernel's loopback. The kernel's part is of the sockets of the subject alone: one for
/// each connection, or none.
#[test]
fn idle_connections_have_their_memory() {
    skip_if!(no_device());
    for (subject, has_sockets) in [
        ("--layer loopback", true),
        ("-n lwip", false),
        ("-n ipstack", false),
        ("-n smoltcp --ipv6", false),
        ("--program lwip", true),
        ("--layer stack -n lwip", false),
    ] {
        let sample = success(&format!("-m idle {subject} --parallel 500 --time 1.1"));
        let idle = &sample["idle"];
        assert_eq!(idle["connections"], 500, "{sample}");
        let after = |at: usize| idle["rest"][at]["after_ns"].clone();
        assert_eq!(
            [after(0), after(1), after(2)],
            [1_000_000_000_u64.into(), 1_100_000_000_u64.into(), Value::Null],
            "{idle}"
        );
        let last = &idle["rest"][1];
        let [before, open] = [&idle["rss_before_bytes"], &last["rss_bytes"]].map(count);
        match last["kernel_bytes"].as_f64() {
            Some(bytes) if has_sockets => assert!((2000.0..10_000.0).contains(&(bytes / 499.0)), "{subject}\n{sample}"),
            Some(bytes) => assert!(bytes < 0.5, "{subject}\n{sample}"),
            // Only root may know it.
            None => assert!(has_sockets && fs::read("/proc/slabinfo").is_err(), "{subject}\n{sample}"),
        }
        // A task takes some hundred bytes, and the memory of a process grows by pages of 4 KiB.
        assert!((open - before) / 499.0 > 200.0, "{subject}\n{sample}");
        assert!(sample.get("requests").is_none() && sample["verified"] == "sample", "{sample}");
    }
}

/// A flow takes memory where it is remembered, and its memory is read again when the program may have forgotten it.
#[test]
fn idle_flows_have_their_memory() {
    skip_if!(no_device());
    for (subject, has_flows) in [
        ("--layer loopback", false),
        ("-n lwip", false),
        ("--layer stack -n smoltcp", false),
        ("-n ipstack --ipv6", true),
        ("--program lwip", true),
    ] {
        let sample = success(&format!("-m idle --protocol udp {subject} --parallel 600 --time 0.3 --release 0.2"));
        let (idle, datagrams) = (&sample["idle"], &sample["datagrams"]);
        assert_eq!((&idle["connections"], &idle["release_ns"]), (&600.into(), &200_000_000.into()), "{sample}");
        assert_eq!((&datagrams["sent"], &datagrams["arrived"]), (&600.into(), &600.into()), "{sample}");
        let [before, open] = [&idle["rss_before_bytes"], &idle["rest"][0]["rss_bytes"]].map(count);
        assert!(!has_flows || (open - before) / 599.0 > 200.0, "{subject}\n{sample}");
    }
}

/// Flows without an answer are counted, and the others are measured.
#[test]
fn an_idle_flow_without_an_answer_is_lost() {
    skip_if!(no_device());
    let sample =
        success("-m idle --protocol udp -n lwip --offload off --parallel 400 --time 0.1 --loss 20 --link-seed 3");
    let (datagrams, idle) = (&sample["datagrams"], &sample["idle"]);
    assert!((150.0..390.0).contains(&count(&datagrams["arrived"])), "{sample}");
    assert_eq!((&datagrams["sent"], &idle["connections"]), (&400.into(), &datagrams["arrived"]), "{sample}");
}

/// The client's half is closed and the server's is open: a byte comes back at the end.
#[test]
fn half_closed_connections_rest_and_end() {
    skip_if!(no_device());
    for subject in [
        "--layer loopback",
        "-n kernel",
        "-n lwip",
        "-n ipstack",
        "-n smoltcp --ipv6",
        "--program lwip",
        "--layer stack -n smoltcp",
    ] {
        let sample = success(&format!("-m idle --half-closed {subject} --parallel 300 --time 0.3"));
        let cell = (&sample["idle"]["connections"], &sample["half_closed"]);
        assert_eq!(cell, (&300.into(), &true.into()), "{subject}\n{sample}");
    }
}

/// Connects that get no answer are held beside the requests, which do not wait for them.
#[test]
fn black_holes_are_held_beside_the_requests() {
    skip_if!(no_device());
    for subject in ["--program lwip", "--program smoltcp --ipv6", "--program kernel"] {
        let sample = success(&format!("-m crr {subject} --parallel 3 --blackholes 20 --time 0.5"));
        assert!(count(&sample["requests"]["answered"]) > 0.0, "{sample}");
        let holes = (&sample["requests"]["blackholes"], &sample["blackholes"]);
        assert_eq!(holes, (&serde_json::json!({"open": 20, "ended": 0}), &20.into()), "{subject}\n{sample}");
    }
}

/// A request and its response each cross the link once, so they take twice the delay, plus the time of the path.
#[test]
fn a_delay_is_in_the_latency_of_every_request() {
    skip_if!(no_device());
    for subject in ["-n lwip", "-n ipstack", "-n smoltcp", "-n kernel", "--program smoltcp"] {
        let sample = success(&format!("-m rr {subject} --parallel 4 --delay 40ms --time 0.8"));
        let latency = &sample["requests"]["latency"];
        assert!(count(&latency["p50_us"]) >= 80_000.0, "{sample}");
        // With a third delay it would be at least 120 ms. A busy machine may add many milliseconds.
        assert!(count(&latency["p50_us"]) < 120_000.0, "{sample}");
    }
}

/// The share of affected packets is the requested one, within six standard deviations.
#[test]
fn conditions_meet_the_share_of_packets_that_they_name() {
    skip_if!(no_device());
    for (option, counter) in
        [("loss", "lost"), ("duplicate", "duplicated"), ("reorder", "reordered"), ("corrupt", "corrupted")]
    {
        // Many connections, so that a lost packet does not stop all requests.
        let sample = sample(&format!("-m rr -n lwip --offload off --parallel 50 --time 1 --{option} 2"));
        let (link, packets) = (&sample["link"], &sample["packets"]);
        // The device does not count packets that were lost on the way to it, and it counts duplicates twice. Half of
        // each are on the way to the device.
        let device = count(&packets["rx"]) + count(&packets["tx"]);
        let all = device + count(&link["lost"]) / 2.0 - count(&link["duplicated"]) / 2.0;
        let (hit, expected) = (count(&link[counter]), all * 0.02);
        let bound = 6.0 * (all * 0.02 * 0.98).sqrt() + all * 0.02 * 0.02;
        assert!((hit - expected).abs() < bound, "{option}: {hit} of {all}, and not {expected} ± {bound}\n{sample}");
        assert!(expected > 20.0, "{option}: too few packets to tell\n{sample}");
        for other in ["lost", "duplicated", "reordered", "corrupted", "overflowed"] {
            assert!(other == counter || count(&link[other]) == 0.0, "{option}\n{sample}");
        }
    }
}

/// Whatever the link does, the application gets each byte once and in order. ipstack is left out: it may wait for a
/// lost packet for ever.
#[test]
fn no_fault_of_the_link_reaches_the_application() {
    skip_if!(no_device());
    let faults = ["--duplicate 2", "--reorder 1", "--corrupt 0.2", "--loss 0.2", "--delay 2ms --jitter 1ms --loss 0.1"];
    let subjects = ["-n lwip", "-n smoltcp", "-n kernel", "--program lwip"];
    for [subject, mode, version, faults] in pairwise([&subjects, &["reader", "writer"], &["", "--ipv6"], &faults]) {
        let arguments =
            format!("-m {mode} {subject} {version} --offload off {faults} --bytes 400KB --warmup 50KB --verify full");
        let sample = success(&arguments);
        assert_eq!(sample["bytes"], 400_000, "{arguments}");
        assert!(sample["link"].is_object(), "{arguments}\n{sample}");
    }
}

#[test]
fn a_rate_limit_is_the_most_that_crosses() {
    skip_if!(no_device());
    for [mode, subject] in pairwise([&["reader", "writer"], &["-n smoltcp --window 128KiB", "-n kernel"]]) {
        let sample = success(&format!("-m {mode} {subject} --rate-limit 50M --time 1"));
        let gbps = count(&sample["gbps"]);
        assert!((0.02..=0.05).contains(&gbps), "{sample}");
    }
}

#[test]
fn datagrams_cross_every_stack_and_layer() {
    skip_if!(no_device());
    let subjects = [
        "-n lwip",
        "-n ipstack",
        "-n smoltcp",
        "-n kernel",
        "--layer loopback",
        "--program lwip",
        "--layer stack -n ipstack",
        "--layer stack -n smoltcp",
    ];
    let options = [
        "--datagram 100 --bitrate 2M",
        "--bitrate 10M",
        "--mtu 1300 --bitrate 10M",
        "--parallel 5 --client-threads 2 --bitrate 10M",
    ];
    let modes = ["reader", "writer", "both"];
    for [subject, mode, version, options] in pairwise([&subjects, &modes, &["", "--ipv6"], &options]) {
        let arguments = format!("-m {mode} {subject} {version} {options} --protocol udp --time 0.3 --verify full");
        let sample = success(&arguments);
        let datagrams = &sample["datagrams"];
        let (sent, arrived) = (count(&datagrams["sent"]), count(&datagrams["arrived"]));
        // A machine that stalls for a moment loses some.
        assert!(sent > 100.0 && arrived <= sent && arrived > 0.8 * sent, "{arguments}\n{sample}");
        let payload = arrived * count(&sample["datagram_bytes"]);
        // Datagrams that arrive after the end are counted, but their bytes are not.
        assert!((0.8 * payload..=payload).contains(&count(&sample["bytes"])), "{arguments}\n{sample}");
        if mode == "both" {
            assert!((0.3..0.7).contains(&(count(&sample["bytes_back"]) / payload)), "{arguments}\n{sample}");
        }
    }
}

/// With offload a packet holds several datagrams, and without it one. Linux 6.2 and newer.
#[test]
fn bulk_datagrams_share_packets_if_the_device_offloads() {
    skip_if!(no_device());
    for (offload, mode, stack) in
        [("on", "writer", "lwip"), ("on", "reader", "smoltcp"), ("off", "writer", "smoltcp"), ("off", "reader", "lwip")]
    {
        let arguments = format!(
            "-m {mode} -n {stack} --offload {offload} --protocol udp --datagram 1000 --bitrate 200M --time 0.3"
        );
        let sample = success(&arguments);
        // A datagram with its headers. Packets and bytes are of the same moments, and datagrams may arrive after these.
        let per_packet = count(&sample["bytes_per_packet"]) / 1028.0;
        assert!(if offload == "on" { per_packet > 3.0 } else { per_packet <= 1.01 }, "{arguments}\n{sample}");
    }
}

/// The receiver's counts agree with the link's counts.
#[test]
fn lost_and_repeated_datagrams_are_those_of_the_link() {
    skip_if!(no_device());
    for subject in ["-n smoltcp", "-n lwip", "-n ipstack", "-n kernel"] {
        for mode in ["reader", "writer"] {
            // The link counts packets, so each has one datagram.
            let arguments = format!(
                "-m {mode} {subject} --offload off --protocol udp --bitrate 20M --loss 3 --duplicate 2 --time 1"
            );
            let sample = success(&arguments);
            let (seen, link) = (&sample["datagrams"], &sample["link"]);
            let lost = count(&seen["sent"]) - count(&seen["arrived"]);
            assert!(lost > 20.0 && count(&seen["duplicated"]) > 10.0, "{arguments}\n{sample}");
            // Datagrams of the last moment are in only one of the counts.
            assert!((lost - count(&link["lost"])).abs() <= 5.0, "{arguments}\n{sample}");
            assert!((count(&seen["duplicated"]) - count(&link["duplicated"])).abs() <= 5.0, "{arguments}\n{sample}");
        }
    }
}

/// A search for the highest rate finds the rate limit of the link.
#[test]
fn a_search_finds_the_limit_of_the_link() {
    skip_if!(no_device());
    let sample = success("-m writer -n smoltcp --protocol udp --rate-limit 50M --time 0.5");
    let gbps = count(&sample["gbps"]);
    assert!((0.035..=0.0525).contains(&gbps), "{sample}");
    assert!(sample["datagrams"]["found_per_second"].is_u64(), "{sample}");
}

#[test]
fn requests_over_udp_are_answered_on_every_stack_and_layer() {
    skip_if!(no_device());
    let subjects = ["-n lwip", "-n ipstack", "-n smoltcp", "-n kernel", "--layer loopback", "--program smoltcp"];
    let options =
        ["--parallel 20 --request 64 --response 512", "--rate 300 --parallel 4", "--parallel 600", "--background both"];
    for [subject, version, options] in pairwise([&subjects, &["", "--ipv6"], &options]) {
        let arguments = format!("-m rr {subject} {version} {options} --protocol udp --time 0.3 --verify full");
        let sample = success(&arguments);
        let (datagrams, answered) = (&sample["datagrams"], count(&sample["requests"]["answered"]));
        assert!(answered > 0.0 && count(&datagrams["arrived"]) >= answered, "{arguments}\n{sample}");
        assert!(count(&datagrams["sent"]) >= count(&datagrams["arrived"]), "{arguments}\n{sample}");
        assert_eq!(datagrams["duplicated"], 0, "{arguments}\n{sample}");
        let has_stream = options.contains("background");
        assert_eq!(sample["background_bytes"].as_u64().is_some_and(|bytes| bytes > 0), has_stream, "{sample}");
    }
}

/// Each request over UDP has a port of its own, and no connection is left open.
#[test]
fn requests_over_udp_from_new_ports_are_answered() {
    skip_if!(no_device());
    for subject in ["-n lwip", "-n smoltcp", "--layer loopback", "--layer stack -n smoltcp", "--layer stack -n ipstack"]
    {
        let sample = success(&format!("-m crr {subject} --protocol udp --parallel 4 --time 0.3 --verify full"));
        let (datagrams, answered) = (&sample["datagrams"], count(&sample["requests"]["answered"]));
        assert!(answered > 100.0 && count(&datagrams["arrived"]) >= answered, "{subject}\n{sample}");
        assert_eq!(datagrams["duplicated"], 0, "{subject}\n{sample}");
    }
}

/// A few threads drive many streams, and every byte arrives.
#[test]
fn many_streams_share_a_few_threads() {
    skip_if!(no_device());
    let subjects = [
        "--layer loopback --parallel 1500",
        "-n kernel --parallel 300",
        "-n lwip --parallel 500 --window 64KiB",
        "-n smoltcp --parallel 500 --window 64KiB",
        "--layer stack -n smoltcp --parallel 400 --window 64KiB",
    ];
    let options = ["--bytes 30MB --client-threads 1", "--bytes 30MB --client-threads 2", "--time 0.5"];
    for [subject, mode, options] in pairwise([&subjects, &["reader", "writer", "both"], &options]) {
        let arguments = format!("-m {mode} {subject} {options} --warmup 2MB --buffer 16KiB --verify full");
        let sample = success(&arguments);
        let bytes = count(&sample["bytes"]);
        let expected = if mode == "both" { 60e6 } else { 30e6 };
        assert!(bytes > 0.0 && (options.contains("time") || (bytes - expected).abs() < 1.0), "{arguments}\n{sample}");
    }
}

/// The requests of several threads are one load: its rate, its counts and its latencies.
#[test]
fn threads_share_the_requests_and_their_rate() {
    skip_if!(no_device());
    for subject in ["--layer loopback", "-n smoltcp", "--layer stack -n lwip"] {
        let sample = success(&format!("-m rr {subject} --parallel 5 --client-threads 3 --rate 600 --time 0.5"));
        assert_eq!(sample["client_threads"], 3, "{sample}");
        // Each that was due has a latency, however late a busy machine answers it.
        let latency: Latency = serde_json::from_value(sample["requests"]["latency"].clone()).unwrap();
        assert!(latency.count().abs_diff(300) <= 3, "{}: {subject}\n{sample}", latency.count());
    }
}

/// Over a link in memory, too, streams run beside requests.
#[test]
fn streams_run_beside_requests_over_memory() {
    for (stack, protocol) in [("lwip", "tcp"), ("ipstack", "tcp"), ("smoltcp", "tcp"), ("smoltcp", "udp")] {
        let arguments = format!("-m rr -n {stack} --layer stack --protocol {protocol} --background both --time 0.3");
        let sample = success(&arguments);
        assert!(count(&sample["requests"]["answered"]) > 10.0, "{arguments}\n{sample}");
        assert!(count(&sample["background_bytes"]) > 0.0, "{arguments}\n{sample}");
    }
}

/// There are more requests than the link has room for. A socket that has to wait sends its request only once.
#[test]
fn requests_that_wait_for_room_are_sent_once() {
    for stack in STACKS {
        let sample = success(&format!("-m rr -n {stack} --layer stack --protocol udp --parallel 600 --time 0.3"));
        let datagrams = &sample["datagrams"];
        // The server drops a response for which the link has no room, more of them on a busy machine.
        assert!(count(&datagrams["arrived"]) > 0.5 * count(&datagrams["sent"]), "{sample}");
        assert_eq!(datagrams["duplicated"], 0, "{sample}");
    }
}

/// A background stream raises the latency of the requests.
#[test]
fn requests_beside_a_stream_take_longer() {
    skip_if!(no_device());
    let p90 = |more: &str| {
        let sample = success(&format!("-m rr -n smoltcp --time 1 --rate 200 --rate-limit 100M {more}"));
        count(&sample["requests"]["latency"]["p90_us"])
    };
    // The stream's packets queue up before the slow link, and the requests wait behind them.
    let (alone, beside) = (p90(""), p90("--background writer"));
    assert!(beside > 2.0 * alone, "{beside} and {alone}");
}
