//! The user's wish to stop.

use std::io;

use crate::imp;

/// Waits until the user interrupts the program: Ctrl-C, and on Unix a polite `kill` too.
///
/// # Errors
///
/// The handler could not be installed.
pub async fn interrupted() -> io::Result<()> {
    imp::interrupted().await
}
