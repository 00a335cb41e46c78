//! Where the figures of the documents come from. A test that cannot run prints SKIP with the reason.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::machine::missing_program;
use crate::processes::{folder, stderr};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Checks the sources of the data in the documents of a folder.
fn sources(folder: &Path) -> Output {
    Command::new("python3").arg(folder.join("scripts/document.py")).arg("--sources").output().unwrap()
}

#[test]
fn a_document_shows_data_of_one_build_and_machine_or_names_the_others() {
    skip_if!(missing_program(&["python3"]));
    let output = sources(Path::new(ROOT));
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn data_of_another_build_and_another_command_and_a_missing_test_are_found() {
    skip_if!(missing_program(&["python3"]));
    let copy = folder("documents-of-two-builds");
    for part in ["scripts", "docs/data"] {
        fs::create_dir_all(copy.join(part)).unwrap();
    }
    for script in ["scripts/document.py", "scripts/measure.py"] {
        fs::copy(Path::new(ROOT).join(script), copy.join(script)).unwrap();
    }
    let write = |file: &str, text: &str| fs::write(copy.join(file), text).unwrap();
    write("CONTRIBUTING.md", "");
    let data = |file: &str, commit: &str, machine: &str| {
        let head =
            format!(r#"{{"commit":"{commit}","machine":"{machine}","arguments":["matrix","--out","x","--ipv6"]}}"#);
        write(&format!("docs/data/{file}.jsonl"), &head);
    };
    let table = "<!-- report docs/data/old.jsonl: Cells -->\n<!-- end report -->\n";
    let picture = "![Figures](docs/figures/new.svg)\n";
    let named = "<!-- measured docs/data/old.jsonl -->\n<!-- end measured -->\n";
    let command = "<!-- command docs/data/new.jsonl -->\n<!-- end command -->\n";
    for (old, machine, text, found) in [
        ("b", "m", format!("{table}{picture}"), None),
        ("a", "m", format!("{table}{picture}"), Some("README.md shows docs/data/new.jsonl beside docs/data/old.jsonl")),
        ("b", "n", format!("{table}{picture}"), Some("of another build or machine")),
        ("a", "m", format!("{table}{named}{picture}"), None),
        ("b", "m", format!("{table}{named}{picture}"), Some("<!-- measured docs/data/old.jsonl --> is not needed")),
        ("a", "m", table.to_owned(), None),
        ("b", "m", "`cargo test --lib\nno_such_test`".to_owned(), Some("no test of src and tests has no_such_test")),
        ("b", "m", format!("{command}{picture}"), Some("docs/data/new.jsonl was made by matrix --out x --ipv6")),
    ] {
        data("old", old, machine);
        data("new", "b", "m");
        write("README.md", &text);
        let output = sources(&copy);
        let error = stderr(&output);
        assert_eq!(output.status.success(), found.is_none(), "{text}{error}");
        assert!(error.contains(found.unwrap_or_default()), "{text}{error}");
    }
}
