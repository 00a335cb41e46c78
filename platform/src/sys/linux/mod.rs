//! Linux: `/dev/net/tun` through tun-rs, rtnetlink, namespaces, and `/proc`.

mod cgroup;
mod doctor;
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

pub use self::cgroup::*;
pub use self::doctor::*;
pub use self::interface::*;
pub use self::machine::*;
pub use self::netns::*;
pub use self::network::*;
pub use self::process::*;
pub use self::sock_diag::*;
pub use self::socket::*;
pub use self::tun::*;
pub use super::precise::*;
pub use super::sampler::Profiler;
pub use super::unix::*;
