//! What is done once, before a program starts: its commands make what the ends need, such as keys and certificates.

use std::io;
use std::slice;

use platform::{Class, Interrupts};

use super::super::networks::Side;
use super::end;
use super::place::{Place, Run};
use super::residents::Residents;
use crate::error::RunError;

/// Looks whether the program is there, and runs the commands in the folder that the ends share.
pub(super) async fn make(run: &Run<'_>, interrupts: &mut Interrupts) -> Result<(), RunError> {
    if let Some(missing) = run.profile.missing() {
        return Err(end::cannot_start(run.profile, slice::from_ref(missing), io::ErrorKind::NotFound.into()));
    }
    // What they leave behind is killed, however this ends.
    let _left = Residents::new(vec![run.folder_at(Side::Near)]);
    let place = Place { run, side: Side::Near, peer: 0, folder: run.shared };
    for words in &run.profile.prepare {
        let command = place.command_without_mounts(words)?;
        let ended = tokio::select! {
            ended = end::to_its_end(run, Side::Near, words, command) => ended?,
            () = interrupts.next() => return Err(RunError::Interrupted),
        };
        if let Err(reason) = ended {
            let text = format!("{} cannot be prepared: {reason}", run.profile.name);
            return Err(RunError::Process { class: Class::Failed, text });
        }
    }
    Ok(())
}
