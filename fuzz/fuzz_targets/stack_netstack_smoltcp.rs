#![no_main]

#[allow(dead_code, reason = "a body uses a part of it")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/stack.rs"]
mod stack;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stack::run::<netstacks::NetstackSmoltcp>(bytes));
