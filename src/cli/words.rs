//! The words of runs. `matrix` and `forward` take the options of a run as text, so that one parser reads all runs.

use std::ffi::OsStr;
use std::fmt;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use netstacks::StackKind;

use super::Run;
use crate::cell::properties::PROPERTIES;
use crate::program::{self, Profile};

/// The options of a run that only one run can have.
const OF_ONE_RUN: [&str; 6] = ["json", "verbose", "profile", "pcap", "tun_fd", "check_path"];

/// A word of a run: an option with its value, or a flag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    /// The option, without its first hyphens.
    pub option: String,
    /// `None` of a flag.
    pub value: Option<String>,
}

impl Word {
    /// An option with its value.
    pub fn new(option: &str, value: impl Into<String>) -> Self {
        Self { option: option.to_owned(), value: Some(value.into()) }
    }

    /// Whether it is a property of a cell.
    pub fn is_property(&self) -> bool {
        is_property(&self.option)
    }
}

/// As one word of a command line, so that no value is taken for an option.
impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "--{}={value}", self.option),
            None => write!(f, "--{}", self.option),
        }
    }
}

/// The options of runs, each with the texts that were typed for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<(String, Vec<String>)>);

impl Words {
    /// The words that were typed on a line.
    pub fn parse(line: &str) -> Result<Self, Error> {
        let command = Self::augment_args(Command::new("words").no_binary_name(true));
        Self::from_arg_matches(&command.try_get_matches_from(line.split_whitespace())?)
    }

    /// Whether an option was given.
    pub fn has(&self, option: &str) -> bool {
        self.0.iter().any(|(given, _)| given == option)
    }

    /// Adds the texts of an option, unless it was given.
    pub fn or(&mut self, option: &str, text: impl Into<String>) {
        if !self.has(option) {
            self.0.push((option.to_owned(), vec![text.into()]));
        }
    }

    /// The values of an option of a property: those of all its texts, each once.
    pub fn values(&self, option: &str) -> Vec<String> {
        let texts = self.0.iter().filter(|(given, _)| given == option).flat_map(|(_, texts)| texts);
        let mut once: Vec<String> = Vec::new();
        for value in texts.flat_map(|text| values(option, text)) {
            if !once.contains(&value) {
                once.push(value);
            }
        }
        once
    }

    /// The words of options that are no property.
    pub fn settings(&self) -> impl Iterator<Item = Word> {
        let settings = self.0.iter().filter(|(option, _)| !is_property(option));
        settings.flat_map(|(option, texts)| {
            let flag = texts.is_empty().then(|| Word { option: option.clone(), value: None });
            flag.into_iter().chain(texts.iter().map(|text| Word::new(option, text)))
        })
    }
}

fn is_property(option: &str) -> bool {
    PROPERTIES.iter().any(|property| property.long() == option)
}

/// The values in a text: those between its commas, unless the values of the option have commas themselves. `all` stands for all
/// possible values.
pub(crate) fn values(option: &str, text: &str) -> Vec<String> {
    let items = || text.split(',').map(str::trim);
    let is_whole = match option {
        "pin" | "outage" => true,
        // A command has words.
        "program" => items().any(|item| item.contains(char::is_whitespace)),
        "workarounds" => !items().all(|item| matches!(item, "all" | "none")),
        _ => false,
    };
    if is_whole {
        return vec![text.to_owned()];
    }
    let expand = |item: &str| if item == "all" { all(option) } else { None }.unwrap_or_else(|| vec![item.to_owned()]);
    items().flat_map(expand).collect()
}

/// What `all` stands for; `None` if the option has no possible values, or a value of this name.
fn all(option: &str) -> Option<Vec<String>> {
    match option {
        "netstack" => Some(compiled_in()),
        "offload" if platform::offload_supported() => Some(vec!["on".to_owned(), "off".to_owned()]),
        "offload" => Some(vec!["off".to_owned()]),
        "program" => Some(installed()),
        _ => {
            let run = Run::augment_args(Command::new("run"));
            let arg = run.get_arguments().find(|arg| arg.get_long() == Some(option))?;
            let values = arg.get_possible_values();
            let shown = values.iter().filter(|value| !value.is_hide_set());
            Some(shown.map(|value| value.get_name().to_owned()).collect::<Vec<_>>()).filter(|names| !names.is_empty())
        }
    }
}

/// The stacks of this build.
pub fn compiled_in() -> Vec<String> {
    StackKind::ALL.into_iter().filter(|stack| stack.compiled_in()).map(|stack| stack.to_string()).collect()
}

/// The programs of profiles that this machine has. The kernel's tunnel is only known to work when it has been tried.
fn installed() -> Vec<String> {
    let is_here =
        |name: &&str| Profile::named(name).is_ok_and(|profile| profile.is_installed() && !profile.is_of_kernel());
    program::names().filter(is_here).map(ToOwned::to_owned).collect()
}

/// A text for an option. It completes the values of a run.
#[derive(Clone)]
struct Text(Vec<PossibleValue>);

impl TypedValueParser for Text {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        (!self.0.is_empty()).then(|| Box::new(self.0.iter().cloned()) as Box<dyn Iterator<Item = PossibleValue>>)
    }
}

/// The options of a run as texts.
fn texts() -> impl Iterator<Item = Arg> {
    let run = Run::augment_args(Command::new("run"));
    let args: Vec<_> =
        run.get_arguments().filter(|arg| !OF_ONE_RUN.contains(&arg.get_id().as_str())).cloned().collect();
    args.into_iter().map(|arg| {
        if !arg.get_action().takes_values() {
            return arg;
        }
        let possible = arg.get_possible_values();
        arg.action(ArgAction::Append).value_parser(Text(possible))
    })
}

impl Args for Words {
    fn augment_args(command: Command) -> Command {
        command.args(texts())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Words {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |arg: &Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        let given = texts().filter(is_given).map(|arg| {
            let typed =
                if arg.get_action().takes_values() { matches.get_many::<String>(arg.get_id().as_str()) } else { None };
            (arg.get_long().unwrap_or_default().to_owned(), typed.into_iter().flatten().cloned().collect())
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
