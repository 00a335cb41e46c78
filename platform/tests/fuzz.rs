//! The fuzz targets of `fuzz/`, for a second each over bytes by chance.

#[path = "../../fuzz/bodies/vnet.rs"]
mod vnet;

use std::time::{Duration, Instant};

use vnet::input::Generator;

fn for_a_second(body: fn(&[u8])) {
    let begin = Instant::now();
    let mut generator = Generator::new(1);
    while begin.elapsed() < Duration::from_secs(1) {
        body(&generator.bytes(600));
    }
}

#[test]
fn vnet_read() {
    for_a_second(vnet::read);
}

#[test]
fn vnet_split() {
    for_a_second(vnet::split);
}

#[test]
fn vnet_coalesce() {
    for_a_second(vnet::coalesce);
}
