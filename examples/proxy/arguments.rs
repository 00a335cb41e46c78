//! The command line.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::time::Duration;

use clap::Parser;
use netstacks::{StackConfig, StackKind};
use platform::{Network, Offload, TunConfig};
use rust_tun_perf::proxy::Config;
use rust_tun_perf::remedy::SystemError;
use tokio::runtime::{Builder, Runtime};

use crate::Failure;

/// A transparent TUN proxy on a userspace stack
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// The interface for outgoing connections and datagrams
    #[arg(short, long, value_name = "IFACE")]
    pub(crate) interface: String,

    /// The stack
    #[arg(short, long, value_enum, default_value_t = StackKind::Smoltcp)]
    pub(crate) netstack: StackKind,

    /// Whether super-packets with partial checksums cross the device
    #[arg(long, value_enum, default_value_t = Offload::Auto)]
    offload: Offload,

    /// Name of the device
    #[arg(long, value_name = "NAME", default_value = "utun8")]
    tun_name: String,

    /// The kernel's address on the device
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::new(198, 18, 0, 1).into())]
    tun_addr: IpAddr,

    /// The address on the other side of the device
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::new(198, 18, 0, 2).into())]
    tun_dest: IpAddr,

    /// MTU of the device, 1280 or more, as IPv6 needs
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
    pub(crate) mtu: u16,

    /// Size of the receive buffer and of the send buffer of each connection at the stack
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    window: bytesize::ByteSize,

    /// Most connections at a time, and most UDP flows at a time
    #[arg(long, value_name = "N", default_value = "1024")]
    max_flows: NonZeroU16,

    /// Most memory of all connections and UDP flows, counted with their full buffers; new ones beyond it are refused
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<bytesize::ByteSize>,

    /// Time after which an attempt to connect to a server fails
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = seconds)]
    connect_timeout: Duration,

    /// Time after which an idle connection is reset
    #[arg(long, value_name = "SECS", default_value = "7440", value_parser = seconds)]
    tcp_idle: Duration,

    /// Time after which an idle UDP flow is forgotten
    #[arg(long, value_name = "SECS", default_value = "300", value_parser = seconds)]
    udp_idle: Duration,

    /// Run on one thread
    #[arg(short, long)]
    pub(crate) current_thread: bool,
}

impl Arguments {
    pub(crate) fn runtime(&self) -> io::Result<Runtime> {
        let mut builder = if self.current_thread { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        builder.enable_all().build()
    }

    pub(crate) fn max_flows(&self) -> usize {
        usize::from(self.max_flows.get())
    }

    /// Returns the settings of the proxy.
    pub(crate) fn proxy(&self) -> Config {
        let bytes = |size: bytesize::ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        Config {
            window: bytes(self.window).clamp(StackConfig::MIN_WINDOW, StackConfig::MAX_WINDOW),
            max_flows: self.max_flows(),
            max_memory: self.max_memory.map(bytes),
            connect_timeout: self.connect_timeout,
            tcp_idle: self.tcp_idle,
            udp_idle: self.udp_idle,
            report: |text| eprintln!("{text}"),
            ..Config::new(&self.interface)
        }
    }

    /// Returns the settings of the device.
    pub(crate) fn device(&self) -> Result<TunConfig, Failure> {
        platform::validate_name(&self.tun_name).map_err(SystemError::from)?;
        let mask = match self.tun_addr {
            IpAddr::V4(_) => IpAddr::from([255, 255, 255, 252]),
            IpAddr::V6(_) => IpAddr::from([0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0]),
        };
        Ok(TunConfig {
            name: self.tun_name.clone(),
            network: Network::new(self.tun_addr, self.tun_dest, mask)?,
            mtu: self.mtu,
            tx_queue_len: TX_QUEUE_LEN,
            offload: self.offload,
            fd: None,
        })
    }
}

/// Packets that can wait for the stack: a few full windows, in packets without offload.
const TX_QUEUE_LEN: u32 = 16 << 10;

/// Parses a time. With less than a millisecond nothing would work, and more than a century is for ever.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if !(0.001..4e9).contains(&seconds) {
        return Err("it must be at least 0.001 and at most a century".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
