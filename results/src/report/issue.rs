//! A report of a case that failed, for the maintainers of the stack.

use std::io::{self, Write};
use std::path::Path;

use conformance::known::Whose;
use conformance::{Layer, Ran, Recording, Strength};
use netstacks::{StackCongestion, StackKind, Workaround, Workarounds};

use super::content::repeat;
use super::format::UNKNOWN;
use super::markdown::{blocks, escaped};
use super::model::Block;
use super::save::{SaveError, save};
use crate::sample::{CaseResult, Environment, MannerScore, Score};

/// How many packets of a longer trace are shown: the first ones, and the last ones.
const SHOWN: [usize; 2] = [40, 80];

/// Writes a failed case and its packets, `STACK-CASE.md` and `.pcap`. `command` is that of the external stack.
pub fn issue(
    folder: &Path,
    score: &Score,
    ran: &Ran,
    recording: &Recording,
    command: Option<&str>,
    environment: &Environment,
) -> Result<(), SaveError> {
    let [page, pcap] = ["md", "pcap"].map(|kind| format!("{}-{}.{kind}", score.netstack, score.case));
    let Environment { machine, program } = environment;
    let version = match score.netstack {
        StackKind::Kernel => machine.kernel.clone(),
        stack => ran.version.clone().or_else(|| program.version_of(stack)),
    };
    let version = version.unwrap_or_default();
    let title = format!("{} {version}: {}", score.netstack, situation(score));
    let whose = Some(score.whose()).filter(|whose| *whose != Whose::Stack);
    let fault = whose.map(|whose| {
        format!("The fault is in the {whose} of rust-tun-perf, not in the stack. Do not file it with the stack.")
    });
    let sections = [
        ("The situation".to_owned(), fault.into_iter().chain([place(score)]).map(Block::Text).collect()),
        (
            format!("What the RFC asks ({})", score.rfc),
            vec![score.expects.clone(), demand(&score.level)].into_iter().map(Block::Text).collect(),
        ),
        ("What came instead".to_owned(), vec![Block::Text(score.seen().to_owned())]),
        ("Why".to_owned(), why(score, ran)),
        ("How to repeat it".to_owned(), vec![Block::Code(vec![again(score, command)])]),
        (
            "Versions".to_owned(),
            vec![Block::List("This was run with:", versions(format!("{} {version}", score.netstack), environment))],
        ),
        ("The packets".to_owned(), packets(score, recording, &pcap)),
    ];
    let mut text = Vec::new();
    // Writing to memory never fails.
    let _written = write(&title, &sections, &mut text);
    save(&folder.join(pcap), &recording.pcap())?;
    save(&folder.join(page), &text)
}

/// Writes a failed case of manners, `PROGRAM-CASE.md`.
pub fn issue_of_manners(folder: &Path, score: &MannerScore, environment: &Environment) -> Result<(), SaveError> {
    let MannerScore { program, case, expects, level, .. } = score;
    let version = score.version.clone().unwrap_or_else(|| program.to_string());
    let known = score.known.clone().unwrap_or_else(|| "The cause is not known yet.".to_owned());
    let words = ["conform", "--program", program.as_str(), "--case", case].map(str::to_owned);
    let place = "The client and the server are sockets of the kernel, each in a network of its own, and the program is between them.";
    let sections = [
        ("The situation", vec![Block::Text(place.to_owned())]),
        ("What is expected", vec![Block::Text(expects.clone()), Block::Text(demand(level))]),
        ("What came instead", vec![Block::Text(score.seen().to_owned())]),
        ("Why", vec![Block::Text(known)]),
        ("How to repeat it", vec![Block::Code(vec![repeat::command(&words)])]),
        ("Versions", vec![Block::List("This was run with:", versions(version.clone(), environment))]),
    ];
    let mut text = Vec::new();
    // Writing to memory never fails.
    let _written = write(&format!("{version}: {case}"), &sections.map(|(title, of)| (title.to_owned(), of)), &mut text);
    save(&folder.join(format!("{program}-{case}.md")), &text)
}

fn write(title: &str, sections: &[(String, Vec<Block>)], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "# {}", escaped(title))?;
    sections.iter().try_for_each(|(heading, content)| {
        writeln!(out, "\n## {}\n", escaped(heading))?;
        blocks(content, out)
    })
}

