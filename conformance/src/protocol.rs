//! The lines that a stack in a process of its own exchanges with this program. docs/external-stack.md describes them.

use std::borrow::Cow;

use netstacks::{Effective, StackConfig, StackCongestion, StackKind, StackRecovery};
use platform::PROTOCOL;
use serde::{Deserialize, Serialize};

/// The task of a process: the first line that it reads. `L` has the fields of the load.
#[derive(Serialize)]
pub struct Task<'a, L> {
    protocol: u32,
    device: Device<'a>,
    window_bytes: usize,
    threads: Option<usize>,
    // Programs of other people read this name.
    #[serde(rename = "repairs")]
    workarounds: Vec<Cow<'static, str>>,
    // The stack's own choice where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion: Option<StackCongestion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery: Option<StackRecovery>,
    #[serde(flatten)]
    load: L,
}

/// The device that a process opens.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Device<'a> {
    /// Its name.
    pub name: &'a str,
    /// The largest packet, in bytes.
    pub mtu: u16,
    /// Whether the device may offload.
    pub offload: bool,
}

/// The facts that a process reports once its device is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Whether its device offloads.
    #[serde(default)]
    pub offload: bool,
    /// The settings that its stack really uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
}

impl<'a, L: Serialize> Task<'a, L> {
    /// A task for a stack with this configuration. The process may run on `threads` threads at once; `None` means any number. The
    /// chosen workarounds are on.
    pub fn new(
        device: Device<'a>,
        threads: Option<usize>,
        (stack, config): (StackKind, &StackConfig),
        load: L,
    ) -> Self {
        let StackConfig { window, workarounds, congestion, recovery, .. } = *config;
        Self {
            protocol: PROTOCOL,
            device,
            window_bytes: window,
            threads,
            workarounds: workarounds.active(stack, device.offload),
            congestion: Some(congestion).filter(|congestion| *congestion != StackCongestion::None),
            recovery,
            load,
        }
    }
}
