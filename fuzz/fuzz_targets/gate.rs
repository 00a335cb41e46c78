#![no_main]

#[path = "../bodies/gate.rs"]
mod gate;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gate::run(bytes));
