//! The child process that carries packets for a run of its parent.

use std::io::{BufRead, Write};

use forwarders::{DevicePair, Forwarder};
use platform::Control;

use crate::error::RunError;
use crate::profile::profiled;
use crate::protocol::Carry;

pub(crate) fn carry(
    task: &Carry,
    orders: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), RunError> {
    let (graph, title) = task.profile.as_ref().map(|(graph, title)| (graph.as_path(), title.as_str())).unzip();
    profiled(
        title.unwrap_or_default(),
        graph,
        |()| true,
        || {
            let devices = DevicePair {
                near: task.near.clone(),
                far: task.far.clone(),
                far_namespace: task.far_namespace.clone(),
            };
            let forwarder = Forwarder::open(&devices, &task.config)?;
            let counters = forwarder.counters();
            let stopper = forwarder.stopper();
            let control = Control { orders, output, report: move || counters.read() };
            control.obey(move || stopper.stop(), || Ok(forwarder.run()?))
        },
    )
}
