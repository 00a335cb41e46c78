//! What the reader of a figure should know.

use std::fmt;
use std::time::Duration;

use super::{Sample, Status};

/// Something about a sample, or about all samples of a cell, that its figure does not tell. Each is a
/// line of advice.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// The program was built without optimisation.
    DebugBuild,
    /// The timed window was shorter than [`SHORTEST_WINDOW`].
    ShortWindow(Duration),
    /// The kernel sent segments again.
    Retransmits(u64),
    /// The device dropped packets.
    DeviceDrops(u64),
    /// The client ran with another congestion control than cubic.
    CongestionControl(String),
    /// The processor saves power.
    Governor(String),
    /// The machine is a virtual one.
    VirtualMachine,
    /// The stack could not have the window that was asked for: asked and got, in bytes.
    SmallerWindow(usize, usize),
}

/// A timed window below this is mostly noise.
pub const SHORTEST_WINDOW: Duration = Duration::from_secs(1);

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DebugBuild => write!(f, "this is a debug build; build with --release"),
            Self::ShortWindow(time) => {
                write!(f, "the timed window was only {:.3} s; deliver for longer, with --time 2", time.as_secs_f64())
            }
            Self::Retransmits(count) => {
                write!(f, "the kernel sent {count} segments again; packets were lost or reordered, or the stack paused")
            }
            Self::DeviceDrops(count) => {
                write!(f, "the device dropped {count} packets; lower --window, or lengthen its queue")
            }
            Self::CongestionControl(name) => {
                write!(f, "the client ran with {name} and not with cubic; compare only with the same")
            }
            Self::Governor(name) => {
                write!(f, "the frequency governor is {name}; set it to performance for steady figures")
            }
            Self::VirtualMachine => {
                write!(f, "this is a virtual machine, whose host may be shared; compare ratios measured side by side")
            }
            Self::SmallerWindow(asked, got) => {
                write!(f, "the stack has a window of {got} bytes at most, and not of {asked}")
            }
        }
    }
}

impl Warning {
    /// What a frequency governor gives reason for.
    pub fn of_governor(name: &str) -> Option<Self> {
        matches!(name, "powersave" | "conservative").then(|| Self::Governor(name.to_owned()))
    }
}

/// What a sample by itself gives reason for.
pub(super) fn of(sample: &Sample) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let (facts, environment) = (&sample.facts, &sample.environment);
    if environment.program.build.as_deref() == Some("debug") {
        warnings.push(Warning::DebugBuild);
    }
    if facts.status == Status::Ok && facts.elapsed < SHORTEST_WINDOW {
        warnings.push(Warning::ShortWindow(facts.elapsed));
    }
    if let Some(count @ 1..) = facts.retransmits {
        warnings.push(Warning::Retransmits(count));
    }
    if let Some(count @ 1..) = facts.device_drops {
        warnings.push(Warning::DeviceDrops(count));
    }
    if let Some(name) = facts.congestion.as_deref().filter(|name| *name != "cubic") {
        warnings.push(Warning::CongestionControl(name.to_owned()));
    }
    warnings.extend(environment.machine.governor.as_deref().and_then(Warning::of_governor));
    if environment.machine.virtual_machine == Some(true) {
        warnings.push(Warning::VirtualMachine);
    }
    if let (Some(effective), Some(asked)) = (&facts.effective, sample.cell.window_bytes) {
        let got = effective.receive_buffer_bytes.min(effective.send_buffer_bytes);
        // A scaled window is a multiple of its unit (RFC 7323, 2.3).
        let unit = 1_usize << effective.window_scale.unwrap_or(0);
        if got + unit <= asked {
            warnings.push(Warning::SmallerWindow(asked, got));
        }
    }
    warnings
}
