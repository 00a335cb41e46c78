//! The command `conform`, and the pages that `report` makes of its files. A test that cannot run prints SKIP with the
//! reason.

use std::path::{Path, PathBuf};

use serde_json::Value;

#[cfg(unix)]
use crate::machine::no_namespace;
#[cfg(unix)]
use crate::processes::shell;
use crate::processes::{run, stderr, stdout};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A path without a file.
fn new_file(name: &str) -> PathBuf {
    let path = file(name);
    let _absent = std::fs::remove_file(&path);
    path
}

/// Returns the scores of an output, which begins with the environment.
fn scores(text: &str) -> Vec<Value> {
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["kind"], "environment");
    assert!(lines[1..].iter().all(|line| line["kind"] == "score" && line["schema"] == 3));
    lines[1..].to_vec()
}

#[test]
fn results_are_printed_and_written_and_become_pages() {
    let out = new_file("conform.jsonl");
    let command = format!(
        "conform --netstack smoltcp --case half-close,icmp-too-big,super-packet --json --out {}",
        out.display()
    );
    let output = run(&command);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = scores(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(printed, scores(&std::fs::read_to_string(&out).unwrap()));
    let results: Vec<_> = printed.iter().map(|score| (&score["case"], &score["outcome"], &score["offload"])).collect();
    let expected = [("half-close", "pass", false), ("super-packet", "pass", true), ("icmp-too-big", "fail", false)];
    for (case, outcome, offload) in expected {
        assert!(results.contains(&(&case.into(), &outcome.into(), &offload.into())), "{results:?}");
    }
    for (format, text) in [
        ("markdown", "| icmp-too-big | FAIL"),
        ("html", "Conformance of TCP/IP stacks"),
        ("svg", "1 of 2"),
        ("csv", "smoltcp,stack,false,all,segments,icmp-too-big"),
        ("bmf", "\"smoltcp conformance\": {\n    \"failed_cases\": {\n      \"value\": 1.0"),
    ] {
        let page = run(&format!("report {} --format {format}", out.display()));
        assert_eq!(page.status.code(), Some(0), "{}", stderr(&page));
        let page = String::from_utf8(page.stdout).unwrap();
        assert!(page.contains(text), "{page}");
    }
    let compared = run(&format!("compare {0} {0}", out.display()));
    assert_eq!(compared.status.code(), Some(2), "the file has no samples");
}

#[test]
fn a_file_is_continued_by_the_same_command_alone() {
    let out = new_file("continued.jsonl");
    let text = || std::fs::read_to_string(&out).unwrap();
    let conform = |case: &str| {
        run(&format!("conform -v --netstack smoltcp --case {case} --workarounds all,none --out {}", out.display()))
    };
    assert_eq!(conform("handshake,half-close").status.code(), Some(0));
    let whole = text();
    // As an interruption leaves it: without the last result, or with a part of it.
    let first: String = whole.split_inclusive('\n').take(2).collect();
    for begin in [&first, &whole[..first.len() + 20]] {
        std::fs::write(&out, begin).unwrap();
        let output = conform("handshake,half-close");
        let passes = " all         2 of 2                 2 of 2\n";
        assert!(stdout(&output).contains(passes), "{output:?}");
        assert_eq!(text(), whole);
    }
    let matrix = "matrix --layer loopback --mode reader --runtime current-thread --time 0.05 --runs 1";
    let refused = [
        (conform("handshake"), 2, "was made by another command"),
        (run(&format!("{matrix} --out {}", out.display())), 2, "has results of conform, and no samples"),
        (
            run(&format!("report tests/data/laptop.jsonl {} --format csv", out.display())),
            2,
            "has samples; make a report of",
        ),
        (run(&format!("report {0} --format csv --out {0}", out.display())), 1, "which the report would replace"),
    ];
    for (output, code, reason) in refused {
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    assert_eq!(text(), whole);
}

#[test]
fn a_trace_has_the_packets_of_a_case() {
    let pcap = file("conform.pcap");
    let output = run(&format!("conform --netstack smoltcp --case half-close --pcap {}", pcap.display()));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let bytes = std::fs::read(&pcap).unwrap();
    assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    assert!(bytes.len() > 300_000, "{} bytes", bytes.len());
}

#[test]
fn a_failure_becomes_a_report_for_the_maintainers() {
    let folder = file("issues");
    let _absent = std::fs::remove_dir_all(&folder);
    let conform = |options: &str, folder: &Path| {
        run(&format!(
            "conform --netstack smoltcp --case half-close,icmp-too-big {options} --issue {}",
            folder.display()
        ))
    };
    for options in ["", "--mtu 9000 --json"] {
        let output = conform(options, &folder);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["smoltcp-icmp-too-big.md", "smoltcp-icmp-too-big.pcap"], "the other case passes");
        let text = std::fs::read_to_string(folder.join("smoltcp-icmp-too-big.md")).unwrap();
        let mtu = if options.is_empty() { 1500 } else { 9000 };
        for part in [
            "# smoltcp 0.14.0: ICMP \"fragmentation needed\" with an MTU of 600\n",
            "## What the RFC asks (RFC 1191, 3 and 6; RFC 9293, 3.7.2)\n\nThe data comes again",
            "may fragment.\n\nIt is a SHOULD: RFC 9293, 3.7.2.\n",
            "\n0 of 30000 bytes came within 5s; it sent ",
            &format!(
                "    rust-tun-perf conform --netstack smoltcp --case icmp-too-big --layer stack --offload off --mtu {mtu} \
                 --workarounds=none\n"
            ),
            "         0.000 IP 10.1.0.2.40000 > 10.2.0.2.5201: Flags [S], seq 0, win 65535, options [mss 1460], length 0\n",
            ": Flags [.], seq 1:1461, ack 1, win ",
            ": ICMP too big, mtu 600, length ",
            "- smoltcp 0.14.0\n- rust-tun-perf ",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let pcap = std::fs::read(folder.join("smoltcp-icmp-too-big.pcap")).unwrap();
        assert_eq!(pcap[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    }
    let a_file = folder.join("smoltcp-icmp-too-big.md");
    for bad in [a_file.clone(), a_file.join("below")] {
        let output = conform("", &bad);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = stderr(&output);
        assert!(text.contains(&bad.display().to_string()) && text.contains("choose another path"), "{text}");
        assert!(output.stdout.is_empty(), "it ends before the first case");
    }
}

#[test]
fn cases_of_segment_sizes_have_any_mtu() {
    for (mtu, count) in [(1280, "9 of 9"), (9000, "9 of 9"), (65_535, "8 of 8")] {
        let cases = "mss-announced,mss-announced-ipv6,mss-small,mss-missing,mss-large,udp,udp-ipv6,udp-fragments-sent,\
                     udp-too-large-ipv6";
        let output = run(&format!("conform -v --netstack smoltcp --case {cases} --mtu {mtu}"));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains(&format!(" all         {count}\n")), "{text}");
    }
    let refused = run("conform --netstack smoltcp --mtu 1279");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--mtu: 1279 bytes; IPv6 needs at least 1280"), "{}", stderr(&refused));
}

#[test]
fn the_list_has_every_case() {
    let output = run("conform --list");
    let text = String::from_utf8(output.stdout).unwrap();
    let ids: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(conformance::Case::all().all(|case| ids.contains(&case.id)));
    assert!(text.lines().any(|line| line.starts_with(" window-probed ") && line.contains(" MUST-36 ")), "{text}");
}

/// Only the kernel verifies checksums behind a device.
#[test]
fn cases_are_run_behind_devices() {
    for (stack, expected) in [("smoltcp", " all         3 of 3\n"), ("kernel", " passed by the kernel  4 of 4\n")] {
        let cases = "handshake,handshake-ipv6,one-lost,wrong-tcp-checksum";
        let output = run(&format!("conform -v --netstack {stack} --layer path --case {cases}"));
        let reason = (output.status.code() == Some(3)).then(|| stderr(&output));
        skip_if!(reason);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn random_play_has_a_result_for_each_invariant() {
    let output = run("conform --netstack smoltcp --explore 20 --seed 5 --json");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let cases: Vec<_> = scores(std::str::from_utf8(&output.stdout).unwrap());
    assert!(cases.iter().all(|score| score["subject"] == "random play" && score["outcome"] == "pass"), "{cases:?}");
    assert_eq!(cases.len(), conformance::invariants().count());
}

/// A right that is missing is the machine's fault and not the stack's.
#[cfg(unix)]
#[test]
fn a_device_that_cannot_be_opened_fails_no_case() {
    skip_if!(no_namespace(&["-rm", "true"]));
    let script =
        "mount -t tmpfs none /dev/net; exec \"$PROGRAM\" conform --netstack smoltcp --layer path --case handshake";
    let output = shell(&["-rm"], script);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("/dev/net/tun"), "{}", stderr(&output));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("FAIL"), "{output:?}");
}
