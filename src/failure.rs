//! The failure that ended a run.

use std::any::Any;
use std::io;

use netstacks::StackFault;
use tokio::task::JoinError;

use crate::sample::Status;

/// Names of the two ends of a stream in the detail of a failure.
pub(crate) const SERVER: &str = "server";
pub(crate) const CLIENT: &str = "client";

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) detail: String,
}

impl Failure {
    pub(crate) fn of_driver(result: io::Result<()>) -> Self {
        let (status, detail) = match result {
            Ok(()) => (Status::DeviceLost, "the stack ended by itself".to_owned()),
            Err(error) if StackFault::is_in(&error) => (Status::Panicked, error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => (Status::Corrupt, error.to_string()),
            Err(error) => (Status::DeviceLost, format!("the stack or its device: {error}")),
        };
        Self { status, detail }
    }

    pub(crate) fn of_panic(who: &str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self { status: Status::Panicked, detail: format!("{who} panicked: {}", text.unwrap_or_default()) }
    }

    pub(crate) fn of_join(who: &str, error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => Self::of_panic(who, panic.as_ref()),
            Err(error) => Self { status: Status::Panicked, detail: format!("{who}: {error}") },
        }
    }

    /// How close a failure is to the cause. A dead stack resets connections, not the other way round. The server sees
    /// more of a broken stream than the kernel's client does.
    pub(crate) fn weight(&self) -> (u8, bool) {
        let severity = match self.status {
            Status::Panicked => 3,
            Status::DeviceLost => 2,
            Status::Corrupt => 1,
            _ => 0,
        };
        (severity, self.detail.starts_with(SERVER))
    }
}
