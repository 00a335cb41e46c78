//! The one check of a cell, and the defaults that depend on other properties.

use std::borrow::Cow;
use std::num::NonZeroU16;

use forwarders::{Handoff, Io};
use netstacks::{StackConfig, StackKind, Workarounds};

use super::properties::PROPERTIES;
use super::{Cell, DEFAULT_MTU, ForwarderName, Generator, Layer, Mode, Napi, Offload, Protocol, Workload};
use crate::plural;
use crate::program::{Profile, Role};

/// The least MTU of IPv6, in bytes (RFC 8200, 5).
pub const MIN_MTU_V6: u16 = 1280;

/// The shortest datagram of bulk bytes: it must hold its number.
const SHORTEST_DATAGRAM: u64 = 12;

const MAX_FLOWS: u16 = 256;

const MAX_BUFFERS: u64 = 1 << 30;

/// Of a read or write, in bytes. By default the buffers of all streams have a quarter of the most memory.
const DEFAULT_BUFFER: u64 = 1_000_000;
const LEAST_BUFFER: u64 = 4 << 10;

/// The size of a read or write of iperf3, and the most that it takes (`iperf_api.h`, `MAX_BLOCKSIZE`).
const FORWARD_BUFFER: u64 = 128 << 10;
const IPERF3_BUFFER: u64 = 1 << 20;

const FORWARD_QUEUE: u32 = 500;

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

fn refuse(is_wrong: bool, option: &'static str, reason: impl Into<String>) -> Result<(), Wrong> {
    if is_wrong { Err(Wrong::new(option, reason)) } else { Ok(()) }
}

impl Cell {
    /// The same cell with the defaults that depend on other properties, if it can be run on some machine.
    pub fn checked(mut self) -> Result<Self, Wrong> {
        self.check_device()?;
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
        if self.netstack.is_none() && !self.subject().is_carrier() {
            let reason = "a run needs it, or --program in its place";
            refuse(self.layer == Layer::Path, "--netstack", reason)?;
            refuse(self.layer == Layer::Stack, "--netstack", "the layer stack needs it")?;
        }
        if let Some(stack) = self.netstack.filter(|_| self.layer != Layer::Path) {
            let is_wrong = stack.is_process() || stack == StackKind::Kernel;
            refuse(is_wrong, "--netstack", format!("{stack} has the layer path alone"))?;
        }
        if let Some(forwarder) = self.forwarder() {
            forwarder.check()?;
            self.mode.get_or_insert(Mode::Writer);
        }
        let reason = "a run needs it: reader, writer, both, rr, crr or idle";
        refuse(self.mode.is_none() && self.has_client(), "--mode", reason)?;
        let reason = "idle reads the memory of the program, and of a device it is not known whose it is";
        refuse(self.device.is_some() && self.is_idle(), "--mode", reason)?;
        let is_bulk = self.mode.is_none_or(Mode::is_bulk);
        refuse(self.forwarder.is_some() && !is_bulk, "--mode", "a forwarder has reader, writer and both")
    }

    fn check_device(&mut self) -> Result<(), Wrong> {
        if self.napi != Napi::Off && self.has_napi() {
            refuse(self.offloads(), "--napi", "needs --offload off: super-packets are joined already")?;
            self.offload = Offload::Off;
        }
        let has_it = self.has_napi() && self.forwarder.is_none();
        let reason = "not tso: only the device of a stack, and of our proxy, has datagrams apart";
        refuse(self.offload == Offload::Tso && !has_it, "--offload", reason)
    }

    fn check_impairments(&mut self) -> Result<(), Wrong> {
        let link = &self.impairments;
        let reason = format!("must be less than the device's MTU, {}", self.mtu());
        refuse(link.path_mtu.is_some_and(|path| path.get() >= self.mtu()), "--path-mtu", reason)?;
        link.path_mtu.map_or(Ok(()), |path| self.check_mtu("--path-mtu", path.get()))?;
        let reason = "there is nothing to tell without --path-mtu";
        refuse(link.no_icmp && link.path_mtu.is_none(), "--no-icmp", reason)?;
        refuse(link.jitter > link.delay, "--jitter", "must not be more than --delay")?;
        if link.corrupt_ppm > 0 {
            let reason = "needs --offload off: nobody verifies the checksum of a super-packet";
            refuse(self.offloads(), "--corrupt", reason)?;
            self.offload = if self.has_offload() { Offload::Off } else { self.offload };
        }
        Ok(())
    }

    fn check_mtu(&self, option: &'static str, mtu: u16) -> Result<(), Wrong> {
        let reason = format!("{mtu} bytes; IPv6 needs at least {MIN_MTU_V6}");
        refuse(self.ipv6 && mtu < MIN_MTU_V6, option, reason)
    }

    fn check_load(&self) -> Result<(), Wrong> {
        if let Some(mode) = self.background {
            let reason = format!("{mode} is no stream; use reader, writer or both");
            refuse(!mode.is_bulk(), "--background", reason)?;
        }
        let has_two = !self.think.is_zero() && self.rate.is_some();
        refuse(has_two, "--think", "a rate has its own schedule; leave out --rate")?;
        let reason =
            "must be set: on a link that loses datagrams, the search for a rate with almost no loss finds none";
        refuse(self.searches() && self.impairments.loses(), "--bitrate", reason)?;
        let count = self.parallel.get();
        let reason = format!("at most {MAX_FLOWS} flows of datagrams");
        refuse(count > MAX_FLOWS && self.has_datagrams(), "--parallel", reason)?;
        let reason = format!("at most {FORWARD_STREAMS} streams over a forwarder");
        refuse(count > FORWARD_STREAMS && self.forwarder.is_some(), "--parallel", reason)?;
        let peers = self.peers.get();
        let reason = format!("each of {peers} peers has a connection or several; at least {peers}");
        refuse(count < peers, "--parallel", reason)?;
        let reason = "idle compares the memory of many connections with the memory of one; at least 2";
        refuse(count == 1 && self.is_idle(), "--parallel", reason)?;
        self.check_threads()
    }

