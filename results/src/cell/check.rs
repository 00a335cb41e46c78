//! The one check of a cell, and the defaults that depend on other properties.

use std::borrow::Cow;
use std::num::NonZeroU16;

use forwarders::{Handoff, Io};
use netstacks::{StackConfig, StackKind, Workarounds};

use super::properties::PROPERTIES;
use super::{Cell, ForwarderName, Generator, Layer, Mode, Offload, Protocol, Workload};
use crate::plural;
use crate::program::{Profile, Role};

/// The least MTU of IPv6, in bytes (RFC 8200, 5).
pub const MIN_MTU_V6: u16 = 1280;

/// The shortest datagram of bulk bytes: it must hold its number.
const SHORTEST_DATAGRAM: u64 = 12;

/// Most flows of bulk datagrams.
const MAX_FLOWS: u16 = 256;

/// Most memory for the buffers of all streams on one side.
const MAX_BUFFERS: u64 = 1 << 30;

/// Of a read or write, in bytes. By default the buffers of all streams have a quarter of the most memory.
const DEFAULT_BUFFER: u64 = 1_000_000;
const LEAST_BUFFER: u64 = 4 << 10;

/// The size of a read or write of iperf3, and the most that it takes (`iperf_api.h`, `MAX_BLOCKSIZE`).
const FORWARD_BUFFER: u64 = 128 << 10;
const IPERF3_BUFFER: u64 = 1 << 20;

/// Packets that may wait in a device of a forwarder: the kernel's default.
const FORWARD_QUEUE: u32 = 500;

/// Most streams over a forwarder: iperf3's limit.
const FORWARD_STREAMS: u16 = 128;

const LEAST_WINDOW: u64 = 64 << 10;

/// An option that is wrong, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct Wrong {
    option: Cow<'static, str>,
    reason: String,
}

impl Wrong {
    /// The option with its hyphens, and the reason.
    pub fn new(option: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> Self {
        Self { option: option.into(), reason: reason.into() }
    }
}

impl Cell {
    /// The same cell with the defaults that depend on other properties, if it can be run on some machine.
    pub fn checked(mut self) -> Result<Self, Wrong> {
        self.check_subject()?;
        self.check_properties()?;
        self.check_impairments()?;
        self.check_load()?;
        self.fill()?;
        self.check_workarounds()?;
        self.check_process()?;
        self.check_program()?;
        Ok(self)
    }

    /// Refuses a property that the cell does not have, and a number out of range.
    fn check_properties(&self) -> Result<(), Wrong> {
        let usual = Self::default();
        for property in PROPERTIES {
            let option = || format!("--{}", property.long());
            let value = (property.value)(self);
            if !property.is_of(self) {
                if value != (property.value)(&usual) {
                    return Err(Wrong::new(option(), property.others));
                }
                continue;
            }
            let number = value.and_then(|value| value.parse().ok());
            if let Some(bounds) = property.bounds().filter(|_| number.is_some_and(|number| !property.holds(number))) {
                return Err(Wrong::new(option(), bounds));
            }
        }
        Ok(())
    }

    fn check_subject(&mut self) -> Result<(), Wrong> {
        if self.program.is_none() && self.forwarder.is_none() && self.netstack.is_none() {
            match self.layer {
                Layer::Path => return Err(Wrong::new("--netstack", "a run needs it, or --program in its place")),
                Layer::Stack => return Err(Wrong::new("--netstack", "the layer stack needs it")),
                Layer::Loopback | Layer::Device => {}
            }
        }
        let is_alone = self.layer != Layer::Path;
        if let Some(stack) =
            self.netstack.filter(|stack| is_alone && (stack.is_process() || *stack == StackKind::Kernel))
        {
            return Err(Wrong::new("--netstack", format!("{stack} has the layer path alone")));
        }
        if let Some(forwarder) = self.forwarder() {
            forwarder.check()?;
            self.mode.get_or_insert(Mode::Writer);
        }
        match self.mode {
            None if self.has_client() => {
                Err(Wrong::new("--mode", "a run needs it: reader, writer, both, rr, crr or idle"))
            }
            Some(mode) if self.forwarder.is_some() && !mode.is_bulk() => {
                Err(Wrong::new("--mode", "a forwarder has reader, writer and both"))
            }
            _ => Ok(()),
        }
    }

