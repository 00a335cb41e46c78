//! Fuzz target: the command line.

#![allow(clippy::unwrap_used, reason = "a fuzz target fails by panic")]

use clap::{CommandFactory, Parser};
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::Plan;
use rust_tun_perf::plan::scenario::Scenario;

use super::input::{self, Input};

const VALUES: &[&str] = &[
    "0",
    "1",
    "-1",
    "7",
    "1000",
    "65535",
    "65536",
    "18446744073709551616",
    "1e999",
    "NaN",
    "0.5",
    "1GB",
    "9999999999GB",
    "64KiB",
    "1M",
    "5ms",
    "1h",
    "1us",
    "reader",
    "writer",
    "both",
    "rr",
    "crr",
    "idle",
    "lwip",
    "ipstack",
    "smoltcp",
    "tcp_ip",
    "gvisor",
    "external",
    "path",
    "stack",
    "kernel",
    "loopback",
    "device",
    "on",
    "off",
    "all",
    "none",
    "-task-turns",
    "udp",
    "full",
    "10.1.2.3",
    "255.255.255.0",
    "::1",
    "fd00::2",
    "utun7",
    "a b 'c'",
    "'",
    "",
    "lwip,smoltcp",
    "1500,9000",
    "host",
    "auto",
    "html",
    "streams",
    "\u{202e}",
    "x",
];

/// Any words are refused or make a plan; the words of its scenario, if it has them, make the same scenario again.
pub(crate) fn parse(bytes: &[u8]) {
    let name = "rust-tun-perf".to_owned();
    let words: Vec<_> = match input::text(bytes) {
        Some(text) => [name].into_iter().chain(text.trim_end().split(' ').map(str::to_owned)).collect(),
        None => choose(name, &mut Input::new(bytes)),
    };
    let Ok(cli) = Cli::try_parse_from(&words) else { return };
    let Ok(Plan::Run { scenario, .. }) = Plan::try_from(cli) else { return };
    if !scenario.words.is_empty() {
        assert_eq!(Scenario::of_words(scenario.words.clone()).as_ref(), Ok(&*scenario), "{words:?}");
    }
}

/// Options that there are, with values that may be theirs.
fn choose(name: String, input: &mut Input<'_>) -> Vec<String> {
    let mut words = vec![name];
    let command = Cli::command();
    let subcommands: Vec<_> = command.get_subcommands().collect();
    let choice = usize::from(input.byte());
    let command = subcommands.get(choice % (2 * subcommands.len())).copied().map_or(&command, |subcommand| {
        words.push(subcommand.get_name().to_owned());
        subcommand
    });
    let options: Vec<_> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
    while !input.is_empty() && words.len() < 20 {
        let option = options.get(usize::from(input.byte()) % (options.len() + 1));
        let value = VALUES[usize::from(input.byte()) % VALUES.len()];
        words.push(match (option, input.byte() % 4) {
            (Some(option), 0) => format!("--{option}"),
            (Some(option), _) => format!("--{option}={value}"),
            (None, _) => value.to_owned(),
        });
    }
    words
}
