//! What the user asks for.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::time::Duration;

use clap::Parser;
use netstacks::{StackConfig, StackKind};
use platform::{Network, TunConfig};
use rust_tun_perf::cli::{Netstack, Offload};
use tokio::runtime::{Builder, Runtime};

use crate::Failure;

/// A transparent TUN proxy on a userspace stack
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// The interface by which everything is carried on
    #[arg(short, long, value_name = "IFACE")]
    pub(crate) interface: String,

    /// The stack
    #[arg(short, long, value_enum, default_value_t = Netstack::Smoltcp)]
    netstack: Netstack,

    /// Whether whole super-packets pass, with their checksums undone
    #[arg(long, value_enum, default_value_t = Offload::Auto)]
    offload: Offload,

    /// Name of the device
    #[arg(long, value_name = "NAME", default_value = "utun8")]
    pub(crate) tun_name: String,

    /// The kernel's address on the device
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::new(198, 18, 0, 1).into())]
    pub(crate) tun_addr: IpAddr,

    /// The address on its other side
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::new(198, 18, 0, 2).into())]
    pub(crate) tun_dest: IpAddr,

    /// MTU of the device, 1280 or more, as IPv6 wants it
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
    pub(crate) mtu: u16,

    /// Each connection's receive buffer and send buffer at the stack, whose client is near
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    pub(crate) window: bytesize::ByteSize,

    /// Most connections at a time, and as many exchanges of datagrams
    #[arg(long, value_name = "N", default_value = "1024")]
    max_flows: NonZeroU16,

    /// A server that has not answered for so long is given up
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = seconds)]
    pub(crate) connect_timeout: Duration,

    /// A connection that has carried nothing for so long is reset
    #[arg(long, value_name = "SECS", default_value = "7440", value_parser = seconds)]
    pub(crate) tcp_idle: Duration,

    /// An exchange of datagrams that has had none for so long is forgotten
    #[arg(long, value_name = "SECS", default_value = "300", value_parser = seconds)]
    pub(crate) udp_idle: Duration,

    /// Run on one thread
    #[arg(short, long)]
    pub(crate) current_thread: bool,
}

impl Arguments {
    pub(crate) fn runtime(&self) -> io::Result<Runtime> {
        let mut builder = if self.current_thread { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        builder.enable_all().build()
    }

    pub(crate) fn netstack(&self) -> StackKind {
        self.netstack.into()
    }

    pub(crate) fn max_flows(&self) -> usize {
        usize::from(self.max_flows.get())
    }

    pub(crate) fn window(&self) -> usize {
        let window = usize::try_from(self.window.as_u64()).unwrap_or(usize::MAX);
        window.clamp(StackConfig::MIN_WINDOW, StackConfig::MAX_WINDOW)
    }

    /// The device to be opened.
    pub(crate) fn device(&self) -> Result<TunConfig, Failure> {
        platform::validate_name(&self.tun_name)?;
        let mask = match self.tun_addr {
            IpAddr::V4(_) => IpAddr::from([255, 255, 255, 252]),
            IpAddr::V6(_) => IpAddr::from([0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0]),
        };
        Ok(TunConfig {
            name: self.tun_name.clone(),
            network: Network::new(self.tun_addr, self.tun_dest, mask)?,
            mtu: self.mtu,
            tx_queue_len: TX_QUEUE_LEN,
            offload: self.offload.into(),
            fd: None,
        })
    }
}

/// Packets that may wait for the stack: a few full windows, of packets without offload.
const TX_QUEUE_LEN: u32 = 16 << 10;

/// More than a century is for ever, and less than a millisecond is never.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if !(0.001..4e9).contains(&seconds) {
        return Err("it must be at least 0.001 and at most a century".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
