//! Instances of a stack side by side, which look like one. Each has its own link, lock and driver. Only new
//! connections, datagrams, and packets of other shards ([`steer`]) cross.

mod link;
mod route;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;

use platform::Link;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

pub use self::link::{PassedOn, Steered, steer};
use crate::datagrams::{Deliveries, Mailbox, mailbox};
use crate::{
    Datagram, DatagramBatch, Datagrams, Driver, Effective, FlowKey, Listener, Netstack, StackConfig, StartError,
    Started,
};

/// Spreads flows over shards, both directions to the same one. The key is random, so no client chooses its shard.
#[derive(Clone, Debug, Default)]
pub struct Spread(ahash::RandomState);

impl Spread {
    /// The number of the shard of a flow, from 0, if there are so many shards.
    pub fn shard(&self, FlowKey { local, peer }: FlowKey, shards: usize) -> usize {
        let ends = if local < peer { (local, peer) } else { (peer, local) };
        // The upper bits of the hash times the number spread as evenly as a remainder, without a division.
        ((u128::from(self.0.hash_one(ends)) * shards as u128) >> u64::BITS) as usize
    }
}

/// Running instances of a stack, as one.
pub type Sharded<S, L> =
    Started<ShardedListener<<S as Netstack<L>>::Listener>, ShardedDatagrams<<S as Netstack<L>>::Datagrams>>;

/// Starts an instance of the stack `S` on each link, in their order, within a tokio runtime, on which the driver makes
/// tasks.
///
/// Each packet comes over the link of its shard, which `spread` chooses, or the links are of [`steer`]. Each instance
/// has an equal share, rounded up, of the limits of `config` on connections. Without other links there is no task and
/// no queue more. lwIP has one instance in a process: it fails with [`StartError::AlreadyRunning`].
///
/// ```
/// use netstacks::peer::Peers;
/// use netstacks::{Datagrams, FlowKey, Smoltcp, Spread, StackConfig, sharded};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let [(first, first_end), (second, second_end)] = [(); 2].map(|()| MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH));
/// let spread = Spread::default();
/// let stack = sharded::<Smoltcp, _>(&spread, first, vec![second], &StackConfig::default())?;
/// tokio::spawn(stack.driver);
///
/// let key = FlowKey { local: "10.0.0.2:53".parse()?, peer: "10.0.0.1:4000".parse()? };
/// let end = if spread.shard(key, 2) == 0 { first_end } else { second_end };
/// let mut peers = Peers::new(end, key.peer.ip());
/// peers.send_datagram(key.peer.port(), key.local, b"query")?;
/// let mut buffer = [0; 1500];
/// let query = stack.datagrams.recv(&mut buffer).await?;
/// assert_eq!((&buffer[..query.len], query.peer), (&b"query"[..], key.peer));
/// # Ok(())
/// # }
/// ```
pub fn sharded<S: Netstack<L>, L: Link>(
    spread: &Spread,
    first: L,
    others: Vec<L>,
    config: &StackConfig,
) -> Result<Sharded<S, L>, StartError> {
    if others.is_empty() {
        let Started { listener, datagrams, driver, effective } = S::start(first, config)?;
        let datagrams = ShardedDatagrams { spread: spread.clone(), shards: [datagrams].into(), mailbox: None };
        return Ok(Started { listener: ShardedListener(Accepted::OfOne(listener)), datagrams, driver, effective });
    }
    let count = 1 + others.len();
    let share = |limit: usize| limit.div_ceil(count);
    let config =
        StackConfig { backlog: share(config.backlog), connections: share(config.connections), ..config.clone() };
    let mut tasks: Vec<Driver> = Vec::new();
    let (offer, accepted) = mpsc::channel(count);
    let (deliveries, mailbox) = mailbox();
    let deliveries = Arc::new(deliveries);
    let mut add = |Started { listener, datagrams, driver, .. }: Started<S::Listener, S::Datagrams>| {
        tasks.push(driver);
        tasks.push(Box::pin(offer_all(listener, offer.clone())));
        tasks.push(Box::pin(deliver_all(datagrams.clone(), Arc::clone(&deliveries))));
        datagrams
    };
    let first = S::start(first, &config)?;
    let effective = Effective { shards: count, ..first.effective.clone() };
    let mut shards = vec![add(first)];
    for link in others {
        shards.push(add(S::start(link, &config)?));
    }
    let datagrams = ShardedDatagrams { spread: spread.clone(), shards: shards.into(), mailbox: Some(mailbox) };
    let driver = Box::pin(async { joined(tasks.into_iter().collect()).await });
    Ok(Started { listener: ShardedListener(Accepted::OfAll(accepted)), datagrams, driver, effective })
}

