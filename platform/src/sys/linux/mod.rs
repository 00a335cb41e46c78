//! Linux: `/dev/net/tun` through tun-rs, rtnetlink, namespaces, and `/proc`.

mod capture;
mod cgroup;
mod doctor;
mod ethtool;
mod interface;
mod machine;
mod netlink;
mod netns;
mod network;
mod process;
mod sock_diag;
mod socket;
mod tcp_info;
mod tun;
#[cfg_attr(
    not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64",
        target_arch = "powerpc64"
    )),
    path = "no_uring.rs"
)]
mod uring;

pub use self::capture::*;
pub use self::cgroup::*;
pub use self::doctor::*;
pub use self::ethtool::*;
pub use self::interface::*;
pub use self::machine::*;
pub use self::netns::*;
pub use self::network::*;
pub use self::process::*;
pub use self::sock_diag::*;
pub use self::socket::*;
pub use self::tun::*;
pub use self::uring::*;
pub use super::precise::*;
pub use super::sampler::Profiler;
pub use super::unix::*;
