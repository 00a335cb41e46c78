//! The clients of streams: state machines, as many as a thread has sockets.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Direction, Finish, GO, Phase, Stream};
use crate::load::engine::{Client, Engine, Work};
use crate::load::error::{LoadError, unless_blocked};
use crate::load::sockets::Sockets;
use crate::load::window::Window;
use crate::plan::scenario::Amount;

/// Reads or writes of a stream before the next stream has its turn.
const TURN: usize = 64;

/// How long the end of a stream may come after its bytes, through a program. Within one host it comes at once, or never.
const END: Duration = Duration::from_millis(200);

/// A client for these of the streams. Each stream has a target of its own.
pub(crate) fn client(
    streams: &Arc<[Stream]>,
    mine: Range<usize>,
    targets: &[SocketAddr],
    sockets: impl Sockets,
) -> Client {
    let flow = |index: usize| Flow {
        index,
        target: targets[index],
        step: Step::Opening,
        offset: 0,
        warm: 0,
        end: 0,
        retransmits: None,
        total: [0; 8],
        got: 0,
    };
    let flows: Vec<_> = mine.map(flow).collect();
    let largest = flows.iter().map(|flow| streams[flow.index].buffer_bytes).max();
    let work = Clients {
        streams: Arc::clone(streams),
        buffer: vec![0; largest.unwrap_or(0)],
        flows,
        handshakes: 0,
        timed: None,
        busy: 0,
        draining: 0,
        drained: None,
        over: false,
        paused: BinaryHeap::new(),
    };
    Client::new(sockets, work)
}

struct Clients {
    /// Those of all threads.
    streams: Arc<[Stream]>,
    flows: Vec<Flow>,
    buffer: Vec<u8>,
    handshakes: usize,
    timed: Option<Instant>,
    /// Streams that are not at the end of their warm-up or their window yet.
    busy: usize,
    /// Readers that wait for the bytes that were in flight at the end of their window.
    draining: usize,
    /// When nothing but their ends was missing.
    drained: Option<Instant>,
    over: bool,
    /// Writers that wait until their next bytes are due.
    paused: BinaryHeap<Reverse<(Instant, usize)>>,
}

struct Flow {
    /// Its index in the streams of all threads.
    index: usize,
    target: SocketAddr,
    step: Step,
    /// Position in the stream of payload, where the timed window began, and where this phase ends.
    offset: u64,
    warm: u64,
    end: u64,
    retransmits: Option<u64>,
    /// The server's total, as far as it has arrived.
    total: [u8; 8],
    got: usize,
}

/// What a stream does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Opening,
    /// Nothing: the warm-up or the window is over.
    Rest,
    /// Asks for bytes.
    Ask,
    Read,
    Write,
    /// Waits for the total that the server application has received.
    Total,
    /// Reads the bytes that were in flight at the end of the window.
    Drain,
}

enum Moved {
    /// The socket would block, or nothing is due.
    Nothing,
    Bytes,
    /// The other side has closed its half.
    End,
}

impl<S: Sockets> Work<S> for Clients {
    fn warm_up(&mut self, engine: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        let count = self.flows.len();
        engine.connect(self, 0..count)?;
        if count == 1 {
            engine.sockets.block().map_err(LoadError::io("set up a connection"))?;
        }
        for index in 0..count {
            let warm = self.stream(index).warmup_bytes;
            if warm > 0 {
                self.begin(engine, index, warm);
            }
        }
        engine.turn_while(self, |work| work.busy > 0)
    }

    fn run(&mut self, engine: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        for index in 0..self.flows.len() {
            let retransmits = self.stream(index).retransmits(engine.sockets.statistics(index));
            let flow = &mut self.flows[index];
            (flow.warm, flow.retransmits) = (flow.offset, retransmits);
        }
        self.timed = Some(Instant::now());
        for index in 0..self.flows.len() {
            let end = match self.stream(index).amount {
                Amount::Bytes(bytes) => self.flows[index].warm + bytes.get(),
                Amount::Time { .. } => u64::MAX,
            };
            self.begin(engine, index, end);
        }
        engine.turn_while(self, |work| work.busy > 0)
    }

    fn finish(&mut self, engine: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        engine.turn_while(self, |work| work.draining > 0)?;
        for flow in &self.flows {
            let _earlier = self.streams[flow.index].crossed.set(flow.offset);
        }
        Ok(())
    }

