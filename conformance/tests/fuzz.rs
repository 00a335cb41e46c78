//! Runs the bodies of the fuzz targets in `fuzz/` over their seeds and random bytes, for a moment each.

#[path = "../../fuzz/bodies/connection.rs"]
mod connection;
#[allow(dead_code, reason = "the bodies use a part of it")]
#[path = "../../fuzz/bodies/input.rs"]
mod input;
#[path = "../../fuzz/bodies/moment.rs"]
mod moment;

use netstacks::StackKind;

use self::moment::for_a_moment;

#[cfg(feature = "lwip")]
#[test]
fn connection_lwip() {
    for_a_moment("connection_lwip", 200, |bytes| connection::run(StackKind::Lwip, bytes));
}

#[cfg(feature = "ipstack")]
#[test]
fn connection_ipstack() {
    for_a_moment("connection_ipstack", 200, |bytes| connection::run(StackKind::Ipstack, bytes));
}

#[cfg(feature = "smoltcp")]
#[test]
fn connection_smoltcp() {
    for_a_moment("connection_smoltcp", 200, |bytes| connection::run(StackKind::Smoltcp, bytes));
}

#[cfg(feature = "tcp_ip")]
#[test]
fn connection_tcp_ip() {
    for_a_moment("connection_tcp_ip", 200, |bytes| connection::run(StackKind::TcpIp, bytes));
}

#[cfg(feature = "netstack-smoltcp")]
#[test]
fn connection_netstack_smoltcp() {
    for_a_moment("connection_netstack_smoltcp", 200, |bytes| connection::run(StackKind::NetstackSmoltcp, bytes));
}
