//! A chart before it is drawn.

use std::ops::Range;

/// A chart with its words.
pub(crate) struct Chart {
    /// Its text for screen readers.
    pub(crate) label: String,
    /// Lines of text under it.
    pub(crate) captions: Vec<String>,
    /// The meaning of its marks.
    pub(crate) legend: Vec<(Mark, &'static str)>,
    pub(crate) plot: Plot,
}

/// The kinds of charts.
pub(crate) enum Plot {
    /// Horizontal bars over one axis with this name.
    Bars(&'static str, Vec<Group>),
    /// Marks on two logarithmic axes with these names.
    Marks { names: [&'static str; 2], points: Vec<(f64, f64, Mark)>, guides: Vec<Guide> },
    /// Dots, marks or lines on two axes, as wide as the page or one of many small ones.
    Plane { is_small: bool, x: Axis, y: Axis, strokes: Vec<Strokes>, baseline: Option<f64> },
}

/// Bars that are compared with each other.
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
}

/// A cell.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) mark: Mark,
    /// The median and its interval; `None` if all runs failed.
    pub(crate) median: Option<(f64, Range<f64>)>,
    /// The runs, and whether each is an outlier.
    pub(crate) runs: Vec<(f64, bool)>,
    /// The text at its end.
    pub(crate) note: String,
}

/// A dashed line on which the product of both values is constant.
pub(crate) struct Guide {
    pub(crate) product: f64,
    pub(crate) name: String,
}

/// An axis.
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

/// How points are drawn.
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
pub(crate) enum Mark {
    /// lwIP, or a forwarder without super-packets.
    Circle,
    /// ipstack, or a forwarder that cuts and joins super-packets.
    Triangle,
    /// smoltcp, or a forwarder that passes super-packets through.
    Square,
    /// `tcp_ip`.
    Cross,
    /// netstack-smoltcp.
    Ring,
    /// lwip-published.
    Frame,
    /// gVisor.
    Nabla,
    /// A program of the user's.
    Bar,
    /// The kernel, or the forwarder in Go.
    Diamond,
}

impl Mark {
    pub(crate) const ALL: [Self; 9] = [
        Self::Circle,
        Self::Triangle,
        Self::Square,
        Self::Cross,
        Self::Ring,
        Self::Frame,
        Self::Nabla,
        Self::Bar,
        Self::Diamond,
    ];
}
