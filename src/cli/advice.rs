//! The parser of the command line, and what it says of words that are wrong.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error, FromArgMatches};

use super::Cli;
use super::words::values;
use crate::cell::properties::{PROPERTIES, Property};

/// Words that this program does not have, or no longer: the value of an option or a command, and what to write in its place.
const GONE: [(&str, &str, &str); 11] = [
    ("--layer <LAYER>", "proxy", "our proxy is a program: --program STACK in place of --layer proxy --netstack STACK"),
    ("--layer <LAYER>", "kernel", "the kernel behind a device is a stack: --netstack kernel"),
    ("--client-threads <N>", "0", "a stack and its clients have threads of their own; leave it out"),
    ("", "schema", "docs/json.md describes the fields"),
    ("", "--relative", "a table with the kernel in the same rounds shows how the machine changed"),
    ("--preset <PRESET>", "repairs", "the preset stacks has each stack with its workarounds and without"),
    ("", "-R", "iperf3's -R is a download: --mode download"),
    ("", "--reverse", "it is a download: --mode download; forward has --reverse"),
    ("", "--bidir", "it is --mode both; forward has --bidir"),
    ("", "--export-json", "--json prints the result, and matrix --out FILE.jsonl keeps each"),
    ("--format <FORMAT>", "gha", "bmf has the same figures"),
];

/// Parses the words of a command line, the first of which is the program's name.
pub fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, Error> {
    let matches = super::command().try_get_matches_from(words).and_then(|matches| Cli::from_arg_matches(&matches));
    matches.map_err(|mut error| {
        if let Some(advice) = advice(&error) {
            error.remove(ContextKind::SuggestedArg);
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(advice)]));
        }
        error
    })
}

/// What to write in the place of a word that the parser has refused, if this program knows.
pub(crate) fn advice(error: &Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let (option, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let command = text(ContextKind::InvalidSubcommand);
    let is_gone = |(of, word, _): &&(&str, &str, &str)| match *of {
        "" => command == *word || option == *word,
        of => option == of && value == *word,
    };
    if let Some((.., remedy)) = GONE.iter().find(is_gone) {
        return Some((*remedy).to_owned());
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(commands) = commands_with(&option)
    {
        return Some(format!("{option} belongs to {commands}"));
    }
    let is_twice = !option.is_empty() && text(ContextKind::PriorArg) == option;
    let name = option.split(' ').next().unwrap_or_default().trim_start_matches("--");
    if is_twice || value == "all" || values(name, &value).len() > 1 {
        return Some("a run has one value; matrix runs several".to_owned());
    }
    let property = PROPERTIES.iter().filter(|_| !value.is_empty()).find(|property| property.long() == name);
    property.and_then(Property::bounds)
}

/// The commands that have an option, with commas; `None` if there is none.
fn commands_with(option: &str) -> Option<String> {
    let command = super::command();
    let has = |command: &&Command| {
        !command.is_hide_set() && command.get_arguments().any(|arg| arg.get_long() == option.strip_prefix("--"))
    };
    let names: Vec<_> = command.get_subcommands().filter(has).map(Command::get_name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
