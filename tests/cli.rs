//! The command line: help, and every kind of wrong input, word for word.

use std::fmt::Write as _;
use std::process::Command;

use clap::CommandFactory;
use rust_tun_perf::Error;
use rust_tun_perf::cli::{self, Cli};
use rust_tun_perf::plan::Plan;

use crate::processes::PROGRAM;

/// Runs the program, and returns its exit code, standard output and standard error.
fn answer(arguments: &[&str]) -> String {
    let mut program = Command::new(PROGRAM);
    // These variables would change the help text.
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

/// `head` reads what it needs and ends. That is no failure of this program.
#[test]
fn a_reader_that_goes_away_gets_no_error() {
    for arguments in [&["man"][..], &["conform", "--list"], &["completions", "bash"], &["forward", "--list"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(PROGRAM).args(arguments).stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.as_str()), (Some(141), ""), "{arguments:?}");
    }
}

/// Returns the same for arguments that are refused, without a process. Returns `None` for arguments that are accepted.
pub(crate) fn refusal(arguments: &[&str]) -> Option<String> {
    let (code, text) = match cli::parse(["rust-tun-perf"].iter().chain(arguments)) {
        Ok(cli) => {
            let error = Error::from(Plan::try_from(cli).err()?);
            (i32::from(error.exit_code()), format!("error: {error}\n"))
        }
        Err(error) => (error.exit_code(), error.to_string()),
    };
    Some(format!("exit {code}\n--- stderr\n{text}"))
}

/// Adds these arguments to the arguments of a valid run.
fn run_with(arguments: &str) -> Vec<&str> {
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let stated = |long, short| arguments.iter().any(|argument| *argument == long || *argument == short);
    let mut all = Vec::new();
    if !stated("--mode", "-m") {
        all.extend(["--mode", "reader"]);
    }
    if !stated("--netstack", "-n") && !stated("--program", "--layer") {
        all.extend(["--netstack", "smoltcp"]);
    }
    all.extend(&arguments);
    all
}

/// A file, or its name, may have sequences that control it.
#[test]
fn an_error_does_not_control_the_terminal() {
    let output = Command::new(PROGRAM).args(["report", "--format", "markdown", "/nowhere/\u{1b}[2J"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("/ [2J") && !said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn help() {
    insta::assert_snapshot!("help", answer(&["--help-all"]));
    insta::assert_snapshot!("short_help", answer(&["-h"]));
}

/// The completions of each shell have options and commands. The manual has every option.
#[test]
fn the_completions_and_the_manual_know_every_option() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let file = answer(&["completions", shell]);
        assert!(file.starts_with("exit 0\n"), "{file}");
        for word in ["rate-limit", "completions"] {
            assert!(file.contains(word), "{shell}: {word}");
        }
    }
    let syntax = "eval \"$($0 completions bash)\"; complete -p rust-tun-perf";
    let bash = Command::new("bash").args(["-euc", syntax, PROGRAM]).output();
    if let Ok(bash) = bash {
        assert!(bash.status.success(), "{}", String::from_utf8_lossy(&bash.stderr));
    }
    let page = answer(&["man"]);
    assert!(page.contains(".TH rust-tun-perf 1"), "{page}");
    let version = answer(&["--version"]);
    assert!(version.contains(&format!("rust-tun-perf {}\n", env!("CARGO_PKG_VERSION"))), "{version}");
    for option in Cli::command().get_subcommands().flat_map(clap::Command::get_opts).filter_map(clap::Arg::get_long) {
        assert!(page.contains(&format!("\\-\\-{}", option.replace('-', "\\-"))), "{option}");
    }
}

#[test]
fn nothing_at_all() {
    insta::assert_snapshot!(answer(&[]));
}

#[test]
#[cfg(all(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
fn every_kind_of_wrong_input_is_refused_by_name() {
    let answers = include_str!("data/wrong.txt").lines().map(|wrong| {
        let arguments = run_with(wrong);
        let refusal = refusal(&arguments).unwrap_or_else(|| panic!("{wrong} is accepted"));
        assert!(refusal.starts_with("exit 2\n"), "{wrong}: {refusal}");
        format!("$ rust-tun-perf {}\n{refusal}", arguments.join(" "))
    });
    insta::assert_snapshot!(answers.collect::<Vec<_>>().join("\n"));
}

/// The system takes an empty name for any interface, and so for the proxy's own device.
#[test]
fn a_proxy_needs_the_name_of_an_interface() {
    let refusal = refusal(&["proxy", "--interface", ""]).unwrap_or_default();
    assert!(refusal.starts_with("exit 2\n") && refusal.contains("--interface <IFACE>"), "{refusal}");
}

/// The program and [`refusal`] print the same text, for an error of clap and for an error of the plan.
#[test]
#[cfg(feature = "smoltcp")]
fn the_program_refuses_as_the_check_does() {
    for wrong in ["--mtu 575", "--bytes 0"] {
        let arguments = run_with(wrong);
        assert_eq!(Some(answer(&arguments)), refusal(&arguments), "{wrong}");
    }
}

#[test]
fn a_name_that_is_too_long_for_the_system() {
    let refusal = refusal(&run_with("--tun-name utun12345678901234")).unwrap();
    assert!(refusal.starts_with("exit 2\n") && refusal.contains("--tun-name"), "{refusal}");
}

/// Words of older versions have the words that have taken their place, and a number its range.
#[test]
fn a_wrong_word_is_refused_with_advice() {
    for (words, advice) in [
        ("-m reader -n lwip --layer proxy", "--program STACK in place of --layer proxy --netstack STACK"),
        ("matrix -n lwip --layer path,proxy", "--program STACK in place of --layer proxy --netstack STACK"),
        ("-m reader --layer kernel", "the kernel behind a device is a stack: --netstack kernel"),
        ("-m rr -n lwip --client-threads 0", "leave it out"),
        ("schema", "docs/json.md describes the fields"),
        ("compare old.jsonl new.jsonl --relative", "a table with the kernel in the same rounds"),
        ("report samples.jsonl --format gha", "bmf has the same figures"),
        ("matrix --preset repairs", "the preset stacks has each stack with its workarounds"),
        ("-m reader,writer -n lwip", "a run has one value; matrix runs several"),
        ("-m reader -n all", "a run has one value; matrix runs several"),
        ("-m rr --program kernel --program tun2proxy", "a run has one value; matrix runs several"),
        ("-m rr -n lwip --parallel 0", "must be a whole number from 1 to 10000"),
    ] {
        let refusal = refusal(&words.split(' ').collect::<Vec<_>>()).unwrap_or_else(|| panic!("{words} is accepted"));
        assert!(refusal.starts_with("exit 2\n") && refusal.contains(advice), "{words}: {refusal}");
    }
}

#[test]
#[cfg(not(feature = "lwip"))]
fn a_stack_that_is_not_compiled_in() {
    let refusal = refusal(&run_with("--netstack lwip")).unwrap();
    assert!(refusal.starts_with("exit 2\n") && refusal.contains("--features lwip"), "{refusal}");
}
