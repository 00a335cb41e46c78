#![no_main]

#[path = "../bodies/all.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::packet::run(bytes));
