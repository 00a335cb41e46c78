//! An instance that panics.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use netstacks::{Netstack, StackFault};
use platform::{Capabilities, Link, MemoryLink, PacketBuffer, PacketMeta};

use super::{fails, links};

/// A link that panics if it is read.
struct Panics(MemoryLink);

impl Link for Panics {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn try_recv(&mut self, _: &mut [PacketBuffer]) -> io::Result<usize> {
        panic!("as a stack with a bug")
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.try_send(meta, slices)
    }

    fn poll_readable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx)
    }
}

fn a_panic_is_reported<S: Netstack<Panics>>() {
    let (first, mut others, _other_ends) = links(2);
    match fails::<S, _>([first, others.remove(0)].map(Panics)) {
        Err(error) => assert!(error.is_panic()),
        // The driver may have found it first, if a task of a receiver panicked.
        Ok(result) => assert!(StackFault::is_in(&result.unwrap_err())),
    }
}

#[test]
fn a_panic_of_an_instance_is_reported_as_a_panic() {
    #[cfg(feature = "smoltcp")]
    a_panic_is_reported::<netstacks::Smoltcp>();
    #[cfg(feature = "tcp_ip")]
    a_panic_is_reported::<netstacks::TcpIp>();
    #[cfg(feature = "netstack-smoltcp")]
    a_panic_is_reported::<netstacks::NetstackSmoltcp>();
}
