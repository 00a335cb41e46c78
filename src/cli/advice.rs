//! The parser of the command line, and what it says of words that are wrong.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{Error, FromArgMatches};

use super::Cli;
use super::words::values;
use crate::cell::properties::{PROPERTIES, Property};

/// Words that this program no longer has: the value of an option or a command, and what to write in its place.
const GONE: [(&str, &str, &str); 7] = [
    ("--layer <LAYER>", "proxy", "our proxy is a program: --program STACK in place of --layer proxy --netstack STACK"),
    ("--layer <LAYER>", "kernel", "the kernel behind a device is a stack: --netstack kernel"),
    ("--client-threads <N>", "0", "a stack and its clients have threads of their own; leave it out"),
    ("", "schema", "docs/json.md describes the fields"),
    ("", "--relative", "a table with the kernel in the same rounds shows how the machine changed"),
    ("--preset <PRESET>", "repairs", "the preset stacks has each stack with its workarounds and without"),
    ("--format <FORMAT>", "gha", "bmf has the same figures"),
];

/// Parses the words of a command line, the first of which is the program's name.
pub fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, Error> {
    let matches = super::command().try_get_matches_from(words).and_then(|matches| Cli::from_arg_matches(&matches));
    matches.map_err(|mut error| {
        if let Some(advice) = advice(&error) {
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
    let is_twice = !option.is_empty() && text(ContextKind::PriorArg) == option;
    let name = option.split(' ').next().unwrap_or_default().trim_start_matches("--");
    if is_twice || value == "all" || values(name, &value).len() > 1 {
        return Some("a run has one value; matrix runs several".to_owned());
    }
    let property = PROPERTIES.iter().filter(|_| !value.is_empty()).find(|property| property.long() == name);
    property.and_then(Property::bounds)
}
