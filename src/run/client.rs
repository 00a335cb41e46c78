//! The client side of a stream: a plain blocking connection in a thread of its own.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use platform::TcpStatistics;

use super::barrier::StartBarrier;
use super::meter::difference;
use super::transfer::{Direction, Finish, GO, Phase, Stream, TransferError};
use crate::scenario::Amount;

/// A blocking connection.
pub(super) trait Connection: Read + Write + Send + 'static {
    /// Half-closes the connection: nothing more is sent, and reading goes on.
    fn shutdown_write(&mut self) -> io::Result<()>;

    /// The kernel's statistics; all unknown if it is not a connection of the kernel.
    fn statistics(&self) -> TcpStatistics;
}

/// Makes a connection.
pub(super) trait Connector: Send + 'static {
    /// The connection.
    type Connection: Connection;

    /// Connects, and blocks until the connection is established.
    fn connect(self) -> Result<Self::Connection, TransferError>;

    /// Returns a function that ends a call that blocks in `connect` or on the connection. Any thread may call it.
    fn canceller(&self) -> Cancel;
}

/// Ends a call that blocks in another thread.
pub(super) type Cancel = Box<dyn Fn() + Send>;

/// Delivers a stream. The connection is returned with the result: as long as it lives, the stack sees no end.
pub(super) type Deliver = Box<dyn FnOnce(&StartBarrier) -> (Box<dyn Send>, Result<(), TransferError>) + Send>;

/// A client that has not begun yet, over any connection.
pub(super) struct Client {
    pub(super) deliver: Deliver,
    pub(super) cancel: Cancel,
}

impl Client {
    /// A client that connects and then delivers the stream at `index`.
    pub(super) fn new(connector: impl Connector, streams: &Arc<[Stream]>, index: usize) -> Self {
        let cancel = connector.canceller();
        let streams = Arc::clone(streams);
        let deliver: Deliver = Box::new(move |barrier| match connector.connect() {
            Ok(mut connection) => {
                let result = run(&mut connection, &streams, index, barrier);
                (Box::new(connection), result)
            }
            Err(error) => (Box::new(()), Err(error)),
        });
        Self { deliver, cancel }
    }
}

/// Delivers a stream over a connection.
fn run(
    connection: &mut impl Connection,
    streams: &[Stream],
    index: usize,
    barrier: &StartBarrier,
) -> Result<(), TransferError> {
    let stream = &streams[index];
    let direction = stream.direction;
    let buffer = vec![0; stream.buffer_bytes];
    let mut delivery = Delivery { connection, stream, buffer, offset: 0, timed: None };
    match direction {
        Direction::ToClient => delivery.read_bytes(Phase::WarmUp, stream.warmup_bytes)?,
        Direction::ToServer => delivery.write_bytes(stream.warmup_bytes)?,
    }
    barrier.wait()?;
    let warm = delivery.offset;
    let cpu = platform::cpu_of_thread();
    let retransmits = stream.retransmits(delivery.connection.statistics());
    delivery.timed = Some((Instant::now(), warm));
    match (direction, stream.amount) {
        (Direction::ToClient, Amount::Bytes(bytes)) => delivery.read_bytes(Phase::Timed, bytes.get())?,
        (Direction::ToServer, Amount::Bytes(bytes)) => delivery.write_bytes(bytes.get())?,
        (Direction::ToClient, Amount::Time { .. }) => delivery.read_for(streams)?,
        (Direction::ToServer, Amount::Time { .. }) => delivery.write_for(streams)?,
    }
    let end = barrier.read();
    let cpu = difference(platform::cpu_of_thread(), cpu);
    let tcp = delivery.connection.statistics();
    stream.finish(&Finish {
        bytes: delivery.offset - warm,
        cpu,
        // Without a warm-up, the server had no connection yet, so it had retransmitted nothing.
        retransmits: stream.retransmits(tcp).map(|now| now.saturating_sub(retransmits.unwrap_or(0))),
        tcp,
        end,
    });
    if let (Direction::ToClient, Amount::Time { .. }) = (direction, stream.amount) {
        delivery.drain()?;
    }
    stream.set_crossed(delivery.offset);
    Ok(())
}

