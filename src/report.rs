//! Figures to text. One file a format.

mod json;
mod progress;
mod text;

pub use json::json;
pub use progress::Progress;
pub use text::text;
