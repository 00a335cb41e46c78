//! The command `conform --program`. A test that cannot run prints SKIP with the reason.

use std::fs;
use std::path::{Path, PathBuf};

use conformance::manners::Manner;
use serde_json::Value;

use crate::processes::{PROGRAM, folder, run, stderr, stdout};
use crate::program::no_device;

/// Cases that wait for seconds even if they pass.
const SLOW: [&str; 10] = [
    "thousand",
    "half-close-late",
    "unreachable",
    "silent-server",
    "keepalive",
    "idle",
    "mapping-stays",
    "link-gone-and-back",
    "ping-nobody",
    "unanswered",
];

/// Cases that our proxies fail, which takes seconds, too.
const FAILED: [&str; 5] = ["filter-address", "fragments-in", "fragments-out", "large-datagram", "ping-fragments"];

/// The outcome of each case that a command prints, and its exit code.
fn outcomes(arguments: &str) -> (Option<i32>, Vec<(String, String)>) {
    let output = run(&format!("conform {arguments} --json"));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.first().unwrap_or_else(|| panic!("{}", stderr(&output)))["kind"], "environment");
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    let of_cases = lines[1..].iter().map(|line| (text(line, "case"), text(line, "outcome")));
    (output.status.code(), of_cases.collect())
}

/// A profile of our proxy with a fault, by its options.
fn profile(folder: &Path, name: &str, options: &str) -> PathBuf {
    let own = stdout(&run("programs show smoltcp")).replacen("smoltcp", name, 1);
    let options: Vec<_> = options.split(' ').map(|word| format!("{word:?}, ")).collect();
    let options = options.concat();
    let command = own.replacen("\"rust-tun-perf\", \"proxy\", ", &format!("{PROGRAM:?}, \"proxy\", {options}"), 1);
    let path = folder.join(format!("{name}.toml"));
    fs::write(&path, command).unwrap();
    path
}

/// Runs the quick cases on a program.
fn has_known_manners(program: &str, least: usize) {
    skip_if!(no_device());
    let is_quick = |case: &Manner| {
        ![&SLOW[..], &FAILED].concat().contains(&case.of_ipv4()) && case.subject() != "devices and limits"
    };
    let cases: Vec<_> = Manner::all().filter(is_quick).map(|case| case.id).collect();
    let (code, all) = outcomes(&format!("--program {program} --case {}", cases.join(",")));
    let failed: Vec<_> = all.iter().filter(|(_, outcome)| outcome == "fail").collect();
    assert_eq!((code, all.len()), (Some(0), cases.len()), "{failed:?}");
    let passed = all.iter().filter(|(_, outcome)| outcome == "pass").count();
    assert!(passed >= least, "{passed} passed");
}

#[test]
fn the_kernel_has_good_manners() {
    has_known_manners("kernel", 50);
}

/// It fails some, which are known.
#[test]
fn our_proxy_has_the_known_manners() {
    has_known_manners("smoltcp", 60);
}

/// Each of these options is a fault of a kind that programs have.
#[test]
fn a_program_with_a_fault_is_found_out() {
    skip_if!(no_device());
    let folder = folder("manners");
    for (name, options, case, healthy) in [
        ("symmetric", "--nat symmetric", "mapping", "no-overloading"),
        ("impatient", "--tcp-idle 2", "idle", "half-close-client"),
        ("narrow", "--max-flows 100", "thousand", "short-connections"),
    ] {
        let path = profile(&folder, name, options);
        let words = format!("--program {} --case {case},{healthy} --issue {}", path.display(), folder.display());
        let (code, mut all) = outcomes(&words);
        all.sort();
        let mut expected =
            [(case, "fail"), (healthy, "pass")].map(|(case, outcome)| (case.to_owned(), outcome.to_owned()));
        expected.sort();
        assert_eq!((code, all), (Some(1), expected.to_vec()), "{name}");
        let report = fs::read_to_string(folder.join(format!("{name}-{case}.md"))).unwrap();
        assert!(
            report.contains("## What came instead") && report.contains("rust-tun-perf conform --program"),
            "{report}"
        );
    }
}

#[test]
fn a_file_is_continued_and_becomes_a_report() {
    skip_if!(no_device());
    let out = folder("manners-file").join("manners.jsonl");
    let conform = || {
        run(&format!("conform --program kernel --case reset-client,refused,reset-client-ipv6 --out {}", out.display()))
    };
    assert_eq!(conform().status.code(), Some(0));
    let whole = fs::read_to_string(&out).unwrap();
    // As an interruption leaves it.
    let begin: String = whole.split_inclusive('\n').take(2).collect();
    fs::write(&out, begin).unwrap();
    assert!(stdout(&conform()).contains("3 of 3"));
    assert_eq!(fs::read_to_string(&out).unwrap(), whole);
    for (format, text) in [
        ("markdown", "Passed by every program to which it applies: reset-client, refused."),
        ("csv", "kernel,,ends of connections,refused"),
        ("html", "Manners of programs"),
    ] {
        let page = run(&format!("report {} --format {format}", out.display()));
        assert!(stdout(&page).contains(text), "{format}: {page:?}");
    }
}

#[test]
fn a_program_that_is_missing_fails_no_case() {
    skip_if!(no_device());
    let path = folder("manners-missing").join("missing.toml");
    fs::write(&path, "name = \"missing\"\nrole = \"proxy\"\ncommand = [\"/nowhere/missing\", \"{tun}\"]\n").unwrap();
    let output = run(&format!("conform --program {} --case reset-client", path.display()));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("/nowhere/missing") && !stdout(&output).contains("FAIL"), "{output:?}");
}

#[test]
fn the_list_has_every_case() {
    let listed = stdout(&run("conform --program kernel --list"));
    let ids: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(Manner::all().all(|case| ids.contains(&case.id)), "{listed}");
}