    fn check_threads(&self) -> Result<(), Wrong> {
        let both = if self.mode == Some(Mode::Both) { 2 } else { 1 };
        let sockets = both * self.parallel.get();
        if let Some(threads) = self.client_threads {
            let reason = format!("{threads} threads for {}", plural(sockets, "socket"));
            refuse(threads.get() > sockets, "--client-threads", reason)?;
        }
        let Some(queues) = self.queues else { return Ok(()) };
        let shards = plural(self.shards, "shard");
        let reason = format!("{queues} queues for {shards}; there is one for each, or 1");
        refuse(queues.get() > 1 && queues != self.shards, "--queues", reason)
    }

    /// Fills in the defaults that depend on other properties, and checks the sizes.
    fn fill(&mut self) -> Result<(), Wrong> {
        if self.forwarder.is_some() {
            self.fill_forwarder();
        }
        // A program without one is as its authors ship it.
        if self.program.is_none() && (self.has_device() || self.protocol == Protocol::Udp) {
            self.mtu.get_or_insert(DEFAULT_MTU);
        }
        let profile = self.program.as_ref().and_then(|program| program.profile());
        let device_mtu = device_mtu(profile, self.mtu(), self.ipv6)?;
        self.check_mtu("--mtu", device_mtu)?;
        let room = u64::from(device_mtu.saturating_sub(if self.ipv6 { 40 + 8 } else { 20 + 8 }));
        if self.has_datagrams() {
            let len = *self.datagram.get_or_insert(room);
            let reason = format!(
                "must be {SHORTEST_DATAGRAM} bytes or more, to hold its number, and at most {room}, to fit in a packet"
            );
            refuse(!(SHORTEST_DATAGRAM..=room).contains(&len), "--datagram", reason)?;
        }
        if self.has_requests() && self.protocol == Protocol::Udp {
            for (option, len) in [("--request", self.request), ("--response", self.response)] {
                refuse(len > room, option, format!("over UDP it is one packet, of {room} bytes at most"))?;
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
        let reason = format!("{bytes} bytes for each of {streams} streams are more than 1 GiB");
        refuse(bytes.saturating_mul(streams) > MAX_BUFFERS, "--buffer", reason)?;
        let is_too_long = self.generator == Generator::Iperf3 && bytes > IPERF3_BUFFER;
        refuse(is_too_long, "--buffer", format!("iperf3 takes at most {IPERF3_BUFFER} bytes"))
    }

    fn fill_forwarder(&mut self) {
        self.hop.get_or_insert(Handoff::Direct);
        self.queue.get_or_insert(FORWARD_QUEUE);
        if self.forwarder == Some(ForwarderName::Rust) {
            self.io.get_or_insert(Io::Sync);
            self.workers.get_or_insert(NonZeroU16::MIN);
        }
        if self.offload == Offload::Auto {
            self.offload = if self.has_uring() { Offload::Whole } else { Offload::On };
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

    fn check_process(&self) -> Result<(), Wrong> {
        let Some(stack) = self.netstack.filter(|stack| stack.is_process()) else { return Ok(()) };
        let of_process = |is_wrong, option, reason: &str| {
            refuse(is_wrong, option, format!("{stack} is a process of its own; {reason}"))
        };
        let is_bulk_udp = self.has_datagrams();
        let is_half_closed = self.workload() == Workload::HalfClosed;
        of_process(is_half_closed, "--half-closed", "its server closes a connection when the client has")?;
        let has_rate = self.bitrate.is_some() && !is_bulk_udp;
        of_process(has_rate, "--bitrate", "its streams are as fast as they can be")?;
        let has_flows = is_bulk_udp && (self.parallel.get() > 1 || self.mode == Some(Mode::Both));
        of_process(has_flows, "--parallel", "it has one flow of datagrams, one way")
    }

    /// Refuses what the program of a profile cannot do. A cell of a file has no profile.
    fn check_program(&self) -> Result<(), Wrong> {
        let Some(profile) = self.program.as_ref().and_then(|program| program.profile()) else { return Ok(()) };
        let has_other = !profile.udp && self.protocol == Protocol::Udp;
        refuse(has_other, "--protocol", format!("{} carries TCP alone", profile.name))?;
        if self.inbound {
            profile.check_inbound().map_err(|reason| Wrong::new("--inbound", reason))?;
        }
        if self.peers.get() > 1 {
            profile.check_peers().map_err(|reason| Wrong::new("--peers", reason))?;
        }
        let is_of_kernel = profile.is_of_kernel() && self.pin.is_some();
        refuse(is_of_kernel, "--pin", format!("the kernel's own threads do the work of {}", profile.name))?;
        let of_device = [("--qdisc", self.qdisc.is_some()), ("--queue", self.queue.is_some())];
        for (option, is_set) in of_device {
            let reason = format!("{} has no device of its own", profile.name);
            refuse(!profile.has_device() && is_set, option, reason)?;
        }
        let is_taken = profile.role == Role::Attach && self.qdisc.is_some() && self.impairments.outage.is_some();
        refuse(is_taken, "--qdisc", format!("--outage takes the place of that of {}'s device", profile.name))?;
        let reason =
            format!("{} runs in the servers' network: there is no link that could have impairments", profile.name);
        refuse(profile.role == Role::Attach && self.impairments.has_link(), "--program", reason)
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
