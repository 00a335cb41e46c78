//! Everything that differs between operating systems.
//!
//! The rest of the program sees one [`Link`]: an end of a pipe of IP packets. A [`TunDevice`] is
//! one, and so is a [`MemoryLink`], with which every stack is tested without a device.
//!
//! What a link can do is data, in [`Capabilities`]; nothing above this crate asks for the
//! operating system.
//!
//! The code of each system is in a folder or file of its own under `sys/`, and `sys/mod.rs` declares in one trait
//! everything that a system provides. The other modules are for all systems: they have the public functions and
//! types, and call the trait.

mod counted;
mod device;
pub mod doctor;
mod environment;
mod error;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod kernel;
mod link;
mod memory;
mod namespace;
pub mod packet;
mod process;
pub mod profile;
mod signal;
mod socket;
mod sys;
mod trace;
mod usage;
#[cfg(unix)]
mod utun;
pub mod vnet;

pub use counted::{Counted, PacketCounts, Traffic};
pub use device::{
    DropCounter, Network, NetworkError, Offload, TunConfig, TunDevice, network_of, validate_host, validate_name,
};
pub use environment::Environment;
pub use error::{Cause, Class, Error, Feature};
pub use fault::{FaultCounter, FaultCounts, FaultPlan, Faults, Faulty, Which};
pub use kernel::{Loopback, enable_forwarding, set_loopback_up};
pub use link::{Capabilities, Checksum, ChecksumOffload, Link, PacketBuffer, PacketMeta, SegmentationOffload};
pub use memory::MemoryLink;
pub use namespace::{Interface, InterfaceCounts, Namespace, add_host_route, folder_of_thread, interface_counts};
pub use process::{
    ProcessEnd, ProcessMeter, allow_open_files, end_with_parent, end_with_this_thread, return_large_buffers,
    sharpen_timers, this_program,
};
pub use signal::Interrupts;
pub use socket::{
    TcpStatistics, bind_to_interface, default_congestion_control, end_connection, set_congestion_control,
    tcp_statistics,
};
pub use trace::{Trace, Traced};
pub use usage::{cpu_of_process, cpu_of_thread, peak_rss_bytes, stolen_time, wakeups_of_process};

use sys::{Native, System};

/// Functions for code that is for Linux alone.
#[cfg(target_os = "linux")]
pub mod linux {
    pub use crate::sys::linux::create_tun;
}

/// Puts the calling thread, and every thread that it starts from now on, into a network namespace
/// of its own. See [`netns_supported`].
///
/// # Errors
///
/// [`Class::Unavailable`] where the system has no namespaces or does not allow them, with what to
/// do about it.
pub fn enter_netns() -> Result<(), Error> {
    Native::enter_netns()
}

/// Whether an interface has this address.
pub fn is_local_address(address: std::net::IpAddr) -> bool {
    Native::is_local_address(address)
}

/// Whether a TUN device of this system can offload anything: on Linux alone.
pub const fn offload_supported() -> bool {
    Native::OFFLOAD
}

/// Whether [`enter_netns`] exists on this system: Linux alone.
pub const fn netns_supported() -> bool {
    Native::NETNS
}
