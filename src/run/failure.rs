//! The failure that ended a run.

use std::any::Any;
use std::io;

use netstacks::StackFault;
use tokio::task::JoinError;

use crate::load::error::LoadError;
use crate::sample::Status;

/// Names of the two ends of a stream in the detail of a failure.
pub(super) const SERVER: &str = "server";
pub(super) const CLIENT: &str = "client";

/// The failure that ended a run.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: Status,
    pub(super) detail: String,
}

impl Failure {
    pub(super) fn of_transfer(who: &str, error: &LoadError) -> Self {
        Self { status: error.status(), detail: format!("{who}: {error}") }
    }

    /// The driver of a stack has ended.
    pub(super) fn of_driver(result: io::Result<()>) -> Self {
        let (status, detail) = match result {
            Ok(()) => (Status::DeviceLost, "the stack ended by itself".to_owned()),
            Err(error) if StackFault::is_in(&error) => (Status::Panicked, error.to_string()),
            Err(error) => (Status::DeviceLost, format!("the stack or its device: {error}")),
        };
        Self { status, detail }
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

    /// How close a failure is to the cause. A dead stack resets connections, not the other way round. The server sees
    /// more of a broken stream than the kernel's client does.
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
