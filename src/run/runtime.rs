//! Tokio's runtimes.

use std::io;

use tokio::runtime::{Builder, Runtime};

use crate::scenario::RuntimeKind;

/// Starts a runtime. The system must have enough threads and descriptors for it: tokio panics if one is missing.
pub(super) fn runtime(kind: RuntimeKind) -> io::Result<Runtime> {
    let mut builder = match kind {
        RuntimeKind::CurrentThread => Builder::new_current_thread(),
        RuntimeKind::MultiThread(workers) => {
            let mut builder = Builder::new_multi_thread();
            if let Some(workers) = workers {
                builder.worker_threads(workers.get());
            }
            builder
        }
    };
    builder.enable_all().build()
}
