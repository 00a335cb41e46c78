//! Scripted TCP clients, and UDP: the load of a stack that runs over a link in memory.
//!
//! [`Peers`] has many connections on one link, for an event loop. A connection has no timers: it only reacts to the stack.
//! It supports a transfer over a link that loses, repeats and reorders nothing: the handshake, whole segments up to the
//! stack's window, one acknowledgement for each batch, and a FIN in each direction. It does not retransmit: over a
//! link that loses packets, or with a stack that drops them, it waits for ever. It has no congestion control,
//! no selective acknowledgements and no timestamps. It allocates only for bytes that arrive while the caller does not read.
//!
//! Only the link copies the payload that it sends. Received payload is copied once, from the packet to the
//! caller's buffer, if the caller reads while packets wait.
//!
//! [`Client`] is a single blocking connection, and [`SharedLink`] shares one link between the peers of several threads.

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
