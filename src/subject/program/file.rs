//! The file of a program: its hash, and its version, which Go writes into it or the program prints.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

use super::place::command;
use crate::program::Profile;

/// A file that is longer is not read.
const MAX_LEN: u64 = 1 << 30;

/// The longest part that is read at once. Lines of a program may be longer.
const MOST_TOGETHER: u64 = 64 << 10;

/// How long its version may take.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

/// How many lines its version may take: others are about its licence and its parts.
const VERSION_LINES: usize = 2;

/// How Go begins the line with the module of a program, its version and its sum, in the text that `go version -m` prints.
const MODULE: &[u8] = b"mod\t";

/// The hash of a program's file, and its version: that of its Go module, or the one that it prints.
pub(super) async fn origin(profile: &Profile) -> (Option<String>, Option<String>) {
    let file = profile.file();
    let read = spawn_blocking(move || read(&file?).ok());
    let (sha256, module) = read.await.ok().flatten().unzip();
    let version = match module.flatten() {
        Some(module) => Some(module),
        None => version(profile).await,
    };
    (sha256, version)
}

/// The first line with a digit at the beginning of what a program prints as its version.
async fn version(profile: &Profile) -> Option<String> {
    if profile.version.is_empty() {
        return None;
    }
    let command = command(&profile.version);
    let printed = spawn_blocking(move || platform::printed(command, VERSION_TIMEOUT)).await.ok()??;
    printed
        .lines()
        .take(VERSION_LINES)
        .map(str::trim)
        .find(|line| line.contains(|letter: char| letter.is_ascii_digit()))
        .map(platform::shown)
}

/// The SHA-256 in hexadecimal, and the version of the Go module that the program was built from. `go install` tells a program no
/// other version, and one that it prints by itself may be a constant.
fn read(path: &Path) -> io::Result<(String, Option<String>)> {
    let mut file = BufReader::new(File::open(path)?.take(MAX_LEN + 1));
    let (mut hash, mut version, mut line) = (Sha256::new(), None, Vec::new());
    while file.by_ref().take(MOST_TOGETHER).read_until(b'\n', &mut line)? > 0 {
        hash.update(&line);
        version = version.or_else(|| module_version(&line));
        line.clear();
    }
    if file.get_ref().limit() == 0 {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let hash = hash.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    Ok((hash, version))
}

fn module_version(line: &[u8]) -> Option<String> {
    let fields = str::from_utf8(line.strip_prefix(MODULE)?).ok()?;
    let version = fields.split(['\t', '\n']).nth(1)?;
    // A build of a working tree has "(devel)".
    let is_version =
        version.strip_prefix('v').is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()));
    is_version.then(|| platform::shown(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_a_hash_and_one_of_go_the_version_of_its_module() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let facts = |content: &[u8]| {
            std::fs::write(file.path(), content).unwrap();
            read(file.path()).unwrap()
        };
        // The first example of FIPS 180-2, B.1.
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(facts(b"abc"), (hash.to_owned(), None));
        let go = |version: &str| {
            let long = vec![0xff; 3 * MOST_TOGETHER as usize];
            let text = format!("\npath\texample.org/x/cmd/x\nmod\texample.org/x\t{version}\th1:sum=\ndep\ty\tv9.9.9\n");
            facts(&[&long, text.as_bytes()].concat()).1
        };
        assert_eq!(go("v1.14.1").as_deref(), Some("v1.14.1"));
        let of_commit = "v0.0.0-20250521234502-f333402bd9cb";
        assert_eq!(go(of_commit).as_deref(), Some(of_commit));
        assert_eq!([go("(devel)"), go("very good")], [None, None]);
    }
}
