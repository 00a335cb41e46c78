#![no_main]

#[path = "../bodies/gate.rs"]
mod gate;
#[allow(dead_code, reason = "a body uses a part of it")]
#[path = "../bodies/input.rs"]
mod input;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gate::run(bytes));
