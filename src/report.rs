//! Figures to text. One file a format.

mod json;
mod text;

pub use json::json;
pub use text::text;
