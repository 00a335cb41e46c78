//! Draws charts as SVG. No two colours have the same value, so a style sheet makes the dark theme; see [`theme`].

mod bars;
mod columns;
mod plane;
mod signs;
mod words;

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(super) use self::signs::sign;
pub(super) use self::words::wrapped;
use self::words::{fitted, width_of};
use super::model::{Plot, Sign};

/// A colour: its use, and its values in the light and the dark theme.
#[derive(Clone, Copy)]
pub(super) struct Ink {
    light: RGBColor,
    dark: &'static str,
}

const GROUND: Ink = Ink { light: RGBColor(0xFF, 0xFF, 0xFF), dark: "#14181d" };
const TEXT: Ink = Ink { light: RGBColor(0x1B, 0x1F, 0x24), dark: "#e6e9ed" };
const FAINT: Ink = Ink { light: RGBColor(0x57, 0x60, 0x6A), dark: "#9ba5b0" };
const GRID: Ink = Ink { light: RGBColor(0xE1, 0xE5, 0xEA), dark: "#2c343d" };

const INKS: [Ink; 4] = [GROUND, TEXT, FAINT, GRID];

/// The rules that give each colour its value in the dark theme. They belong into a media query.
pub(super) fn theme() -> String {
    let inks = INKS.into_iter().chain(Sign::ALL.iter().map(|sign| sign.ink()));
    let rules = inks.map(|Ink { light: RGBColor(red, green, blue), dark }| {
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}\n")
    });
    rules.collect()
}

const TEXT_PX: f64 = 12.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) fn draw(plot: &Plot, width: Width) -> io::Result<Picture> {
    match plot {
        Plot::Bars(panels) => bars::bars(panels, width),
        Plot::Columns(all) => columns::columns(all, width),
        Plot::Plane(plane) => plane::plane(plane, width),
    }
}

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

pub(super) struct Picture {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) body: String,
}

impl Picture {
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

/// At most `most` ticks of a logarithmic axis: powers of ten, each also times 2 and 5 if they are few.
fn steps(low: f64, high: f64, most: usize) -> Vec<f64> {
    // Such an axis has billions of decades.
    if !(low > 0.0 && high.is_finite()) {
        return Vec::new();
    }
    let of = |factors: &[f64]| -> Vec<f64> {
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let steps = decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10_f64.powi(decade)));
        steps.filter(|step| (low..=high).contains(step)).collect()
    };
    let fine = of(&[1.0, 2.0, 5.0]);
    let steps = if fine.len() > most { of(&[1.0]) } else { fine };
    // With more decades than there is room for, every second or third of them.
    let every = steps.len().div_ceil(most.max(1)).max(1);
    steps.into_iter().step_by(every).collect()
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
    fn an_axis_without_an_end_has_no_steps() {
        for (low, high) in [(0.0, 2.0), (-1.0, 2.0), (f64::NAN, 2.0), (1.0, f64::INFINITY), (1.0, f64::NAN)] {
            assert!(steps(low, high, 5).is_empty(), "{low} to {high}");
        }
        assert_eq!(steps(1.0, 10.0, 5), [1.0, 2.0, 5.0, 10.0]);
    }

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
