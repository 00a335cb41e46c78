#![no_main]

#[path = "../bodies/all.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::connection::run(netstacks::StackKind::Smoltcp, bytes));
