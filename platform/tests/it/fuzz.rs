//! Runs the bodies of the fuzz targets of `fuzz/` over random bytes for a moment each.

#[path = "../../../fuzz/bodies/vnet.rs"]
mod vnet;

use std::time::{Duration, Instant};

use self::vnet::input::Generator;

fn for_a_moment(body: fn(&[u8])) {
    let begin = Instant::now();
    let mut generator = Generator::new(1);
    while begin.elapsed() < Duration::from_millis(300) {
        body(&generator.bytes(600));
    }
}

#[test]
fn vnet_read() {
    for_a_moment(vnet::read);
}

#[test]
fn vnet_split() {
    for_a_moment(vnet::split);
}

#[test]
fn vnet_coalesce() {
    for_a_moment(vnet::coalesce);
}
