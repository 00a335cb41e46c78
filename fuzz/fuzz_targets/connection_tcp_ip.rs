#![no_main]

#[path = "../bodies/connection.rs"]
mod connection;
#[allow(dead_code, reason = "a body uses a part of it")]
#[path = "../bodies/input.rs"]
mod input;

// tcp_ip's task of a connection panics at a TCP header that is longer than its packet (see `known.json` of the scorecard). tokio
// catches it, and the others go on. So libFuzzer's hook, which ends the process, does not see this one panic.
libfuzzer_sys::fuzz_target!(
    init: {
        let end = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.payload_as_str().is_some_and(|message| message.starts_with("cannot advance past `remaining`")) {
                end(panic);
            }
        }));
    },
    |bytes: &[u8]| connection::run::<netstacks::TcpIp>(bytes, connection::Promise::Serves)
);
