//! The client's side of a stream: a plain blocking connection in a thread of its own.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use platform::TcpStatistics;

use super::meter::difference;
use super::transfer::{Finish, GO, Lane, Phase, StartingGate, TransferError};
use crate::plan::{Amount, Mode};

/// A connection that waits.
pub(super) trait Connection: Read + Write + Send + 'static {
    /// Ends the sending half. Reading goes on.
    fn shutdown_write(&mut self) -> io::Result<()>;

    /// What the kernel says of it, where it is the kernel's.
    fn statistics(&self) -> TcpStatistics;
}

/// A connection before there is one.
pub(super) trait Connector: Send + 'static {
    /// What comes of it.
    type Connection: Connection;

    /// Connects, and waits for that.
    fn connect(self) -> Result<Self::Connection, TransferError>;

    /// What ends all waiting for the connection, and on it, from another thread.
    fn canceller(&self) -> Cancel;
}

/// Ends what waits in another thread.
pub(super) type Cancel = Box<dyn Fn() + Send>;

/// Delivers a lane. The connection comes back with the result: while it lives, the stack does not see it
/// end.
pub(super) type Deliver = Box<dyn FnOnce(&Lane, &StartingGate) -> (Box<dyn Send>, Result<(), TransferError>) + Send>;

/// The client of one stream, whatever its connection is; it has not begun yet.
pub(super) struct Client {
    pub(super) deliver: Deliver,
    pub(super) cancel: Cancel,
}

impl Client {
    /// A client that connects and then does what its lane says.
    pub(super) fn new(connector: impl Connector) -> Self {
        let cancel = connector.canceller();
        let deliver: Deliver = Box::new(move |lane, gate| match connector.connect() {
            Ok(mut connection) => {
                let result = run(&mut connection, lane, gate);
                (Box::new(connection), result)
            }
            Err(error) => (Box::new(()), Err(error)),
        });
        Self { deliver, cancel }
    }
}

/// Delivers a lane over a connection.
fn run(connection: &mut impl Connection, lane: &Lane, gate: &StartingGate) -> Result<(), TransferError> {
    let mode = lane.mode;
    let mut delivery = Delivery { connection, lane, buffer: vec![0; lane.buffer_bytes], offset: 0 };
    match mode {
        Mode::Reader => delivery.read_bytes(Phase::WarmUp, lane.warmup_bytes)?,
        Mode::Writer => delivery.write_bytes(lane.warmup_bytes)?,
    }
    gate.wait()?;
    let warm = delivery.offset;
    let cpu = platform::cpu_of_thread();
    let retransmits = lane.retransmits(delivery.connection.statistics());
    match (mode, lane.amount) {
        (Mode::Reader, Amount::Bytes(bytes)) => delivery.read_bytes(Phase::Timed, bytes.get())?,
        (Mode::Writer, Amount::Bytes(bytes)) => delivery.write_bytes(bytes.get())?,
        (Mode::Reader, Amount::Time(time)) => delivery.read_for(time)?,
        (Mode::Writer, Amount::Time(time)) => delivery.write_for(time)?,
    }
    let end = gate.read();
    let cpu = difference(platform::cpu_of_thread(), cpu);
    let tcp = delivery.connection.statistics();
    lane.finish(&Finish {
        bytes: delivery.offset - warm,
        cpu,
        // Without a warm-up there was no connection at the server's end yet, and so nothing to send again.
        retransmits: lane.retransmits(tcp).map(|now| now.saturating_sub(retransmits.unwrap_or(0))),
        tcp,
        end,
    });
    if let (Mode::Reader, Amount::Time(_)) = (mode, lane.amount) {
        delivery.drain()?;
    }
    Ok(())
}

struct Delivery<'a, C> {
    connection: &'a mut C,
    lane: &'a Lane,
    buffer: Vec<u8>,
    /// Position in the stream of payload.
    offset: u64,
}

impl<C: Connection> Delivery<'_, C> {
    /// Asks for `len` bytes and waits until they are here.
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

    /// Asks for bytes and takes what comes until the time is over.
    fn read_for(&mut self, time: Duration) -> Result<(), TransferError> {
        self.connection.write_all(&[GO]).map_err(TransferError::io("send the go"))?;
        let end = Instant::now() + time;
        // However late this thread comes to it, some bytes are taken.
        loop {
            if self.read_some(Phase::Timed, self.buffer.len())? == 0 {
                return Err(TransferError::Short { got: self.offset, expected: u64::MAX });
            }
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }

    /// Tells the server to stop and takes what is still under way.
    fn drain(&mut self) -> Result<(), TransferError> {
        self.lane.tell_to_stop();
        while self.read_some(Phase::Drain, self.buffer.len())? > 0 {}
        Ok(())
    }

    fn read_some(&mut self, phase: Phase, room: usize) -> Result<usize, TransferError> {
        let len = self.connection.read(&mut self.buffer[..room]).map_err(TransferError::io("read"))?;
        self.lane.receive(phase, self.offset, &self.buffer[..len])?;
        self.offset += len as u64;
        Ok(len)
    }

    /// Sends `len` bytes and waits for the other side to say that it has them.
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

    /// Sends until the time is over, closes, and waits for the other side to say what it has.
    fn write_for(&mut self, time: Duration) -> Result<(), TransferError> {
        let end = Instant::now() + time;
        loop {
            self.write_some(u64::MAX)?;
            if Instant::now() >= end {
                break;
            }
        }
        self.connection.shutdown_write().map_err(TransferError::io("close the sending half"))?;
        self.await_total()
    }

    fn write_some(&mut self, most: u64) -> Result<(), TransferError> {
        let len = self.buffer.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let bytes = self.lane.pattern.slice(self.offset, len);
        let len = self.connection.write(bytes).map_err(TransferError::io("write"))?;
        self.offset += len as u64;
        Ok(())
    }

    /// The total that has arrived, said by the application at the stack.
    fn await_total(&mut self) -> Result<(), TransferError> {
        let mut total = [0; 8];
        self.connection.read_exact(&mut total).map_err(TransferError::io("wait for the acknowledgement"))?;
        let got = u64::from_be_bytes(total);
        if got == self.offset { Ok(()) } else { Err(TransferError::Short { got, expected: self.offset }) }
    }
}
