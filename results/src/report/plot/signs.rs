//! The shapes and colours of marks.

use std::error::Error;
use std::io;

use plotters::prelude::*;

use super::{Area, Ink, Picture};
use crate::report::model::{Mark, Sign};

/// The width and the height of a mark with its margin, in pixels.
const SIZE: u32 = 16;

impl Sign {
    /// Its colour. The colours also differ in lightness, and the shapes are for readers who see no colours.
    pub(super) const fn ink(self) -> Ink {
        match self {
            Self::Circle => ink(0x0B, 0x5C, 0xAB, "#6cb6f5"),
            Self::Triangle => ink(0xC2, 0x51, 0x0C, "#f29a5c"),
            Self::Square => ink(0x12, 0x8A, 0x67, "#3fc79b"),
            Self::Cross => ink(0x7A, 0x3E, 0x9D, "#c79be6"),
            Self::Nabla => ink(0x8A, 0x7A, 0x0A, "#d6c44e"),
            Self::Left => ink(0x1E, 0x88, 0xC7, "#9fdcff"),
            Self::Right => ink(0xB8, 0x32, 0x7A, "#f08bc0"),
            Self::Bar => ink(0x6B, 0x44, 0x23, "#c9a07c"),
            Self::Diamond => ink(0x6B, 0x74, 0x7E, "#8f99a5"),
            Self::Pillar => ink(0xC6, 0x28, 0x28, "#ff8a80"),
            Self::Star => ink(0x2B, 0x2F, 0x77, "#9aa5ff"),
            Self::Saltire => ink(0x00, 0x70, 0x7A, "#4dd0d9"),
            Self::Hexagon => ink(0x4F, 0x7F, 0x00, "#a8d94a"),
            Self::Pentagon => ink(0x7F, 0x1D, 0x1D, "#e0908f"),
            Self::Hourglass => ink(0x3D, 0x5A, 0x73, "#b0c8dc"),
            Self::Bow => ink(0xD8, 0x43, 0x8B, "#ffb3d6"),
            Self::Chevron => ink(0x00, 0x4D, 0x40, "#80cbc4"),
        }
    }

    /// Its corners around a point, in pixels to the right and down, by turns.
    const fn corners(self) -> &'static [i32] {
        match self {
            Self::Circle => &[2, -5, 4, -4, 5, -2, 5, 2, 4, 4, 2, 5, -2, 5, -4, 4, -5, 2, -5, -2, -4, -4, -2, -5],
            Self::Triangle => &[0, -6, 6, 5, -6, 5],
            Self::Square => &[-5, -5, 5, -5, 5, 5, -5, 5],
            Self::Cross => &[-2, -6, 2, -6, 2, -2, 6, -2, 6, 2, 2, 2, 2, 6, -2, 6, -2, 2, -6, 2, -6, -2, -2, -2],
            Self::Nabla => &[0, 6, 6, -5, -6, -5],
            Self::Left => &[-6, 0, 5, -6, 5, 6],
            Self::Right => &[6, 0, -5, -6, -5, 6],
            Self::Bar => &[-6, -3, 6, -3, 6, 3, -6, 3],
            Self::Diamond => &[0, -6, 6, 0, 0, 6, -6, 0],
            Self::Pillar => &[-3, -6, 3, -6, 3, 6, -3, 6],
            Self::Star => &[0, -7, 2, -2, 7, -2, 3, 1, 4, 6, 0, 3, -4, 6, -3, 1, -7, -2, -2, -2],
            Self::Saltire => &[-6, -4, -4, -6, 0, -2, 4, -6, 6, -4, 2, 0, 6, 4, 4, 6, 0, 2, -4, 6, -6, 4, -2, 0],
            Self::Hexagon => &[-3, -5, 3, -5, 6, 0, 3, 5, -3, 5, -6, 0],
            Self::Pentagon => &[0, -6, 6, -1, 4, 6, -4, 6, -6, -1],
            Self::Hourglass => &[-5, -6, 5, -6, -5, 6, 5, 6],
            Self::Bow => &[-6, -5, 6, 5, 6, -5, -6, 5],
            Self::Chevron => &[-5, -6, 0, -6, 5, 0, 0, 6, -5, 6, 0, 0],
        }
    }
}

const fn ink(red: u8, green: u8, blue: u8, dark: &'static str) -> Ink {
    Ink { light: RGBColor(red, green, blue), dark }
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
        for (index, sign) in Sign::ALL.into_iter().enumerate() {
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
