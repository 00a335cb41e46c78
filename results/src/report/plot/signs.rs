//! The shapes and colours of marks.

use std::error::Error;
use std::io;

use plotters::prelude::*;

use super::{Area, Ink, Picture};
use crate::report::model::{Mark, Sign};

const SIZE: u32 = 16;

impl Sign {
    pub(super) const fn ink(self) -> Ink {
        let ([red, green, blue], dark) = self.colours();
        Ink { light: RGBColor(red, green, blue), dark }
    }
}

impl Mark {
    pub(super) const fn ink(self) -> Ink {
        self.sign.ink()
    }

    /// Its name for readers who do not see it.
    pub(in crate::report) fn name(self) -> String {
        let name = format!("{:?}", self.sign).to_lowercase();
        if self.is_open { format!("open {name}") } else { name }
    }
}

pub(super) fn shape(area: &Area<'_>, (x, y): (i32, i32), mark: Mark) -> Result<(), Box<dyn Error>> {
    let ink = mark.ink().light;
    let corners = mark.sign.corners().as_chunks().0.iter();
    let corners: Vec<_> = corners.map(|[right, down]| (x + right, y + down)).collect();
    if mark.is_open {
        let closed: Vec<_> = corners.iter().chain(corners.first()).copied().collect();
        area.draw(&PathElement::new(closed, ink.stroke_width(2)))?;
    } else {
        area.draw(&Polygon::new(corners, ink.filled()))?;
    }
    Ok(())
}

pub(in crate::report) fn sign(mark: Mark) -> io::Result<Picture> {
    let middle = SIZE.cast_signed() / 2;
    Picture::draw(SIZE, SIZE, |area| shape(area, (middle, middle), mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative luminance of WCAG 2.1.
    fn luminance(channels: [u8; 3]) -> f64 {
        let linear = |channel: u8| {
            let value = f64::from(channel) / 255.0;
            if value <= 0.03928 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        let [red, green, blue] = channels.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    fn dark(ink: Ink) -> [u8; 3] {
        let number = u32::from_str_radix(ink.dark.trim_start_matches('#'), 16).unwrap_or_default().to_be_bytes();
        [number[1], number[2], number[3]]
    }

    #[test]
    fn each_mark_has_a_shape_and_a_colour_of_its_own_that_stand_out_in_both_themes() {
        for (index, sign) in Sign::ALL.iter().copied().enumerate() {
            let RGBColor(red, green, blue) = sign.ink().light;
            let contrast = (1.05) / (luminance([red, green, blue]) + 0.05);
            let on_dark = (luminance(dark(sign.ink())) + 0.05) / (luminance(dark(super::super::GROUND)) + 0.05);
            assert!(contrast >= 3.0 && on_dark >= 3.0, "{sign:?}: {contrast} {on_dark}");
            for other in &Sign::ALL[..index] {
                assert!(sign.corners() != other.corners(), "{sign:?} and {other:?}");
                assert!(sign.ink().light != other.ink().light && sign.ink().dark != other.ink().dark, "{sign:?}");
            }
        }
    }
}
