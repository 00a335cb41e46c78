//! Tokio's runtimes.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Runtime};

use crate::scenario::{Processors, RuntimeKind};

/// Starts a runtime, on these processors if there are any. The system must have enough threads and descriptors for it: tokio
/// panics if one is missing.
pub(super) fn runtime(kind: RuntimeKind, pin: Option<&Processors>) -> io::Result<Runtime> {
    let mut builder = match kind {
        RuntimeKind::CurrentThread => {
            pin.map_or(Ok(()), |pin| platform::pin_thread(pin.of_worker(0)))?;
            Builder::new_current_thread()
        }
        RuntimeKind::MultiThread(workers) => {
            let mut builder = Builder::new_multi_thread();
            if let Some(workers) = workers {
                builder.worker_threads(workers.get());
            }
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
