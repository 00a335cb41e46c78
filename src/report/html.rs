//! One page that needs no other file: it has no script and no font, and makes no request.

use std::io::{self, Write};

use askama::Template;

use super::model::{Block, Document};
use super::plot::Width;

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    document: &'a Document,
}

/// Blocks of a section.
#[derive(Template)]
#[template(path = "blocks.html")]
struct Blocks<'a> {
    blocks: &'a [Block],
}

/// Writes the page.
pub(super) fn html(document: &Document, out: &mut impl Write) -> io::Result<()> {
    Page { document }.write_into(out).map_err(io::Error::other)
}

fn blocks(blocks: &[Block]) -> askama::Result<String> {
    Blocks { blocks }.render()
}