    fn check_impairments(&mut self) -> Result<(), Wrong> {
        let link = &self.impairments;
        if link.path_mtu.is_some_and(|path| path.get() >= self.mtu) {
            return Err(Wrong::new("--path-mtu", format!("must be less than the device's MTU, {}", self.mtu)));
        }
        link.path_mtu.map_or(Ok(()), |path| self.check_mtu("--path-mtu", path.get()))?;
        if link.no_icmp && link.path_mtu.is_none() {
            return Err(Wrong::new("--no-icmp", "there is nothing to tell without --path-mtu"));
        }
        if link.jitter > link.delay {
            return Err(Wrong::new("--jitter", "must not be more than --delay"));
        }
        if link.corrupt_ppm > 0 {
            if self.offload == Offload::On {
                let reason = "needs --offload off: nobody verifies the checksum of a super-packet";
                return Err(Wrong::new("--corrupt", reason));
            }
            self.offload = if self.has_offload() { Offload::Off } else { self.offload };
        }
        Ok(())
    }

    fn check_mtu(&self, option: &'static str, mtu: u16) -> Result<(), Wrong> {
        if self.ipv6 && mtu < MIN_MTU_V6 {
            return Err(Wrong::new(option, format!("{mtu} bytes; IPv6 needs at least {MIN_MTU_V6}")));
        }
        Ok(())
    }

    fn check_load(&self) -> Result<(), Wrong> {
        match self.background {
            Some(mode) if !mode.is_bulk() => {
                return Err(Wrong::new("--background", format!("{mode} is no stream; use reader, writer or both")));
            }
            _ => {}
        }
        if !self.think.is_zero() && self.rate.is_some() {
            return Err(Wrong::new("--think", "a rate has its own schedule; leave out --rate"));
        }
        if self.has_datagrams() && self.bitrate.is_none() && self.impairments.loses() {
            let reason =
                "must be set: on a link that loses datagrams, the search for a rate with almost no loss finds none";
            return Err(Wrong::new("--bitrate", reason));
        }
        match self.parallel.get() {
            count if count > MAX_FLOWS && self.has_datagrams() => {
                Err(Wrong::new("--parallel", format!("at most {MAX_FLOWS} flows of datagrams")))
            }
            count if count > FORWARD_STREAMS && self.forwarder.is_some() => {
                Err(Wrong::new("--parallel", format!("at most {FORWARD_STREAMS} streams over a forwarder")))
            }
            1 if self.is_idle() => {
                let reason = "idle compares the memory of many connections with the memory of one; at least 2";
                Err(Wrong::new("--parallel", reason))
            }
            _ => self.check_threads(),
        }
    }

    fn check_threads(&self) -> Result<(), Wrong> {
        let both = if self.mode == Some(Mode::Both) { 2 } else { 1 };
        let sockets = both * self.parallel.get();
        if let Some(threads) = self.client_threads.filter(|threads| threads.get() > sockets) {
            return Err(Wrong::new("--client-threads", format!("{threads} threads for {}", plural(sockets, "socket"))));
        }
        match self.queues {
            Some(queues) if queues.get() > 1 && queues != self.shards => {
                let shards = plural(self.shards, "shard");
                Err(Wrong::new("--queues", format!("{queues} queues for {shards}; there is one for each, or 1")))
            }
            _ => Ok(()),
        }
    }

    /// Fills in the defaults that depend on other properties, and checks the sizes.
    fn fill(&mut self) -> Result<(), Wrong> {
        if self.forwarder.is_some() {
            self.fill_forwarder();
        }
        let profile = self.program.as_ref().and_then(|program| program.profile());
        let device_mtu = device_mtu(profile, self.mtu, self.ipv6)?;
        self.check_mtu("--mtu", device_mtu)?;
        let room = u64::from(device_mtu.saturating_sub(if self.ipv6 { 40 + 8 } else { 20 + 8 }));
        if self.has_datagrams() {
            let len = *self.datagram.get_or_insert(room);
            if !(SHORTEST_DATAGRAM..=room).contains(&len) {
                let reason = format!(
                    "must be {SHORTEST_DATAGRAM} bytes or more, to hold its number, and at most {room}, to fit in a packet"
                );
                return Err(Wrong::new("--datagram", reason));
            }
        }
        if self.has_requests() && self.protocol == Protocol::Udp {
            for (option, len) in [("--request", self.request), ("--response", self.response)] {
                if len > room {
                    return Err(Wrong::new(option, format!("over UDP it is one packet, of {room} bytes at most")));
                }
            }
        }
        let streams = if self.workload().is_stream() { u64::from(self.parallel.get()) } else { 1 };
        if self.has_window() && self.program.is_none() {
            let share = (MAX_BUFFERS / streams).max(LEAST_WINDOW);
            self.window.get_or_insert(share.min(StackConfig::default().window as u64));
        }
        if self.has_streams() {
            self.fill_buffer(streams)?;
        }
        Ok(())
    }

