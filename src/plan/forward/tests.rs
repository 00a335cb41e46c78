#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};
use crate::plan::MatrixPlan;
use crate::scenario::ROWS;

fn typed(arguments: &str) -> Forward {
    let arguments = format!("rust-tun-perf forward {arguments}");
    match Cli::try_parse_from(arguments.split_whitespace()).unwrap().command {
        Some(Command::Forward(forward)) => *forward,
        _ => panic!("{arguments} is no forward command"),
    }
}

fn scenario(arguments: &str) -> Scenario {
    Scenario::try_from(typed(arguments)).unwrap()
}

fn refused(arguments: &str) -> String {
    Scenario::try_from(typed(arguments)).unwrap_err().to_string()
}

fn table(arguments: &str) -> MatrixPlan {
    MatrixPlan::try_from(typed(arguments)).unwrap()
}

fn forwarders(plan: &MatrixPlan) -> Vec<Forwarder> {
    plan.scenarios.iter().filter_map(|scenario| scenario.subject.forwarder()).collect()
}

#[test]
fn all_runs_every_row_of_the_table_in_its_order() {
    let plan = table("--all --time 3 --runs 5");
    assert_eq!(forwarders(&plan), ROWS);
    let amount = Amount::time(Duration::from_secs(3));
    assert!(plan.scenarios.iter().all(|scenario| scenario.amount == amount));
    assert_eq!((plan.runs, plan.out, plan.seed), (5, None, None));
    assert_eq!(forwarders(&table("--row 18,10,18")), [ROWS[9], ROWS[17]]);
}

#[test]
fn a_row_is_found_by_the_options_of_its_forwarder() {
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
        assert_eq!(scenario(arguments).subject, Subject::Forward(ROWS[row - 1]), "{arguments}");
    }
    let other = scenario("--offload whole --hop channel").subject.forwarder().unwrap();
    assert_eq!(other.row(), None);
}

#[test]
fn a_path_check_makes_its_own_load_and_compares_every_byte() {
    let check = scenario("--generator iperf3 --parallel 4 --bidir").path_check();
    assert_eq!(
        (check.generator, check.verify, check.workload),
        (Generator::Own, Verify::Full, Workload::Stream(Mode::Both))
    );
    assert_eq!(check.warmup_bytes, 4_000_000);
    let Amount::Time { time, .. } = check.amount else { panic!("{:?}", check.amount) };
    assert!(time < Duration::from_secs(1) && check.timeout < Duration::from_mins(1));
}

#[test]
fn a_wrong_value_is_refused_by_its_option() {
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
fn contradicting_options_are_refused() {
    for arguments in [
        "--all --row 1",
        "--all --io sync",
        "--row 1 --offload on",
        "--row 0",
        "--row 19",
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
