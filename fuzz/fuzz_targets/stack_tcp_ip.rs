#![no_main]

#[path = "../bodies/all.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(
    init: bodies::ignore_panic_of_tcp_ip(),
    |bytes: &[u8]| bodies::stack::run::<netstacks::TcpIp>(bytes)
);
