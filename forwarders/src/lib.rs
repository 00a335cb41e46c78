//! Forwarders: programs that carry packets between two TUN devices, in both directions.
//!
//! A [`ForwardConfig`] is a point on three axes: how a device is read and written ([`Io`]), how TCP super-packets
//! are handled ([`Offload`]), and how a packet gets from the reader to the writer ([`Handoff`]). [`Forwarder`] is
//! the forwarder in Rust. It uses tun-rs and exists only on Linux. The forwarder in Go uses wireguard-go's `tun`
//! package, and is in `go/`.

mod config;
mod counts;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
mod unsupported;
#[cfg(not(target_os = "linux"))]
use unsupported as system;

pub use config::{DevicePair, ForwardConfig, Handoff, InvalidConfig, Io, Offload};
pub use counts::{Carried, Counts};
pub use system::{Counters, Forwarder, Stopper};

/// The source files of the forwarder in Go, without its tests. The first is `go.mod`.
pub const GO_SOURCES: [(&str, &str); 7] = [
    ("go.mod", include_str!("../go/go.mod")),
    ("go.sum", include_str!("../go/go.sum")),
    ("main.go", include_str!("../go/main.go")),
    ("batch.go", include_str!("../go/batch.go")),
    ("carry.go", include_str!("../go/carry.go")),
    ("device_linux.go", include_str!("../go/device_linux.go")),
    ("profile.go", include_str!("../go/profile.go")),
];
