//! What carries the bytes.

use netstacks::StackKind;

use super::{Cell, Forwarder, Layer};
use crate::program::{ProgramName, is_baseline};

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
            Self::Program(name) => is_baseline(name),
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

    /// Whether it has a device whose queue can be set.
    pub(super) fn has_queue(&self) -> bool {
        self.subject().has_link() || self.forwarder.is_some()
    }

    /// Whether a device that this program, our proxy or a forwarder opens carries its bytes.
    pub(super) fn has_napi(&self) -> bool {
        self.has_offload() && self.layer != Layer::Stack && !self.subject().has_process()
    }
}
