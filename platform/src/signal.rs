//! Interrupts by the user.

use std::io;

use crate::sys::{Interrupts as _, Native, System};

/// Catches Ctrl-C, and on Unix SIGTERM too.
#[derive(Debug)]
pub struct Interrupts(<Native as System>::Interrupts);

impl Interrupts {
    /// From now on, an interrupt does not end the program; [`Interrupts::next`] returns instead. Call it inside a tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// The handler could not be installed.
    pub fn catch() -> io::Result<Self> {
        <Native as System>::Interrupts::catch().map(Self)
    }

    /// Waits for the next interrupt. Returns at once if one has already arrived.
    pub async fn next(&mut self) {
        self.0.next().await;
    }
}
