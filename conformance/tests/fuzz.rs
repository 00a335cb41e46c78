//! Runs the bodies of the fuzz targets in `fuzz/` over their seeds and random bytes, for a moment each.

#![cfg(any(
    feature = "lwip",
    feature = "ipstack",
    feature = "smoltcp",
    feature = "tcp_ip",
    feature = "netstack-smoltcp"
))]

#[path = "../../fuzz/bodies/connection.rs"]
mod connection;
#[allow(dead_code, reason = "the bodies use a part of it")]
#[path = "../../fuzz/bodies/input.rs"]
mod input;
#[path = "../../fuzz/bodies/moment.rs"]
mod moment;

use netstacks::StackKind;

use self::moment::for_a_moment;

macro_rules! connections {
    ($($feature:literal $name:ident $stack:ident,)*) => {
        $(#[cfg(feature = $feature)]
        #[test]
        fn $name() {
            for_a_moment(stringify!($name), 200, |bytes| connection::run(StackKind::$stack, bytes));
        })*
    };
}

connections! {
    "lwip" connection_lwip Lwip,
    "ipstack" connection_ipstack Ipstack,
    "smoltcp" connection_smoltcp Smoltcp,
    "tcp_ip" connection_tcp_ip TcpIp,
    "netstack-smoltcp" connection_netstack_smoltcp NetstackSmoltcp,
}
