//! The vocabulary of the cases.

pub(crate) use std::io::ErrorKind;
pub(crate) use std::net::SocketAddr;
pub(crate) use std::ops::Range;
pub(crate) use std::thread;
pub(crate) use std::time::{Duration, Instant};

pub(crate) use netstacks::StackConfig;
pub(crate) use platform::packet::flags::{ACK, FIN, PSH, RST, SYN, URG};

pub(crate) use crate::client::{Client, MSS, Offer, Out, SACK_PERMITTED, WINDOW_SCALE};
pub(crate) use crate::lab::{LATE, Lab, SMALL_WINDOW, SOON, WINDOW, deliver, deliver_with, exchange, patient, repair};
pub(crate) use crate::link::{ip, stack_addresses};
pub(crate) use crate::server::{Sending, Served, Then};
pub(crate) use crate::wire::{Message, SACK, Segment, TIMESTAMPS};
pub(crate) use crate::{Case, Harm, Step, Stop, distance, ms, named, packets, pattern, same, secs};
