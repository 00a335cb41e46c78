//! The kernel's side of a stream: a plain blocking socket in a thread of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::transfer::{GO, Lane, Phase, Reading, StartingGate, TransferError, difference};
use crate::plan::{Amount, Mode};

/// What a stream's client has to tell after its timed window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    /// Payload bytes that arrived in the timed window.
    pub(super) bytes: u64,
    /// CPU time of this thread in the timed window.
    pub(super) cpu: Option<Duration>,
    /// Segments that the kernel sent again in the timed window.
    pub(super) retransmits: Option<u64>,
    /// The whole process at the end of the window.
    pub(super) end: Reading,
}

/// Delivers a lane over a connected socket.
pub(super) fn run(
    mut socket: &TcpStream,
    mode: Mode,
    lane: &Lane,
    gate: &StartingGate,
) -> Result<Finish, TransferError> {
    let mut client = Client { socket: &mut socket, lane, buffer: vec![0; lane.buffer_bytes], offset: 0 };
    match mode {
        Mode::Reader => client.read_bytes(Phase::WarmUp, lane.warmup_bytes)?,
        Mode::Writer => client.write_bytes(lane.warmup_bytes)?,
    }
    gate.wait()?;
    let warm = client.offset;
    let cpu = platform::cpu_of_thread();
    let retransmits = platform::tcp_statistics(client.socket).retransmits;
    match (mode, lane.amount) {
        (Mode::Reader, Amount::Bytes(bytes)) => client.read_bytes(Phase::Timed, bytes.get())?,
        (Mode::Writer, Amount::Bytes(bytes)) => client.write_bytes(bytes.get())?,
        (Mode::Reader, Amount::Time(time)) => client.read_for(time)?,
        (Mode::Writer, Amount::Time(time)) => client.write_for(time)?,
    }
    let end = gate.read();
    let finish = Finish {
        bytes: client.offset - warm,
        cpu: difference(platform::cpu_of_thread(), cpu),
        retransmits: platform::tcp_statistics(client.socket)
            .retransmits
            .zip(retransmits)
            .map(|(now, then)| now.saturating_sub(then)),
        end,
    };
    if let (Mode::Reader, Amount::Time(_)) = (mode, lane.amount) {
        client.drain()?;
    }
    Ok(finish)
}

struct Client<'a, 'b> {
    socket: &'a mut &'b TcpStream,
    lane: &'a Lane,
    buffer: Vec<u8>,
    /// Position in the stream of payload.
    offset: u64,
}

impl Client<'_, '_> {
    /// Asks for `len` bytes and waits until they are here.
    fn read_bytes(&mut self, phase: Phase, len: u64) -> Result<(), TransferError> {
        if len == 0 {
            return Ok(());
        }
        self.socket.write_all(&[GO]).map_err(TransferError::io("send the go"))?;
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
        self.socket.write_all(&[GO]).map_err(TransferError::io("send the go"))?;
        let end = Instant::now() + time;
        while Instant::now() < end {
            if self.read_some(Phase::Timed, self.buffer.len())? == 0 {
                return Err(TransferError::Short { got: self.offset, expected: u64::MAX });
            }
        }
        Ok(())
    }

    /// Tells the server to stop and takes what is still under way.
    fn drain(&mut self) -> Result<(), TransferError> {
        self.lane.tell_to_stop();
        while self.read_some(Phase::Timed, self.buffer.len())? > 0 {}
        Ok(())
    }

    fn read_some(&mut self, phase: Phase, room: usize) -> Result<usize, TransferError> {
        let len = self.socket.read(&mut self.buffer[..room]).map_err(TransferError::io("read from the kernel"))?;
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
        while Instant::now() < end {
            self.write_some(u64::MAX)?;
        }
        self.socket.shutdown(Shutdown::Write).map_err(TransferError::io("close the sending half"))?;
        self.await_total()
    }

    fn write_some(&mut self, most: u64) -> Result<(), TransferError> {
        let len = self.buffer.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let bytes = self.lane.pattern.slice(self.offset, len);
        let len = self.socket.write(bytes).map_err(TransferError::io("write to the kernel"))?;
        self.offset += len as u64;
        Ok(())
    }

    /// The total that has arrived, said by the application at the stack.
    fn await_total(&mut self) -> Result<(), TransferError> {
        let mut total = [0; 8];
        self.socket.read_exact(&mut total).map_err(TransferError::io("wait for the acknowledgement"))?;
        let got = u64::from_be_bytes(total);
        if got == self.offset { Ok(()) } else { Err(TransferError::Short { got, expected: self.offset }) }
    }
}