    fn connect(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError> {
        self.handshakes += 1;
        sockets.connect(index, self.flows[index].target).map_err(LoadError::io("connect"))
    }

    fn handshakes(&self) -> usize {
        self.handshakes
    }

    fn ready(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError> {
        for _ in 0..TURN {
            if !self.step(sockets, index)? {
                return Ok(false);
            }
            // Whether the window is over is checked after this turn.
            if self.is_out_of_time() {
                break;
            }
        }
        Ok(true)
    }

    fn due(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError> {
        let now = Instant::now();
        while let Some(Reverse((due, index))) = self.paused.peek().copied()
            && due <= now
        {
            self.paused.pop();
            engine.again(index);
        }
        if self.draining > 0 {
            self.end_drained(now);
        }
        self.check_time(engine)
    }

    fn due_at(&self, now: Instant) -> Option<Instant> {
        let end = self.timed.zip(self.time()).map(|(begin, time)| begin + time).filter(|end| *end > now);
        self.paused.peek().map(|Reverse((due, _))| *due).into_iter().chain(end).min()
    }
}

impl Clients {
    fn stream(&self, index: usize) -> &Stream {
        &self.streams[self.flows[index].index]
    }

    fn time(&self) -> Option<Duration> {
        match self.streams.first()?.amount {
            Amount::Time { time, .. } => Some(time),
            Amount::Bytes(_) => None,
        }
    }

    /// Begins a phase of a stream, up to this offset.
    fn begin<S: Sockets>(&mut self, engine: &mut Engine<S>, index: usize, end: u64) {
        let direction = self.stream(index).direction;
        let flow = &mut self.flows[index];
        flow.end = end;
        flow.step = if direction == Direction::ToClient { Step::Ask } else { Step::Write };
        self.busy += 1;
        engine.again(index);
    }

    /// Makes one read or write of a stream. Returns whether another may follow at once.
    fn step<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError> {
        let flow = &mut self.flows[index];
        match flow.step {
            Step::Opening => {
                if sockets.is_connected(index).map_err(LoadError::io("connect"))? {
                    flow.step = Step::Rest;
                    self.handshakes -= 1;
                }
                Ok(false)
            }
            Step::Rest => Ok(false),
            Step::Ask => {
                let asked = unless_blocked("send the go", || sockets.write(index, &[GO]))?.is_some();
                if asked {
                    flow.step = Step::Read;
                }
                Ok(asked)
            }
            Step::Read => self.read(sockets, index),
            Step::Write => self.write(sockets, index),
            Step::Total => self.await_total(sockets, index),
            Step::Drain => match self.receive(sockets, index, Phase::Drain)? {
                Moved::Nothing => Ok(false),
                Moved::Bytes => Ok(true),
                Moved::End => {
                    self.flows[index].step = Step::Rest;
                    self.draining -= 1;
                    Ok(false)
                }
            },
        }
    }

    fn read<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError> {
        let phase = if self.timed.is_some() { Phase::Timed } else { Phase::WarmUp };
        match self.receive(sockets, index, phase)? {
            Moved::Nothing => return Ok(false),
            Moved::Bytes => {}
            Moved::End => {
                let Flow { offset, end, .. } = self.flows[index];
                return Err(LoadError::Short { got: offset, expected: end });
            }
        }
        let flow = &self.flows[index];
        if flow.offset == flow.end {
            self.end(sockets, index);
        } else if self.is_over(index) {
            self.stop(sockets, index)?;
        }
        Ok(self.flows[index].step != Step::Rest)
    }

    /// Reads once, and checks and counts the bytes.
    fn receive<S: Sockets>(&mut self, sockets: &mut S, index: usize, phase: Phase) -> Result<Moved, LoadError> {
        let (flow, buffer) = (&mut self.flows[index], &mut self.buffer);
        let stream = &self.streams[flow.index];
        let left = usize::try_from(flow.end - flow.offset).unwrap_or(usize::MAX);
        let room = if phase == Phase::Drain { buffer.len() } else { stream.buffer_bytes.min(left) };
        let Some(len) = unless_blocked("read", || sockets.read(index, &mut buffer[..room]))? else {
            return Ok(Moved::Nothing);
        };
        stream.receive(phase, flow.offset, &buffer[..len])?;
        flow.offset += len as u64;
        Ok(if len == 0 { Moved::End } else { Moved::Bytes })
    }

    fn write<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError> {
        let flow = &mut self.flows[index];
        let stream = &self.streams[flow.index];
        let allowed =
            self.timed.map_or(Ok(stream.buffer_bytes), |begin| stream.allowed(begin, flow.offset - flow.warm));
        match allowed {
            Err(due) => {
                self.paused.push(Reverse((due, index)));
                return Ok(false);
            }
            Ok(allowed) => {
                let len = allowed.min(usize::try_from(flow.end - flow.offset).unwrap_or(usize::MAX));
                let bytes = stream.pattern.slice(flow.offset, len);
                let Some(len) = unless_blocked("write", || sockets.write(index, bytes))? else { return Ok(false) };
                flow.offset += len as u64;
            }
        }
        if stream.is_served_elsewhere {
            // The kernel has the bytes. The other process does not report how many it has read.
            stream.set_arrived(flow.offset);
        }
        if flow.offset == flow.end {
            flow.step = Step::Total;
        } else if self.is_over(index) {
            self.stop(sockets, index)?;
        }
        Ok(true)
    }

    fn await_total<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError> {
        let Flow { total, got, offset, .. } = &mut self.flows[index];
        let read = unless_blocked("wait for the acknowledgement", || sockets.read(index, &mut total[*got..]))?;
        match read {
            None => return Ok(false),
            Some(0) => {
                let source = io::ErrorKind::UnexpectedEof.into();
                return Err(LoadError::Io { operation: "wait for the acknowledgement", source });
            }
            Some(len) => *got += len,
        }
        if *got < total.len() {
            return Ok(true);
        }
        let said = u64::from_be_bytes(*total);
        if said != *offset {
            return Err(LoadError::Short { got: said, expected: *offset });
        }
        *got = 0;
        self.end(sockets, index);
        Ok(false)
    }

    fn end<S: Sockets>(&mut self, sockets: &S, index: usize) {
        self.busy -= 1;
        self.flows[index].step = Step::Rest;
        if self.timed.is_none() {
            return;
        }
        let flow = &self.flows[index];
        let (stream, tcp) = (&self.streams[flow.index], sockets.statistics(index));
        stream.finish(&Finish {
            bytes: flow.offset - flow.warm,
            // Without a warm-up, the server had no connection yet, so it had retransmitted nothing.
            retransmits: stream.retransmits(tcp).map(|now| now.saturating_sub(flow.retransmits.unwrap_or(0))),
            tcp,
        });
    }

    /// The window is over: a writer half-closes and waits for the total, and a reader tells the server to stop.
    fn stop<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError> {
        let ends_writing = match self.flows[index].step {
            Step::Write => {
                self.flows[index].step = Step::Total;
                let stream = self.stream(index);
                if stream.keeps_halves {
                    stream.has_sent(self.flows[index].offset);
                }
                !stream.keeps_halves
            }
            Step::Read => {
                self.end(sockets, index);
                self.flows[index].step = Step::Drain;
                self.draining += 1;
                let stream = self.stream(index);
                stream.stop.store(true, Ordering::Release);
                // The only socket of a thread may block.
                if stream.keeps_halves && self.flows.len() == 1 {
                    sockets.unblock().map_err(LoadError::io("set up a connection"))?;
                }
                stream.is_served_elsewhere
            }
            _ => false,
        };
        if ends_writing { sockets.end_writing(index).map_err(LoadError::io("close the sending half")) } else { Ok(()) }
    }

    /// Ends the streams through a program that have all of their bytes, and wait for an end that does not come.
    fn end_drained(&mut self, now: Instant) {
        let streams = Arc::clone(&self.streams);
        let drained =
            |flow: &Flow| streams[flow.index].keeps_halves && streams[flow.index].sent.get() == Some(&flow.offset);
        let mut draining = self.flows.iter().filter(|flow| flow.step == Step::Drain);
        if !draining.all(drained) || now - *self.drained.get_or_insert(now) < END {
            return;
        }
        for flow in self.flows.iter_mut().filter(|flow| flow.step == Step::Drain) {
            flow.step = Step::Rest;
            streams[flow.index].is_end_withheld.store(true, Ordering::Relaxed);
        }
        self.draining = 0;
    }

    /// Whether the window is over for a stream, which has at least one read or write in it, however late its thread runs.
    fn is_over(&self, index: usize) -> bool {
        let flow = &self.flows[index];
        self.over && flow.offset > flow.warm
    }

    /// Whether it has to be checked if the window is over.
    fn is_out_of_time(&self) -> bool {
        !self.over && self.timed.zip(self.time()).is_some_and(|(begin, time)| begin.elapsed() >= time)
    }

    /// Checks whether the window is over, and stops the streams then.
    fn check_time<S: Sockets>(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError> {
        if !self.is_out_of_time() {
            return Ok(());
        }
        self.over = self.timed.is_some_and(|begin| Stream::is_over(begin, &self.streams));
        for index in 0..self.flows.len() {
            if self.is_over(index) {
                self.stop(&mut engine.sockets, index)?;
                engine.again(index);
            }
        }
        Ok(())
    }
}
