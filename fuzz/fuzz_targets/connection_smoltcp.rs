#![no_main]

#[path = "../bodies/connection.rs"]
mod connection;
#[allow(dead_code, reason = "a body uses a part of it")]
#[path = "../bodies/input.rs"]
mod input;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| connection::run::<netstacks::Smoltcp>(bytes, connection::Promise::Delivers));
