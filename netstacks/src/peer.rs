//! Scripted TCP clients, and UDP: the load of a stack, over a link in memory that loses, repeats and reorders nothing.
//!
//! [`Peers`] has many connections on one link, for an event loop. A connection only reacts to the stack, with one
//! acknowledgement for each batch. It has no timers, no retransmission, no congestion control, no SACK and no
//! timestamps. Received payload is copied once, if the caller reads while packets wait.
//!
//! [`Client`] is a single blocking connection. [`SharedLink`] shares a link between threads.

mod client;
mod connection;
mod peers;
mod shared;
mod signal;
#[cfg(test)]
mod tests;

pub use self::client::Client;
pub use self::peers::{Peers, PeersWaker};
pub use self::shared::SharedLink;
