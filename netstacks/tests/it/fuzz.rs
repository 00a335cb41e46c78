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

macro_rules! of_stacks {
    ($($feature:literal $test:ident $stack:ident $target:literal)+) => {$(
        #[cfg(feature = $feature)]
        #[test]
        fn $test() {
            stack_input::<netstacks::$stack>($target);
        }
    )+};
}

of_stacks! {
    "lwip" stack_input_lwip Lwip "stack_lwip"
    "ipstack" stack_input_ipstack Ipstack "stack_ipstack"
    "smoltcp" stack_input_smoltcp Smoltcp "stack_smoltcp"
    "tcp_ip" stack_input_tcp_ip TcpIp "stack_tcp_ip"
    "netstack-smoltcp" stack_input_netstack_smoltcp NetstackSmoltcp "stack_netstack_smoltcp"
}

#[test]
fn gate_input() {
    for_a_moment("gate", 400, gate::run);
}
