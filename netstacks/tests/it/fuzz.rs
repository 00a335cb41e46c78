//! Runs the bodies of the fuzz targets in `fuzz/` over their seeds and random bytes, for a moment each.

#[path = "../../../fuzz/bodies/gate.rs"]
mod gate;
#[allow(dead_code, reason = "the bodies use a part of it")]
#[path = "../../../fuzz/bodies/input.rs"]
mod input;
#[path = "../../../fuzz/bodies/moment.rs"]
mod moment;
#[path = "../../../fuzz/bodies/stack.rs"]
mod stack;

use netstacks::Netstack;
use platform::MemoryLink;

use self::moment::for_a_moment;
use crate::take_turns;

fn stack_input<S: Netstack<MemoryLink>>(target: &str) {
    let _turn = take_turns::<S>();
    for_a_moment(target, 400, stack::run::<S>);
}

#[cfg(feature = "lwip")]
#[test]
fn stack_input_lwip() {
    stack_input::<netstacks::Lwip>("stack_lwip");
}

#[cfg(feature = "ipstack")]
#[test]
fn stack_input_ipstack() {
    stack_input::<netstacks::Ipstack>("stack_ipstack");
}

#[cfg(feature = "smoltcp")]
#[test]
fn stack_input_smoltcp() {
    stack_input::<netstacks::Smoltcp>("stack_smoltcp");
}

#[cfg(feature = "tcp_ip")]
#[test]
fn stack_input_tcp_ip() {
    stack_input::<netstacks::TcpIp>("stack_tcp_ip");
}

#[cfg(feature = "netstack-smoltcp")]
#[test]
fn stack_input_netstack_smoltcp() {
    stack_input::<netstacks::NetstackSmoltcp>("stack_netstack_smoltcp");
}

#[test]
fn gate_input() {
    for_a_moment("gate", 400, gate::run);
}
