//! Carries the bytes of a connection between the stack and the kernel.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use netstacks::{Admission, Stream};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::upstream::Server;

/// The size of the buffer for a stack that does not lend its memory. It fits in a processor's cache.
pub(super) const BUFFER_BYTES: usize = 256 << 10;

/// The most bytes that are copied so that the stack is not locked while the kernel is called. For more, a copy costs more.
const MESSAGE_BYTES: usize = 4 << 10;

/// How many bytes and calls of the kernel a loan of the stack's memory may take: the other connections wait meanwhile.
const LOAN_BYTES: usize = 256 << 10;
const LOAN_CALLS: usize = 8;

/// Carries bytes both ways until both ends have closed. A half-close at one end is passed on to the other. If one end
/// is reset or fails, or if no byte is carried for `idle`, both ends are reset.
pub(super) async fn relay<S: Stream>(mut client: S, admission: Option<Admission>, mut server: Server, idle: Duration) {
    let mut both =
        BothWays { admission, up: OneWay::new(), refused: false, down: OneWay::new(), carried: Instant::now() };
    let mut quiet = std::pin::pin!(tokio::time::sleep(idle));
    let ended = poll_fn(|cx| {
        if let Poll::Ready(ended) = both.poll(cx, &mut client, &mut server) {
            return Poll::Ready(ended);
        }
        both.poll_quiet(cx, quiet.as_mut(), idle).map(|()| Err(io::ErrorKind::TimedOut.into()))
    })
    .await;
    if ended.is_err() {
        // With a linger time of zero, closing the socket sends a RST.
        let _closed = SockRef::from(&*server).set_linger(Some(Duration::ZERO));
        if let Some(admission) = both.admission {
            admission.reset();
        }
        client.reset();
    }
}

struct BothWays {
    /// The kernel reports a RST of its clients itself.
    admission: Option<Admission>,
    up: OneWay,
    /// The server accepts no more bytes, but may have sent some before.
    refused: bool,
    down: OneWay,
    carried: Instant,
}

impl BothWays {
    /// Ready once both directions have ended, or one has failed.
    fn poll<S: Stream>(&mut self, cx: &mut Context<'_>, client: &mut S, server: &mut Server) -> Poll<io::Result<()>> {
        let up = self.poll_up(cx, client, server)?;
        let down = self.poll_down(cx, client, server)?;
        if mem::take(&mut self.up.has_carried) | mem::take(&mut self.down.has_carried) {
            self.carried = Instant::now();
        }
        // While the client's bytes wait for the server, and after the last one, no read reports a RST of the client.
        let is_deaf = up.is_ready() || self.refused || server.poll_write_ready(cx)?.is_pending();
        match (up, down) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            // All that the server sent before has been passed on.
            (_, Poll::Ready(())) if self.refused => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            _ if is_deaf && client.poll_failed(cx).is_ready() => {
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
            _ => Poll::Pending,
        }
    }

