//! The loops: from a source, straight or by a channel, to a sink.
//!
//! ```text
//! Direct             source ──► sink
//! Channel            source ──► channel ──► sink
//! Pool    ┌────────► source ──► channel ──► sink ───┐
//!         └──────────────── channel ◄───────────────┘
//! ```
//!
//! What goes along is a burst: the packets that were read before any of them was written.

use super::channel::{Receiver, Sender};
use platform::Error;

/// Where packets come from.
pub(super) trait Source: Send + 'static {
    /// Packets, and the memory that they are in.
    type Burst: Default + Send + 'static;

    /// Waits for packets and puts them into `burst`, of which the memory alone is left.
    fn fill(&mut self, burst: &mut Self::Burst) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Where they go.
pub(super) trait Sink: Send + 'static {
    /// See [`Source::Burst`].
    type Burst: Send + 'static;

    /// Writes the packets of a burst. What the kernel does not take is lost.
    fn write(&mut self, burst: &mut Self::Burst) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Reads and writes by turns, until one of both fails.
pub(super) async fn direct<B: Default + Send>(
    mut source: impl Source<Burst = B>,
    mut sink: impl Sink<Burst = B>,
) -> Result<(), Error> {
    let mut burst = B::default();
    loop {
        source.fill(&mut burst).await?;
        sink.write(&mut burst).await?;
    }
}

/// Where a reader takes bursts from.
pub(super) enum Supply<R> {
    /// Each is new.
    New,
    /// Those that come back, and where none has, so many new ones.
    Returned(R, usize),
}

impl<R> Supply<R> {
    /// `None` where none will come back any more.
    async fn take<B: Default + Send>(&mut self) -> Option<B>
    where
        R: Receiver<B>,
    {
        match self {
            Self::New => Some(B::default()),
            Self::Returned(back, 0) => back.recv().await,
            Self::Returned(back, left) => back.try_recv().or_else(|| {
                *left -= 1;
                Some(B::default())
            }),
        }
    }
}

/// Reads, until that fails or nobody writes any more.
pub(super) async fn read<B: Default + Send>(
    mut source: impl Source<Burst = B>,
    mut supply: Supply<impl Receiver<B>>,
    mut hop: impl Sender<B>,
) -> Result<(), Error> {
    while let Some(mut burst) = supply.take().await {
        source.fill(&mut burst).await?;
        if hop.send(burst).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes, until that fails or nobody reads any more.
pub(super) async fn write<B: Send>(
    mut hop: impl Receiver<B>,
    mut sink: impl Sink<Burst = B>,
    mut back: Option<impl Sender<B>>,
) -> Result<(), Error> {
    while let Some(mut burst) = hop.recv().await {
        sink.write(&mut burst).await?;
        if let Some(back) = &mut back
            && back.send(burst).await.is_err()
        {
            return Ok(());
        }
    }
    Ok(())
}