    fn fill_buffer(&mut self, streams: u64) -> Result<(), Wrong> {
        let usual = if self.forwarder.is_some() { FORWARD_BUFFER } else { DEFAULT_BUFFER };
        let share = (MAX_BUFFERS / 4 / streams).max(LEAST_BUFFER);
        let bytes = *self.buffer.get_or_insert(usual.min(share));
        if bytes.saturating_mul(streams) > MAX_BUFFERS {
            let reason = format!("{bytes} bytes for each of {streams} streams are more than 1 GiB");
            return Err(Wrong::new("--buffer", reason));
        }
        if self.generator == Generator::Iperf3 && bytes > IPERF3_BUFFER {
            return Err(Wrong::new("--buffer", format!("iperf3 takes at most {IPERF3_BUFFER} bytes")));
        }
        Ok(())
    }

    fn fill_forwarder(&mut self) {
        self.hop.get_or_insert(Handoff::Direct);
        self.queue.get_or_insert(FORWARD_QUEUE);
        if self.forwarder == Some(ForwarderName::Rust) {
            self.io.get_or_insert(Io::Sync);
            self.workers.get_or_insert(NonZeroU16::MIN);
        }
        if self.offload == Offload::Auto {
            self.offload = Offload::On;
        }
    }

    /// Refuses workarounds that the stack does not have. Those that make no difference to it are all, or none.
    fn check_workarounds(&mut self) -> Result<(), Wrong> {
        let Some(stack) = self.adapter() else { return Ok(()) };
        self.workarounds.check(stack).map_err(|reason| Wrong::new("--workarounds", reason))?;
        let same = [Workarounds::ALL, Workarounds::NONE].into_iter().find(|same| self.workarounds_as(*same));
        self.workarounds = same.unwrap_or(self.workarounds);
        Ok(())
    }

    /// Refuses the options that a stack in a process of its own cannot support.
    fn check_process(&self) -> Result<(), Wrong> {
        let Some(stack) = self.netstack.filter(|stack| stack.is_process()) else { return Ok(()) };
        let refuse =
            |option, reason: &str| Err(Wrong::new(option, format!("{stack} is a process of its own; {reason}")));
        let is_bulk_udp = self.has_datagrams();
        if self.workload() == Workload::HalfClosed {
            return refuse("--half-closed", "its server closes a connection when the client has");
        }
        if self.bitrate.is_some() && !is_bulk_udp {
            return refuse("--bitrate", "its streams are as fast as they can be");
        }
        if is_bulk_udp && (self.parallel.get() > 1 || self.mode == Some(Mode::Both)) {
            return refuse("--parallel", "it has one flow of datagrams, one way");
        }
        Ok(())
    }

    /// Refuses what the program of a profile cannot do. A cell of a file has no profile.
    fn check_program(&self) -> Result<(), Wrong> {
        let Some(profile) = self.program.as_ref().and_then(|program| program.profile()) else {
            return Ok(());
        };
        let name = profile.name;
        if !profile.udp && self.protocol == Protocol::Udp {
            return Err(Wrong::new("--protocol", format!("{name} carries TCP alone")));
        }
        if profile.role == Role::Attach && self.impairments.has_link() {
            let reason = format!("{name} runs in the servers' network: there is no link that could have impairments");
            return Err(Wrong::new("--program", reason));
        }
        Ok(())
    }
}

fn device_mtu(profile: Option<&Profile>, mtu: u16, ipv6: bool) -> Result<u16, Wrong> {
    let Some(profile) = profile else { return Ok(mtu) };
    let (device, overhead) = (profile.device_mtu(mtu), profile.overhead());
    let least = if ipv6 { MIN_MTU_V6 } else { 576 };
    if overhead > 0 && device < least {
        let reason = format!(
            "{mtu} bytes less the {overhead} of {} are {device} for its device, which needs at least {least}",
            profile.name
        );
        return Err(Wrong::new("--mtu", reason));
    }
    Ok(device)
}
