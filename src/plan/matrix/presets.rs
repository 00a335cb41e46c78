//! The presets of a matrix: lines of words in a file.

use clap::ValueEnum;

use crate::cli::{Preset, Words};
use crate::plan::{PlanError, of_parser};

const FILE: &str = include_str!("../presets.txt");

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    /// Rounds, if the user gives none.
    pub(super) runs: Option<u32>,
    /// Whether a cell that hangs twice is not tried again.
    pub(super) gives_up: bool,
}

/// The lines of a preset, each with the words that were typed beside it.
pub(super) fn lines(preset: Preset, typed: &Words) -> Result<(Defaults, Vec<Words>), PlanError> {
    let name = preset.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let (defaults, lines) = read(&name)?;
    let of_all = typed.0.iter().find(|(option, _)| lines.iter().all(|(of_line, _)| of_line.has(option)));
    if let Some((option, _)) = of_all {
        return Err(PlanError::new(format!("--{option}"), "--preset chooses it; leave one of them out"));
    }
    let processors = platform::parallelism().unwrap_or(1);
    let fits = |line: &Words| {
        line.values("shards").iter().all(|shards| shards.parse().is_ok_and(|shards: usize| shards <= processors))
    };
    let lines = lines.into_iter().filter(|(line, _)| fits(line)).map(|(mut line, usual)| {
        for (option, texts) in typed.0.iter().chain(&usual.0) {
            if !line.has(option) {
                line.0.push((option.clone(), texts.clone()));
            }
        }
        line
    });
    Ok((defaults, lines.collect()))
}

/// The lines of a preset of the file, each with the words behind its name.
fn read(name: &str) -> Result<(Defaults, Vec<(Words, Words)>), PlanError> {
    let mut lines = FILE.lines().skip_while(|line| line.split(':').next() != Some(name));
    let usual = lines.next().and_then(|line| line.split_once(':')).map_or("", |(_, words)| words.trim());
    if !usual.is_empty() && !usual.starts_with('-') {
        // The names of others.
        let all = usual.split(' ').map(read).collect::<Result<Vec<_>, _>>()?;
        let gives_up = all.iter().any(|(defaults, _)| defaults.gives_up);
        let lines = all.into_iter().flat_map(|(_, lines)| lines).collect();
        return Ok((Defaults { runs: None, gives_up }, lines));
    }
    let (words, mut defaults) = (usual.replace("--give-up", ""), Defaults::default());
    defaults.gives_up = words != usual;
    let words = match words.split_once("--runs ") {
        Some((before, after)) => {
            let (runs, after) = after.split_once(' ').unwrap_or((after, ""));
            defaults.runs = runs.parse().ok();
            format!("{before}{after}")
        }
        None => words,
    };
    let parse = |line: &str| Words::parse(line).map_err(|error| of_parser(&error));
    let usual = parse(&words)?;
    let lines = lines.take_while(|line| line.starts_with(' '));
    let lines = lines.map(|line| Ok((parse(line)?, usual.clone()))).collect::<Result<_, PlanError>>()?;
    Ok((defaults, lines))
}
