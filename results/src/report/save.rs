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

/// Replaces a file in one step. A file of results is refused, and one that is not regular, like a pipe, is written to.
pub fn save(path: &Path, content: &[u8]) -> Result<(), SaveError> {
    write(path, content).map_err(|source| SaveError { path: path.to_owned(), source })
}

/// Makes a directory with its parents, unless it is there.
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
        // What only its owner may read stays so.
        if let Ok(before) = fs::metadata(&path) {
            fs::set_permissions(&beside, before.permissions())?;
        }
        fs::rename(&beside, &path)
    });
    written.inspect_err(|_| {
        let _gone = fs::remove_file(&beside);
    })
}

const BEGIN: u64 = 1 << 20;

/// Whether its first line is like one of [`crate::sample`]. Another program may have sorted the fields.
fn has_results(path: &Path) -> io::Result<bool> {
    let mut begin = Vec::new();
    fs::File::open(path)?.take(BEGIN).read_to_end(&mut begin)?;
    let text = String::from_utf8_lossy(begin.trim_ascii_start());
    let line = text.lines().next().unwrap_or_default();
    Ok(line.starts_with('{') && ["\"schema\":", "\"kind\":"].iter().all(|field| line.contains(field)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_not_replaced_in_whatever_order_their_fields_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (before, is_kept) in [
            ("{\"schema\":2,\"kind\":\"sample\"}\n", true),
            ("\n {\"kind\":\"sample\",\"schema\":2}\n", true),
            ("layer,schema,kind\n", false),
            ("", false),
        ] {
            fs::write(&path, before).unwrap();
            assert_eq!(save(&path, b"report").is_err(), is_kept, "{before}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_report_that_others_may_not_read_stays_so() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        save(&path, b"report").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