struct Delivery<'a, C> {
    connection: &'a mut C,
    stream: &'a Stream,
    buffer: Vec<u8>,
    /// Position in the stream of payload.
    offset: u64,
    /// When the timed window began, and the position then.
    timed: Option<(Instant, u64)>,
}

impl<C: Connection> Delivery<'_, C> {
    /// Asks for `len` bytes, and reads them.
    fn read_bytes(&mut self, phase: Phase, len: u64) -> Result<(), TransferError> {
        if len == 0 {
            return Ok(());
        }
        self.connection.write_all(&[GO]).map_err(TransferError::io("send the go"))?;
        let end = self.offset + len;
        while self.offset < end {
            let room = self.buffer.len().min((end - self.offset) as usize);
            if self.read_some(phase, room)? == 0 {
                return Err(TransferError::Short { got: self.offset, expected: end });
            }
        }
        Ok(())
    }

    /// Asks for bytes, and reads until the window is over for all `streams`.
    fn read_for(&mut self, streams: &[Stream]) -> Result<(), TransferError> {
        self.connection.write_all(&[GO]).map_err(TransferError::io("send the go"))?;
        let begin = Instant::now();
        // At least one read, however late this thread runs.
        loop {
            if self.read_some(Phase::Timed, self.buffer.len())? == 0 {
                return Err(TransferError::Short { got: self.offset, expected: u64::MAX });
            }
            if self.stream.is_over(begin, streams) {
                return Ok(());
            }
        }
    }

    /// Tells the server to stop, and reads the bytes that are still in flight.
    fn drain(&mut self) -> Result<(), TransferError> {
        self.stream.tell_to_stop();
        if self.stream.is_served_elsewhere {
            self.connection.shutdown_write().map_err(TransferError::io("close the sending half"))?;
        }
        while self.read_some(Phase::Drain, self.buffer.len())? > 0 {}
        Ok(())
    }

    fn read_some(&mut self, phase: Phase, room: usize) -> Result<usize, TransferError> {
        let len = self.connection.read(&mut self.buffer[..room]).map_err(TransferError::io("read"))?;
        self.stream.receive(phase, self.offset, &self.buffer[..len])?;
        self.offset += len as u64;
        Ok(len)
    }

    /// Sends `len` bytes, and waits until the other side confirms the total.
    fn write_bytes(&mut self, len: u64) -> Result<(), TransferError> {
        if len == 0 {
            return Ok(());
        }
        let end = self.offset + len;
        while self.offset < end {
            self.write_some(end - self.offset)?;
        }
        self.await_total()
    }

    /// Sends until the window is over for all `streams`. Then half-closes, and waits until the other side confirms the
    /// total.
    fn write_for(&mut self, streams: &[Stream]) -> Result<(), TransferError> {
        let begin = Instant::now();
        loop {
            self.write_some(u64::MAX)?;
            if self.stream.is_over(begin, streams) {
                break;
            }
        }
        self.connection.shutdown_write().map_err(TransferError::io("close the sending half"))?;
        self.await_total()
    }

    fn write_some(&mut self, most: u64) -> Result<(), TransferError> {
        let mut len = self.buffer.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        if let Some((begin, warm)) = self.timed {
            let (allowed, early) = self.stream.allowed(begin, self.offset - warm);
            if !early.is_zero() {
                thread::sleep(early);
            }
            len = len.min(allowed);
        }
        // Nothing is due yet. The caller checks the time.
        if len == 0 {
            return Ok(());
        }
        let bytes = self.stream.pattern.slice(self.offset, len);
        let len = self.connection.write(bytes).map_err(TransferError::io("write"))?;
        self.offset += len as u64;
        if self.stream.is_served_elsewhere {
            // The kernel has the bytes. The other process does not report how many it has read.
            self.stream.set_arrived(self.offset);
        }
        Ok(())
    }

    /// Waits for the total that the server application has received.
    fn await_total(&mut self) -> Result<(), TransferError> {
        let mut total = [0; 8];
        self.connection.read_exact(&mut total).map_err(TransferError::io("wait for the acknowledgement"))?;
        let got = u64::from_be_bytes(total);
        if got == self.offset { Ok(()) } else { Err(TransferError::Short { got, expected: self.offset }) }
    }
}
