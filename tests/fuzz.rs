//! Runs the bodies of the fuzz targets in `fuzz/` over their seeds and random bytes, for a moment each.

#[path = "../fuzz/bodies/child.rs"]
mod child;
#[allow(dead_code, reason = "the bodies use a part of it")]
#[path = "../fuzz/bodies/input.rs"]
mod input;
#[path = "../fuzz/bodies/json.rs"]
mod json;
#[path = "../fuzz/bodies/moment.rs"]
mod moment;
#[path = "../fuzz/bodies/sample.rs"]
mod sample;
#[path = "../fuzz/bodies/words.rs"]
mod words;

use self::moment::for_a_moment;

#[test]
fn lines_of_samples() {
    for_a_moment("sample", 60, sample::read);
}

#[test]
fn words_of_a_command_line() {
    for_a_moment("words", 60, words::parse);
}

#[test]
fn output_of_child_processes() {
    for_a_moment("child", 60, child::read);
}
