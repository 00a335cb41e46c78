//! Everything that differs between operating systems. The rest of the program sees a [`Link`]: one end of a pipe of IP
//! packets, such as a [`TunDevice`] or a [`MemoryLink`]. Code above this crate reads its [`Capabilities`] instead of
//! checking the operating system, of which each has a module under `sys/`.

mod addresses;
mod alarm;
mod counted;
mod device;
pub mod doctor;
mod environment;
mod error;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod impairments;
mod kernel_memory;
mod link;
mod memory;
mod namespace;
pub mod packet;
mod process;
pub mod profile;
mod socket;
mod sys;
mod tap;
mod trace;
pub mod units;
mod usage;
#[cfg(any(target_os = "macos", all(test, unix)))]
mod utun;
pub mod vnet;

pub use addresses::{Network, host_prefix_len, network_of, unspecified, validate_host};
pub use counted::{Counted, PacketCounts, Traffic};
pub use device::{DropCounter, KeptDevice, Napi, Offload, TunConfig, Tuning, validate_name};
pub use environment::Environment;
pub use error::{Cause, Class, Error, Feature};
pub use fault::{Fate, FaultCounter, FaultCounts, Faults, Faulty, LinkSwitch};
pub use impairments::{Impairments, Outage};
pub use kernel_memory::{KernelObjects, SocketCount};
pub use link::{Capabilities, Checksum, ChecksumOffload, Link, PacketBuffer, PacketMeta, SegmentationOffload};
pub use memory::MemoryLink;
pub use namespace::{Adopted, Interface, InterfaceCounts, Loopback, Namespace, add_host_route};
pub use process::{
    Child, Control, Conversation, End, MAX_OUTPUT, NotReady, Orders, PARENT, PROTOCOL, Printed, ProcessCondition,
    ProcessEnd, ProcessMeter, Program, Worker, end_with_parent, ending, last_lines, last_words, line, output,
    parallelism, parse_ready, pin_thread, printed, read_line, shown,
};
pub use socket::{
    MAX_BYTES_TOGETHER, MAX_DATAGRAMS_TOGETHER, Received, TcpStatistics, Undelivered, allow_long_datagrams,
    begin_to_connect, end_connection, is_too_long, send_datagrams, unsent,
};
pub use sys::{
    Capture, Captured, Interrupts, PollClock, SharpTimers, TunDevice, add_address, add_route, addresses_of,
    allow_open_files, bind_to_interface, check_device_node, coalesce_datagrams, congestion_controls, cpu_of_process,
    cpu_of_thread, default_congestion_control, delete_interface, discard, enable_forwarding, end_with_this_thread,
    enter_netns, folder_of_thread, interface_counts, interface_is_up, interface_names, interface_of, is_bound_to,
    is_local_address, join_netns, keep_on, kernel_objects, listen_transparently, mtu_of_descriptor, page_bytes,
    peak_rss_bytes, processes_in, processors, qdisc_of, queue_errors, recv_datagrams, remove_address,
    return_large_buffers, set_black_hole, set_congestion_control, set_default_congestion_control, set_dont_fragment,
    set_loopback_up, set_mtu, set_segmentation, set_socket_buffers, set_user_timeout, share_port, sharpen_timers,
    sockets, sockets_of, stolen_time, switches_of_process, switches_of_thread, tcp_settings, tcp_statistics,
    this_program, throttled, undelivered, with_mounts,
};
pub use tap::{Tap, Tapped};
pub use trace::{Trace, Traced, Tracer};
pub use usage::{Switches, Throttled};

/// Functions that exist on Linux only.
#[cfg(target_os = "linux")]
pub mod linux {
    pub use crate::sys::linux::{PacketRing, create_tun, loses_packet};
}

/// Whether a TUN device can offload anything on this system: only on Linux. [`Capabilities`] say whether a device does.
pub const fn offload_supported() -> bool {
    cfg!(target_os = "linux")
}

/// Whether this system has network namespaces: only Linux does. See [`enter_netns`].
pub const fn netns_supported() -> bool {
    cfg!(target_os = "linux")
}