fn situation(score: &Score) -> String {
    match score.continued() {
        Some(earlier) => format!("{}. {}", earlier.title, score.title),
        None => score.title.clone(),
    }
}

/// How much a standard asks for it.
fn demand(level: &str) -> String {
    match Strength::of(level) {
        Some(Strength::Ours) | None => {
            "No standard demands it: it is robustness, or a promise of an interface.".to_owned()
        }
        Some(strength) => format!("It is a {strength}: {}.", level.trim_start_matches(&format!("{strength} "))),
    }
}

fn place(score: &Score) -> String {
    let link = match score.layer {
        Layer::Stack => "a link in memory connects the two",
        Layer::Path if score.netstack == StackKind::Kernel => "a TUN device connects the two",
        Layer::Path => "each of the two has a TUN device, and the kernel forwards between them",
    };
    let offload = if score.offload { "with" } else { "without" };
    format!(
        "{}. A script plays the client packet by packet and the application above the stack; {link}, {offload} offload \
         and at an MTU of {}.",
        situation(score),
        score.mtu
    )
}

fn why(score: &Score, ran: &Ran) -> Vec<Block> {
    let known = score.known.clone().unwrap_or_else(|| "The cause is not known yet.".to_owned());
    let is_on = |workaround: &&Workaround| ran.workarounds.iter().any(|name| name == workaround.name());
    let on =
        Workaround::ALL.iter().filter(is_on).map(|workaround| format!("{}: {}", workaround.name(), workaround.does()));
    let on: Vec<_> = on.collect();
    let about = match score.workarounds {
        Workarounds::NONE => {
            "The stack ran as it is published, but for these workarounds of rust-tun-perf's adapter. They cannot be switched \
             off, or no run would finish without them:"
        }
        _ => "rust-tun-perf runs the stack by an adapter, which does in its place:",
    };
    let mut content = vec![Block::Text(known)];
    if !on.is_empty() {
        content.push(Block::List(about, on));
    }
    content
}

fn again(score: &Score, command: Option<&str>) -> String {
    let offload = if score.offload { "on" } else { "off" };
    let options = [
        ("--netstack", score.netstack.name()),
        ("--case", &score.case),
        ("--layer", score.layer.name()),
        ("--offload", offload),
        ("--mtu", &score.mtu.to_string()),
    ];
    let command = command.map(|command| ("--command", command));
    let words = options.into_iter().chain(command).flat_map(|(option, value)| [option.to_owned(), value.to_owned()]);
    // Of one word: names may begin with a dash.
    let congestion = Some(score.stack_congestion).filter(|congestion| *congestion != StackCongestion::None);
    let words = words.chain(congestion.map(|congestion| format!("--stack-congestion={}", congestion.name())));
    let words =
        words.chain((score.workarounds != Workarounds::ALL).then(|| format!("--workarounds={}", score.workarounds)));
    repeat::command(&["conform".to_owned()].into_iter().chain(words).collect::<Vec<_>>())
}

fn versions(subject: String, environment: &Environment) -> Vec<String> {
    let Environment { machine, program } = environment;
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| UNKNOWN.to_owned());
    vec![
        subject,
        format!(
            "rust-tun-perf {}, commit {}, {} build",
            text(&program.version),
            text(&program.commit),
            text(&program.build)
        ),
        format!("{} {}, {}", machine.system, text(&machine.kernel), machine.architecture),
    ]
}

fn packets(score: &Score, recording: &Recording, pcap: &str) -> Vec<Block> {
    let mut lines = recording.lines();
    let [first, last] = SHOWN;
    let left_out = lines.len().saturating_sub(first + last);
    if left_out > 0 {
        lines.splice(first..first + left_out, [format!("… {left_out} packets are left out …")]);
    }
    let [client, stack] = if lines.iter().any(|line| line.contains(" IP6 ")) {
        ["fd10:0:1::2", "fd10:0:2::2"]
    } else {
        ["10.1.0.2", "10.2.0.2"]
    };
    let about = format!(
        "{client} is the client, {stack} the stack ({}). Times are in milliseconds, and numbers count from the first \
         of each side. {pcap} has all packets.",
        score.netstack
    );
    vec![Block::Text(about), Block::Code(lines)]
}
