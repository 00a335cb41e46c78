use std::future::poll_fn;

use netstacks::peer::Peers;
use netstacks::{Netstack, Smoltcp, StackConfig};
use platform::MemoryLink;

use super::*;

/// A client that resets its handshake and begins another from the same port has two tasks. The first has not yet seen
/// the reset when the stream of the second connection comes.
#[tokio::test]
async fn a_stream_of_a_port_that_is_used_again_is_not_lost_with_the_first_task() {
    let (link, end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    let mut stack = Smoltcp::start(link, &StackConfig::default()).unwrap();
    tokio::spawn(stack.driver);
    let key = FlowKey { local: "10.0.0.2:80".parse().unwrap(), peer: "10.0.0.1:4000".parse().unwrap() };
    let mut peers = Peers::new(end, key.peer.ip());
    peers.connect_from(0, key.peer.port(), key.local).unwrap();
    let mut ready = Vec::new();
    let connected = async {
        while !peers.is_connected(0) {
            poll_fn(|cx| peers.poll_wait(cx, &mut ready)).await.unwrap();
        }
        // It acknowledges the SYN-ACK.
        peers.write(0, b"x").unwrap();
    };
    let ((), stream) = tokio::join!(connected, stack.listener.accept());

    let waiting = Waiting(Arc::default());
    let (first, mut second) = (waiting.wait_for(key), waiting.wait_for(key));
    waiting.deliver(stream.unwrap());
    assert!(second.accepted.try_recv().is_err());
    drop(first);
    assert!(second.accepted.try_recv().is_ok());
    drop(second);
    assert!(waiting.lock().is_empty());
}
