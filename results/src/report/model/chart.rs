//! A chart before it is drawn.

use std::ops::Range;

pub(crate) struct Chart {
    /// Its text for screen readers.
    pub(crate) label: String,
    pub(crate) captions: Vec<String>,
    /// The meaning of its marks.
    pub(crate) legend: Vec<(Mark, String)>,
    pub(crate) plot: Plot,
}

pub(crate) enum Plot {
    /// Horizontal bars, in panels under each other.
    Bars(Vec<Panel>),
    /// Dots, marks or lines on two axes.
    Plane(Plane),
}

/// Two axes and what is on them.
pub(crate) struct Plane {
    pub(crate) size: Size,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) strokes: Vec<Strokes>,
    /// Only of two logarithmic axes.
    pub(crate) guides: Vec<Guide>,
    pub(crate) baseline: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// One of many small ones.
    Small,
    /// As wide as the page.
    Wide,
    /// The same, and higher.
    Tall,
}

pub(crate) struct Panel {
    pub(crate) axis: &'static str,
    pub(crate) groups: Vec<Group>,
}

/// Bars that are compared with each other.
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
    /// Lines through all bars.
    pub(crate) references: Vec<Reference>,
}

/// A value with which the bars of a group are compared.
pub(crate) struct Reference {
    pub(crate) label: String,
    pub(crate) value: f64,
}

pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) mark: Mark,
    /// The median and its interval; `None` if all runs failed.
    pub(crate) median: Option<(f64, Range<f64>)>,
    /// The runs, and whether each is an outlier.
    pub(crate) runs: Vec<(f64, bool)>,
    /// The text at the median.
    pub(crate) note: String,
}

/// A dashed line on which the product of both values is constant.
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

/// Points of one colour.
pub(crate) struct Strokes {
    pub(crate) mark: Mark,
    pub(crate) shape: Shape,
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each as a dot.
    Dots,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Circle,
    Triangle,
    Square,
    Cross,
    Nabla,
    Left,
    Right,
    Bar,
    Diamond,
    Pillar,
    Star,
    Saltire,
    Hexagon,
    Pentagon,
    Hourglass,
    Bow,
    Chevron,
}

impl Sign {
    pub(crate) const ALL: [Self; 17] = [
        Self::Circle,
        Self::Triangle,
        Self::Square,
        Self::Cross,
        Self::Nabla,
        Self::Left,
        Self::Right,
        Self::Bar,
        Self::Diamond,
        Self::Pillar,
        Self::Star,
        Self::Saltire,
        Self::Hexagon,
        Self::Pentagon,
        Self::Hourglass,
        Self::Bow,
        Self::Chevron,
    ];
}
