//! An adapter of Wintun: made, or opened if another process keeps it.

use std::any::Any;
use std::env;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_ALREADY_EXISTS, ERROR_DEVICE_NOT_AVAILABLE, ERROR_FILE_NOT_FOUND, ERROR_HANDLE_EOF,
    ERROR_INVALID_DATA, ERROR_NOT_FOUND, WAIT_TIMEOUT,
};
use wintun::Adapter;

use super::interface::{self, within};
use super::library::{library, with_log};
use crate::device::KEPT;
use crate::{Cause, Error};

/// The tunnel type that Windows shows with the adapter's name.
const TUNNEL_TYPE: &str = "rust-tun-perf";

/// The errors with which Wintun 0.14 fails now and then, mostly if an adapter with the same GUID was just deleted. The next try
/// succeeds.
const SPORADIC: [u32; 5] =
    [ERROR_ALREADY_EXISTS, ERROR_FILE_NOT_FOUND, WAIT_TIMEOUT, ERROR_NOT_FOUND, ERROR_DEVICE_NOT_AVAILABLE];

/// The time before another try.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a deleted adapter may keep its name.
const GOING_AWAY: Duration = Duration::from_secs(5);

/// The adapter with this name, which a parent process may keep for this one.
pub(super) fn open(name: &str) -> Result<Arc<Adapter>, Error> {
    if env::var(KEPT).is_ok_and(|kept| kept == name) {
        let failed = |source| Error::new(Cause::AdapterFailed, "open Wintun adapter", name, with_log(cause(source)));
        Adapter::open(library()?, name).map_err(failed)
    } else {
        create(name)
    }
}

pub(crate) fn keep_device(name: &str) -> Result<Option<Box<dyn Any + Send>>, Error> {
    Ok(Some(Box::new(create(name)?)))
}

fn create(name: &str) -> Result<Arc<Adapter>, Error> {
    let error = |cause, source| Error::new(cause, "create Wintun adapter", name, source);
    let library = library()?;
    // Checked first: Wintun would take the name from the interface that has it.
    within(GOING_AWAY, || Ok((!interface::exists(name)).then_some(())))
        .map_err(|_late| error(Cause::NameTaken, io::ErrorKind::AlreadyExists.into()))?;
    let attempt = |guid| Adapter::create(library, name, TUNNEL_TYPE, guid).map_err(cause);
    retried(guid(name), PAUSE, attempt).map_err(|source| {
        let is_denied = source.raw_os_error() == Some(ERROR_ACCESS_DENIED.cast_signed());
        error(if is_denied { Cause::NeedsAdministrator } else { Cause::AdapterFailed }, with_log(source))
    })
}

/// Tries three times, the last with a GUID that Windows has never seen.
fn retried<T>(guid: u128, pause: Duration, mut create: impl FnMut(Option<u128>) -> io::Result<T>) -> io::Result<T> {
    let is_sporadic =
        |error: &io::Error| error.raw_os_error().is_some_and(|code| SPORADIC.contains(&code.cast_unsigned()));
    for _ in 0..2 {
        match create(Some(guid)) {
            Err(error) if is_sporadic(&error) => thread::sleep(pause),
            done => return done,
        }
    }
    create(None)
}

/// For the calls that matter, the crate's error is only a text.
pub(super) fn cause(error: wintun::Error) -> io::Error {
    let last = io::Error::last_os_error();
    match error {
        // There was no other call to Windows since, so the last error belongs to the failed call.
        wintun::Error::String(_) if last.raw_os_error() != Some(0) => last,
        error => error.into(),
    }
}

/// An error of a ring that ends the run, in words.
pub(super) fn of_ring(name: &str, error: io::Error) -> io::Error {
    match error.raw_os_error().map(i32::cast_unsigned) {
        Some(code @ ERROR_HANDLE_EOF) => io::Error::other(format!(
            "adapter {name} was removed or disabled during the run (os error {code}); let no other program change it, and run again"
        )),
        Some(code @ ERROR_INVALID_DATA) => {
            let text = format!(
                "the ring of adapter {name} is corrupt (os error {code}), as Wintun 0.14 may leave it if several threads of \
                 Windows send at once; lower the rate (--bitrate, --parallel), and run again"
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        }
        _ => error,
    }
}

/// The GUID of an adapter. It depends only on the name, because Windows keeps a network profile for each GUID that it
/// has ever seen. FNV-1a with 128 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>).
fn guid(name: &str) -> u128 {
    const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    TUNNEL_TYPE
        .bytes()
        .chain(name.bytes())
        .fold(OFFSET_BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_depends_on_the_name_alone() {
        assert_eq!(guid("tun0"), guid("tun0"));
        assert_ne!(guid("tun0"), guid("tun1"));
    }

    /// The GUIDs of the tries that fail with these codes, and how the last one ends.
    fn tries(codes: &[u32]) -> (Vec<Option<u128>>, Option<i32>) {
        let mut guids = Vec::new();
        let result = retried(7, Duration::ZERO, |guid| {
            guids.push(guid);
            let code = codes.get(guids.len() - 1).map(|code| code.cast_signed());
            code.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
        });
        (guids, result.err().and_then(|error| error.raw_os_error()))
    }

    #[test]
    fn a_sporadic_error_is_tried_again_and_at_last_with_another_guid() {
        let own = Some(7);
        for code in [183, 2, 258, 1168, 4319] {
            assert_eq!(tries(&[code]), (vec![own, own], None));
            assert_eq!(tries(&[code; 2]), (vec![own, own, None], None));
            assert_eq!(tries(&[code; 4]), (vec![own, own, None], Some(code.cast_signed())));
        }
        assert_eq!(tries(&[5; 4]), (vec![own], Some(5)));
        assert_eq!(tries(&[2, 5]), (vec![own, own], Some(5)));
    }

    #[test]
    fn a_failure_of_a_ring_is_named() {
        let named = |code| of_ring("tun7", io::Error::from_raw_os_error(code));
        let (removed, corrupt) = (named(38), named(13));
        assert!(removed.to_string().starts_with("adapter tun7 was removed"), "{removed}");
        assert!(corrupt.to_string().contains("lower the rate"), "{corrupt}");
        assert_eq!(corrupt.kind(), io::ErrorKind::InvalidData);
        assert_ne!(removed.kind(), io::ErrorKind::InvalidData);
        assert_eq!(named(8).raw_os_error(), Some(8));
    }
}