/// Waits for all tasks. The first failure ends the others. A panic goes on in the caller: it makes others fail.
pub(crate) async fn joined(mut tasks: JoinSet<io::Result<()>>) -> io::Result<()> {
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        match ended.map_err(JoinError::try_into_panic) {
            Ok(ended) => result = result.and(ended),
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(_aborted)) => {}
        }
        if result.is_err() {
            tasks.abort_all();
        }
    }
    result
}

async fn offer_all<Li: Listener>(mut listener: Li, offer: mpsc::Sender<Li::Stream>) -> io::Result<()> {
    // With a place for it first, a connection waits in the accept queue of its instance.
    while let Ok(place) = offer.reserve().await {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => place.send(stream),
                Err(_) => break,
            },
            () = offer.closed() => break,
        }
    }
    Ok(())
}

async fn deliver_all(datagrams: impl Datagrams, deliveries: Arc<Deliveries>) -> io::Result<()> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut closed = pin!(deliveries.closed());
    loop {
        let received = tokio::select! {
            received = datagrams.recv_batch(&mut buffer) => received,
            () = &mut closed => break,
        };
        let Ok(DatagramBatch { len, segment_len, local, peer }) = received else { break };
        let segment_len = NonZeroU16::new(segment_len as u16).filter(|_| segment_len < len);
        deliveries.push(local, peer, &buffer[..len], segment_len);
        // In a flood there is always a next one, and those that receive them wait for their turn on this thread.
        tokio::task::coop::consume_budget().await;
    }
    Ok(())
}

/// Yields the connections of all instances.
pub struct ShardedListener<Li: Listener>(Accepted<Li>);

enum Accepted<Li: Listener> {
    OfOne(Li),
    OfAll(mpsc::Receiver<Li::Stream>),
}

impl<Li: Listener> Listener for ShardedListener<Li> {
    type Stream = Li::Stream;

    async fn accept(&mut self) -> io::Result<Li::Stream> {
        match &mut self.0 {
            Accepted::OfOne(listener) => listener.accept().await,
            Accepted::OfAll(accepted) => {
                let failed = || io::Error::new(io::ErrorKind::NotConnected, "the stack has failed");
                accepted.recv().await.ok_or_else(failed)
            }
        }
    }
}

/// The datagrams of all instances. Each is sent by the instance of its flow.
#[derive(Clone)]
pub struct ShardedDatagrams<D> {
    spread: Spread,
    shards: Arc<[D]>,
    /// `None` with one instance: its datagrams are received from it directly.
    mailbox: Option<Mailbox>,
}

impl<D> ShardedDatagrams<D> {
    /// The number of a shard is always smaller than their number, and there is at least one.
    fn of(&self, local: SocketAddr, peer: SocketAddr) -> &D {
        match &*self.shards {
            [one] => one,
            shards => &shards[self.spread.shard(FlowKey { local, peer }, shards.len())],
        }
    }
}

impl<D: Datagrams> Datagrams for ShardedDatagrams<D> {
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        match &self.mailbox {
            Some(mailbox) => mailbox.recv(|inbox| inbox.pop(buffer)).await,
            None => self.shards[0].recv(buffer).await,
        }
    }

    async fn recv_batch(&self, buffer: &mut [u8]) -> io::Result<DatagramBatch> {
        match &self.mailbox {
            Some(mailbox) => mailbox.recv(|inbox| inbox.pop_batch(buffer)).await,
            None => self.shards[0].recv_batch(buffer).await,
        }
    }

    fn try_send_batch(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        self.of(local, peer).try_send_batch(local, peer, payloads, segment_len)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::NoDatagrams;

    /// Else the instance would receive datagrams for ever, and wake a task for each.
    #[tokio::test]
    async fn the_datagrams_of_an_instance_are_released_with_the_last_receiver() {
        let (deliveries, mailbox) = mailbox();
        let task = tokio::spawn(deliver_all(NoDatagrams, Arc::new(deliveries)));
        tokio::task::yield_now().await;
        drop(mailbox);
        tokio::time::timeout(Duration::from_secs(10), task).await.unwrap().unwrap().unwrap();
    }

    /// Datagrams that never stop.
    #[derive(Clone)]
    struct Flood;

    impl Datagrams for Flood {
        async fn recv(&self, _: &mut [u8]) -> io::Result<Datagram> {
            let address = SocketAddr::from(([10, 0, 0, 1], 53));
            Ok(Datagram { len: 1, local: address, peer: address })
        }

        fn try_send(&self, _: SocketAddr, _: SocketAddr, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// On the one thread of this test, it would be the only task for ever.
    #[tokio::test]
    async fn a_flood_leaves_turns_to_those_that_receive() {
        let (deliveries, mailbox) = mailbox();
        let task = tokio::spawn(deliver_all(Flood, Arc::new(deliveries)));
        let received = mailbox.recv(|inbox| inbox.pop(&mut [0; 1])).await.unwrap();
        assert_eq!(received.len, 1);
        drop(mailbox);
        tokio::time::timeout(Duration::from_secs(10), task).await.unwrap().unwrap().unwrap();
    }
}
