//! The server side of datagrams: one task that receives, and one for each flow to a client.

use std::io;
use std::net::SocketAddr;
use std::panic;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use netstacks::DatagramBatch;
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};

use super::{Flow, Flows, MAX_RECEIVED_BYTES, TURN, Trial};
use crate::load::error::LoadError;
use crate::load::stream::Direction;

/// Receives from the clients, and sends to those that say where they are. Ends only with an error.
pub(crate) async fn serve(datagrams: impl netstacks::Datagrams, flows: &Arc<Flows>) -> Result<(), LoadError> {
    let mut buffer = vec![0; MAX_RECEIVED_BYTES];
    let mut senders = JoinSet::new();
    loop {
        for _ in 0..TURN.div_ceil(flows.batch as u64) {
            let batch = tokio::select! {
                biased;
                batch = receive(&datagrams, &mut buffer) => batch?,
                Some(ended) = senders.join_next(), if !senders.is_empty() => {
                    return ended.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()));
                }
            };
            let greeting = batch.payloads(&buffer).find_map(|payload| super::greeting(flows, payload));
            if let Some(index) = greeting.filter(|index| !flows.each[*index].greet()) {
                let sender = Sender { index, flows: Arc::clone(flows), ends: (batch.local, batch.peer) };
                senders.spawn(sender.run(datagrams.clone(), flows.trials()).boxed());
            }
            flows.take(Direction::ToServer, batch.payloads(&buffer))?;
        }
        yield_now().await;
    }
}

async fn receive(datagrams: &impl netstacks::Datagrams, buffer: &mut [u8]) -> Result<DatagramBatch, LoadError> {
    datagrams.recv_batch(buffer).await.map_err(LoadError::io("receive a datagram at the stack"))
}

struct Sender {
    index: usize,
    flows: Arc<Flows>,
    ends: (SocketAddr, SocketAddr),
}

impl Sender {
    async fn run(
        self,
        datagrams: impl netstacks::Datagrams,
        mut trials: watch::Receiver<Trial>,
    ) -> Result<(), LoadError> {
        loop {
            // The sender of the trials is alive: it is in the flows.
            let _changed = trials.changed().await;
            let trial = *trials.borrow_and_update();
            self.send(&datagrams, &trial).await?;
            self.flow().complete(&trial);
        }
    }

    fn flow(&self) -> &Flow {
        &self.flows.each[self.index]
    }

    async fn send(&self, datagrams: &impl netstacks::Datagrams, trial: &Trial) -> Result<(), LoadError> {
        let ((local, peer), len) = (self.ends, self.flows.len);
        let (mut batch, mut sent) = (self.flows.datagrams(self.index, trial), 0);
        while Instant::now() < trial.end() {
            if trial.due(Instant::now()) < sent + trial.burst {
                self.flow().due.notified().await;
                continue;
            }
            let write = |rest: &[u8]| match datagrams.try_send_batch(local, peer, rest, len) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                taken => taken.map_err(LoadError::io("send a datagram from the stack")),
            };
            (sent, _) = self.flows.send_due(self.flow(), (trial, &mut batch), sent, write)?;
            yield_now().await;
        }
        Ok(())
    }
}