    /// Carries bytes from the stack to the kernel: out of lent memory, except for a message.
    fn poll_up<S: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S,
        server: &mut Server,
    ) -> Poll<io::Result<()>> {
        let mut room = [MaybeUninit::uninit(); MESSAGE_BYTES];
        while self.up.lends && !self.refused {
            if let Err(error) = ready!(self.up.poll_waiting(cx, server)) {
                self.write_failed(error.kind());
                break;
            }
            ready!(server.poll_write_ready(cx))?;
            let (mut failed, mut loan, mut message) = (None, Loan::default(), ReadBuf::uninit(&mut room));
            let polled = client.poll_read_with(cx, &mut |slices| {
                if loan.is_used_up() || !message.filled().is_empty() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                if loan.calls == 0 && copy_message(slices, &mut message) {
                    return Ok(message.filled().len());
                }
                loan.write(server, slices).inspect_err(|error| failed = Some(error.kind()))
            });
            let message = message.filled();
            if !message.is_empty() {
                let written = server.try_write(message).inspect_err(|error| failed = Some(error.kind()));
                self.up.keep(&message[written.unwrap_or(0)..]);
            }
            if let Some(kind) = failed {
                self.write_failed(kind);
            }
            if let Some(ended) = self.up.lent(polled, failed.is_some())
                && !self.refused
            {
                return ended;
            }
        }
        if self.refused {
            return Poll::Pending;
        }
        let is_reset = || self.admission.as_ref().is_some_and(Admission::is_reset);
        self.up.poll(cx, client, server, || is_reset().then_some(io::ErrorKind::ConnectionReset))
    }

    fn write_failed(&mut self, kind: io::ErrorKind) {
        match kind {
            io::ErrorKind::WouldBlock => {}
            // The server sent a FIN, and then a RST.
            io::ErrorKind::BrokenPipe => self.refused = true,
            // The kernel reports an error only once: after the last bytes, a read would return an end of file.
            kind => (self.refused, self.down.broken) = (true, Some(kind)),
        }
    }

    /// Carries bytes from the kernel to the stack: into lent memory, unless only a message came last.
    fn poll_down<S: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S,
        server: &mut Server,
    ) -> Poll<io::Result<()>> {
        while self.down.lends {
            ready!(self.down.poll_waiting(cx, client))?;
            if !self.down.is_bulk {
                ready!(self.down.poll_message(cx, server, client))?;
                continue;
            }
            ready!(server.poll_read_ready(cx))?;
            let mut kernel = Context::from_waker(cx.waker());
            let (mut empty, mut failed, mut loan) = (false, None, Loan::default());
            let polled = client.poll_write_with(cx, &mut |room| {
                if loan.is_used_up() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let mut buffer = ReadBuf::new(room);
                match Pin::new(&mut *server).poll_read(&mut kernel, &mut buffer) {
                    Poll::Ready(Ok(())) => return loan.count(Ok(buffer.filled().len())),
                    Poll::Ready(Err(error)) => failed = Some(error.kind()),
                    Poll::Pending => empty = true,
                }
                Err(io::ErrorKind::WouldBlock.into())
            });
            let ended = self.down.lent(polled, empty);
            self.down.is_bulk = loan.calls == 0 || loan.bytes > MESSAGE_BYTES;
            // The kernel reports an error only once, perhaps after other bytes.
            if let Some(kind) = failed {
                return Poll::Ready(Err(kind.into()));
            }
            if let Some(ended) = ended {
                return ended;
            }
        }
        let broken = self.down.broken;
        self.down.poll(cx, server, client, || broken)
    }

    /// Ready once no byte has been carried for `idle`. The timer is moved only when it fires.
    fn poll_quiet(&self, cx: &mut Context<'_>, mut quiet: Pin<&mut Sleep>, idle: Duration) -> Poll<()> {
        while quiet.as_mut().poll(cx).is_ready() {
            if self.carried.elapsed() >= idle {
                return Poll::Ready(());
            }
            quiet.as_mut().reset(self.carried + idle);
        }
        Poll::Pending
    }
}

