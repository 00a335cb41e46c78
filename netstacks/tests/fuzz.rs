//! The fuzz targets of `fuzz/`, for a second each over bytes by chance.

#![cfg(any(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]

#[path = "../../fuzz/bodies/gate.rs"]
mod gate;
#[path = "../../fuzz/bodies/stack.rs"]
mod stack;

use std::time::{Duration, Instant};

use stack::input::Generator;

fn for_a_second(body: fn(&[u8])) {
    let begin = Instant::now();
    let mut generator = Generator::new(1);
    while begin.elapsed() < Duration::from_secs(1) {
        body(&generator.bytes(400));
    }
}

#[cfg(feature = "lwip")]
#[test]
fn stack_input_lwip() {
    for_a_second(stack::run::<netstacks::Lwip>);
}

#[cfg(feature = "ipstack")]
#[test]
fn stack_input_ipstack() {
    for_a_second(stack::run::<netstacks::Ipstack>);
}

#[cfg(feature = "smoltcp")]
#[test]
fn stack_input_smoltcp() {
    for_a_second(stack::run::<netstacks::Smoltcp>);
}

#[test]
fn gate_input() {
    for_a_second(gate::run);
}
