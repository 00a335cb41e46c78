//! The integration tests of this crate, in one program, so there is only one to link.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "tests may panic")]
#![cfg(any(
    feature = "lwip",
    feature = "ipstack",
    feature = "smoltcp",
    feature = "tcp_ip",
    feature = "netstack-smoltcp"
))]

mod contract;
#[cfg(any(feature = "lwip", feature = "smoltcp"))]
mod fragments;
mod fuzz;
#[cfg(any(feature = "ipstack", feature = "smoltcp", feature = "tcp_ip", feature = "netstack-smoltcp"))]
mod shards;

use std::any::TypeId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// lwIP runs once in a process, so its tests take turns.
fn take_turns<S: 'static>() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    #[cfg(feature = "lwip")]
    let lwip = Some(TypeId::of::<netstacks::Lwip>());
    #[cfg(not(feature = "lwip"))]
    let lwip = None;
    (Some(TypeId::of::<S>()) == lwip).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}
