//! The application above the stack in a play. It does what the moves have asked for as the stack has bytes and room.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;

use super::{Broken, CLIENTS, Invariant, LONGEST, Played, Stream, streams};
use crate::server::{AnyListener, AnyStream};

const READ: usize = 4096;

/// How the server ends its side, once it has written everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    Shutdown,
    Drop,
    /// At once, whatever is left to write.
    Reset,
}

type Accepted = (Box<dyn AnyListener>, io::Result<Box<dyn AnyStream>>);

pub(super) struct Acceptor {
    /// `None` while the task has it.
    listener: Option<Box<dyn AnyListener>>,
    task: Option<JoinHandle<Accepted>>,
    pub(super) is_accepting: bool,
}

impl Acceptor {
    pub(super) fn new(listener: Box<dyn AnyListener>) -> Self {
        Self { listener: Some(listener), task: None, is_accepting: true }
    }

    /// Ready with the next connection. Call it within the runtime of the play.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn AnyStream>, Broken>> {
        if let Some(mut listener) = self.listener.take_if(|_| self.is_accepting) {
            self.task = Some(tokio::spawn(async move {
                let stream = listener.accept().await;
                (listener, stream)
            }));
        }
        let Some(task) = &mut self.task else { return Poll::Pending };
        let accepted = ready!(Pin::new(task).poll(cx));
        self.task = None;
        let (listener, stream) = accepted.map_err(|error| Broken::new(Invariant::Lives, error.to_string()))?;
        self.listener = Some(listener);
        Poll::Ready(stream.map_err(|error| Broken::new(Invariant::Lives, format!("accept failed: {error}"))))
    }
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Default)]
pub(super) struct App {
    stream: Option<Box<dyn AnyStream>>,
    /// The bytes of both directions.
    streams: [Stream; 2],
    /// Whether a packet with changed bytes may have been taken.
    pub(super) may_differ: bool,
    /// Whether the stack may have joined it to another client.
    may_be_joined: bool,
    pub(super) has_accepted: bool,
    /// How many bytes it has read, and how many more it wants.
    pub(super) read: usize,
    wants: usize,
    /// How many bytes the stack has taken, and how many the server writes in all.
    written: usize,
    pub(super) total: usize,
    pub(super) close: Option<Close>,
    /// Whether it has closed as it wanted.
    pub(super) is_closed: bool,
    /// Whether it was reading when it dropped its stream. Then a byte that is not read may be on its way to it.
    pub(super) was_reading: bool,
    pub(super) has_read_end: bool,
    pub(super) failed: Option<io::ErrorKind>,
}

impl App {
    pub(super) fn new(streams: [Stream; 2], may_be_joined: bool) -> Self {
        Self { streams, may_be_joined, ..Self::default() }
    }

    /// Takes its connection. Further ones from the same address are dropped.
    pub(super) fn accept(&mut self, stream: Box<dyn AnyStream>) {
        if !std::mem::replace(&mut self.has_accepted, true) {
            self.stream = Some(stream);
        }
    }

    pub(super) fn write(&mut self, len: usize) {
        if self.close.is_none() {
            self.total = (self.total + len).min(LONGEST);
        }
    }

    pub(super) fn wants(&mut self, len: usize) {
        self.wants = self.wants.saturating_add(len);
    }

    /// Closes, unless it does already.
    pub(super) fn close(&mut self, close: Close) {
        self.close.get_or_insert(close);
    }

    /// Describes it, for the text of a failure.
    pub(super) fn state(&self) -> String {
        let Self { read, written, total, .. } = self;
        let end = match (self.failed, self.has_read_end, self.close) {
            (Some(error), ..) => format!(", and failed with \"{error}\""),
            (None, true, _) => " and the end".to_owned(),
            (None, false, _) => String::new(),
        };
        let close = self.close.map_or_else(String::new, |close| format!(", then {close:?}"));
        format!("the server read {read} bytes{end}, and the stack took {written} of its {total}{close}")
    }

    /// Does what it can. Ready if that was anything.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Played> {
        let results = [self.poll_read(cx), self.poll_write(cx), self.poll_close(cx)];
        let mut progress = Poll::Pending;
        for result in results {
            if let Poll::Ready(result) = result {
                progress = Poll::Ready(());
                result?;
            }
        }
        progress.map(Ok)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Played> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        if self.wants == 0 || self.has_read_end || self.failed.is_some() {
            return Poll::Pending;
        }
        let mut bytes = [0; READ];
        let mut buffer = ReadBuf::new(&mut bytes[..READ.min(self.wants)]);
        match ready!(Pin::new(stream).poll_read(cx, &mut buffer)) {
            Ok(()) => {}
            Err(error) => {
                self.failed = Some(error.kind());
                return Poll::Ready(Ok(()));
            }
        }
        let (from, len) = (self.read, buffer.filled().len());
        self.read += len;
        self.wants -= len;
        self.has_read_end = len == 0;
        if self.may_be_joined && from == 0 {
            let mut streams = (0..=CLIENTS).map(|at| streams(at)[0].clone());
            self.streams[0] = streams.find(|stream| stream.starts_with(buffer.filled())).unwrap_or_default();
        }
        let expected = self.streams[0].get(from..self.read);
        let is_right = self.may_differ || expected == Some(buffer.filled());
        Poll::Ready(Invariant::Bytes.holds(is_right, || format!("the server read wrong bytes from byte {from} on")))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Played> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        if self.written == self.total || self.close == Some(Close::Reset) || self.failed.is_some() {
            return Poll::Pending;
        }
        match ready!(Pin::new(stream).poll_write(cx, &self.streams[1][self.written..self.total])) {
            Ok(len) => self.written += len,
            Err(error) => self.failed = Some(error.kind()),
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Played> {
        let (Some(close), Some(stream)) = (self.close, &mut self.stream) else { return Poll::Pending };
        if self.is_closed || (close != Close::Reset && self.written < self.total && self.failed.is_none()) {
            return Poll::Pending;
        }
        if close == Close::Shutdown {
            // Reads and writes report the end of a connection.
            let _reported = ready!(Pin::new(stream).poll_shutdown(cx));
        } else if let Some(stream) = self.stream.take() {
            self.was_reading = self.wants > 0 && !self.has_read_end;
            if close == Close::Reset {
                stream.abort();
            }
        }
        self.is_closed = true;
        Poll::Ready(Ok(()))
    }
}
