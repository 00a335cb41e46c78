//! The picture alone, for a document.

use std::io::{self, Write};

use askama::Template;

use super::format;
use super::model::Document;
use super::plot::{self, Picture, Width};

/// A picture with its own background, theme, title and captions.
#[derive(Template)]
#[template(path = "standalone.svg")]
struct Standalone<'a> {
    picture: &'a Picture,
    title: &'a str,
    /// Each with the height at which it stands.
    captions: Vec<(u32, String)>,
    top: u32,
    width: u32,
    height: u32,
}

/// Writes the picture with its title and captions.
pub(super) fn svg(document: &Document, out: &mut impl Write) -> io::Result<()> {
    let picture = &plot::draw(&document.picture.plot, Width::Wide)?;
    let top = 44;
    let first = top + picture.height + 20;
    let captions: Vec<_> = document.picture.captions.iter().map(|caption| format::shortened(caption)).collect();
    let (width, height) = (picture.width + 24, first + 18 * captions.len() as u32);
    let captions = (first..).step_by(18).zip(captions).collect();
    Standalone { picture, title: document.title, captions, top, width, height }
        .write_into(out)
        .map_err(io::Error::other)
}
