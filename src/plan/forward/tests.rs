#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};
use crate::plan::Runnable;

fn typed(arguments: &str) -> Forward {
    let arguments = format!("rust-tun-perf forward {arguments}");
    match Cli::try_parse_from(arguments.split_whitespace()).unwrap().command {
        Some(Command::Forward(forward)) => *forward,
        _ => panic!("{arguments} forwards nothing"),
    }
}

fn scenario(arguments: &str) -> ForwardScenario {
    ForwardScenario::try_from(typed(arguments)).unwrap()
}

fn refused(arguments: &str) -> String {
    ForwardScenario::try_from(typed(arguments)).unwrap_err().to_string()
}

fn table(arguments: &str) -> MatrixPlan<ForwardScenario> {
    MatrixPlan::try_from(typed(arguments)).unwrap()
}

#[test]
fn arguments_of_a_run_mean_the_run() {
    for arguments in [
        "",
        "--io async --offload off --hop pool --workers 3 --thread 2",
        "--io framed --hop channel --time 0.5 --warmup 0 --reverse",
        "--offload whole --bidir --parallel 8 --congestion reno --buffer 1MB --verify full --timeout 99",
        "--forwarder go --hop pool --generator iperf3 --time 4",
        "--forwarder go --offload off --ipv6 --mtu 9000 --queue 4096",
        "--near-name a --far-name b --near-addr 10.7.0.9 --far-addr 10.8.0.9",
        "--ipv6 --far-addr fd99::7 --verify off",
    ] {
        let scenario = scenario(arguments);
        let words = scenario.arguments();
        assert_eq!(words[0], "forward");
        assert_eq!(self::scenario(&words[1..].join(" ")), scenario, "{arguments}: {words:?}");
    }
}

#[test]
fn all_rows_are_those_of_the_table_in_its_order() {
    let plan = table("--all --time 3 --runs 5");
    assert_eq!(plan.scenarios.iter().map(|scenario| scenario.forwarder).collect::<Vec<_>>(), ROWS);
    assert!(plan.scenarios.iter().all(|scenario| scenario.time == Duration::from_secs(3)));
    assert_eq!((plan.runs, plan.out, plan.seed), (5, None, None));
    let some = table("--row 18,10");
    assert_eq!(
        some.scenarios.iter().map(|scenario| scenario.forwarder.row()).collect::<Vec<_>>(),
        [Some(18), Some(10)]
    );
}

#[test]
fn a_row_is_the_forwarder_of_its_options() {
    for (row, arguments) in [
        (1, "--io async --offload off"),
        (3, "--io framed --offload off --hop channel"),
        (6, "--io async --hop pool"),
        (10, ""),
        (12, "--workers 2"),
        (13, "--forwarder go --offload off"),
        (17, "--forwarder go --hop pool"),
        (18, "--offload whole"),
    ] {
        assert_eq!(scenario(arguments).forwarder.row(), Some(row), "{arguments}");
    }
    assert_eq!(scenario("--offload whole --hop channel").forwarder.row(), None);
}

#[test]
fn a_check_of_the_path_compares_every_byte_by_this_programs_own_load() {
    let check = scenario("--generator iperf3 --parallel 4 --bidir").path_check();
    assert_eq!(
        (check.generator, check.verify, check.direction),
        (Generator::Own, crate::plan::Verify::Full, Direction::Bidir)
    );
    assert_eq!(check.warmup_bytes, 4_000_000);
    assert!(check.time < Duration::from_secs(1) && check.timeout < Duration::from_mins(1));
}

#[test]
fn what_cannot_be_is_refused_by_its_option() {
    let name = "sixteen-bytes-ab";
    for (arguments, words) in [
        ("--io framed --offload whole", &["--offload", "framed"][..]),
        ("--io framed --hop pool", &["--hop", "framed"]),
        ("--io sync --thread 2", &["--thread", "sync"]),
        ("--forwarder go --io async", &["--io", "Go"]),
        ("--forwarder go --workers 2", &["--workers", "Go"]),
        ("--forwarder go --thread 2", &["--thread", "Go"]),
        ("--forwarder go --offload whole", &["--offload", "wireguard-go"]),
        (&format!("--near-name {name}"), &["--near-name", "15"]),
        (&format!("--far-name {name}"), &["--far-name", "15"]),
        ("--near-name lo", &["--near-name", "taken"]),
        ("--near-name tun22", &["--far-name", "both devices"]),
        ("--far-addr 10.0.1.2", &["--far-addr", "10.0.1.0/24"]),
        ("--near-addr fd00::1", &["--near-addr", "--ipv6"]),
        ("--ipv6 --far-addr 10.0.2.1", &["--far-addr", "--ipv6"]),
        ("--far-addr 10.0.2.255", &["--far-addr", "not the address of a host"]),
        ("--ipv6 --far-addr fe80::1", &["--far-addr", "link-local"]),
        ("--ipv6 --mtu 1279", &["--mtu", "1280"]),
        ("--time 0", &["--time"]),
        ("--time 5 --timeout 5", &["--time", "--timeout"]),
        ("--time 100000", &["--timeout", "86400"]),
        ("--generator iperf3 --time 2.5", &["--time", "whole seconds"]),
        ("--generator iperf3 --buffer 2MiB", &["--buffer", "iperf3"]),
        ("--generator iperf3 --verify full", &["--verify", "iperf3"]),
        ("--buffer 0", &["--buffer"]),
        ("--buffer 64MiB --parallel 17", &["--buffer", "1 GiB"]),
        ("--warmup 2PB", &["--warmup"]),
    ] {
        let reason = refused(arguments);
        assert!(words.iter().all(|word| reason.contains(word)), "{arguments}: {reason}");
    }
}

#[test]
fn what_contradicts_itself_is_no_command() {
    for arguments in [
        "--all --row 1",
        "--all --io sync",
        "--row 1 --offload on",
        "--row 0",
        "--row 19",
        "--row 1,1",
        "--runs 2",
        "--out x.jsonl",
        "--seed 1",
        "--reverse --bidir",
        "--all --json",
        "--all --profile x.svg",
        "--workers 0",
        "--parallel 129",
        "--io threads",
    ] {
        let words = format!("rust-tun-perf forward {arguments}");
        assert!(Cli::try_parse_from(words.split_whitespace()).is_err(), "{arguments}");
    }
}
