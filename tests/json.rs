//! `docs/json.md` describes each field of real samples, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rust_tun_perf::cell::properties::PROPERTIES;
use serde_json::Value;

use crate::machine::no_device;
use crate::processes::{folder, run, stderr, stdout};

/// Fields that few lines have, none of them in a file of this repository.
const RARE: [&str; 20] = [
    "at_times",
    "pcap",
    "device.qdisc",
    "bytes_back",
    "requests.blackholes",
    "recovery_seconds",
    "ends_withheld",
    "against",
    "lwip-published",
    "profiles",
    "throttled",
    "sysctls",
    "level",
    "subject",
    "title",
    "rfc",
    "expects",
    "effective.workarounds",
    "cause",
    "of_build",
];

/// The kinds of lines, each with the heading of its section.
const SECTIONS: [(&str, &str); 4] = [
    ("sample", "## A sample"),
    ("score", "## A score"),
    ("manner", "## A manner"),
    ("environment", "## The environment"),
];

/// A field's path, such as `cpu.client_seconds`, and the words in code in its row.
type Rows = BTreeMap<String, BTreeSet<String>>;

/// The words of a text that are code.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The described fields of each kind.
fn described() -> BTreeMap<&'static str, Rows> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/json.md")).unwrap();
    let rows = |heading: &str| {
        let section = text.split_once(heading).unwrap().1.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
        let fields = rows.flat_map(|(fields, meaning)| {
            let words: BTreeSet<_> = code(meaning).map(str::to_owned).collect();
            code(fields).map(move |field| (field.trim_end_matches("[]").to_owned(), words.clone())).collect::<Vec<_>>()
        });
        fields.collect()
    };
    SECTIONS.map(|(kind, heading)| (kind, rows(heading))).into()
}

/// Adds the paths of all fields of an object. Those of the elements of a list are those of the list.
fn paths(value: &Value, path: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                paths(value, &path, all);
                all.insert(path);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| paths(element, path, all)),
        _ => {}
    }
}

/// Whether a field has a row of its own, or is named in the row of a field that has it.
fn is_described(path: &str, rows: &Rows) -> bool {
    let mut ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
    ends.any(|end| {
        let mut rest = path[end..].split('.').filter(|name| !name.is_empty());
        rows.get(&path[..end]).is_some_and(|words| rest.all(|name| words.contains(name)))
    }) || rows.keys().any(|row| row.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// The lines of JSON in a text.
fn lines(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// A line of each kind of run that this machine can make.
fn real() -> Vec<Value> {
    let out = folder("json").join("samples.jsonl");
    let matrix = format!("matrix --layer loopback -m reader --runs 1 --time 0.1 --out {}", out.display());
    let mut commands = vec![
        "--layer stack -n smoltcp -m both --offload on --time 0.1 --interval 0.02 --json".to_owned(),
        "--layer stack -n smoltcp -m rr --background both --rate 100 --time 0.1 --json".to_owned(),
        "--layer stack -n smoltcp -m idle --parallel 20 --time 0.1 --json".to_owned(),
        "--layer stack -n smoltcp -m writer --protocol udp --bitrate 10M --time 0.1 --json".to_owned(),
        "conform --netstack lwip,smoltcp --case ipv6-fragments,super-packet --stack-congestion none,cubic --json"
            .to_owned(),
        matrix,
    ];
    if no_device().is_none() {
        let pcap = folder("json-pcap").join("run.pcap");
        commands.push(format!("-n smoltcp -m rr --time 0.1 --json --pcap {}", pcap.display()));
        commands.extend(
            [
                "-n smoltcp -m reader --loss 1 --offload off --outage 50ms,10ms --shards 2 --time 1 --json",
                "--program kernel -m crr --parallel 2 --blackholes 3 --time 0.1 --json",
                "--program smoltcp -m reader --time 0.1 --json",
                "forward --time 0.2 --json",
                "conform --program smoltcp --case reset-client,port-kept --json",
            ]
            .map(str::to_owned),
        );
    }
    let printed = commands.iter().flat_map(|command| {
        let output = run(command);
        assert!(output.status.code().is_some_and(|code| code < 2), "{command}: {}", stderr(&output));
        lines(&stdout(&output))
    });
    let printed: Vec<_> = printed.collect();
    printed.into_iter().chain(lines(&fs::read_to_string(&out).unwrap())).collect()
}

#[test]
fn every_field_of_a_real_line_is_described() {
    let described = described();
    let lines = real();
    for kind in described.keys().filter(|kind| **kind != "manner" || no_device().is_none()) {
        assert!(lines.iter().any(|line| line["kind"] == *kind), "no line of the kind {kind}");
    }
    let mut missing = BTreeSet::new();
    for mut line in lines {
        let kind = line["kind"].as_str().unwrap().to_owned();
        let mut seen = BTreeSet::new();
        // What a sample alone has of its environment is described there.
        let environment = line.get_mut("environment").map(Value::take).unwrap_or_default();
        paths(&environment, "", &mut seen);
        let rows = &described["environment"];
        missing.extend(
            seen.into_iter().filter(|path| !is_described(path, rows)).map(|path| format!("environment.{path}")),
        );
        let mut seen = BTreeSet::new();
        paths(&line, "", &mut seen);
        let rows = &described[kind.as_str()];
        missing.extend(seen.into_iter().filter(|path| !is_described(path, rows)).map(|path| format!("{kind}: {path}")));
    }
    assert!(missing.is_empty(), "docs/json.md lacks {missing:#?}");
}

/// A field is one of a property, or a committed file has it.
#[test]
fn every_described_field_is_one_that_lines_have() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["docs/data", "docs/data/offload", "docs/data/reliability", "tests/data"];
    let mut seen = BTreeSet::new();
    for file in folders.iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap()) {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "jsonl") {
            for line in lines(&fs::read_to_string(path).unwrap()) {
                paths(&line, "", &mut seen);
            }
        }
    }
    seen.extend(PROPERTIES.iter().map(|property| property.name.to_owned()).chain(RARE.map(str::to_owned)));
    let described = described();
    let names = described.values().flat_map(BTreeMap::keys);
    let foreign: Vec<_> = names.filter(|name| !seen.contains(*name)).collect();
    assert!(foreign.is_empty(), "no line has {foreign:?}");
    for property in PROPERTIES {
        assert!(described["sample"].contains_key(property.name), "{}", property.name);
    }
}
