//! Runs the bodies of the fuzz targets in `fuzz/` over random bytes, for a moment each.

#[path = "../../../fuzz/bodies/gate.rs"]
mod gate;
#[path = "../../../fuzz/bodies/stack.rs"]
mod stack;

use std::time::{Duration, Instant};

use netstacks::Netstack;
use platform::MemoryLink;

use self::stack::input::Generator;
use crate::take_turns;

fn for_a_moment(body: fn(&[u8])) {
    let begin = Instant::now();
    let mut generator = Generator::new(1);
    while begin.elapsed() < Duration::from_millis(300) {
        body(&generator.bytes(400));
    }
}

fn stack_input<S: Netstack<MemoryLink>>() {
    let _turn = take_turns::<S>();
    for_a_moment(stack::run::<S>);
}

#[cfg(feature = "lwip")]
#[test]
fn stack_input_lwip() {
    stack_input::<netstacks::Lwip>();
}

#[cfg(feature = "ipstack")]
#[test]
fn stack_input_ipstack() {
    stack_input::<netstacks::Ipstack>();
}

#[cfg(feature = "smoltcp")]
#[test]
fn stack_input_smoltcp() {
    stack_input::<netstacks::Smoltcp>();
}

#[test]
fn gate_input() {
    for_a_moment(gate::run);
}
