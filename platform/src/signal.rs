//! The user's wish to stop.

use std::io;

use crate::sys::{Interrupts as _, Native, System};

/// Catches the user's wish to stop: Ctrl-C, and on Unix a polite `kill` too.
#[derive(Debug)]
pub struct Interrupts(<Native as System>::Interrupts);

impl Interrupts {
    /// From now on an interrupt does not end the program but is told by [`Interrupts::next`]. To be
    /// called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The handler could not be installed.
    pub fn catch() -> io::Result<Self> {
        <Native as System>::Interrupts::catch().map(Self)
    }

    /// Waits for the next interrupt, which may have come already.
    pub async fn next(&mut self) {
        self.0.next().await;
    }
}
