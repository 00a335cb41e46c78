#![no_main]

#[path = "../bodies/vnet.rs"]
mod vnet;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vnet::split(bytes));
