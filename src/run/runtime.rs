//! Tokio's runtimes.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Runtime};

use crate::cell::Processors;

pub(super) fn processors() -> usize {
    platform::parallelism().unwrap_or(1)
}

/// Starts a runtime with this many workers, or on the current thread. Tokio panics if a thread or a descriptor is missing.
pub(super) fn runtime(workers: Option<usize>, pin: Option<&Processors>) -> io::Result<Runtime> {
    let mut builder = match workers {
        None => {
            pin.map_or(Ok(()), |pin| platform::pin_thread(pin.of_worker(0)))?;
            Builder::new_current_thread()
        }
        Some(workers) => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(workers);
            if let Some(pin) = pin.cloned() {
                let started = AtomicUsize::new(0);
                builder.on_thread_start(move || {
                    let worker = started.fetch_add(1, Ordering::Relaxed);
                    // The plan has found the processor. If it has gone since, the thread runs elsewhere.
                    let _elsewhere = platform::pin_thread(pin.of_worker(worker));
                });
            }
            builder
        }
    };
    builder.enable_all().build()
}
