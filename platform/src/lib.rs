//! Everything that differs between operating systems.
//!
//! The rest of the program sees a [`Link`]: one end of a pipe of IP packets. A [`TunDevice`] is a link. A
//! [`MemoryLink`] is one too: it tests a stack without a device.
//!
//! [`Capabilities`] describe a link. Code above this crate reads them instead of checking the operating system.
//!
//! Each operating system has a file or folder under `sys/`. One trait in `sys/mod.rs` declares everything that a
//! system provides. The other modules are the same on all systems: they have the public functions and types, and
//! call the trait.

mod addresses;
mod check;
mod child;
mod connection;
mod counted;
mod device;
pub mod doctor;
mod environment;
mod error;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod impairments;
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
pub mod units;
mod usage;
#[cfg(unix)]
mod utun;
pub mod vnet;

pub use addresses::{Network, NetworkError, host_prefix_len, network_of, validate_host};
pub use child::{Child, Conversation, End, MAX_OUTPUT, Orders, Printed, read_line};
pub use counted::{Counted, PacketCounts, Traffic};
pub use device::{DropCounter, Offload, TunConfig, TunDevice, check_device_node, validate_name};
pub use environment::Environment;
pub use error::{Cause, Class, Error, Feature};
pub use fault::{Fate, FaultCounter, FaultCounts, Faults, Faulty, LinkSwitch};
pub use impairments::{Impairments, Outage};
pub use kernel::{Loopback, enable_forwarding, set_loopback_up};
pub use link::{Capabilities, Checksum, ChecksumOffload, Link, PacketBuffer, PacketMeta, SegmentationOffload};
pub use memory::MemoryLink;
pub use namespace::{
    Adopted, Interface, InterfaceCounts, Namespace, add_address, add_host_route, add_route, folder_of_thread,
    interface_counts, interface_is_up, interface_names, set_black_hole,
};
pub use process::{
    ProcessCondition, ProcessEnd, ProcessMeter, allow_open_files, discard, end_with_parent, end_with_this_thread,
    parallelism, pin_thread, processes_in, processors, return_large_buffers, sharpen_timers, this_program, with_mounts,
};
pub use signal::Interrupts;
pub use socket::{
    MAX_BYTES_TOGETHER, MAX_DATAGRAMS_TOGETHER, Received, TcpStatistics, bind_to_interface, coalesce_datagrams,
    default_congestion_control, end_connection, poll_until, recv_datagrams, send_datagrams, set_congestion_control,
    set_socket_buffers, set_user_timeout, tcp_statistics, unsent,
};
pub use trace::{Trace, Traced};
pub use usage::{
    Switches, cpu_of_process, cpu_of_thread, peak_rss_bytes, stolen_time, switches_of_process, switches_of_thread,
};

use sys::{Native, System};

/// Functions that exist on Linux only.
#[cfg(target_os = "linux")]
pub mod linux {
    pub use crate::sys::linux::{create_tun, loses_packet};
}

/// Moves the calling thread into a new network namespace. Threads that it starts from now on are in it too. See
/// [`netns_supported`].
///
/// # Errors
///
/// [`Class::Unavailable`] if the system has no namespaces or does not allow them.
pub fn enter_netns() -> Result<(), Error> {
    Native::enter_netns()
}

/// Whether an interface has this address.
pub fn is_local_address(address: std::net::IpAddr) -> bool {
    Native::is_local_address(address)
}

/// The MTU of the TUN device behind a descriptor, in bytes; `None` if there is none, and on Windows.
pub fn mtu_of_descriptor(fd: i32) -> Option<u16> {
    Native::mtu_of_descriptor(fd)
}

/// Whether a TUN device can offload anything on this system: only on Linux. [`Capabilities`] say whether a device does.
pub const fn offload_supported() -> bool {
    Native::OFFLOAD
}

/// Whether this system has network namespaces: only Linux does. See [`enter_netns`].
pub const fn netns_supported() -> bool {
    Native::NETNS
}
