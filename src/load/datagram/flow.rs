//! A flow of datagrams: what has been sent of it, and what has arrived.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use portable_atomic::AtomicU64;
use serde::Deserialize;
use tokio::sync::Notify;

use super::arrivals::{Arrivals, Arrived};
use super::trial::Trial;
use crate::load::stream::Direction;

/// Datagrams in one direction, between one socket and the server.
pub(super) struct Flow {
    pub(super) direction: Direction,
    /// Told to the server's side while it sends, when datagrams fall due.
    pub(super) due: Notify,
    /// Whether the server's side knows where to send to.
    greeted: AtomicBool,
    sent: AtomicU64,
    /// The last trial in which all has been sent.
    complete: AtomicU32,
    arrivals: Mutex<Arrivals>,
}

/// What a server in a process of its own says of the last trial that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessCounts {
    trial: u32,
    /// Whether it knows where the client is.
    greeted: bool,
    /// How many it has sent, once that is all.
    sent: Option<u64>,
    arrived: u64,
    reordered: u64,
    duplicated: u64,
}

impl Flow {
    pub(super) fn new(direction: Direction, asked: Option<Instant>) -> Self {
        Self {
            direction,
            due: Notify::new(),
            greeted: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            complete: AtomicU32::new(0),
            arrivals: Mutex::new(Arrivals::new(asked)),
        }
    }

    pub(super) fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, trial: &Trial) {
        self.arrivals().begin(*trial);
        self.sent.store(0, Ordering::Relaxed);
    }

    /// The arrivals of the trial, and the time up to which they are counted at least: a process tells them later.
    pub(super) fn arrived_by(&self) -> (Arrived, Instant) {
        let arrivals = self.arrivals();
        (arrivals.arrived, arrivals.asked.unwrap_or_else(Instant::now))
    }

    pub(super) fn sent(&self, trial: &Trial) -> (u64, bool) {
        let is_complete = self.complete.load(Ordering::Acquire) == trial.number;
        (self.sent.load(Ordering::Relaxed), is_complete)
    }

    pub(super) fn set_sent(&self, sent: u64) {
        self.sent.store(sent, Ordering::Relaxed);
    }

    /// Nothing more of a trial is sent.
    pub(super) fn complete(&self, trial: &Trial) {
        self.complete.store(trial.number, Ordering::Release);
    }

    pub(super) fn is_greeted(&self) -> bool {
        self.greeted.load(Ordering::Acquire)
    }

    /// Notes that the server knows where the client is. Returns whether it knew before.
    pub(super) fn greet(&self) -> bool {
        self.greeted.swap(true, Ordering::AcqRel)
    }

    /// Takes what the server's process says, which was asked for at that time. It says nothing of a trial that it does
    /// not know yet. Whether it can be true is checked when the trial is over.
    pub(super) fn set_counts(&self, counts: &ProcessCounts, asked: Instant) {
        let mut arrivals = self.arrivals();
        let is_current = counts.trial == arrivals.trial.number;
        if self.direction == Direction::ToServer {
            arrivals.asked = Some(asked);
            if is_current {
                let ProcessCounts { arrived: count, reordered, duplicated, .. } = *counts;
                arrivals.all = arrivals.all.saturating_add(count.saturating_sub(arrivals.arrived.count));
                arrivals.arrived = Arrived { count, reordered, duplicated, next: count };
            }
            return;
        }
        if counts.greeted {
            self.greet();
        }
        if let Some(sent) = counts.sent.filter(|_| is_current) {
            self.set_sent(sent);
            self.complete.store(counts.trial, Ordering::Release);
        }
    }
}
