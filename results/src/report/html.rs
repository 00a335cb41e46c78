//! One page that needs no other file: it has no script and no font, and makes no request.

mod table;

use std::collections::BTreeSet;
use std::io::{self, Write};

use askama::Template;

use self::table::View;
use super::model::{Block, Document, Section};
use super::plot::Width;

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    document: &'a Document,
    parts: Vec<Part<'a>>,
}

struct Part<'a> {
    anchor: String,
    heading: String,
    /// Whether the page shows it first. The others are folded.
    is_first: bool,
    section: &'a Section,
}

#[derive(Template)]
#[template(path = "blocks.html")]
struct Blocks<'a> {
    blocks: &'a [Block],
}

pub(super) fn html(document: &Document, out: &mut impl Write) -> io::Result<()> {
    Page { document, parts: parts(&document.sections) }.write_into(out).map_err(io::Error::other)
}

fn blocks(blocks: &[Block]) -> askama::Result<String> {
    Blocks { blocks }.render()
}

/// The series of one file have its name and their kinds, but a heading needs only the kind.
fn parts(sections: &[Section]) -> Vec<Part<'_>> {
    let of_series = || sections.iter().filter(|section| section.kind == "overview").filter_map(|one| one.of.as_deref());
    let file = |of: &'_ str| of.split(", ").next().unwrap_or_default().to_owned();
    let files: BTreeSet<_> = of_series().map(file).collect();
    let words =
        |of: &str| match files.first().filter(|_| files.len() == 1).and_then(|file| of.strip_prefix(file.as_str())) {
            Some("") => "streams".to_owned(),
            Some(kind) => kind.trim_start_matches(", ").to_owned(),
            None => of.to_owned(),
        };
    let mut used = BTreeSet::new();
    let is_main = |section: &Section| section.kind == "main";
    let has_main = sections.iter().any(is_main);
    let parts = sections.iter().map(|section| {
        let of = section.of.as_deref().map(words);
        let heading = of.map_or_else(|| section.title.to_owned(), |of| format!("{}: {of}", section.title));
        // Names of files in other letters may have the same anchor.
        let mut anchor = anchor(&heading);
        while !used.insert(anchor.clone()) {
            anchor.push_str("-2");
        }
        let is_first = if has_main { is_main(section) } else { matches!(section.kind, "side" | "overview") };
        Part { anchor, heading, is_first, section }
    });
    parts.collect()
}

fn anchor(heading: &str) -> String {
    let words = heading.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}
