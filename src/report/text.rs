//! One line for a script, and what belongs to it for a person.

use std::io::{self, Write};
use std::time::Duration;

use bytesize::ByteSize;

use crate::measure::Figures;
use crate::plan::Verify;
use crate::run::{Sample, Status};

/// Writes the line to `out` where the run succeeded, and everything else to `err`.
///
/// # Errors
///
/// That of `out`; what `err` does not take is lost.
pub fn text(sample: &Sample, figures: &Figures, out: &mut impl Write, err: &mut impl Write) -> io::Result<()> {
    if sample.status == Status::Ok {
        writeln!(out, "client io mode: {}, throughput: {:.3} Gbps", sample.scenario.mode.name(), figures.gbps)?;
    }
    out.flush()?;
    // Nobody may be reading the rest. The figure is out.
    let _unread = details(sample, figures, err).and_then(|()| warnings(figures, err));
    Ok(())
}

fn warnings(figures: &Figures, err: &mut impl Write) -> io::Result<()> {
    figures.warnings.iter().try_for_each(|warning| writeln!(err, "warning: {warning}"))
}

fn details(sample: &Sample, figures: &Figures, err: &mut impl Write) -> io::Result<()> {
    let scenario = &sample.scenario;
    if let (Some(device), Some(effective)) = (&sample.device, &sample.effective) {
        let queue = device.tx_queue_len.map(|len| format!(", queue of {len} packets")).unwrap_or_default();
        let offload = if device.offload { "on" } else { "off" };
        writeln!(err, "device:    {}, MTU {}, offload {offload}{queue}", device.name, device.mtu)?;
        writeln!(
            err,
            "stack:     {} {} on {}, window {} in, {} out, congestion control {}",
            scenario.netstack,
            effective.stack_version,
            scenario.runtime.name(),
            binary(effective.receive_buffer_bytes),
            binary(effective.send_buffer_bytes),
            effective.congestion
        )?;
    }
    let congestion = sample.congestion.as_deref().unwrap_or("unknown");
    let plural = if scenario.parallel.get() == 1 { "" } else { "s" };
    writeln!(err, "client:    {} stream{plural}, congestion control {congestion}", scenario.parallel)?;
    let verified = match (sample.status, sample.verified()) {
        (Status::Ok, Verify::Sample) => ", the warm-up verified",
        (Status::Ok, Verify::Full) => ", all verified",
        (Status::Ok, Verify::Off) => ", only counted",
        _ => "",
    };
    writeln!(err, "delivered: {} bytes in {:.6} s{verified}", sample.bytes, sample.elapsed.as_secs_f64())?;
    writeln!(
        err,
        "cost:      client {}, stack {} CPU seconds; peak memory {}",
        seconds(sample.client_cpu),
        seconds(sample.stack_cpu),
        sample.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), |bytes| ByteSize(bytes).to_string())
    )?;
    writeln!(
        err,
        "packets:   {} into the stack, {} out of it{}; {} retransmitted by the kernel, {} dropped",
        sample.packets.rx_packets,
        sample.packets.tx_packets,
        figures
            .bytes_per_packet
            .map(|bytes| format!(", {bytes:.0} bytes each the way of the payload"))
            .unwrap_or_default(),
        count(sample.retransmits),
        count(sample.device_drops)
    )
}

fn binary(bytes: usize) -> String {
    ByteSize(bytes as u64).to_string()
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "unknown".to_owned(), |time| format!("{:.3}", time.as_secs_f64()))
}

fn count(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}
