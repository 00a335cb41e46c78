//! Draws charts, as SVG without scripts, fonts or other resources to load.
//!
//! Charts are drawn in the colours of the light theme. No two colours have the same value, so a style sheet can select
//! elements by colour and make the dark theme; see [`theme`].

mod bars;
mod marks;
mod plane;

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::format;
use super::model::{Mark, Plot};

/// A colour: its use, and its values in the light and the dark theme.
pub(super) struct Ink {
    light: RGBColor,
    dark: &'static str,
}

const GROUND: Ink = Ink { light: RGBColor(0xFF, 0xFF, 0xFF), dark: "#14181d" };
const TEXT: Ink = Ink { light: RGBColor(0x1B, 0x1F, 0x24), dark: "#e6e9ed" };
const FAINT: Ink = Ink { light: RGBColor(0x57, 0x60, 0x6A), dark: "#9ba5b0" };
const GRID: Ink = Ink { light: RGBColor(0xE1, 0xE5, 0xEA), dark: "#2c343d" };
// Blue, orange and green also differ in lightness, for readers who do not see red and green. The marks differ in shape
// too.
const BLUE: Ink = Ink { light: RGBColor(0x0B, 0x5C, 0xAB), dark: "#6cb6f5" };
const ORANGE: Ink = Ink { light: RGBColor(0xC2, 0x51, 0x0C), dark: "#f29a5c" };
const GREEN: Ink = Ink { light: RGBColor(0x12, 0x8A, 0x67), dark: "#3fc79b" };
const PURPLE: Ink = Ink { light: RGBColor(0x7A, 0x3E, 0x9D), dark: "#c79be6" };
const OLIVE: Ink = Ink { light: RGBColor(0x8A, 0x7A, 0x0A), dark: "#d6c44e" };
const GREY: Ink = Ink { light: RGBColor(0x6B, 0x74, 0x7E), dark: "#8f99a5" };

const INKS: [&Ink; 10] = [&GROUND, &TEXT, &FAINT, &GRID, &BLUE, &ORANGE, &GREEN, &PURPLE, &OLIVE, &GREY];

impl Mark {
    /// Its colour, the colour's name in the style sheet of the page, and its shape in text.
    pub(super) const fn look(self) -> (&'static Ink, &'static str, char) {
        match self {
            Self::Circle => (&BLUE, "blue", '●'),
            Self::Triangle => (&ORANGE, "orange", '▲'),
            Self::Square => (&GREEN, "green", '■'),
            Self::Cross => (&PURPLE, "purple", '✚'),
            Self::Ring => (&OLIVE, "olive", '○'),
            Self::Frame => (&BLUE, "blue", '□'),
            Self::Nabla => (&PURPLE, "purple", '▼'),
            Self::Bar => (&OLIVE, "olive", '▬'),
            Self::Diamond => (&GREY, "grey", '◆'),
        }
    }

    const fn ink(self) -> &'static Ink {
        self.look().0
    }
}

/// The rules that give each colour its value in the dark theme. They belong into a media query.
pub(super) fn theme() -> String {
    let rules = INKS.iter().map(|Ink { light: RGBColor(red, green, blue), dark }| {
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}\n")
    });
    rules.collect()
}

/// Height of the text in a picture, in pixels.
const TEXT_PX: f64 = 12.0;
/// About the width of a character of the text: a picture cannot ask the font for it.
const CHARACTER_PX: f64 = 6.6;

/// The area on which a picture is drawn.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a plot.
pub(super) fn draw(plot: &Plot, width: Width) -> io::Result<Picture> {
    match plot {
        Plot::Bars(name, groups) => bars::bars(name, groups, width),
        Plot::Marks { names, points, guides } => marks::marks(*names, points, guides, width),
        Plot::Plane { is_small, x, y, strokes, baseline } => plane::plane(*is_small, x, y, strokes, *baseline, width),
    }
}

/// The place for which a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// The column of a page or a document.
    Wide,
    /// A telephone.
    Narrow,
}

impl Width {
    const fn px(self) -> u32 {
        match self {
            Self::Wide => 880,
            Self::Narrow => 360,
        }
    }
}

/// A drawing.
pub(super) struct Picture {
    pub(super) width: u32,
    pub(super) height: u32,
    /// The elements within the `svg` element.
    pub(super) body: String,
}

impl Picture {
    /// Draws with a closure on an area of that many pixels.
    fn draw(
        width: u32,
        height: u32,
        draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn std::error::Error>>,
    ) -> io::Result<Self> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
            draw(&area).and_then(|()| Ok(area.present()?)).map_err(|error| io::Error::other(error.to_string()))?;
        }
        let body = text.split_once(">\n").map_or("", |(_, body)| body);
        let body = body.trim_end().trim_end_matches("</svg>").to_owned();
        Ok(Self { width, height, body })
    }
}

/// A style for text, anchored at a point of it.
fn text_style(ink: &Ink, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    // The backend's unit of a font's size is 1.24 pixels.
    ("sans-serif", TEXT_PX * 1.24).into_font().color(&ink.light).pos(Pos::new(horizontal, vertical))
}

/// A text without control characters, cut to the width that is there.
fn fitted(text: &str, width_px: f64) -> String {
    let line = format::one_line(text);
    let room = (width_px / CHARACTER_PX).max(4.0) as usize;
    match line.char_indices().nth(room) {
        Some(_) => line.chars().take(room - 1).chain(['…']).collect(),
        None => line,
    }
}

/// About how wide a text is, in pixels.
fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER_PX
}

/// The ticks of a logarithmic axis from `low` to `high`: powers of ten, each times these factors.
fn steps(low: f64, high: f64, factors: &[f64]) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let steps = decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10_f64.powi(decade)));
    steps.filter(|step| (low..=high).contains(step)).collect()
}

/// The number at a tick of an axis, with four significant digits.
fn tick(value: f64) -> String {
    // The rounding error of a sum that should be 0.
    if value.abs() < 1e-9 {
        return "0".to_owned();
    }
    let digits = (3.0 - value.abs().log10().floor()).max(0.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_keep_the_digits_that_tell_them_apart() {
        for (value, text) in [
            (0.15, "0.15"),
            (0.05, "0.05"),
            (0.0005, "0.0005"),
            (0.1 + 0.2, "0.3"),
            (-5.0, "-5"),
            (12.5, "12.5"),
            (100.0, "100"),
            (12_345.6, "12346"),
            (-0.0, "0"),
            (1e-17, "0"),
        ] {
            assert_eq!(tick(value), text);
        }
    }
}
