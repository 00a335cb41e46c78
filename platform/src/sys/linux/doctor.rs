//! Checks Linux for everything that a run needs.

use std::fs;

use nix::unistd::Uid;

use super::line;
use super::tun::{NODE, open_node};
use crate::doctor::{Check, Verdict};

/// The congestion control of clients, if the kernel has it.
const CUBIC: &str = "cubic";

/// The settings of a socket's buffers, and their direction (`tcp(7)`). Each setting is three numbers: the smallest, the
/// initial, and the largest size of a buffer.
const BUFFERS: [(&str, &str); 2] = [("tcp_rmem", "in"), ("tcp_wmem", "out")];

pub(super) fn examine(window_bytes: usize) -> Vec<Check> {
    let node = Check::of("device node", open_node().map(|_node| format!("{NODE} can be opened")));
    let optional = [congestion_control(), socket_buffers(window_bytes as u64)];
    [node, rights()].into_iter().chain(optional.into_iter().flatten()).collect()
}

/// Root and ordinary users both work. Whether the system forbids user namespaces shows only when one is created.
fn rights() -> Check {
    let user = Uid::effective();
    let finding = if user.is_root() {
        "root".to_owned()
    } else {
        format!("user {user}, for whom a run makes a user namespace; whether it may is seen below")
    };
    Check::new("rights", Verdict::Ok, finding)
}

fn congestion_control() -> Option<Check> {
    Some(cubic_among(&line("/proc/sys/net/ipv4/tcp_available_congestion_control")?))
}

fn cubic_among(available: &str) -> Check {
    let name = "congestion control";
    if available.split_whitespace().any(|name| name == CUBIC) {
        return Check::new(name, Verdict::Ok, format!("{CUBIC} is there, of {available}"));
    }
    Check::new(name, Verdict::Note, format!("{CUBIC} is not loaded, only {available}"))
        .remedy("load it as root with modprobe tcp_cubic, or compare only runs with the same")
}

fn socket_buffers(window_bytes: u64) -> Option<Check> {
    let limits = BUFFERS.map(|(name, _)| line(&format!("/proc/sys/net/ipv4/{name}")));
    let [Some(receive), Some(send)] = limits else { return None };
    buffers_of([&receive, &send], window_bytes)
}

fn buffers_of(limits: [&str; 2], window_bytes: u64) -> Option<Check> {
    let (mut findings, mut remedies) = (Vec::new(), Vec::new());
    for ((name, way), limit) in BUFFERS.into_iter().zip(limits) {
        let numbers: Vec<u64> = limit.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let [least, first, largest] = numbers[..] else { return None };
        findings.push(format!("{largest} bytes {way}"));
        if largest < window_bytes {
            remedies.push(format!("sysctl net.ipv4.{name}=\"{least} {first} {window_bytes}\""));
        }
    }
    let finding = format!("the kernel grows them to {}", findings.join(", "));
    Some(if remedies.is_empty() {
        Check::new("socket buffers", Verdict::Ok, finding)
    } else {
        Check::new("socket buffers", Verdict::Note, format!("{finding}, less than a window of {window_bytes}"))
            .remedy(remedies.join(" and "))
    })
}

pub(super) fn memory_bytes() -> Option<u64> {
    let table = fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = table.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn a_kernel_without_cubic_is_noted() {
        assert_eq!(cubic_among("reno cubic").verdict, Verdict::Ok);
        let check = cubic_among("reno bbr");
        assert_eq!((check.verdict, check.finding.as_str()), (Verdict::Note, "cubic is not loaded, only reno bbr"));
        assert!(check.remedy.unwrap().contains("modprobe tcp_cubic"));
        // Another algorithm's name may contain it.
        assert_eq!(cubic_among("reno cubictcp").verdict, Verdict::Note);
    }

    #[test]
    fn buffers_smaller_than_a_window_are_noted_with_the_larger_ones() {
        let limits = ["4096\t131072\t6291456", "4096\t16384\t4194304"];
        let check = buffers_of(limits, 4 << 20).unwrap();
        assert_eq!((check.verdict, check.remedy), (Verdict::Ok, None));
        assert_eq!(check.finding, "the kernel grows them to 6291456 bytes in, 4194304 bytes out");
        let check = buffers_of(limits, 5 << 20).unwrap();
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(check.remedy.unwrap(), "sysctl net.ipv4.tcp_wmem=\"4096 16384 5242880\"");
        assert_eq!(buffers_of(["1 2", "1 2 3"], 1), None);
    }

    #[test]
    fn this_machine_has_memory_and_a_device_node_or_a_cause() {
        assert!(memory_bytes().unwrap() > 1 << 24);
        let node = &examine(4 << 20)[0];
        assert!(node.verdict == Verdict::Ok || node.cause.is_some(), "{node:?}");
    }
}
