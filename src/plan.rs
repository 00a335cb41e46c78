//! The validated request: addresses, sizes and modes are typed. A value out of range is refused, with its option.

mod conform;
mod devices;
mod manners;
mod matrix;
mod proxy;
mod run;
pub mod scenario;

use std::path::PathBuf;

use clap::Arg;
use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue};

use clap_complete::Shell;

pub use self::conform::ConformPlan;
pub use self::manners::MannersPlan;
pub use self::matrix::MatrixPlan;
pub use self::matrix::about;
pub(crate) use self::proxy::OWN_DEVICE;
pub use self::proxy::{ProxyConfig, ProxyPlan};
use self::scenario::Scenario;
pub use crate::cell::Wrong as PlanError;
pub use crate::cli::Nat;
use crate::cli::{self, Cli, Command, Compare, Forward, Programs, Run};
use crate::program::{self, Profile, ProgramName};
use crate::sample::Build;

/// The task of the program.
#[derive(Clone, Debug)]
pub enum Plan {
    /// One run.
    Run {
        /// The run.
        scenario: Box<Scenario>,
        /// Whether the result is written as JSON.
        json: bool,
        /// Whether all lines below the figure are.
        verbose: bool,
    },
    /// Many runs and a table.
    Matrix(MatrixPlan),
    /// A verdict for each cell of two files.
    Compare {
        /// The samples from before.
        old: PathBuf,
        /// The samples from after.
        new: PathBuf,
        /// The builds of both files to take.
        builds: [Option<Build>; 2],
        /// Changes up to this fraction are ignored.
        floor: f64,
    },
    /// A verdict for each cell of two programs that ran in the same rounds.
    ComparePrograms {
        /// The samples of both.
        file: PathBuf,
        /// The old one and the new one.
        programs: [ProgramName; 2],
        /// The build to take.
        build: Option<Build>,
        /// Changes up to this fraction are ignored.
        floor: f64,
    },
    /// A page, a table or a picture.
    Report(cli::Report),
    /// Cases of conformance.
    Conform(ConformPlan),
    /// Cases of manners.
    Manners(MannersPlan),
    /// The proxy, until the user ends it.
    Proxy(Box<ProxyPlan>),
    /// A list of the programs that have a profile.
    Programs(Vec<Profile>),
    /// The text of a profile.
    ShowProgram(String),
    /// A profile that has been checked.
    CheckProgram(Box<Profile>),
    /// A list of the rows of the table of forwarders.
    Rows,
    /// A check of what this machine can run.
    Doctor,
    /// The completions of the command line for a shell.
    Completions(Shell),
    /// The manual page.
    Man,
    /// The task that the parent process writes to standard input.
    Child,
}

/// The error of a parser of words, which are of this program or of a list.
fn of_parser(error: &clap::Error) -> PlanError {
    let option = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => option.split(' ').next().unwrap_or_default().to_owned(),
        _ => "options".to_owned(),
    };
    let text = error.to_string();
    let lines =
        text.trim_start_matches("error: ").lines().take_while(|line| !line.is_empty() && !line.starts_with("Usage"));
    let reason = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    let near = match error.get(ContextKind::SuggestedValue) {
        Some(ContextValue::String(value)) => Some(format!("did you mean {value}?")),
        _ => None,
    };
    let advice = cli::advice(error).or(near).map(|advice| format!("; {advice}")).unwrap_or_default();
    PlanError::new(option, reason + &advice)
}

/// What to write in place of a word that is not in a list: the most similar name, as the parser finds it; empty if there is none.
fn near(word: &str, names: impl IntoIterator<Item = &'static str>) -> String {
    let name = Arg::new("name").value_parser(PossibleValuesParser::new(names));
    let parsed = clap::Command::new("names").no_binary_name(true).arg(name).try_get_matches_from([word]);
    match parsed.err().as_ref().and_then(|error| error.get(ContextKind::SuggestedValue)) {
        Some(ContextValue::String(name)) => format!("did you mean {name}? "),
        _ => String::new(),
    }
}

fn profile(typed: &str) -> Result<Profile, PlanError> {
    Profile::named(typed).map_err(|reason| PlanError::new(typed.replace(char::is_control, " "), reason))
}

impl TryFrom<Cli> for Plan {
    type Error = PlanError;

    fn try_from(cli: Cli) -> Result<Self, PlanError> {
        Ok(match cli.command {
            None => {
                let Run { json, verbose, .. } = cli.run;
                Self::Run { json, verbose, scenario: Box::new(Scenario::try_from(cli.run)?) }
            }
            Some(Command::Matrix(matrix)) => Self::Matrix(MatrixPlan::try_from(*matrix)?),
            Some(Command::Forward(forward)) if forward.list => Self::Rows,
            Some(Command::Forward(forward)) if forward.all || !forward.row.is_empty() => {
                Self::Matrix(MatrixPlan::try_from(*forward)?)
            }
            Some(Command::Forward(forward)) => {
                let Forward { json, verbose, .. } = *forward;
                Self::Run { json, verbose, scenario: Box::new(matrix::forwarder(&forward)?) }
            }
            Some(Command::Compare(compare)) => {
                let Compare { old, new, programs, old_build, new_build, floor } = compare;
                let floor = floor / 100.0;
                match (programs, new) {
                    (Some(programs), _) => Self::ComparePrograms { file: old, programs, build: new_build, floor },
                    (None, Some(new)) => Self::Compare { old, new, builds: [old_build, new_build], floor },
                    (None, None) => return Err(PlanError::new("NEW.jsonl", "is missing")),
                }
            }
            Some(Command::Report(report)) => Self::Report(report),
            Some(Command::Conform(conform)) if !conform.program.is_empty() => {
                Self::Manners(MannersPlan::try_from(conform)?)
            }
            Some(Command::Conform(conform)) => Self::Conform(ConformPlan::try_from(conform)?),
            Some(Command::Proxy(proxy)) => Self::Proxy(Box::new(ProxyPlan::try_from(*proxy)?)),
            Some(Command::Programs(Programs::List)) => {
                Self::Programs(program::names().map(profile).collect::<Result<_, _>>()?)
            }
            Some(Command::Programs(Programs::Show { name })) => match program::text(&name) {
                Some(text) => Self::ShowProgram(text),
                // It says which names there are.
                None => profile(&name).and_then(|_| Err(PlanError::new(name, "it is no profile of this program")))?,
            },
            Some(Command::Programs(Programs::Check { profile: typed })) => {
                Self::CheckProgram(Box::new(profile(&typed)?))
            }
            Some(Command::Doctor) => Self::Doctor,
            Some(Command::Completions { shell }) => Self::Completions(shell),
            Some(Command::Man) => Self::Man,
            Some(Command::Child) => Self::Child,
        })
    }
}
