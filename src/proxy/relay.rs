//! Carries the bytes of a connection between the stack and the kernel.

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use netstacks::Stream;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Bytes that are read before they are written: few enough to stay in a processor's cache in between.
const BUFFER_BYTES: usize = 256 << 10;

/// Carries bytes both ways until both ends have closed. A half that closes is closed at the other end; where
/// an end is reset or fails, or nothing is carried for too long, both are reset.
pub(super) async fn relay<S: Stream>(mut client: S, mut server: TcpStream, idle: Duration) {
    let mut both = BothWays { up: OneWay::new(), refused: false, down: OneWay::new(), carried: Instant::now() };
    let mut quiet = std::pin::pin!(tokio::time::sleep(idle));
    let ended = poll_fn(|cx| {
        if let Poll::Ready(ended) = both.poll(cx, &mut client, &mut server) {
            return Poll::Ready(ended);
        }
        both.poll_quiet(cx, quiet.as_mut(), idle).map(|()| Err(io::ErrorKind::TimedOut.into()))
    })
    .await;
    if ended.is_err() {
        // The kernel sends a RST for a socket that is closed and does not linger.
        let _closed = SockRef::from(&server).set_linger(Some(Duration::ZERO));
        client.reset();
    }
}

struct BothWays {
    up: OneWay,
    /// The server takes no more, but may have said something before.
    refused: bool,
    down: OneWay,
    /// When a byte was carried last.
    carried: Instant,
}

impl BothWays {
    /// Ready with the end of both ways, or with a failure.
    fn poll<S: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S,
        server: &mut TcpStream,
    ) -> Poll<io::Result<()>> {
        let before = self.up.carried + self.down.carried;
        let up = self.poll_up(cx, client, server)?;
        let down = self.poll_down(cx, client, server)?;
        if self.up.carried + self.down.carried != before {
            self.carried = Instant::now();
        }
        match (up, down) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            // The server's last words have been passed on.
            (_, Poll::Ready(())) if self.refused => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            // Its bytes may wait for the server, or for nobody.
            _ if client.has_failed() => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            _ => Poll::Pending,
        }
    }

    /// From the stack to the kernel, which takes the bytes where the stack keeps them, if that lends them.
    fn poll_up<S: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S,
        server: &mut TcpStream,
    ) -> Poll<io::Result<()>> {
        while self.up.lends && !self.refused {
            ready!(server.poll_write_ready(cx))?;
            let mut full = false;
            let polled = client.poll_read_with(cx, &mut |slices| {
                server.try_write_vectored(slices).inspect_err(|error| match error.kind() {
                    io::ErrorKind::WouldBlock => full = true,
                    // A reset that came behind the server's FIN.
                    io::ErrorKind::BrokenPipe => self.refused = true,
                    // The kernel says it once: a read finds an end behind the last bytes.
                    kind => (self.refused, self.down.broken) = (true, Some(kind)),
                })
            });
            if let Some(ended) = self.up.lent(polled, full)
                && !self.refused
            {
                return ended;
            }
        }
        if self.refused { Poll::Pending } else { self.up.poll(cx, client, server) }
    }

    /// From the kernel, which puts the bytes where the stack sends them from, if that lends the room, to the stack.
    fn poll_down<S: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S,
        server: &mut TcpStream,
    ) -> Poll<io::Result<()>> {
        while self.down.lends {
            ready!(server.poll_read_ready(cx))?;
            // A read that is short has tokio wait for the kernel, where a `try_read` would be tried again.
            let mut kernel = Context::from_waker(cx.waker());
            let (mut empty, mut failed) = (false, None);
            let polled = client.poll_write_with(cx, &mut |room| {
                let mut buffer = ReadBuf::new(room);
                match Pin::new(&mut *server).poll_read(&mut kernel, &mut buffer) {
                    Poll::Ready(Ok(())) => return Ok(buffer.filled().len()),
                    Poll::Ready(Err(error)) => failed = Some(error.kind()),
                    Poll::Pending => empty = true,
                }
                Err(io::ErrorKind::WouldBlock.into())
            });
            let ended = self.down.lent(polled, empty);
            // The kernel says it once, be it behind other bytes.
            if let Some(kind) = failed {
                return Poll::Ready(Err(kind.into()));
            }
            if let Some(ended) = ended {
                return ended;
            }
        }
        self.down.poll(cx, server, client)
    }

    /// Ready once nothing has been carried for so long. The timer is moved only when it fires.
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

/// What is on its way in one direction.
struct OneWay {
    /// The stack lends its memory, as far as is known, and there is no end yet.
    lends: bool,
    /// Allocated when there is something to carry.
    buffer: Box<[u8]>,
    waiting: Range<usize>,
    stage: Stage,
    /// The error that the reader's end stands for, where it is no end.
    broken: Option<io::ErrorKind>,
    /// Bytes so far.
    carried: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Carrying,
    /// The reader is at its end, and the writer is to hear of it.
    Closing,
    Closed,
}

impl OneWay {
    fn new() -> Self {
        Self { lends: true, buffer: Box::default(), waiting: 0..0, stage: Stage::Carrying, broken: None, carried: 0 }
    }

    /// What became of memory that was lent, and whether the kernel refused it: `None` where the way goes on.
    fn lent(&mut self, polled: Poll<io::Result<usize>>, refused: bool) -> Option<Poll<io::Result<()>>> {
        match polled {
            // Who waits for the kernel is woken by it, too.
            Poll::Pending if refused => {}
            Poll::Pending => return Some(Poll::Pending),
            Poll::Ready(Ok(0)) => {
                self.lends = false;
                self.stage = Stage::Closing;
            }
            Poll::Ready(Ok(len)) => self.carried += len as u64,
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Unsupported => self.lends = false,
            Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
        }
        None
    }

    /// Ready once the writer has been closed behind the last byte.
    fn poll<R, W>(&mut self, cx: &mut Context<'_>, reader: &mut R, writer: &mut W) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            while !self.waiting.is_empty() {
                let len = ready!(Pin::new(&mut *writer).poll_write(cx, &self.buffer[self.waiting.clone()]))?;
                if len == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.waiting.start += len;
                self.carried += len as u64;
            }
            match self.stage {
                Stage::Carrying => ready!(self.poll_fill(cx, reader))?,
                Stage::Closing => {
                    if let Some(kind) = self.broken {
                        return Poll::Ready(Err(kind.into()));
                    }
                    ready!(Pin::new(&mut *writer).poll_shutdown(cx))?;
                    self.stage = Stage::Closed;
                }
                Stage::Closed => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_fill<R: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, reader: &mut R) -> Poll<io::Result<()>> {
        if self.buffer.is_empty() {
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
