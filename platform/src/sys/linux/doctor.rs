//! Checks Linux for everything that a run needs.

use super::machine::line;
use super::network::{interface_names, rp_filter};
use super::process::folder_of_thread;
use super::tun::check_device_node;
use crate::doctor::{Check, Verdict};

/// The congestion control of clients, if the kernel has it.
const CUBIC: &str = "cubic";

/// The settings of a socket's buffers: the smallest, the initial, and the largest size (`tcp(7)`).
const BUFFERS: [(&str, &str); 2] = [("tcp_rmem", "in"), ("tcp_wmem", "out")];

/// What this machine lacks for runs with TCP windows of `window_bytes`. It only reads.
pub fn examine(window_bytes: usize) -> Vec<Check> {
    let setting = |name: &str| line(&format!("/proc/sys/net/ipv4/{name}"));
    let node = check_device_node().err().map(|error| Check::of("device node", &error));
    let cubic = setting("tcp_available_congestion_control").and_then(|available| without_cubic(&available));
    let kept = || setting("tcp_allowed_congestion_control").and_then(|allowed| cubic_kept(&allowed));
    let cubic = cubic.or_else(kept);
    let limits = BUFFERS.map(|(name, _)| setting(name).unwrap_or_default());
    let buffers = small_buffers(limits.each_ref().map(String::as_str), window_bytes as u64);
    let interfaces = interface_names(&folder_of_thread());
    let interfaces = interfaces.iter().map(String::as_str).filter(|name| *name != "lo");
    let paths = strict_reverse_paths(&interfaces.collect::<Vec<_>>());
    [node, cubic, buffers, paths].into_iter().flatten().collect()
}

/// The interfaces among these where the kernel drops an IPv4 packet whose sender it would reach another way.
pub fn strict_reverse_paths(interfaces: &[&str]) -> Option<Check> {
    strict(interfaces, rp_filter)
}

/// Whether the kernel drops the IPv4 packets from an interface whose sender has an address of this host
/// (`net/ipv4/fib_frontend.c`, `fib_validate_source`), and what to type against it.
pub fn drops_own_sources(interface: &str) -> Option<Check> {
    let accepts =
        |of: &str| line(&format!("/proc/sys/net/ipv4/conf/{of}/accept_local")).is_some_and(|value| value != "0");
    let part = interface.replace('.', "/");
    let missing = [
        (!accepts("all") && !accepts(interface)).then(|| format!(" net.ipv4.conf.{part}.accept_local=1")),
        strict_reverse_paths(&[interface]).map(|_| format!(" net.ipv4.conf.{part}.rp_filter=2")),
    ];
    let settings: String = missing.into_iter().flatten().collect();
    let finding = format!("the kernel drops answers of {interface} that come from an address of this host");
    let check = || Check::new("own sources", Verdict::Note, finding);
    (!settings.is_empty()).then(|| check().remedy(format!("accept them as root with sysctl{settings}")))
}

/// The kernel uses the larger of the setting for all interfaces and that of one (`IN_DEV_RPFILTER`).
fn strict(interfaces: &[&str], rp_filter: impl Fn(&str) -> Option<u8>) -> Option<Check> {
    let is_strict = |of: &&&str| rp_filter("all").max(rp_filter(of)) == Some(1);
    let strict: Vec<_> = interfaces.iter().filter(is_strict).copied().collect();
    // In the name of a setting, a dot within a part is written as a slash.
    let settings = strict.iter().map(|of| format!(" net.ipv4.conf.{}.rp_filter=2", of.replace('.', "/")));
    let finding = format!(
        "strict on {}, so connections through the command proxy time out where the route to a server leads elsewhere",
        strict.join(", ")
    );
    let check = || {
        Check::new("reverse paths", Verdict::Note, finding)
            .remedy(format!("make them loose as root with sysctl{}", settings.collect::<String>()))
    };
    (!strict.is_empty()).then(check)
}

fn without_cubic(available: &str) -> Option<Check> {
    let is_there = available.split_whitespace().any(|name| name == CUBIC);
    let check = || {
        Check::new("congestion control", Verdict::Note, format!("{CUBIC} is not loaded, only {available}"))
            .remedy("load it as root with modprobe tcp_cubic, or compare only runs with the same")
    };
    (!is_there).then(check)
}

