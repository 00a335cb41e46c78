//! The proxy as a program.

use std::io::{self, Write};

use platform::{Capabilities, Class, Error, Interrupts, Link, TunDevice};

use super::runtime::runtime;
use crate::error::RunError;
use crate::plan::ProxyPlan;
use crate::plural;
use crate::proxy::{Config, Proxy, Running};

const SPARE_DESCRIPTORS: u64 = 64;

/// Serves until the user interrupts it, or the device or the stack fails. Writes a line to `out` when packets are served.
pub fn serve(plan: &ProxyPlan, out: &mut impl Write) -> Result<(), RunError> {
    // One socket for each connection, and one for each UDP flow. If the limit stays lower, flows beyond it fail.
    platform::allow_open_files(2 * plan.config.max_flows as u64 + SPARE_DESCRIPTORS);
    let failed = |operation, object: &str| {
        let object = object.to_owned();
        move |source| RunError::from(Error::new(Class::Failed, operation, object, source))
    };
    let runtime = runtime(plan.workers, None).map_err(failed("start", "the runtime"))?;
    runtime.block_on(async {
        let proxy = Proxy::new(Config { report, ..plan.config.clone() })?;
        let mut devices = TunDevice::open_shards(&plan.device, plan.shards, plan.queues)?;
        let shards = match (devices.len(), devices.iter().filter(|device| device.receives()).count()) {
            (1, _) => String::new(),
            (shards, queues) => format!(", {shards} shards over {}", plural(queues, "queue")),
        };
        let device = devices.remove(0);
        let mut interrupts = Interrupts::catch().map_err(failed("watch", "interrupts"))?;
        let (name, capabilities) = (device.name().to_owned(), device.capabilities());
        let mut running = proxy.start(device, devices, plan.stack)?;
        if let Some(check) = platform::doctor::strict_reverse_paths(&[&plan.config.interface, &name]) {
            let remedy = check.remedy.unwrap_or_default();
            report(&format!("warning: {}: {}; {remedy}", check.name, check.finding));
        }
        announce((&name, capabilities, &shards), plan, &running, out).map_err(failed("write to", "standard output"))?;
        tokio::select! {
            () = interrupts.next() => Ok(()),
            ended = running.ended() => ended.map_err(failed("serve", &name)),
        }
    })
}

fn announce(
    (name, capabilities, shards): (&str, Capabilities, &str),
    plan: &ProxyPlan,
    running: &Running,
    out: &mut impl Write,
) -> io::Result<()> {
    let (stack, version) = (plan.stack, &running.effective().stack_version);
    let (mtu, interface) = (capabilities.mtu, &plan.config.interface);
    let offload = if capabilities.segmentation.any() { "on" } else { "off" };
    writeln!(out, "{name}: {stack} {version}, MTU {mtu}, offload {offload}{shards}, on to {interface}")?;
    out.flush()
}

/// Prints an error that no message can report to a client.
pub(super) fn report(text: &str) {
    // If standard error is closed, nobody wants to know.
    let _closed = writeln!(io::stderr(), "{text}");
}
