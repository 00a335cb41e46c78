#![no_main]

#[allow(dead_code, reason = "a body uses a part of it")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/json.rs"]
mod json;
#[path = "../bodies/sample.rs"]
mod sample;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sample::read(bytes));
