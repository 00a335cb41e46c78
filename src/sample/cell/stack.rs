//! A stack over a TUN device, or one of the layers under it.

use std::fmt;

use netstacks::StackKind;
use platform::Offload;
use serde::{Deserialize, Serialize};

use crate::plan::{Layer, Mode, RuntimeKind, Scenario};

/// What a run of a stack was of. `None` is what the cell's layer does not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StackCell {
    /// What carries the bytes.
    #[serde(default = "whole_path")]
    pub layer: Layer,
    /// The stack.
    pub netstack: Option<StackKind>,
    /// What the client does.
    pub mode: Option<Mode>,
    /// What the stack runs on.
    #[serde(flatten)]
    pub runtime: RuntimeKind,
    /// Whether super-packets and undone checksums cross the device.
    pub offload: Option<bool>,
    /// MTU of the device, in bytes.
    pub mtu: Option<usize>,
    /// Streams at once.
    pub parallel: u16,
    /// Over IPv6.
    pub ipv6: bool,
    /// The stack's receive buffer and send buffer for each stream, in bytes, as asked for.
    pub window_bytes: Option<usize>,
    /// Size of one read or write, in bytes.
    pub buffer_bytes: usize,
}

/// Samples from before there were layers are of the whole path.
fn whole_path() -> Layer {
    Layer::Path
}

impl StackCell {
    /// The cell of a scenario whose device offloads or does not.
    pub fn of(scenario: &Scenario, offload: bool) -> Self {
        let subject = scenario.subject;
        let link = subject.has_link();
        Self {
            layer: subject.layer(),
            netstack: subject.stack(),
            mode: subject.mode(),
            runtime: scenario.runtime,
            offload: link.then_some(offload),
            mtu: link.then_some(scenario.mtu.into()),
            parallel: scenario.parallel.get(),
            ipv6: scenario.network.address.is_ipv6(),
            window_bytes: link.then_some(scenario.window_bytes),
            buffer_bytes: scenario.buffer_bytes.get(),
        }
    }

    /// The cell that a scenario is to have: with offload where it is asked for.
    pub fn planned(scenario: &Scenario) -> Self {
        Self::of(scenario, scenario.offload == Offload::On)
    }

    /// Checks that it has a stack and a mode where its layer has.
    ///
    /// # Errors
    ///
    /// What it lacks, or has and cannot.
    pub(super) fn check(&self) -> Result<(), String> {
        let (stack, mode) = match self.layer {
            Layer::Path | Layer::Stack => (true, true),
            Layer::Loopback => (false, true),
            Layer::Device => (false, false),
        };
        let fields = [("netstack", stack, self.netstack.is_some()), ("mode", mode, self.mode.is_some())];
        match fields.into_iter().find(|(_, wanted, is_there)| wanted != is_there) {
            Some((name, true, _)) => Err(format!("no \"{name}\", which the layer {} has", self.layer)),
            Some((name, false, _)) => Err(format!("there is a \"{name}\", and the layer {} has none", self.layer)),
            None => Ok(()),
        }
    }

    /// The stack, or the layer where there is none.
    pub fn name(&self) -> String {
        self.netstack.map_or_else(|| self.layer.to_string(), |stack| stack.to_string())
    }

    /// Whether the other does the same work: differs in stack and runtime at most.
    pub fn same_work(&self, other: &Self) -> bool {
        Self { netstack: other.netstack, runtime: other.runtime, ..self.clone() } == *other
    }
}

/// All of it in a line, what is as by default left out.
impl fmt::Display for StackCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = Vec::new();
        match (self.layer, self.netstack) {
            (Layer::Path, Some(stack)) => words.push(stack.to_string()),
            (Layer::Stack, Some(stack)) => words.push(format!("{stack} in memory")),
            (layer, _) => words.push(layer.to_string()),
        }
        words.extend(self.mode.map(|mode| mode.to_string()));
        words.push(self.runtime.to_string());
        if let RuntimeKind::MultiThread(Some(workers)) = self.runtime {
            words.push(format!("({workers} workers)"));
        }
        words.extend(self.offload.map(|offload| format!("offload {}", if offload { "on" } else { "off" })));
        words.extend(self.mtu.map(|mtu| format!("MTU {mtu}")));
        if self.parallel != 1 {
            words.push(format!("{} streams", self.parallel));
        }
        if self.ipv6 {
            words.push("IPv6".to_owned());
        }
        f.pad(&words.join(" "))
    }
}
