//! The bodies of all fuzz targets. A target uses one of them.

#![allow(dead_code, reason = "a target uses one of the bodies")]

pub(crate) mod child;
pub(crate) mod connection;
pub(crate) mod gate;
pub(crate) mod input;
pub(crate) mod json;
pub(crate) mod packet;
pub(crate) mod sample;
pub(crate) mod stack;
pub(crate) mod vnet;
pub(crate) mod words;

/// Lets one panic pass. tcp_ip's task of a connection panics at a TCP header that is longer than its packet (see `known.json`
/// of the scorecard). tokio catches it, and the others go on. But libFuzzer's hook would end the process.
pub(crate) fn ignore_panic_of_tcp_ip() {
    let end = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload_as_str().is_some_and(|message| message.starts_with("cannot advance past `remaining`")) {
            end(panic);
        }
    }));
}
