//! Wintun's library. The program contains it, and loads a copy from a folder of the user's, or the one beside the program.

use std::env;
use std::error::Error as _;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Read};
use std::mem;
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, OnceLock, PoisonError};

use fnv::FnvHasher;
use log::{LevelFilter, Log, Metadata, Record};
use windows_sys::Win32::Foundation::{ERROR_BAD_EXE_FORMAT, ERROR_EXE_MACHINE_TYPE_MISMATCH};
use windows_sys::Win32::Storage::FileSystem::FILE_SHARE_READ;
use wintun::Wintun;

use crate::{Cause, Error};

const NAME: &str = "wintun.dll";

/// The signed library for this architecture. Empty if Wintun has none for it: see build.rs.
static CONTAINED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wintun.dll"));

/// It stays loaded, because it registers callbacks with Windows that outlive its last user.
pub(super) fn library() -> Result<&'static Wintun, Error> {
    static LOADED: OnceLock<Wintun> = OnceLock::new();
    if let Some(library) = LOADED.get() {
        return Ok(library);
    }
    let library = load()?;
    if log::set_logger(&LAST_LINES).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
    Ok(LOADED.get_or_init(|| library))
}

/// The search of Windows would include the current folder and PATH, so others could put code into the program.
fn load() -> Result<Wintun, Error> {
    let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.join(NAME)));
    let (path, _unchanged) = match beside.filter(|path| path.is_file()) {
        Some(path) => (path, None),
        None => copy_in(&folder()?).map(|(path, file)| (path, Some(file)))?,
    };
    // SAFETY: loading a library runs its code. This is the signed Wintun, or a file that lies beside the program.
    unsafe { wintun::load_from_path(&path) }
        .map_err(|error| Error::new(Cause::BadWintun, "load", path.display().to_string(), reason(&error)))
}

/// Why the library was not loaded. The system's text would be about "%1".
fn reason(error: &wintun::Error) -> io::Error {
    let code = error.source().and_then(|source| source.downcast_ref()).and_then(io::Error::raw_os_error);
    match code.map(i32::cast_unsigned) {
        Some(code @ (ERROR_BAD_EXE_FORMAT | ERROR_EXE_MACHINE_TYPE_MISMATCH)) => {
            io::Error::other(format!("it is damaged, or for another kind of processor (os error {code})"))
        }
        _ => code.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error),
    }
}

/// The folder for the copy, where only the user and administrators can write. Each version of the library has its own.
fn folder() -> Result<PathBuf, Error> {
    let missing = |reason| Error::new(Cause::NoWintun, "load", NAME, io::Error::new(io::ErrorKind::NotFound, reason));
    if CONTAINED.is_empty() {
        return Err(missing("this build does not contain it"));
    }
    let local = env::var_os("LOCALAPPDATA").filter(|folder| Path::new(folder).is_absolute());
    let local = local.ok_or_else(|| missing("%LOCALAPPDATA%, the place for it, is no folder"))?;
    let mut hasher = FnvHasher::default();
    hasher.write(CONTAINED);
    Ok(PathBuf::from(local).join("rust-tun-perf").join(format!("{:016x}", hasher.finish())))
}

/// The library in this folder. As long as the file is open, nobody can change, move or remove it.
fn copy_in(folder: &Path) -> Result<(PathBuf, File), Error> {
    let path = folder.join(NAME);
    let opened = open(&path).or_else(|_| {
        let written = write(folder, &path);
        // Another run may have written it at the same time, and have it open.
        open(&path).map_err(|error| written.err().unwrap_or(error))
    });
    match opened {
        Ok(file) => Ok((path, file)),
        Err(source) => Err(Error::new(Cause::NoWintun, "write", path.display().to_string(), source)),
    }
}

/// Opens the file if it is the library.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).share_mode(FILE_SHARE_READ).open(path)?;
    let mut bytes = Vec::with_capacity(CONTAINED.len() + 1);
    (&file).take(CONTAINED.len() as u64 + 1).read_to_end(&mut bytes)?;
    if bytes == CONTAINED { Ok(file) } else { Err(io::Error::other("another file has its place")) }
}

/// Under its name there is never a part of it.
fn write(folder: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let part = folder.join(format!("{NAME}.{}", process::id()));
    let written = fs::write(&part, CONTAINED).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _none = fs::remove_file(&part);
    }
    written
}

/// The last lines that Wintun has logged. The crate passes them on to `log`.
static LAST_LINES: LastLines = LastLines(Mutex::new(Vec::new()));

struct LastLines(Mutex<Vec<String>>);

/// How many lines are kept.
const LINES: usize = 8;

impl Log for LastLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("wintun")
    }

    fn log(&self, record: &Record<'_>) {
        let (mut lines, line) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), record.args().to_string());
        if self.enabled(record.metadata()) && lines.last() != Some(&line) {
            if lines.len() == LINES {
                lines.remove(0);
            }
            lines.push(line);
        }
    }

    fn flush(&self) {}
}

impl LastLines {
    fn add_to(&self, error: io::Error) -> io::Error {
        let lines = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if lines.is_empty() { error } else { io::Error::new(error.kind(), format!("{error} ({})", lines.join("; "))) }
    }
}

/// The error of an operation of Wintun, with the lines that it has logged since the last one.
pub(super) fn with_log(error: io::Error) -> io::Error {
    LAST_LINES.add_to(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_the_library_and_nobody_can_change_it() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("a").join("b");
        let (path, file) = copy_in(&folder).unwrap();
        assert!(CONTAINED.len() > 100_000 && fs::read(&path).unwrap() == CONTAINED);
        fs::write(&path, "other").unwrap_err();
        let (_same, again) = copy_in(&folder).unwrap();
        drop((file, again));
        for other in [b"other", &[CONTAINED, b"more"].concat()[..], &CONTAINED[..1000]] {
            fs::write(&path, other).unwrap();
            copy_in(&folder).unwrap();
            assert!(fs::read(&path).unwrap() == CONTAINED);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let error = copy_in(&path).unwrap_err();
        assert_eq!(error.cause(), Cause::NoWintun);
        assert!(error.to_string().starts_with(&format!("write {}", path.join(NAME).display())), "{error}");
    }

    #[test]
    fn the_library_of_the_program_loads() {
        assert!(library().is_ok(), "{}", library().err().unwrap());
    }

    #[test]
    fn the_last_lines_of_the_log_are_in_one_error() {
        let log = LastLines(Mutex::default());
        let line = |target, text: &str| log.log(&Record::builder().target(target).args(format_args!("{text}")).build());
        (0..20).for_each(|number| line("wintun::log", &format!("line {}", number / 2)));
        line("mio::poll", "not of Wintun");
        let error = log.add_to(io::Error::from_raw_os_error(2));
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let lines: Vec<_> = (2..10).map(|number| format!("line {number}")).collect();
        assert!(error.to_string().ends_with(&format!("(os error 2) ({})", lines.join("; "))), "{error}");
        assert_eq!(log.add_to(io::Error::from_raw_os_error(2)).raw_os_error(), Some(2));
    }
}
