//! Runs the bodies of the fuzz targets in `fuzz/` over their seeds and random bytes, for a moment each.

#[allow(dead_code, reason = "the bodies use a part of it")]
#[path = "../../../fuzz/bodies/input.rs"]
mod input;
#[path = "../../../fuzz/bodies/moment.rs"]
mod moment;
#[path = "../../../fuzz/bodies/packet.rs"]
mod packet;
#[path = "../../../fuzz/bodies/vnet.rs"]
mod vnet;

use self::moment::for_a_moment;

#[test]
fn packet() {
    for_a_moment("packet", 600, packet::run);
}

#[test]
fn vnet() {
    for_a_moment("vnet_read", 600, vnet::read);
    for_a_moment("vnet_split", 600, vnet::split);
    for_a_moment("vnet_coalesce", 600, vnet::coalesce);
}
