//! What the clients send, and how fast.

use std::num::NonZeroU64;

use clap::Args;

use super::{list, values};
use crate::cli::Choice;
use crate::scenario::{Mode, Protocol};

/// The load of a run.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Load {
    /// Transport protocol; udp works with reader, writer and rr
    #[arg(long, value_enum, default_value_t = Protocol::Tcp)]
    pub protocol: Protocol,

    /// Payload of a datagram, with --protocol udp [default: what fills the MTU]
    #[arg(long, value_name = "SIZE", value_parser = values::size, hide_short_help = true)]
    pub datagram: Option<u64>,

    /// Send at most this many bits of payload a second in each direction, such as 100M [default: no limit; over
    /// UDP the highest rate that loses less than 0.1 %, found by a search]
    #[arg(long, value_name = "BITRATE", value_parser = values::rate, hide_short_help = true)]
    pub bitrate: Option<NonZeroU64>,

    /// A TCP stream beside the requests of rr and crr, or one each way: reader, writer, both
    #[arg(long, value_enum, value_name = "MODE", hide_possible_values = true, hide_short_help = true)]
    pub background: Option<Mode>,

    /// Length of a request (modes rr and crr)
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = values::size, hide_short_help = true)]
    pub request: u64,

    /// Length of a response
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = values::size, hide_short_help = true)]
    pub response: u64,

    /// Requests under way on a connection, 1 to 1024; crr has one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), hide_short_help = true)]
    pub depth: u16,

    /// Requests a second in all, evenly spaced; latency counts from when each was due [default: as fast as they
    /// are answered]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,
}

/// One byte each way over TCP, as fast as possible.
impl Default for Load {
    fn default() -> Self {
        Self {
            protocol: Protocol::Tcp,
            datagram: None,
            bitrate: None,
            background: None,
            request: 1,
            response: 1,
            depth: 1,
            rate: None,
        }
    }
}

/// Lists of loads for a matrix.
#[derive(Clone, Debug, Args)]
pub struct LoadLists {
    /// Transport protocols: tcp, udp; udp works with reader, writer and rr
    #[arg(long, value_name = "LIST", default_value = "tcp", value_delimiter = ',',
        value_parser = list::choice::<Protocol>)]
    pub protocol: Vec<Choice<Protocol>>,

    /// Payload of a datagram, with --protocol udp [default: what fills the MTU]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::size, hide_short_help = true)]
    pub datagram: Vec<u64>,

    /// Send at most this many bits of payload a second in each direction, such as 100M [default: no limit; over
    /// UDP the highest rate that loses less than 0.1 %, found by a search]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::rate, hide_short_help = true)]
    pub bitrate: Vec<NonZeroU64>,

    /// A TCP stream beside the requests of rr and crr, or one each way: reader, writer, both
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        hide_possible_values = true,
        hide_short_help = true
    )]
    pub background: Vec<Mode>,

    /// Length of a request (modes rr and crr)
    #[arg(long, value_name = "LIST", default_value = "1B", value_delimiter = ',', value_parser = values::size, hide_short_help = true)]
    pub request: Vec<u64>,

    /// Length of a response
    #[arg(long, value_name = "LIST", default_value = "1B", value_delimiter = ',', value_parser = values::size, hide_short_help = true)]
    pub response: Vec<u64>,

    /// Requests under way on a connection, 1 to 1024; crr has one
    #[arg(long, value_name = "LIST", default_value = "1", value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=1024), hide_short_help = true)]
    pub depth: Vec<u16>,

    /// Requests a second in all, evenly spaced; latency counts from when each was due [default: as fast as they
    /// are answered]
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Vec<u32>,
}

impl LoadLists {
    /// Every combination, in the order of the lists.
    pub fn expand(&self) -> Vec<Load> {
        let mut loads = vec![Load::default()];
        let protocols = Choice::expand(&self.protocol);
        loads = list::product(&loads, &protocols, |load, protocol| Load { protocol, ..load });
        loads = list::product(&loads, &optional(&self.datagram), |load, datagram| Load { datagram, ..load });
        loads = list::product(&loads, &optional(&self.bitrate), |load, bitrate| Load { bitrate, ..load });
        loads = list::product(&loads, &optional(&self.background), |load, background| Load { background, ..load });
        loads = list::product(&loads, &self.request, |load, request| Load { request, ..load });
        loads = list::product(&loads, &self.response, |load, response| Load { response, ..load });
        loads = list::product(&loads, &self.depth, |load, depth| Load { depth, ..load });
        list::product(&loads, &optional(&self.rate), |load, rate| Load { rate, ..load })
    }
}

/// The values of a list; a single `None` if the list is empty.
pub(super) fn optional<T: Copy>(list: &[T]) -> Vec<Option<T>> {
    if list.is_empty() { vec![None] } else { list.iter().copied().map(Some).collect() }
}
