//! Replaces a file in one step, or leaves it unchanged.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A file that could not be written. Its old content is intact.
#[derive(Debug, thiserror::Error)]
#[error("write {}: {source}; choose another path", path.display())]
pub struct SaveError {
    path: PathBuf,
    source: io::Error,
}

/// Replaces a file in one step: it has the new content or, after an error, the old. A file of results is refused. A
/// file that is not regular, like a pipe, is written to directly.
///
/// # Errors
///
/// The path cannot be written to, or the disk is full.
pub fn save(path: &Path, content: &[u8]) -> Result<(), SaveError> {
    write(path, content).map_err(|source| SaveError { path: path.to_owned(), source })
}

/// Makes a directory with its parents, unless it is there.
///
/// # Errors
///
/// It cannot be made, or a file has its name.
pub fn make_folder(path: &Path) -> Result<(), SaveError> {
    fs::create_dir_all(path).map_err(|source| SaveError { path: path.to_owned(), source })
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            return fs::OpenOptions::new().write(true).open(path)?.write_all(content);
        }
        Ok(_) if has_results(path)? => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it has results, which the report would replace"));
        }
        Ok(metadata) if metadata.permissions().readonly() => return Err(io::ErrorKind::PermissionDenied.into()),
        _ => {}
    }
    // A symbolic link stays a link: its target is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidFilename.into()) };
    let mut beside = name.to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = path.with_file_name(beside);
    let written = fs::File::create_new(&beside).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    });
    written.inspect_err(|_| {
        let _gone = fs::remove_file(&beside);
    })
}

/// Whether a file begins like a line of [`crate::sample`].
fn has_results(path: &Path) -> io::Result<bool> {
    const BEGIN: &[u8] = b"{\"schema\":";
    let mut begin = Vec::new();
    fs::File::open(path)?.take(BEGIN.len() as u64).read_to_end(&mut begin)?;
    Ok(begin == BEGIN)
}
