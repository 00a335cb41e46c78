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
    // One socket for each connection and each UDP flow, and at a SOCKS5 server two for a flow. If the limit stays lower, flows
    // beyond it fail.
    let sockets = if plan.config.socks5.is_some() { 3 } else { 2 };
    platform::allow_open_files(sockets * plan.config.max_flows as u64 + SPARE_DESCRIPTORS);
    let failed = |operation, object: &str| {
        let object = object.to_owned();
        move |source| RunError::from(Error::new(Class::Failed, operation, object, source))
    };
    let runtime = runtime(plan.workers, None).map_err(failed("start", "the runtime"))?;
    runtime.block_on(async {
        let proxy = Proxy::new(Config { report, ..plan.config.clone() })?;
        if let Some(port) = plan.tproxy {
            return intercept(proxy, port, plan, out).await;
        }
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

/// Serves without a device.
async fn intercept(proxy: Proxy, port: u16, plan: &ProxyPlan, out: &mut impl Write) -> Result<(), RunError> {
    let failed = |operation, object: String| move |source| Error::new(Class::Failed, operation, object, source);
    let mut interrupts = Interrupts::catch().map_err(failed("watch", "interrupts".to_owned()))?;
    let serving = proxy.intercept(port)?;
    writeln!(out, "port {port}: connections of TPROXY, on to {}", plan.config.interface)
        .and_then(|()| out.flush())
        .map_err(failed("write to", "standard output".to_owned()))?;
    tokio::select! {
        () = interrupts.next() => Ok(()),
        ended = serving => Ok(ended.map_err(failed("serve", format!("port {port}")))?),
    }
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
    let through = plan.config.socks5.map(|socks5| format!(" and {socks5}")).unwrap_or_default();
    writeln!(out, "{name}: {stack} {version}, MTU {mtu}, offload {offload}{shards}, on to {interface}{through}")?;
    out.flush()
}

/// Prints an error that no message can report to a client.
pub(super) fn report(text: &str) {
    // If standard error is closed, nobody wants to know.
    let _closed = writeln!(io::stderr(), "{text}");
}
