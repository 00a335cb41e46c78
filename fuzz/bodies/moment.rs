//! The bodies of the fuzz targets without a fuzzer, for `cargo test`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Runs a body over the seeds of its target, and then for a moment over random bytes and changed seeds.
pub(crate) fn for_a_moment(target: &str, longest: u64, body: fn(&[u8])) {
    let seeds = seeds(target);
    for (path, seed) in &seeds {
        println!("{}", path.display());
        run(body, seed);
    }
    let begin = Instant::now();
    let mut generator = Generator::new(1);
    while begin.elapsed() < Duration::from_millis(500) {
        run(body, &generator.bytes(longest));
        let (_, seed) = &seeds[generator.next() as usize % seeds.len()];
        run(body, &generator.change(seed));
    }
}

/// Runs a body, and prints its input if it panics.
fn run(body: fn(&[u8]), bytes: &[u8]) {
    struct Told<'a>(&'a [u8]);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                println!("the input was {:02x?}", self.0);
            }
        }
    }
    let _told = Told(bytes);
    body(bytes);
}

/// The committed seeds of a target: `NAME.txt` as it is, `NAME.hex` in hexadecimal with comments behind `#`.
/// `scripts/fuzz.sh` gives the fuzzer the same bytes.
fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Those of the target, or else of its kind.
    let names = [target, target.split('_').next().unwrap_or_default()];
    let folders = crate_folder.ancestors().map(|folder| folder.join("fuzz/seeds"));
    let folder = folders.flat_map(|seeds| names.map(|name| seeds.join(name))).find(|folder| folder.is_dir());
    let folder = folder.unwrap_or_else(|| panic!("there is no folder fuzz/seeds/{target}"));
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let seeds: Vec<_> = paths.into_iter().map(|path| (path.clone(), seed(&path))).collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

fn seed(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "txt") {
        return bytes;
    }
    let text = String::from_utf8(bytes).unwrap();
    let digits: Vec<u8> = text
        .lines()
        .flat_map(|line| line.split('#').next().unwrap_or_default().chars())
        .filter(|digit| !digit.is_whitespace())
        .map(|digit| digit.to_digit(16).unwrap_or_else(|| panic!("{}: {digit} is no digit", path.display())) as u8)
        .collect();
    assert!(digits.len().is_multiple_of(2), "{}: half a byte", path.display());
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Random bytes of random length.
struct Generator(u64);

impl Generator {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 24
    }

    fn bytes(&mut self, longest: u64) -> Vec<u8> {
        let len = self.next() % (longest + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A seed with a few bytes changed, and sometimes cut short.
    fn change(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.next() % 3 {
            let at = self.next() as usize % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = self.next() as u8;
            }
        }
        if self.next().is_multiple_of(4) {
            bytes.truncate(self.next() as usize % (bytes.len() + 1));
        }
        bytes
    }
}
