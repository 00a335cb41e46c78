//! The fields of a structure by their names in a file.

use serde::Serialize;
use serde_json::{Map, Value};

/// All fields of a structure by their names in a file, sorted.
pub fn fields(structure: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(structure) {
        Ok(Value::Object(fields)) => fields,
        // A structure of text and numbers is always an object.
        _ => Map::new(),
    }
}

/// The value of a field as text, without the quotes of JSON.
pub fn field_text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "unknown".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}
