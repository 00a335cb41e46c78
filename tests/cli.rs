//! The command line: help, and every kind of wrong input, word for word.

#![allow(clippy::unwrap_used, reason = "tests may panic")]
// The texts name the program, which has another name on Windows.
#![cfg(not(windows))]

use std::fmt::Write as _;
use std::process::Command;

/// What the program answers: exit code, standard output, standard error.
fn answer(arguments: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_rust-tun-perf"));
    // What changes the looks of help where there is no terminal.
    let output = program.args(arguments).env_remove("COLUMNS").env_remove("CLICOLOR_FORCE").output().unwrap();
    let mut text = format!("exit {}\n", output.status.code().unwrap());
    for (name, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
        let bytes = String::from_utf8(bytes).unwrap();
        if !bytes.is_empty() {
            write!(text, "--- {name}\n{bytes}").unwrap();
        }
    }
    text
}

/// A run that would be right, with these arguments too.
fn answer_with(arguments: &str) -> String {
    let arguments: Vec<&str> = arguments.split(' ').filter(|argument| !argument.is_empty()).collect();
    let stated = |long, short| arguments.iter().any(|argument| *argument == long || *argument == short);
    let mut all = Vec::new();
    if !stated("--mode", "-m") {
        all.extend(["--mode", "reader"]);
    }
    if !stated("--netstack", "-n") {
        all.extend(["--netstack", "smoltcp"]);
    }
    all.extend(&arguments);
    format!("$ rust-tun-perf {}\n{}", all.join(" "), answer(&all))
}

#[test]
fn help() {
    insta::assert_snapshot!("help", answer(&["--help"]));
    insta::assert_snapshot!("short_help", answer(&["-h"]));
}

#[test]
fn nothing_at_all() {
    insta::assert_snapshot!(answer(&[]));
}

#[test]
#[cfg(all(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
fn every_kind_of_wrong_input_is_refused_by_name() {
    let wrong = [
        "--netstack gvisor",
        "--mode both",
        "--no-such-option",
        "--mtu 575",
        "--mtu 65536",
        "--mtu large",
        "--bytes 0",
        "--bytes 1XB",
        "--bytes -1",
        "--bytes 20EB",
        "--warmup 18446744073709551615",
        "--bytes 3 --parallel 4",
        "--time 0",
        "--time -1",
        "--time soon",
        "--time 1 --bytes 1GB",
        "--time 60",
        "--timeout 0",
        "--timeout 86401",
        "--timeout 1e19",
        "--warmup some",
        "--parallel 0",
        "--parallel 257",
        "--window 4095",
        "--window 1GiB",
        "--window 99999999999999999999",
        "--buffer 0",
        "--buffer 65MiB",
        "--buffer 64MiB --parallel 17",
        "--worker-threads 0",
        "--worker-threads 2 --current-thread",
        "--offload perhaps",
        "--ipv6 --mtu 1279",
        "--ipv6 --tun-addr 10.10.10.9",
        "--verify maybe",
        "--netns mine",
        "--tun-name a/b",
        "--tun-addr 10.0.0",
        "--tun-dest fd10:10:10::2",
        "--ipv6 --tun-dest fe80::1",
        "--ipv6 --tun-mask ffff:0:ffff::",
        "--ipv6 --tun-dest fd10:10:10:1::1",
        "--tun-mask 255.0.255.0",
        "--tun-mask 255.255.255.255",
        "--tun-addr 10.10.10.1",
        "--tun-addr 10.10.11.9",
        "--tun-dest 10.10.10.255",
        "--tun-fd 1",
        "--tun-fd x",
        "--tun-fd 5 --mtu 9000",
    ];
    let answers: Vec<String> = wrong.into_iter().map(answer_with).collect();
    for answer in &answers {
        assert!(answer.contains("\nexit 2\n") && !answer.contains("--- stdout"), "{answer}");
    }
    insta::assert_snapshot!(answers.join("\n"));
}

#[test]
fn a_name_that_is_too_long_for_the_system() {
    let answer = answer_with("--tun-name utun12345678901234");
    assert!(answer.contains("exit 2") && answer.contains("--tun-name"), "{answer}");
}

#[test]
#[cfg(not(feature = "lwip"))]
fn a_stack_that_this_build_is_without() {
    let answer = answer_with("--netstack lwip");
    assert!(answer.contains("exit 2") && answer.contains("--features lwip"), "{answer}");
}