/// Copies all bytes of the slices, if they fit. Returns whether it did.
fn copy_message(slices: &[IoSlice<'_>], message: &mut ReadBuf<'_>) -> bool {
    let fits = slices.iter().map(|slice| slice.len()).sum::<usize>() <= message.remaining();
    if fits {
        for slice in slices {
            message.put_slice(slice);
        }
    }
    fits
}

/// What the kernel has taken or given during one loan of the stack's memory.
#[derive(Default)]
struct Loan {
    bytes: usize,
    calls: usize,
}

impl Loan {
    fn is_used_up(&self) -> bool {
        self.bytes >= LOAN_BYTES || self.calls >= LOAN_CALLS
    }

    /// Writes slices to the kernel, as many as are left of the loan.
    fn write(&mut self, server: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let most = LOAN_BYTES - self.bytes;
        let mut len = 0;
        let whole = slices.iter().take_while(|slice| {
            len += slice.len();
            len <= most
        });
        let written = match (whole.count(), slices) {
            (0, [first, ..]) => server.try_write(&first[..most]),
            (count, slices) => server.try_write_vectored(&slices[..count]),
        };
        self.count(written)
    }

    fn count(&mut self, result: io::Result<usize>) -> io::Result<usize> {
        self.calls += 1;
        self.bytes += result.as_ref().map_or(0, |len| *len);
        result
    }
}

/// One direction, and the bytes on their way in it.
struct OneWay {
    /// Whether to use the stack's memory: until the stack returns `Unsupported`, or the reader has ended.
    lends: bool,
    /// Allocated on first use.
    buffer: Box<[u8]>,
    waiting: Range<usize>,
    stage: Stage,
    /// The error that the reader reports as an end of file.
    broken: Option<io::ErrorKind>,
    /// Whether bytes were carried since this was last looked at.
    has_carried: bool,
    /// Whether more bytes than a message came last. At first the stack is asked whether it lends its memory.
    is_bulk: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Carrying,
    /// The reader has ended, and the writer must be shut down.
    Closing,
    Closed,
}

impl OneWay {
    fn new() -> Self {
        Self {
            lends: true,
            buffer: Box::default(),
            waiting: 0..0,
            stage: Stage::Carrying,
            broken: None,
            has_carried: false,
            is_bulk: true,
        }
    }

    /// Handles the result of a call with lent memory. `refused`: the kernel was not ready. `None`: call again.
    fn lent(&mut self, polled: Poll<io::Result<usize>>, refused: bool) -> Option<Poll<io::Result<()>>> {
        match polled {
            // The caller polls the kernel next, which arranges the wake-up.
            Poll::Pending if refused => {}
            Poll::Pending => return Some(Poll::Pending),
            Poll::Ready(Ok(0)) => {
                self.lends = false;
                self.stage = Stage::Closing;
            }
            Poll::Ready(Ok(_)) => self.has_carried = true,
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Unsupported => self.lends = false,
            Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
        }
        None
    }

    /// Carries bytes through the buffer. Ready once the writer has been shut down after the last byte. `broken`: the error
    /// that the reader has reported as an end of file.
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        broken: impl Fn() -> Option<io::ErrorKind>,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            ready!(self.poll_waiting(cx, writer))?;
            match self.stage {
                Stage::Carrying => ready!(self.poll_fill(cx, reader))?,
                Stage::Closing => {
                    if let Some(kind) = broken() {
                        return Poll::Ready(Err(kind.into()));
                    }
                    ready!(Pin::new(&mut *writer).poll_shutdown(cx))?;
                    self.stage = Stage::Closed;
                }
                Stage::Closed => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Ready once the writer has taken the bytes on their way.
    fn poll_waiting<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, writer: &mut W) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let len = ready!(Pin::new(&mut *writer).poll_write(cx, &self.buffer[self.waiting.clone()]))?;
            if len == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.start += len;
            self.has_carried = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Carries a message. The writer takes the rest of it later.
    fn poll_message<R, W>(&mut self, cx: &mut Context<'_>, reader: &mut R, writer: &mut W) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut room = [MaybeUninit::uninit(); MESSAGE_BYTES];
        let mut message = ReadBuf::uninit(&mut room);
        ready!(Pin::new(reader).poll_read(cx, &mut message))?;
        self.is_bulk = message.remaining() == 0;
        let mut bytes = message.filled();
        if bytes.is_empty() {
            (self.lends, self.stage) = (false, Stage::Closing);
        } else if let Poll::Ready(written) = Pin::new(writer).poll_write(cx, bytes) {
            bytes = &bytes[written?..];
        }
        self.keep(bytes);
        self.has_carried |= !message.filled().is_empty();
        Poll::Ready(Ok(()))
    }

    fn keep(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            (self.buffer, self.waiting) = (bytes.into(), 0..bytes.len());
        }
    }

    fn poll_fill<R: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, reader: &mut R) -> Poll<io::Result<()>> {
        if self.buffer.len() < BUFFER_BYTES {
            self.buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        }
        let mut buffer = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(reader).poll_read(cx, &mut buffer))?;
        self.waiting = 0..buffer.filled().len();
        if self.waiting.is_empty() {
            self.stage = Stage::Closing;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// The stack is locked during a loan, and its other connections wait: however much has arrived, and in however small
    /// pieces, the kernel gets a bounded part of it.
    #[tokio::test]
    async fn a_loan_is_bounded_in_bytes_and_calls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let _accepted = listener.accept().await.unwrap();
        server.writable().await.unwrap();
        let bytes = vec![7; 8 << 20];
        for slice_len in [1, 1000, LOAN_BYTES / 2 + 1, bytes.len()] {
            let (mut loan, mut written, mut calls) = (Loan::default(), 0, 0);
            while !loan.is_used_up() {
                let mut slices = bytes[written..].chunks(slice_len).map(IoSlice::new);
                let slices: Vec<_> = slices.by_ref().take(16).collect();
                match loan.write(&server, &slices) {
                    Ok(len) => written += len,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
                calls += 1;
            }
            assert!(written <= LOAN_BYTES && calls <= LOAN_CALLS, "{written} bytes in {calls} calls");
        }
    }
}
