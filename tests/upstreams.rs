//! Our proxy as a program through the SOCKS5 server, and without a device behind TPROXY. A test that cannot run prints SKIP with
//! the reason.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::processes::{PROGRAM, assert_said, folder, success};
use crate::program::{no_device, not_installed};

#[test]
fn every_load_goes_through_our_proxy_and_a_socks5_server() {
    skip_if!(no_device());
    for options in [
        "-m reader --bytes 8MB --warmup 1MB --parallel 2",
        "-m writer --bytes 8MB --warmup 1MB --ipv6",
        "-m rr --time 0.1 --parallel 20 --request 100 --response 10KB",
        "-m crr --time 0.1 --parallel 5",
        "-m idle --time 0.1 --parallel 50",
        "-m rr --time 0.1 --protocol udp --parallel 20",
        "-m crr --time 0.1 --protocol udp --ipv6",
        // Several datagrams in a call, each with its header.
        "-m reader --time 0.1 --protocol udp --bitrate 20M --datagram 300",
        "-m writer --time 0.1 --protocol udp --bitrate 20M --datagram 300",
        "-m writer --time 0.1 --protocol udp --bitrate 5M --ipv6",
    ] {
        let sample = success(&format!("{options} --program smoltcp-socks5 --verify full"));
        let facts = &sample["program_facts"];
        assert_eq!((&facts["upstream"], &facts["left_behind"]), (&"socks5".into(), &0.into()), "{options}: {sample}");
        if sample["protocol"] == "udp" && sample["mode"] != "idle" {
            assert_eq!(sample["datagrams"]["duplicated"], 0, "{options}: {sample}");
        }
    }
}

#[test]
fn tproxy_carries_connections_without_a_device() {
    skip_if!(not_installed("tproxy"));
    for options in [
        "-m reader --bytes 8MB --warmup 1MB --parallel 2",
        "-m writer --bytes 8MB --warmup 1MB --ipv6",
        "-m rr --time 0.1 --parallel 20 --request 100 --response 10KB --max-flows 30",
        "-m crr --time 0.1 --parallel 5",
        "-m idle --time 0.1 --parallel 20",
    ] {
        let sample = success(&format!("{options} --program tproxy --verify full"));
        let facts = &sample["program_facts"];
        assert!(sample["device"].is_null() && facts["device"].is_null(), "{options}: {sample}");
        // The connections are its own: those of the clients alone would need no file of it.
        let files = |state: &str| facts[state]["open_files"].as_u64().unwrap();
        assert!(sample["mode"] == "crr" || files("under_load") > files("afterwards"), "{options}: {facts}");
        assert!(
            sample["mode"] == "idle" || sample["cpu"]["subject_seconds"].as_f64() > Some(0.0),
            "{options}: {sample}"
        );
    }
}

#[test]
fn without_nft_the_row_says_what_to_install() {
    skip_if!(not_installed("tproxy"));
    let folder = folder("without-nft");
    for program in ["ip", "sh"] {
        let place = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|folder| format!("{folder}/{program}"));
        let found = place.iter().find(|path| std::path::Path::new(path).exists()).unwrap();
        symlink(found, folder.join(program)).unwrap();
    }
    let mut command = Command::new(PROGRAM);
    command.args("-m rr --time 0.1 --program tproxy".split(' ')).env("PATH", &folder);
    assert_said(&command.output().unwrap(), 3, &["start the program nft", "install nftables"]);
}

#[test]
fn a_proxy_without_a_device_takes_no_option_of_one() {
    for (options, other) in [("--mtu 9000", "--mtu"), ("-n lwip", "--netstack"), ("--nat symmetric", "--nat")] {
        let mut command = Command::new(PROGRAM);
        command.args(format!("proxy -i lo --tproxy 50080 {options}").split(' '));
        assert_said(&command.output().unwrap(), 2, &["--tproxy", other]);
    }
}
