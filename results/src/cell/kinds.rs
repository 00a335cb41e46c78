//! The values of properties that have names.

use std::fmt;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize};

/// Declares an enum of names: those of the command line and of JSON are the same.
macro_rules! names {
    ($($(#[$of:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident,)+ })+) => {$(
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.to_possible_value().as_ref().map_or("", PossibleValue::get_name))
            }
        }
    )+};
}

names! {
    /// What carries the bytes.
    Layer {
        /// The kernel's TCP on both sides, over its loopback
        Loopback,
        /// The TUN device alone: packets that the kernel sends back, without TCP
        Device,
        /// The stack alone, over a link in memory, with a scripted client
        Stack,
        /// The whole path: a kernel client, the TUN device, the stack
        Path,
    }

    /// What the client of a connection does. Clients connect: to the stack, or from the near network to the far one.
    Mode {
        /// download: the client reads what the server on the stack sends
        #[value(alias = "download")]
        Reader,
        /// upload: the client writes what the server on the stack receives
        #[value(alias = "upload")]
        Writer,
        /// Both at once, by as many streams each
        Both,
        /// requests and responses on open connections
        Rr,
        /// new connections, one for each request: connect, request, response, close
        Crr,
        /// connections at rest: connections or UDP flows that are held open, and the memory that they take
        Idle,
    }

    /// The transport protocol of the load.
    Protocol {
        /// Connections and streams
        Tcp,
        /// Datagrams, which may be lost
        Udp,
        /// Connections and streams of QUIC over UDP, through programs, in a build that has it
        Quic,
    }

    /// The runtime of the stack and its server.
    Runtime {
        /// Tokio's current-thread runtime
        CurrentThread,
        /// Tokio's multi-thread runtime
        MultiThread,
    }

    /// What becomes of super-packets and checksums.
    Offload {
        /// On where the device can: on Linux
        Auto,
        /// Never
        Off,
        /// Fail if the device cannot offload; a forwarder splits and coalesces super-packets
        On,
        /// A forwarder passes super-packets through
        Whole,
        /// Over a device, super-packets of TCP alone: each datagram by itself
        Tso,
    }

    /// Super-packets of TCP on a program's device, and several datagrams in a call of clients and servers.
    Gso {
        /// Fail if the program takes none
        On,
        /// Each packet and each datagram by itself
        Off,
    }

    /// The programs that forward packets.
    ForwarderName {
        /// This program's own, on tun-rs
        Rust,
        /// The one in Go, on wireguard-go's tun package
        Go,
    }

    /// The program that makes the load of a forwarder.
    Generator {
        /// This program
        Own,
        /// iperf3
        Iperf3,
    }

    /// How much of the payload is compared with the pattern.
    #[derive(Default)]
    Verify {
        /// Every byte of the warm-up, then only the count
        Sample,
        /// Every byte
        Full,
        /// Only the count
        #[default]
        Off,
    }
}

impl Verify {
    /// Whether payload is compared, in the warm-up or after it.
    #[inline]
    pub fn checks(self, is_warm_up: bool) -> bool {
        match self {
            Self::Off => false,
            Self::Sample => is_warm_up,
            Self::Full => true,
        }
    }
}

impl Mode {
    /// The words for a mode in tables and charts, by its name.
    pub(super) fn shown(name: &str) -> String {
        let words = match Self::from_str(name, false) {
            Ok(Self::Reader) => "download",
            Ok(Self::Writer) => "upload",
            Ok(Self::Rr) => "requests",
            Ok(Self::Crr) => "new connections",
            Ok(Self::Idle) => "at rest",
            Ok(Self::Both) | Err(_) => name,
        };
        words.to_owned()
    }

    /// Whether it is bulk bytes.
    pub const fn is_bulk(self) -> bool {
        matches!(self, Self::Reader | Self::Writer | Self::Both)
    }

    /// Whether it is requests and responses.
    pub const fn is_requests(self) -> bool {
        matches!(self, Self::Rr | Self::Crr)
    }
}
