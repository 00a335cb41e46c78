//! The server side of a stream: a task on the runtime under test.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Direction, GO, Phase, Stream};
use crate::load::error::LoadError;
use crate::plan::scenario::Amount;

/// A stream with a bit rate checks at least this often whether it must stop.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

pub(crate) async fn serve(connection: impl netstacks::Stream, stream: &Stream) -> Result<(), LoadError> {
    let mut server = Server { connection, stream, buffer: Vec::new(), offset: 0, timed: None };
    match stream.direction {
        Direction::ToClient => {
            server.send_bytes(Phase::WarmUp, stream.warmup_bytes).await?;
            match stream.amount {
                Amount::Bytes(bytes) => server.send_bytes(Phase::Timed, bytes.get()).await?,
                Amount::Time { .. } => server.send_until_told_to_stop().await?,
            }
        }
        Direction::ToServer => {
            server.buffer = vec![0; stream.buffer_bytes];
            server.receive_bytes(Phase::WarmUp, stream.warmup_bytes).await?;
            match stream.amount {
                Amount::Bytes(bytes) => server.receive_bytes(Phase::Timed, bytes.get()).await?,
                Amount::Time { .. } => server.receive_to_end().await?,
            }
        }
    }
    server.connection.shutdown().await.map_err(LoadError::io("close the stream at the stack"))
}

struct Server<'a, S> {
    connection: S,
    stream: &'a Stream,
    buffer: Vec<u8>,
    offset: u64,
    /// When the timed window began, and the position then.
    timed: Option<(Instant, u64)>,
}

impl<S: netstacks::Stream> Server<'_, S> {
    async fn await_go(&mut self, phase: Phase) -> Result<(), LoadError> {
        let go = self.connection.read_u8().await.map_err(LoadError::io("wait for the go at the stack"))?;
        self.timed = (phase == Phase::Timed).then(|| (Instant::now(), self.offset));
        if go == GO { Ok(()) } else { Err(LoadError::Corrupt { offset: 0 }) }
    }

    /// Waits for the go, and sends `len` bytes.
    async fn send_bytes(&mut self, phase: Phase, len: u64) -> Result<(), LoadError> {
        if len == 0 {
            return Ok(());
        }
        self.await_go(phase).await?;
        let end = self.offset + len;
        while self.offset < end {
            self.send_some(end - self.offset).await?;
        }
        Ok(())
    }

    async fn send_until_told_to_stop(&mut self) -> Result<(), LoadError> {
        self.await_go(Phase::Timed).await?;
        while !self.stream.stop.load(Ordering::Acquire) {
            self.send_some(u64::MAX).await?;
        }
        self.stream.has_sent(self.offset);
        Ok(())
    }

    async fn send_some(&mut self, most: u64) -> Result<(), LoadError> {
        let mut len = self.stream.buffer_bytes.min(usize::try_from(most).unwrap_or(usize::MAX));
        if let Some((begin, warm)) = self.timed {
            match self.stream.allowed(begin, self.offset - warm) {
                Ok(allowed) => len = len.min(allowed),
                // The caller checks whether it must stop.
                Err(due) => {
                    tokio::time::sleep_until(due.min(Instant::now() + LONGEST_PAUSE).into()).await;
                    return Ok(());
                }
            }
        }
        let bytes = self.stream.pattern.slice(self.offset, len);
        let len = self.connection.write(bytes).await.map_err(LoadError::io("write to the stack"))?;
        self.offset += len as u64;
        Ok(())
    }

    /// Receives `len` bytes, and confirms the total.
    async fn receive_bytes(&mut self, phase: Phase, len: u64) -> Result<(), LoadError> {
        if len == 0 {
            return Ok(());
        }
        let end = self.offset + len;
        while self.offset < end {
            let room = self.buffer.len().min((end - self.offset) as usize);
            if self.receive_some(phase, room).await? == 0 {
                return Err(LoadError::Short { got: self.offset, expected: end });
            }
        }
        self.acknowledge().await
    }

    /// Receives until the client closes its half, or everything is there that it has said it sent, and confirms the total.
    async fn receive_to_end(&mut self) -> Result<(), LoadError> {
        let stream = self.stream;
        while stream.sent.get() != Some(&self.offset) {
            tokio::select! {
                // The order is that of most cases: no random choice for each read.
                biased;
                received = self.receive_some(Phase::Timed, self.buffer.len()) => {
                    if received? == 0 {
                        break;
                    }
                }
                () = stream.is_sent.notified() => {}
            }
        }
        self.acknowledge().await
    }

    async fn receive_some(&mut self, phase: Phase, room: usize) -> Result<usize, LoadError> {
        let len = self.connection.read(&mut self.buffer[..room]).await.map_err(LoadError::io("read from the stack"))?;
        self.stream.receive(phase, self.offset, &self.buffer[..len])?;
        self.offset += len as u64;
        Ok(len)
    }

    async fn acknowledge(&mut self) -> Result<(), LoadError> {
        self.connection
            .write_all(&self.offset.to_be_bytes())
            .await
            .map_err(LoadError::io("acknowledge the total at the stack"))
    }
}
