//! The run's TUN device.

use std::io;

use platform::{Class, Link, TunConfig, TunDevice};

use crate::plan::scenario::{Scenario, Tun};
use crate::remedy::{SystemError, WithRemedy};
use crate::sample::DeviceFacts;

/// The shortest queue in front of the stack, in packets.
const MIN_TX_QUEUE_LEN: u32 = 4096;

/// The longest default queue. The kernel keeps a pointer for each place, in one piece of at most 4 MiB
/// (`include/linux/ptr_ring.h`), and refuses more.
const MAX_TX_QUEUE_LEN: u64 = 1 << 18;

pub(crate) fn open(scenario: &Scenario, tun: &Tun) -> Result<(TunDevice, DeviceFacts), SystemError> {
    let (mut links, facts) = open_shards(scenario, tun)?;
    Ok((links.remove(0), facts))
}

/// Opens the device of a scenario, as a link for each shard.
pub(crate) fn open_shards(scenario: &Scenario, tun: &Tun) -> Result<(Vec<TunDevice>, DeviceFacts), SystemError> {
    if tun.fd.is_none() {
        refuse_used_address(tun)?;
    }
    let config = TunConfig {
        name: tun.name.clone(),
        or_next: tun.or_next,
        network: tun.network,
        mtu: scenario.cell.mtu(),
        tx_queue_len: tx_queue_len(scenario),
        offload: scenario.cell.device_offload(),
        fd: tun.fd,
        tuning: scenario.cell.tuning(),
    };
    let queues = scenario.cell.queues.map(|queues| queues.get().into());
    let links = TunDevice::open_shards(&config, scenario.cell.shards.get().into(), queues)?;
    let device = &links[0];
    let facts = DeviceFacts {
        name: device.name().to_owned(),
        mtu: device.capabilities().mtu,
        offload: device.capabilities().segmentation.any(),
        tx_queue_len: device.tx_queue_len(),
        qdisc: platform::qdisc_of(device.name()),
    };
    if scenario.cell.queue.is_some() && facts.tx_queue_len != scenario.cell.queue {
        let reason = facts.tx_queue_len.map_or("this system has no such queue", |_| "only root may change it");
        let source = io::Error::new(io::ErrorKind::Unsupported, reason);
        return Err(platform::Error::new(Class::Unavailable, "set the queue of", &facts.name, source)
            .remedy("leave out --queue"));
    }
    Ok((links, facts))
}

/// The facts of a device that another process has opened.
pub(crate) fn facts(scenario: &Scenario, tun: &Tun, offload: bool) -> DeviceFacts {
    let (tx_queue_len, qdisc) = (Some(tx_queue_len(scenario)), platform::qdisc_of(&tun.name));
    DeviceFacts { name: tun.name.clone(), mtu: scenario.cell.mtu().into(), offload, tx_queue_len, qdisc }
}

/// Refuses an address that another interface has: that interface would take the packets of the run.
fn refuse_used_address(tun: &Tun) -> Result<(), SystemError> {
    let address = tun.network.address;
    if !platform::is_local_address(address, &tun.name) {
        return Ok(());
    }
    let source = io::Error::new(io::ErrorKind::AddrInUse, "another interface has it already");
    let or = if platform::netns_supported() { ", or leave out --netns host" } else { "" };
    Err(platform::Error::new(Class::Invalid, "use the address", address.to_string(), source)
        .remedy(format!("choose others with --tun-addr and --tun-dest{or}")))
}

/// The length of the queue in front of the stack. By default it holds a window for each stream in packets of the MTU, and
/// half as much again for ACKs and small packets.
pub(crate) fn tx_queue_len(scenario: &Scenario) -> u32 {
    if let Some(packets) = scenario.cell.queue {
        return packets;
    }
    let payload = u64::from(scenario.cell.mtu()).saturating_sub(40).max(1);
    let packets = scenario.cell.window_len() as u64 * u64::from(scenario.cell.parallel.get()) / payload;
    let len = (packets + packets / 2).min(MAX_TX_QUEUE_LEN);
    u32::try_from(len).unwrap_or(u32::MAX).max(MIN_TX_QUEUE_LEN)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_queue_holds_a_window_of_every_stream() {
        let queue = |arguments: &str| {
            let cli = Cli::try_parse_from(format!("x -m reader -n smoltcp {arguments}").split_whitespace()).unwrap();
            tx_queue_len(&Scenario::try_from(cli.run).unwrap())
        };
        assert_eq!(queue(""), 4308);
        assert_eq!(queue("--window 64KiB"), MIN_TX_QUEUE_LEN);
        assert_eq!(queue("--mtu 576 --parallel 8"), 93_901);
        assert_eq!(queue("--window 1GB --parallel 256"), 1 << 18);
        assert_eq!(queue("--queue 7"), 7);
    }
}
