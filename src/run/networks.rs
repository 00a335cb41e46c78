//! The two networks of a run with a carrier.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platform::Namespace;

use super::outage::Cut;

/// The port of the SOCKS5 server (RFC 1928, 3).
const SOCKS5_PORT: u16 = 1080;

/// The near network, which the calling thread is in, and the far one. The far network ends with this value, the near
/// one with the thread.
pub(super) struct Networks {
    /// The calling thread's folder under `/proc`.
    near: PathBuf,
    far: Arc<Namespace>,
}

impl Networks {
    /// Makes both. The calling thread stays in the near one.
    pub(super) fn new() -> Result<Self, platform::Error> {
        platform::enter_netns()?;
        Ok(Self { near: platform::folder_of_thread(), far: Arc::new(Namespace::new()?) })
    }

    /// The far network.
    pub(super) fn far(&self) -> &Namespace {
        &self.far
    }

    /// Returns a function that lets an interface of each network send nothing, or send again.
    pub(super) fn cut(&self, near: &str, far: &'static str) -> Cut {
        let (network, near) = (Arc::clone(&self.far), near.to_owned());
        Box::new(move |is_cut| {
            platform::set_black_hole(&near, is_cut)?;
            Ok(network.run(move || platform::set_black_hole(far, is_cut))??)
        })
    }

    /// Returns a function that reads how many packets these devices of the near and the far network have dropped. Any
    /// thread may call it.
    pub(super) fn drops(&self, near: &[&str], far: &[&str]) -> impl Fn() -> Option<u64> + Send + Sync + use<> {
        let of = |folder: &Path, names: &[&str]| {
            names.iter().map(|name| (folder.to_owned(), (*name).to_owned())).collect::<Vec<_>>()
        };
        let devices = [of(&self.near, near), of(self.far.folder(), far)].concat();
        move || devices.iter().map(|(folder, name)| Some(platform::interface_counts(folder, name)?.dropped)).sum()
    }
}

/// The address of the SOCKS5 server beside servers at this address: the next, which is in the same network, as ours end in 1.
pub(super) fn socks5_address(server: IpAddr) -> SocketAddr {
    SocketAddr::new(next(server), SOCKS5_PORT)
}

/// The next address. Those of this program do not end in ones alone.
pub(super) fn next(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) + 1).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) + 1).into()),
    }
}
