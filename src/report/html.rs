//! One page that needs no other file: it has no script and no font, and makes no request.

use std::io::{self, Write};

use askama::Template;

use super::model::{Block, Chart, Document};
use super::plot::{self, Width};

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    document: &'a Document,
    theme: String,
}

/// Blocks of a section.
#[derive(Template)]
#[template(path = "blocks.html")]
struct Blocks<'a> {
    blocks: &'a [Block],
}

/// A chart for a wide and for a narrow screen, with its captions.
#[derive(Template)]
#[template(path = "figure.html")]
struct Figure<'a> {
    chart: &'a Chart,
}

/// Writes the page.
pub(super) fn html(document: &Document, out: &mut impl Write) -> io::Result<()> {
    Page { document, theme: plot::theme() }.write_into(out).map_err(io::Error::other)
}

fn blocks(blocks: &[Block]) -> askama::Result<String> {
    Blocks { blocks }.render()
}

fn figure(chart: &Chart) -> askama::Result<String> {
    Figure { chart }.render()
}

fn drawn(chart: &Chart, width: Width) -> io::Result<String> {
    plot::draw(&chart.plot, width)?.inline(&chart.label)
}
