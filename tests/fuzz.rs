//! Runs the bodies of the fuzz targets in `fuzz/` over random bytes, for a second each.

#[allow(dead_code, reason = "the bodies use a part of it")]
#[path = "../fuzz/bodies/input.rs"]
mod input;
#[path = "../fuzz/bodies/sample.rs"]
mod sample;
#[path = "../fuzz/bodies/words.rs"]
mod words;

use std::time::{Duration, Instant};

fn for_a_moment(body: fn(&[u8])) {
    let begin = Instant::now();
    let mut generator = input::Generator::new(1);
    while begin.elapsed() < Duration::from_secs(1) {
        body(&generator.bytes(60));
    }
}

#[test]
fn lines_of_samples() {
    for_a_moment(sample::read);
}

#[test]
fn words_of_a_command_line() {
    for_a_moment(words::parse);
}
