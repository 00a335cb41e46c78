//! What carries the bytes.

use clap::ValueEnum;
use netstacks::StackKind;
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forwarder::Forwarder;
use super::workload::Workload;
use crate::program::ProgramName;

/// What carries the bytes. The first four are the layers from the kernel's own loopback to the whole path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// The kernel's TCP on both sides, over its loopback; the server runs on tokio, as a stack's does.
    Loopback,
    /// The kernel's TCP on both sides of two TUN devices, with the conditions of a stack's link between them.
    Kernel,
    /// The TUN device alone: packets that the kernel routes back into it, without TCP.
    Device,
    /// The stack alone, over a link in memory, with a scripted client.
    Stack(StackKind),
    /// The whole path: a kernel client, the TUN device, the stack.
    Path(StackKind),
    /// A TUN proxy on the stack, between a kernel client and a kernel server.
    Proxy(StackKind),
    /// A program as it is, between a kernel client and a kernel server.
    Program(ProgramName),
    /// A forwarder between two TUN devices, with kernel clients and servers.
    Forward(Forwarder),
}

impl Subject {
    /// Whether the window is of any effect: it is the buffer of a stack, of UDP sockets, or of the packets on the way.
    pub(crate) fn has_window(self, workload: Workload) -> bool {
        !matches!(self, Self::Loopback | Self::Kernel | Self::Program(_)) || workload.datagram_bytes().is_some()
    }

    /// The subject of a layer, with the stack, the program or the forwarder that it needs.
    pub(crate) fn of<E>(
        layer: Layer,
        stack: impl FnOnce() -> Result<StackKind, E>,
        program: impl FnOnce() -> Result<ProgramName, E>,
        forwarder: impl FnOnce() -> Result<Forwarder, E>,
    ) -> Result<Self, E> {
        Ok(match layer {
            Layer::Loopback => Self::Loopback,
            Layer::Kernel => Self::Kernel,
            Layer::Device => Self::Device,
            Layer::Stack => Self::Stack(stack()?),
            Layer::Path => Self::Path(stack()?),
            Layer::Proxy => Self::Proxy(stack()?),
            Layer::Program => Self::Program(program()?),
            Layer::Forward => Self::Forward(forwarder()?),
        })
    }

    /// Whether it has a link with conditions.
    pub const fn has_conditions(self) -> bool {
        matches!(self, Self::Path(_) | Self::Proxy(_) | Self::Kernel | Self::Program(_))
    }

    /// Its layer.
    pub const fn layer(self) -> Layer {
        match self {
            Self::Loopback => Layer::Loopback,
            Self::Kernel => Layer::Kernel,
            Self::Device => Layer::Device,
            Self::Stack(_) => Layer::Stack,
            Self::Path(_) => Layer::Path,
            Self::Proxy(_) => Layer::Proxy,
            Self::Program(_) => Layer::Program,
            Self::Forward(_) => Layer::Forward,
        }
    }

    /// The stack in it.
    pub const fn stack(self) -> Option<StackKind> {
        match self {
            Self::Stack(stack) | Self::Path(stack) | Self::Proxy(stack) => Some(stack),
            Self::Loopback | Self::Kernel | Self::Device | Self::Program(_) | Self::Forward(_) => None,
        }
    }

    /// The program that it is.
    pub const fn program(self) -> Option<ProgramName> {
        match self {
            Self::Program(program) => Some(program),
            _ => None,
        }
    }

    /// The forwarder that it is.
    pub const fn forwarder(self) -> Option<Forwarder> {
        match self {
            Self::Forward(forwarder) => Some(forwarder),
            _ => None,
        }
    }

    /// Whether another process carries the bytes between two networks, under a load from this process.
    pub const fn is_carrier(self) -> bool {
        matches!(self, Self::Proxy(_) | Self::Program(_) | Self::Forward(_))
    }

    /// Whether its stack is a process of its own.
    pub const fn has_process(self) -> bool {
        match self.stack() {
            Some(stack) => stack.is_process(),
            None => false,
        }
    }
}

/// A [`Subject`] without the stack or forwarder in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The kernel's TCP on both sides, over its loopback
    Loopback,
    /// The kernel's TCP on both sides of two TUN devices, with the link's conditions between them
    Kernel,
    /// The TUN device alone: packets that the kernel sends back, without TCP
    Device,
    /// The stack alone, over a link in memory, with a scripted client
    Stack,
    /// The whole path: a kernel client, the TUN device, the stack
    Path,
    /// A TUN proxy on the stack, between a kernel client and a kernel server
    Proxy,
    /// A program as it is, between a kernel client and a kernel server; --program chooses it
    #[value(hide = true)]
    Program,
    /// A forwarder between two TUN devices; it has a command of its own
    #[value(hide = true)]
    Forward,
}
