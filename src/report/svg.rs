//! The picture alone, for a document.

use std::io::{self, Write};

use super::format;
use super::model::Document;
use super::plot::{self, Width};

/// Writes the picture with its title and captions.
pub(super) fn svg(document: &Document, out: &mut impl Write) -> io::Result<()> {
    let picture = plot::draw(&document.picture.plot, Width::Wide)?;
    let captions: Vec<_> = document.picture.captions.iter().map(|caption| format::shortened(caption)).collect();
    out.write_all(picture.standalone(document.title, &captions)?.as_bytes())
}