/// A network other than the host's may have by default only what is allowed to everybody (`tcp_set_default_congestion_control`
/// of `net/ipv4/tcp_cong.c`).
fn cubic_kept(allowed: &str) -> Option<Check> {
    let is_allowed = allowed.split_whitespace().any(|name| name == CUBIC);
    let finding = format!("the networks of a run may have {allowed}, and not {CUBIC}: --program runs without it");
    let check = || {
        Check::new("congestion control", Verdict::Note, finding).remedy(format!(
            "allow it as root with sysctl net.ipv4.tcp_allowed_congestion_control=\"{allowed} {CUBIC}\""
        ))
    };
    (!is_allowed).then(check)
}

fn small_buffers(limits: [&str; 2], window_bytes: u64) -> Option<Check> {
    let (mut findings, mut remedies) = (Vec::new(), Vec::new());
    for ((name, way), limit) in BUFFERS.into_iter().zip(limits) {
        let numbers: Vec<u64> = limit.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let [least, first, largest] = numbers[..] else { return None };
        findings.push(format!("{largest} bytes {way}"));
        if largest < window_bytes {
            remedies.push(format!("sysctl net.ipv4.{name}=\"{least} {first} {window_bytes}\""));
        }
    }
    let finding = format!("the kernel grows them to {}, less than a window of {window_bytes}", findings.join(", "));
    let check = || Check::new("socket buffers", Verdict::Note, finding).remedy(remedies.join(" and "));
    (!remedies.is_empty()).then(check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_cubic_is_noted() {
        assert_eq!(without_cubic("reno cubic"), None);
        let check = without_cubic("reno bbr").unwrap();
        assert_eq!((check.verdict, check.finding.as_str()), (Verdict::Note, "cubic is not loaded, only reno bbr"));
        assert!(check.remedy.unwrap().contains("modprobe tcp_cubic"));
        // Another algorithm's name may contain it.
        assert!(without_cubic("reno cubictcp").is_some());
        assert_eq!(cubic_kept("reno cubic"), None);
        assert!(cubic_kept("reno bbr").unwrap().remedy.unwrap().ends_with("congestion_control=\"reno bbr cubic\""));
    }

    #[test]
    fn buffers_smaller_than_a_window_are_noted_with_the_larger_ones() {
        let limits = ["4096\t131072\t6291456", "4096\t16384\t4194304"];
        assert_eq!(small_buffers(limits, 4 << 20), None);
        let check = small_buffers(limits, 5 << 20).unwrap();
        let finding = "the kernel grows them to 6291456 bytes in, 4194304 bytes out, less than a window of 5242880";
        assert_eq!((check.verdict, check.finding.as_str()), (Verdict::Note, finding));
        assert_eq!(check.remedy.unwrap(), "sysctl net.ipv4.tcp_wmem=\"4096 16384 5242880\"");
        assert_eq!(small_buffers(["1 2", "1 2 3"], 1), None);
    }

    #[test]
    fn strict_reverse_paths_are_noted_with_the_settings_that_are_needed() {
        let set =
            |all, eth0| move |of: &str| [("all", all), ("eth0.7", eth0)].into_iter().find(|(name, _)| *name == of)?.1;
        for (all, eth0) in [(Some(1), Some(0)), (Some(0), Some(1)), (None, Some(1))] {
            let check = strict(&["eth0.7"], set(all, eth0)).unwrap();
            assert!(check.finding.starts_with("strict on eth0.7, "), "{check:?}");
            assert!(check.remedy.unwrap().ends_with("sysctl net.ipv4.conf.eth0/7.rp_filter=2"));
        }
        for (all, eth0) in [(Some(0), Some(0)), (Some(2), Some(1)), (Some(1), Some(2)), (None, None)] {
            assert_eq!(strict(&["eth0.7"], set(all, eth0)), None);
        }
    }

    #[test]
    fn each_finding_has_a_cause_or_a_remedy() {
        assert!(crate::doctor::memory_bytes().unwrap() > 1 << 24);
        assert!(examine(usize::MAX).iter().all(|check| check.cause.is_some() || check.remedy.is_some()));
    }
}
