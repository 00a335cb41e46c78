//! One line for a script, and what belongs to it for a person.

use std::io::{self, Write};

use bytesize::ByteSize;

use crate::plan::{Mode, Verify};
use crate::sample::Sample;

/// Writes the line to `out` where the run succeeded, and everything else to `err`.
///
/// # Errors
///
/// That of `out`; what `err` does not take is lost.
pub fn text(sample: &Sample, out: &mut impl Write, err: &mut impl Write) -> io::Result<()> {
    if sample.is_ok() {
        let mode = sample.cell.mode.map_or("none", Mode::name);
        writeln!(out, "client io mode: {mode}, throughput: {:.3} Gbps", sample.gbps())?;
    }
    out.flush()?;
    // Nobody may be reading the rest. The figure is out.
    let _unread = details(sample, err).and_then(|()| warnings(sample, err));
    Ok(())
}

fn warnings(sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    sample.warnings().iter().try_for_each(|warning| writeln!(err, "warning: {warning}"))
}

fn details(sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let (cell, facts) = (&sample.cell, &sample.facts);
    if let Some(device) = &facts.device {
        let queue = device.tx_queue_len.map(|len| format!(", queue of {len} packets")).unwrap_or_default();
        let offload = if device.offload { "on" } else { "off" };
        writeln!(err, "device:    {}, MTU {}, offload {offload}{queue}", device.name, device.mtu)?;
    }
    if let (Some(stack), Some(effective)) = (cell.netstack, &facts.effective) {
        writeln!(
            err,
            "stack:     {stack} {} on {}, window {} in, {} out, congestion control {}",
            effective.stack_version,
            cell.runtime,
            binary(effective.receive_buffer_bytes),
            binary(effective.send_buffer_bytes),
            effective.congestion
        )?;
    }
    let congestion = facts.congestion.as_deref().unwrap_or("unknown");
    let plural = if cell.parallel == 1 { "" } else { "s" };
    writeln!(err, "client:    {} stream{plural}, congestion control {congestion}", cell.parallel)?;
    let verified = match facts.verified {
        _ if !sample.is_ok() => "",
        Verify::Sample => ", the warm-up verified",
        Verify::Full => ", all verified",
        Verify::Off => ", only counted",
    };
    writeln!(err, "delivered: {} bytes in {:.6} s{verified}", facts.bytes, facts.elapsed.as_secs_f64())?;
    writeln!(
        err,
        "cost:      client {}, stack {} CPU seconds; peak memory {}",
        seconds(facts.cpu.client_seconds),
        seconds(facts.cpu.stack_seconds),
        facts.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), |bytes| ByteSize(bytes).to_string())
    )?;
    writeln!(
        err,
        "packets:   {} into the stack, {} out of it{}; {} retransmitted by the kernel, {} dropped",
        facts.packets.rx,
        facts.packets.tx,
        sample
            .bytes_per_packet()
            .map(|bytes| format!(", {bytes:.0} bytes each the way of the payload"))
            .unwrap_or_default(),
        count(facts.retransmits),
        count(facts.device_drops)
    )
}

fn binary(bytes: usize) -> String {
    ByteSize(bytes as u64).to_string()
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "unknown".to_owned(), |seconds| format!("{seconds:.3}"))
}

fn count(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}
