#![no_main]

#[allow(dead_code, reason = "a body uses a part of it")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/stack.rs"]
mod stack;

// The crate is tested as it is published. A panic in a task of its own loses a connection, and fails in the scorecard. libFuzzer's
// hook would end the process at once; without it the body judges whether the stack and our adapter go on.
libfuzzer_sys::fuzz_target!(init: drop(std::panic::take_hook()), |bytes: &[u8]| stack::run::<netstacks::NetstackSmoltcp>(bytes));
