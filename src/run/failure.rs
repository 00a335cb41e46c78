//! What ended a run before its time.

use std::any::Any;
use std::io;

use tokio::task::JoinError;

use super::transfer::TransferError;
use crate::sample::Status;

/// How the two ends of a stream are called in a failure's detail.
pub(super) const SERVER: &str = "server";
pub(super) const CLIENT: &str = "client";

/// Something that ended the run before its time.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: Status,
    pub(super) detail: String,
}

impl Failure {
    pub(super) fn of_transfer(who: &str, error: &TransferError) -> Self {
        Self { status: error.status(), detail: format!("{who}: {error}") }
    }

    /// Of a stack's driver that has ended.
    pub(super) fn of_driver(result: io::Result<()>) -> Self {
        let detail = match result {
            Ok(()) => "the stack ended by itself".to_owned(),
            Err(error) => format!("the stack or its device: {error}"),
        };
        Self { status: Status::DeviceLost, detail }
    }

    pub(super) fn of_panic(who: &str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self { status: Status::Panicked, detail: format!("{who} panicked: {}", text.unwrap_or_default()) }
    }

    pub(super) fn of_join(who: &str, error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => Self::of_panic(who, panic.as_ref()),
            Err(error) => Self { status: Status::Panicked, detail: format!("{who}: {error}") },
        }
    }

    /// How near a failure is to the cause: a dead stack resets connections, not the other way round,
    /// and what the stack's side sees of a broken stream is told before what the kernel makes of it.
    pub(super) fn weight(&self) -> (u8, bool) {
        let severity = match self.status {
            Status::Panicked => 3,
            Status::DeviceLost => 2,
            Status::Corrupt => 1,
            _ => 0,
        };
        (severity, self.detail.starts_with(SERVER))
    }
}
