//! A run of a stack, or of a layer under it.

use std::io::{self, Write};

use bytesize::ByteSize;

use super::{binary, connection, count, intervals, plural, seconds, verified};
use crate::plan::{Layer, Mode};
use crate::sample::{Sample, StackCell};

/// What it is called in the line for a script.
pub(super) fn name(cell: &StackCell) -> String {
    format!("client io mode: {},", cell.mode.map_or("none", Mode::name))
}

pub(super) fn details(cell: &StackCell, sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let facts = &sample.facts;
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
    client(cell, sample, err)?;
    let (bytes, seconds, verified) = (facts.bytes, facts.elapsed.as_secs_f64(), verified(sample));
    writeln!(err, "delivered: {bytes} bytes in {seconds:.6} s{verified}")?;
    cost(cell, sample, err)?;
    packets(cell, sample, err)?;
    intervals(sample, err)
}

/// Who is at the other end, and what the kernel says of its connection.
fn client(cell: &StackCell, sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let streams = plural(cell.parallel.into(), "stream");
    match cell.layer {
        Layer::Path | Layer::Loopback => {
            let congestion = sample.facts.congestion.as_deref().unwrap_or("unknown");
            writeln!(err, "client:    {streams}, congestion control {congestion}")?;
        }
        Layer::Stack => writeln!(err, "client:    {streams}, scripted")?,
        Layer::Device => {}
    }
    connection(sample, err)
}

fn cost(cell: &StackCell, sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let facts = &sample.facts;
    let client = format!("client {}, ", seconds(facts.cpu.client_seconds));
    let (client, side) = match cell.layer {
        Layer::Path | Layer::Stack => (client, "stack"),
        Layer::Loopback => (client, "server"),
        Layer::Device => (String::new(), "device"),
    };
    let memory = facts.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), |bytes| ByteSize(bytes).to_string());
    writeln!(err, "cost:      {client}{side} {} CPU seconds; peak memory {memory}", seconds(facts.cpu.stack_seconds))
}

/// What crossed the link, where there is one, and what went wrong.
fn packets(cell: &StackCell, sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let facts = &sample.facts;
    let sent_again = format!("{} retransmitted by the kernel", count(facts.retransmits));
    let dropped = format!("{} dropped", count(facts.device_drops));
    let crossed = |into: &str, out: &str| {
        let each = sample.bytes_per_packet().map(|bytes| format!(", {bytes:.0} bytes each the way of the payload"));
        format!("{} {into}, {} {out}{}", facts.packets.rx, facts.packets.tx, each.unwrap_or_default())
    };
    let (into, out) = ("into the stack", "out of it");
    match cell.layer {
        Layer::Path => writeln!(err, "packets:   {}; {sent_again}, {dropped}", crossed(into, out)),
        Layer::Stack => writeln!(err, "packets:   {}", crossed(into, out)),
        Layer::Device => writeln!(err, "packets:   {}; {dropped}", crossed("read from the device", "written to it")),
        Layer::Loopback => writeln!(err, "packets:   {sent_again}"),
    }
}
