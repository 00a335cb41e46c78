//! Runs the bodies of the fuzz targets in `fuzz/` over their seeds and random bytes, for a moment each.

#[path = "../../../fuzz/bodies/connection.rs"]
mod connection;
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

use self::connection::Promise;
use self::moment::for_a_moment;
use crate::take_turns;

fn stack_input<S: Netstack<MemoryLink>>(target: &str) {
    let _turn = take_turns::<S>();
    for_a_moment(target, 400, stack::run::<S>);
}

fn connection_input<S: Netstack<MemoryLink>>(target: &str, body: fn(&[u8])) {
    let _turn = take_turns::<S>();
    for_a_moment(target, 200, body);
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

#[cfg(feature = "ipstack")]
#[test]
fn connection_input_ipstack() {
    connection_input::<netstacks::Ipstack>("connection_ipstack", |bytes| {
        connection::run::<netstacks::Ipstack>(bytes, Promise::Serves);
    });
}

#[cfg(feature = "smoltcp")]
#[test]
fn connection_input_smoltcp() {
    connection_input::<netstacks::Smoltcp>("connection_smoltcp", |bytes| {
        connection::run::<netstacks::Smoltcp>(bytes, Promise::Delivers);
    });
}

#[cfg(feature = "tcp_ip")]
#[test]
fn connection_input_tcp_ip() {
    connection_input::<netstacks::TcpIp>("connection_tcp_ip", |bytes| {
        connection::run::<netstacks::TcpIp>(bytes, Promise::Serves);
    });
}

#[cfg(feature = "netstack-smoltcp")]
#[test]
fn connection_input_netstack_smoltcp() {
    connection_input::<netstacks::NetstackSmoltcp>("connection_netstack_smoltcp", |bytes| {
        connection::run::<netstacks::NetstackSmoltcp>(bytes, Promise::Lives);
    });
}

#[test]
fn gate_input() {
    for_a_moment("gate", 400, gate::run);
}

#[cfg(feature = "lwip")]
#[test]
fn connection_input_lwip() {
    connection_input::<netstacks::Lwip>("connection_lwip", |bytes| {
        connection::run::<netstacks::Lwip>(bytes, Promise::Delivers);
    });
}
