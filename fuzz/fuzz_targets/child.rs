#![no_main]

#[path = "../bodies/child.rs"]
mod child;
#[allow(dead_code, reason = "a body uses a part of it")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/json.rs"]
mod json;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| child::read(bytes));
