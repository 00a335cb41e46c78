//! Facts to figures. Nothing here touches the system.

use std::fmt;
use std::time::Duration;

use crate::run::{Sample, Status};

/// What a sample comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Delivered payload by time, in 10⁹ bits a second.
    pub gbps: f64,
    /// Bytes of a packet on the average, IP headers included, in the direction of the payload: it
    /// shows at once whether whole super-packets crossed the device. `None` without packets.
    pub bytes_per_packet: Option<f64>,
    /// What the reader of the figure should know.
    pub warnings: Vec<Warning>,
}

impl Figures {
    /// The figures of a sample.
    pub fn of(sample: &Sample) -> Self {
        let (bytes, packets) = match sample.scenario.mode {
            crate::plan::Mode::Reader => (sample.packets.tx_bytes, sample.packets.tx_packets),
            crate::plan::Mode::Writer => (sample.packets.rx_bytes, sample.packets.rx_packets),
        };
        Self {
            gbps: gbps(sample.bytes, sample.elapsed),
            bytes_per_packet: (packets > 0).then(|| bytes as f64 / packets as f64),
            warnings: warnings(sample),
        }
    }
}

/// Payload by time, in 10⁹ bits a second; 0 where no time has passed.
pub fn gbps(bytes: u64, elapsed: Duration) -> f64 {
    let elapsed_ns = elapsed.as_nanos();
    if elapsed_ns == 0 { 0.0 } else { bytes as f64 * 8.0 / elapsed_ns as f64 }
}

/// Something about a sample that its figure does not tell. Each is a line of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The program was built without optimisation.
    DebugBuild,
    /// The timed window was shorter than [`SHORTEST_WINDOW`].
    ShortWindow(Duration),
    /// The kernel sent segments again.
    Retransmits(u64),
    /// The device dropped packets.
    DeviceDrops(u64),
    /// The client ran with another congestion control than cubic, without having been asked to.
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
                write!(f, "the timed window was only {:.3} s; raise --bytes or use --time", time.as_secs_f64())
            }
            Self::Retransmits(count) => {
                write!(f, "the kernel sent {count} segments again; packets were lost or reordered, or the stack paused")
            }
            Self::DeviceDrops(count) => {
                write!(f, "the device dropped {count} packets; lower --window, or lengthen its queue")
            }
            Self::CongestionControl(name) => {
                write!(f, "the client ran with {name}, since the kernel has no cubic; compare only with the same")
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

fn warnings(sample: &Sample) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if cfg!(debug_assertions) {
        warnings.push(Warning::DebugBuild);
    }
    if sample.status == Status::Ok && sample.elapsed < SHORTEST_WINDOW {
        warnings.push(Warning::ShortWindow(sample.elapsed));
    }
    if let Some(count @ 1..) = sample.retransmits {
        warnings.push(Warning::Retransmits(count));
    }
    if let Some(count @ 1..) = sample.device_drops {
        warnings.push(Warning::DeviceDrops(count));
    }
    if let (None, Some(name)) = (&sample.scenario.congestion, &sample.congestion)
        && name != "cubic"
    {
        warnings.push(Warning::CongestionControl(name.clone()));
    }
    if let Some(name @ ("powersave" | "conservative")) = sample.environment.governor.as_deref() {
        warnings.push(Warning::Governor(name.to_owned()));
    }
    if sample.environment.virtual_machine == Some(true) {
        warnings.push(Warning::VirtualMachine);
    }
    if let Some(effective) = &sample.effective {
        let got = effective.receive_buffer_bytes.min(effective.send_buffer_bytes);
        // A scaled window is a multiple of its unit (RFC 7323, 2.3).
        let unit = 1_usize << effective.window_scale.unwrap_or(0);
        if got + unit <= sample.scenario.window_bytes {
            warnings.push(Warning::SmallerWindow(sample.scenario.window_bytes, got));
        }
    }
    warnings
}
