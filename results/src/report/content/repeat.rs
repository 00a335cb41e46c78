//! The samples of a series, and the command lines that repeat them.

use crate::program::Profile;
use crate::report::format;
use crate::report::model::{Block, Table};
use crate::report::series::Series;

pub(super) fn repeat(one: &Series, label: Option<String>, samples: Table) -> Vec<Block> {
    let of = label.map(|label| format!(" of {label}")).unwrap_or_default();
    let mut blocks = Vec::new();
    if let Some(head) = &one.head {
        let rounds = one.samples.iter().filter_map(|sample| sample.measured.round).max();
        let mut all = without_out_and_runs(&head.arguments);
        all.extend(rounds.map(|rounds| format!("--runs={rounds}")));
        let cells = head.plan.iter().map(|words| command(words)).collect();
        let mut how = vec![
            Block::Text(format!("All runs, in the same order with --seed {}:", head.seed)),
            Block::Code(vec![command(&all)]),
            Block::Text("A single run of each cell:".to_owned()),
            Block::Code(cells),
        ];
        how.extend(profiles(&head.profiles));
        blocks.push(Block::Details(format!("How to repeat the runs{of}"), how));
    }
    blocks.push(Block::Details(format!("Every sample{of} ({})", samples.rows.len()), vec![Block::Table(samples)]));
    blocks
}

/// The commands of the profiles that were files. The reader may have no such file, or another one of the same name.
fn profiles(all: &[Profile]) -> Vec<Block> {
    let mut lines = Vec::new();
    for profile in format::unique(all.iter().filter(|profile| profile.is_of_file())) {
        lines.push(format::one_line(&format!("# {}: {}", profile.typed, profile.name)));
        lines.extend(profile.prepare.iter().map(|words| format!("{} # before", line(words))));
        lines.extend((!profile.command.is_empty()).then(|| line(&profile.command)));
        lines.extend(profile.far_command.iter().map(|words| format!("{} # at the far end", line(words))));
        lines.extend(profile.setup.iter().map(|words| format!("{} # once it runs", line(words))));
    }
    if lines.is_empty() {
        return Vec::new();
    }
    vec![Block::Text("The commands of the profiles, with their placeholders:".to_owned()), Block::Code(lines)]
}

/// A command line of this program, for a shell.
pub(in crate::report) fn command(arguments: &[String]) -> String {
    format!("rust-tun-perf {}", line(arguments))
}

fn line(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    format::one_line(&words.join(" "))
}

/// Without the file, which the command would continue, and the number of rounds.
fn without_out_and_runs(all: &[String]) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut words = all.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" | "-o" | "--runs" => _ = words.next(),
            word if ["--out=", "--runs=", "-o"].iter().any(|begin| word.starts_with(begin)) => {}
            word => arguments.push(word.to_owned()),
        }
    }
    arguments
}

fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_=.,:/+%@".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_a_file_are_shown_once() {
        let text = "name = \"mine\"\nrole = \"tunnel\"\ncommand = [\"x\", \"{tun}\"]\nsetup = [[\"y\", \"a b\"]]\n";
        let mine = Profile { typed: "./mine.toml".to_owned(), ..Profile::parse(text).unwrap() };
        let others = ["kernel", "/bin/x {tun}"].map(|typed| Profile::named(typed).unwrap());
        let blocks = profiles(&[&[mine.clone(), mine][..], &others].concat());
        let [Block::Text(_), Block::Code(lines)] = &blocks[..] else { panic!("other blocks") };
        assert_eq!(lines[..], ["# ./mine.toml: mine", "x '{tun}'", "y 'a b' # once it runs"]);
        assert!(profiles(&others).is_empty());
    }

    #[test]
    fn repeated_arguments_name_no_file_and_no_number_of_rounds() {
        for line in [
            "matrix --out my.jsonl --runs 10 --time 1",
            "matrix --runs=10 --out=my.jsonl --time 1",
            "matrix -o my.jsonl --time 1",
            "matrix --time 1 -omy.jsonl",
        ] {
            let words: Vec<_> = line.split(' ').map(ToOwned::to_owned).collect();
            assert_eq!(without_out_and_runs(&words), ["matrix", "--time", "1"], "{line}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("--mtu=1500"), "--mtu=1500");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
