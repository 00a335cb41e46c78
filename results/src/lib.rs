//! Cells, samples, figures and reports: the part of the program that opens no device and sends no byte.
//!
//! 1. A [`cell`] is the properties of a run. A [`program`] is started as its profile says.
//! 2. A [`sample`] is the result of a run, and a file has those of a matrix.
//! 3. [`measure`] computes figures from samples.
//! 4. [`mod@report`] writes figures as text, tables, charts and pages.

#![cfg_attr(test, allow(clippy::float_cmp, reason = "a test expects exact figures"))]

/// Reads and writes a type in JSON as the text that people type.
macro_rules! json_as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}

/// Declares methods of a table's row, each of which sets a field.
macro_rules! setters {
    ($($method:ident($field:ident: $type:ty);)+) => {$(
        pub(crate) const fn $method(self, $field: $type) -> Self {
            Self { $field, ..self }
        }
    )+};
}

pub mod cell;
pub mod measure;
pub mod program;
pub mod report;
pub mod sample;
pub mod units;

use std::fmt;

/// A number and its noun, for messages.
pub fn plural(count: impl fmt::Display, noun: &str) -> String {
    let count = count.to_string();
    format!("{count} {noun}{}", if count == "1" { "" } else { "s" })
}

/// A number with commas between thousands.
pub(crate) fn grouped_digits(figure: f64, decimals: usize) -> String {
    let text = format!("{figure:.decimals$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::new();
    for (index, digit) in text.char_indices() {
        let is_place = index < whole && (whole - index).is_multiple_of(3) && grouped.ends_with(char::is_numeric);
        grouped.extend(is_place.then_some(','));
        grouped.push(digit);
    }
    grouped
}

pub(crate) fn si(number: u64) -> String {
    let prefixes = [(1_000_000_000, " G"), (1_000_000, " M"), (1000, " k")];
    let (unit, prefix) = prefixes.into_iter().find(|(unit, _)| number.is_multiple_of(*unit)).unwrap_or((1, " "));
    format!("{}{prefix}", number / unit)
}

/// Whether a field is left out of JSON.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
