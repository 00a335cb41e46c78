//! A chart before it is drawn.

use std::ops::Range;

pub(crate) struct Chart {
    /// Its text for screen readers.
    pub(crate) label: String,
    pub(crate) captions: Vec<String>,
    pub(crate) legend: Vec<(Mark, String)>,
    pub(crate) plot: Plot,
}

pub(crate) enum Plot {
    /// Horizontal bars, in panels under each other.
    Bars(Vec<Panel>),
    /// Columns of bars side by side, which have their rows in common.
    Columns(Columns),
    /// Dots, marks or lines on two axes.
    Plane(Plane),
}

pub(crate) struct Columns {
    pub(crate) rows: Vec<(String, Mark)>,
    pub(crate) columns: Vec<ColumnOfBars>,
}

pub(crate) struct ColumnOfBars {
    pub(crate) title: &'static str,
    /// Of each row, the value as published and the one with our adapter.
    pub(crate) bars: Vec<(Option<f64>, Option<f64>)>,
    pub(crate) decimals: usize,
}

pub(crate) struct Plane {
    pub(crate) size: Size,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) strokes: Vec<Strokes>,
    pub(crate) guides: Vec<Guide>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// One of many small ones.
    Small,
    /// As wide as the page.
    Tall,
}

pub(crate) struct Panel {
    pub(crate) axis: &'static str,
    pub(crate) groups: Vec<Group>,
}

pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
    pub(crate) references: Vec<Reference>,
}

pub(crate) struct Reference {
    pub(crate) label: String,
    pub(crate) value: f64,
}

pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) mark: Mark,
    /// The median and its interval; `None` if all runs failed.
    pub(crate) median: Option<(f64, Range<f64>)>,
    pub(crate) runs: Vec<(f64, bool)>,
    /// The text at the median.
    pub(crate) note: String,
}

pub(crate) struct Guide {
    pub(crate) product: f64,
    pub(crate) name: String,
}

pub(crate) struct Axis {
    /// Empty for no name.
    pub(crate) name: &'static str,
    pub(crate) range: Range<f64>,
    pub(crate) scale: Scale,
}

/// How values are placed on an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    /// Linear, with labels only at whole numbers.
    Counts,
    /// Equal factors are equal distances.
    Logarithmic,
    /// Shares from 0 to below 1, as percentiles: 0, 0.9, 0.99 and so on are at equal distances.
    Percentiles,
}

pub(crate) struct Strokes {
    pub(crate) mark: Mark,
    pub(crate) shape: Shape,
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each as the shape of the mark.
    Marks,
    /// All as a line.
    Line,
}

/// Stands for a kind of cell: a shape, and a colour of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) sign: Sign,
    /// Whether it is an outline: a stack as it is, or a relative of the program with the filled shape.
    pub(crate) is_open: bool,
}

impl Mark {
    pub(crate) const fn filled(sign: Sign) -> Self {
        Self { sign, is_open: false }
    }

    pub(crate) const fn open(sign: Sign) -> Self {
        Self { sign, is_open: true }
    }
}

/// Declares the signs: the colour of each in both themes, and its corners around a point, in pixels to the right and down, by
/// turns. The colours also differ in lightness, and the shapes are for readers who see no colours.
macro_rules! signs {
    ($($sign:ident: $red:literal $green:literal $blue:literal $dark:literal, $corners:expr;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Sign {
            $($sign,)+
        }

        impl Sign {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$sign),+];

            pub(crate) const fn colours(self) -> ([u8; 3], &'static str) {
                match self {
                    $(Self::$sign => ([$red, $green, $blue], $dark),)+
                }
            }

            pub(crate) const fn corners(self) -> &'static [i32] {
                match self {
                    $(Self::$sign => &$corners,)+
                }
            }
        }
    };
}

signs! {
    Circle: 0x0B 0x5C 0xAB "#6cb6f5", [2, -5, 4, -4, 5, -2, 5, 2, 4, 4, 2, 5, -2, 5, -4, 4, -5, 2, -5, -2, -4, -4, -2, -5];
    Triangle: 0xC2 0x51 0x0C "#f29a5c", [0, -6, 6, 5, -6, 5];
    Square: 0x12 0x8A 0x67 "#3fc79b", [-5, -5, 5, -5, 5, 5, -5, 5];
    Cross: 0x7A 0x3E 0x9D "#c79be6", [-2, -6, 2, -6, 2, -2, 6, -2, 6, 2, 2, 2, 2, 6, -2, 6, -2, 2, -6, 2, -6, -2, -2, -2];
    Nabla: 0x8A 0x7A 0x0A "#d6c44e", [0, 6, 6, -5, -6, -5];
    Left: 0x1E 0x88 0xC7 "#9fdcff", [-6, 0, 5, -6, 5, 6];
    Right: 0xB8 0x32 0x7A "#f08bc0", [6, 0, -5, -6, -5, 6];
    Bar: 0x6B 0x44 0x23 "#c9a07c", [-6, -3, 6, -3, 6, 3, -6, 3];
    Diamond: 0x6B 0x74 0x7E "#8f99a5", [0, -6, 6, 0, 0, 6, -6, 0];
    Pillar: 0xC6 0x28 0x28 "#ff8a80", [-3, -6, 3, -6, 3, 6, -3, 6];
    Star: 0x2B 0x2F 0x77 "#9aa5ff", [0, -7, 2, -2, 7, -2, 3, 1, 4, 6, 0, 3, -4, 6, -3, 1, -7, -2, -2, -2];
    Saltire: 0x00 0x70 0x7A "#4dd0d9", [-6, -4, -4, -6, 0, -2, 4, -6, 6, -4, 2, 0, 6, 4, 4, 6, 0, 2, -4, 6, -6, 4, -2, 0];
    Hexagon: 0x4F 0x7F 0x00 "#a8d94a", [-3, -5, 3, -5, 6, 0, 3, 5, -3, 5, -6, 0];
    Pentagon: 0x7F 0x1D 0x1D "#e0908f", [0, -6, 6, -1, 4, 6, -4, 6, -6, -1];
    Hourglass: 0x3D 0x5A 0x73 "#b0c8dc", [-5, -6, 5, -6, -5, 6, 5, 6];
    Bow: 0xD8 0x43 0x8B "#ffb3d6", [-6, -5, 6, 5, 6, -5, -6, 5];
    Chevron: 0x00 0x4D 0x40 "#80cbc4", [-5, -6, 0, -6, 5, 0, 0, 6, -5, 6, 0, 0];
}
