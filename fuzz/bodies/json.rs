//! Valid JSON with other values in it.

#![allow(clippy::unwrap_used, reason = "a fuzz target fails by panic")]

use serde_json::{Value, json};

use super::input::Input;

/// Replaces a value somewhere in the line.
pub(crate) fn change(line: &mut Value, input: &mut Input<'_>) {
    let mut place = line;
    loop {
        let choice = usize::from(input.byte());
        // A whole object or list may be replaced, too.
        if choice % 16 == 15 {
            break;
        }
        let len = place.as_object().map(serde_json::Map::len).or(place.as_array().map(Vec::len)).unwrap_or(0);
        if len == 0 {
            break;
        }
        place = match place {
            Value::Object(object) => object.values_mut().nth(choice % len).unwrap(),
            Value::Array(array) => &mut array[choice % len],
            _ => break,
        };
    }
    let number = u64::from_be_bytes(std::array::from_fn(|_| input.byte()));
    *place = match input.byte() % 14 {
        0 => Value::Null,
        1 => json!(0),
        2 => json!(-1),
        3 => json!(1e308),
        4 => json!(u64::MAX),
        5 => json!(number),
        6 => json!(number % 1000),
        7 => json!(number as f64 / 1e9),
        8 => json!(""),
        9 => json!("|<b>&\u{202e}\n'"),
        10 => json!([]),
        11 => json!({}),
        12 => json!(number % 2 == 0),
        _ => json!(u32::MAX),
    };
}
