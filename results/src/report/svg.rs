//! The picture alone, for a document.

use std::io::{self, Write};

use askama::Template;

use super::model::Document;
use super::plot::{self, Picture, Width};

/// A picture with its own background, theme, title and captions.
#[derive(Template)]
#[template(path = "standalone.svg")]
struct Standalone<'a> {
    picture: &'a Picture,
    title: &'a str,
    captions: Vec<(u32, String)>,
    top: u32,
    width: u32,
    height: u32,
}

/// The space to either side of the picture, and the height of a line of a caption, in pixels.
const MARGIN: u32 = 16;
const LINE: u32 = 18;

pub(super) fn svg(document: &Document, out: &mut impl Write) -> io::Result<()> {
    let picture = &plot::draw(&document.picture.plot, Width::Wide)?;
    let (top, width) = (44, picture.width + 24);
    let room = f64::from(width - 2 * MARGIN);
    let captions =
        document.picture.captions.iter().chain(&document.about).flat_map(|caption| plot::wrapped(caption, room));
    let captions: Vec<_> = (top + picture.height + 20..).step_by(LINE as usize).zip(captions).collect();
    let height = captions.last().map_or(top + picture.height, |(y, _)| *y) + LINE;
    Standalone { picture, title: document.title, captions, top, width, height }
        .write_into(out)
        .map_err(io::Error::other)
}
