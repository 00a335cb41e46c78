//! Real clients over TCP.

use std::fs;

use serde_json::Value;

use super::datagrams::dig;
use super::lab::{Between, Lab, SERVER, SERVER_V6};
use super::process::wait_until;
use super::servers::{Nginx, dnsmasq, iperf3};

/// Runs curl in the client's network with a timeout, and returns its output.
fn curl(lab: &Lab, words: &[&str]) -> String {
    lab.client.call(&[&["curl", "--silent", "--show-error", "--fail", "--max-time", "280"], words].concat())
}

pub(crate) fn iperf3_both_ways(between: Between) {
    iperf3_with(between, &[]);
}

pub(crate) fn iperf3_both_ways_without_offload(between: Between) {
    iperf3_with(between, &["--offload", "off"]);
}

fn iperf3_with(between: Between, options: &[&str]) {
    let lab = Lab::new(between, options);
    // Eight streams get small buffers. With the kernel's default, the buffers could hold most of the bytes.
    for way in [&[][..], &["--reverse"], &["--parallel", "8", "--window", "256K"]] {
        // Each client gets a new server: after a client, the server closes its port for a moment.
        let _server = iperf3(&lab);
        let words = ["iperf3", "--client", SERVER, "--bytes", "20M", "--json"];
        let said = lab.client.call(&[&words, way].concat());
        let result: Value = serde_json::from_str(&said).unwrap();
        assert!(result["error"].is_null(), "{way:?}: {result}");
        // The client does not wait for the bytes in flight when it has sent the last one.
        let received = result["end"]["sum_received"]["bytes"].as_u64().unwrap();
        assert!(received > 10_000_000, "{way:?}: {received} bytes");
    }
}

pub(crate) fn a_large_download_arrives_as_it_was(between: Between) {
    let lab = Lab::new(between, &[]);
    let nginx = Nginx::start(&lab);
    let expected = nginx.serve_large();
    let fetch = format!("curl --silent --show-error --fail --max-time 280 http://{SERVER}/large | openssl sha256 -r");
    assert_eq!(lab.client.shell(&fetch), expected);
}

/// The server is slow, so that all of them run at once.
pub(crate) fn two_hundred_downloads_at_once(between: Between) {
    let lab = Lab::new(between, &[]);
    let nginx = Nginx::start(&lab);
    let folder = nginx.fetched();
    let target = folder.join("#1");
    let url = format!("http://{SERVER}/slow/small?[1-200]");
    let at_once = ["--parallel", "--parallel-immediate", "--parallel-max", "200"];
    curl(&lab, &[&at_once[..], &["--output", target.to_str().unwrap(), &url]].concat());
    let small = nginx.small();
    for number in 1..=200 {
        let fetched = fs::read(folder.join(number.to_string())).unwrap();
        assert!(fetched == small, "download {number} is another file of {} bytes", fetched.len());
    }
}

pub(crate) fn everything_over_ipv6(between: Between) {
    let lab = Lab::new(between, &[]);
    let nginx = Nginx::start(&lab);
    let _names = dnsmasq(&lab);
    let target = nginx.fetched().join("small");
    curl(&lab, &["--output", target.to_str().unwrap(), &format!("http://[{SERVER_V6}]/small")]);
    assert!(fs::read(target).unwrap() == nginx.small(), "another file arrived");
    let server = format!("@{SERVER_V6}");
    for transport in ["+notcp", "+tcp"] {
        let answer = dig(&lab, &[&server, transport, "host.test", "AAAA"]);
        assert_eq!(answer, "2001:db8::1\n", "{transport}");
    }
}

/// The proxy keeps nothing of past connections. The first ones make it allocate all that it needs for as many more.
pub(crate) fn short_connections_leave_nothing(between: Between) {
    const COUNT: u32 = 1500;
    /// How much the peak memory may grow with as many connections again. If each connection leaked its flow, it would grow
    /// more, in every round. Connections in TIME-WAIT hold memory, of more than one round on a busy machine, and the allocator
    /// keeps memory that earlier ones have freed.
    const MOST_BYTES: u64 = COUNT as u64 * (4 << 10);
    const ROUNDS: usize = 5;

    let lab = Lab::new(between, &[]);
    let _nginx = Nginx::start(&lab);
    let fetch = || {
        let url = format!("http://{SERVER}/small?[1-{COUNT}]");
        let format = "%{num_connects}\n";
        let each = ["--header", "Connection: close", "--range", "0-99", "--output", "/dev/null"];
        let said = curl(&lab, &[&each[..], &["--write-out", format, &url]].concat());
        assert!(said.lines().all(|connects| connects == "1"), "a connection was used twice: {said}");
        assert_eq!(said.lines().count(), COUNT as usize);
    };
    let settle = || wait_until("the descriptors of past connections are closed", || lab.descriptors() <= lab.idle);
    let mut peaks = Vec::new();
    let has_grown = |peaks: &[u64]| peaks.windows(2).all(|pair| pair[1] >= pair[0] + MOST_BYTES);
    while peaks.len() < 2 || (has_grown(&peaks) && peaks.len() <= ROUNDS) {
        fetch();
        settle();
        peaks.push(lab.peak_bytes());
    }
    assert!(!has_grown(&peaks), "{peaks:?} bytes after {COUNT} connections each");
}
