//! What carries the bytes of a cell, and what a cell has because of it.

use netstacks::StackKind;

use super::{Cell, Forwarder, ForwarderName, Layer, Mode, Protocol};
use crate::program::{Profile, ProgramName, Setting, has_no_program};

/// What carries the bytes. A run matches on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The kernel's TCP on both sides, over its loopback; the server runs on tokio, as a stack's does.
    Loopback,
    /// The kernel's TCP on both sides of two TUN devices, with the impairments of a stack's link between them.
    Kernel,
    /// The TUN device alone: packets that the kernel routes back into it, without TCP.
    Device,
    /// The stack alone, over a link in memory, with a scripted client.
    Stack(StackKind),
    /// The whole path: a kernel client, the TUN device, the stack.
    Path(StackKind),
    /// An unmodified program, between a kernel client and a kernel server.
    Program(ProgramName),
    /// A device that a program of the user's serves, between a kernel client and a kernel server in the same network.
    Given,
    /// A forwarder between two TUN devices, with kernel clients and servers.
    Forward(Forwarder),
}

impl Subject {
    /// The name of its kind in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Kernel => "kernel",
            Self::Device => "device",
            Self::Stack(_) => "stack",
            Self::Path(_) => "path",
            Self::Program(_) => "program",
            Self::Given => "given",
            Self::Forward(_) => "forward",
        }
    }

    /// Whether the kernel alone carries the bytes. Such a cell shows whether the machine, or this program's client and server, changed.
    pub fn is_reference(self) -> bool {
        match self {
            Self::Loopback | Self::Kernel => true,
            Self::Program(name) => has_no_program(name),
            _ => false,
        }
    }

    /// Whether it has a link with impairments.
    pub const fn has_link(self) -> bool {
        matches!(self, Self::Path(_) | Self::Kernel | Self::Program(_))
    }

    /// Whether another process carries the bytes, under a load from this process.
    pub const fn is_carrier(self) -> bool {
        matches!(self, Self::Program(_) | Self::Given | Self::Forward(_))
    }

    /// The stack in it.
    pub const fn stack(self) -> Option<StackKind> {
        match self {
            Self::Stack(stack) | Self::Path(stack) => Some(stack),
            _ => None,
        }
    }

    /// Whether its stack is a process of its own.
    pub const fn has_process(self) -> bool {
        match self.stack() {
            Some(stack) => stack.is_process(),
            None => false,
        }
    }
}

impl Cell {
    /// What carries its bytes. A cell that is [checked](Self::checked) has what its subject needs.
    pub fn subject(&self) -> Subject {
        if let Some(program) = &self.program {
            return Subject::Program(program.name);
        }
        if self.device.is_some() {
            return Subject::Given;
        }
        if let Some(forwarder) = self.forwarder() {
            return Subject::Forward(forwarder);
        }
        match (self.layer, self.netstack) {
            (Layer::Path, Some(StackKind::Kernel)) => Subject::Kernel,
            (Layer::Path, Some(stack)) => Subject::Path(stack),
            (Layer::Stack, Some(stack)) => Subject::Stack(stack),
            (Layer::Device, _) => Subject::Device,
            (Layer::Loopback | Layer::Stack | Layer::Path, _) => Subject::Loopback,
        }
    }

    pub(crate) fn has_client(&self) -> bool {
        self.layer != Layer::Device
    }

    pub(super) fn has_netstack(&self) -> bool {
        !self.subject().is_carrier() && matches!(self.layer, Layer::Stack | Layer::Path)
    }

    pub(super) fn is_rust(&self) -> bool {
        self.forwarder == Some(ForwarderName::Rust)
    }

    pub(super) fn has_runtime(&self) -> bool {
        !self.subject().is_carrier() || self.program.as_ref().is_some_and(|program| program.stack().is_some())
    }

    pub(super) fn has_shards(&self) -> bool {
        self.layer != Layer::Stack && self.adapter().or(self.netstack).is_some_and(StackKind::can_shard)
    }

    /// Whether it has a device whose packets are counted.
    pub(crate) fn has_device(&self) -> bool {
        self.layer != Layer::Loopback && self.device.is_none()
    }

    pub(super) fn has_offload(&self) -> bool {
        self.has_device() && self.program.as_ref().is_none_or(|program| program.stack().is_some())
    }

    /// A program of a file has no profile, so that it is not known.
    pub(super) fn has_max_flows(&self) -> bool {
        let sets = |profile: &Profile| profile.set.contains_key(&Setting::MaxFlows);
        self.program.as_ref().is_some_and(|program| program.profile().is_none_or(sets))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.mode == Some(Mode::Idle)
    }

    pub(super) fn is_bulk(&self) -> bool {
        self.mode.is_some_and(Mode::is_bulk)
    }

    pub(crate) fn has_requests(&self) -> bool {
        self.has_client() && self.forwarder.is_none() && self.mode.is_some_and(Mode::is_requests)
    }

    pub(super) fn has_black_holes(&self) -> bool {
        self.mode == Some(Mode::Crr) && self.protocol == Protocol::Tcp && self.program.is_some() && !self.inbound
    }

    pub(crate) fn has_datagrams(&self) -> bool {
        self.has_client() && self.protocol == Protocol::Udp && self.is_bulk()
    }

    /// Whether the highest rate of its datagrams is searched for.
    pub fn searches(&self) -> bool {
        self.has_datagrams() && self.bitrate.is_none()
    }

    pub(super) fn has_streams(&self) -> bool {
        self.layer == Layer::Device
            || self.protocol != Protocol::Udp && self.is_bulk()
            || self.background.is_some() && self.has_requests()
    }

    pub(super) fn has_window(&self) -> bool {
        match self.subject() {
            Subject::Stack(_) | Subject::Path(_) | Subject::Device => true,
            Subject::Program(_) if self.adapter().is_some() => true,
            _ => self.has_datagrams(),
        }
    }

    /// Whether it has a device whose queue can be set.
    pub(super) fn has_queue(&self) -> bool {
        self.subject().has_link() || self.forwarder.is_some()
    }

    /// Whether this program starts the threads that carry its bytes, or the program that does.
    pub(super) fn has_pins(&self) -> bool {
        self.program.is_some() || !(self.subject().is_carrier() || self.subject().has_process())
    }

    /// Whether a device that this program, our proxy or a forwarder opens carries its bytes.
    pub(super) fn has_napi(&self) -> bool {
        self.has_offload() && self.layer != Layer::Stack && !self.subject().has_process()
    }
}
