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

/// Bytes that are read before they are written: what stays in a processor's cache between the two.
const BUFFER_BYTES: usize = 256 << 10;

/// Carries bytes both ways until both ends have closed. A half that closes is closed at the other end; where
/// an end is reset or fails, or nothing is carried for too long, both are reset.
pub(crate) async fn relay<S: Stream>(mut client: S, mut server: TcpStream, idle: Duration) {
    let mut both = BothWays {
        up: Up { lends: true, refused: false, rest: OneWay::new() },
        down: Down { lends: true, rest: OneWay::new() },
        carried: Instant::now(),
    };
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
    up: Up,
    down: Down,
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
        let before = self.up.rest.carried + self.down.rest.carried;
        let up = self.up.poll(cx, client, server)?;
        let down = self.down.poll(cx, client, server)?;
        if self.up.rest.carried + self.down.rest.carried != before {
            self.carried = Instant::now();
        }
        match (up, down) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            // The server's last words have been passed on.
            (_, Poll::Ready(())) if self.up.refused => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            // Its bytes may wait for the server, or for nobody.
            _ if client.has_failed() => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            _ => Poll::Pending,
        }
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

/// From the stack to the kernel, which takes the bytes where the stack keeps them, if that lends them.
struct Up {
    lends: bool,
    /// The server takes no more, but may have said something before.
    refused: bool,
    /// What is left to do otherwise, and at the end.
    rest: OneWay,
}

impl Up {
    fn poll<S: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S,
        server: &mut TcpStream,
    ) -> Poll<io::Result<()>> {
        while self.lends && !self.refused {
            ready!(server.poll_write_ready(cx))?;
            let mut full = false;
            let polled = client.poll_lend(cx, &mut |slices| {
                server.try_write_vectored(slices).inspect_err(|error| match error.kind() {
                    io::ErrorKind::WouldBlock => full = true,
                    _ => self.refused = true,
                })
            });
            match polled {
                // Who waits for the kernel is woken by it, too.
                Poll::Pending if full => {}
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    self.lends = false;
                    self.rest.stage = Stage::Closing;
                }
                Poll::Ready(Ok(len)) => self.rest.carried += len as u64,
                Poll::Ready(Err(_)) if self.refused => {}
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Unsupported => self.lends = false,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        if self.refused {
            return Poll::Pending;
        }
        self.rest.poll(cx, client, server)
    }
}

/// From the kernel, which puts the bytes where the stack sends them from, if that lends the room, to the stack.
struct Down {
    lends: bool,
    /// What is left to do otherwise, and at the end.
    rest: OneWay,
}

impl Down {
    fn poll<S: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S,
        server: &mut TcpStream,
    ) -> Poll<io::Result<()>> {
        while self.lends {
            ready!(server.poll_read_ready(cx))?;
            let mut empty = false;
            let polled = client.poll_fill(cx, &mut |room| {
                server.try_read(room).inspect_err(|error| empty = error.kind() == io::ErrorKind::WouldBlock)
            });
            match polled {
                // Who waits for the kernel is woken by it, too.
                Poll::Pending if empty => {}
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    self.lends = false;
                    self.rest.stage = Stage::Closing;
                }
                Poll::Ready(Ok(len)) => self.rest.carried += len as u64,
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Unsupported => self.lends = false,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        self.rest.poll(cx, server, client)
    }
}

/// What is on its way in one direction.
struct OneWay {
    /// Allocated when there is something to carry.
    buffer: Box<[u8]>,
    waiting: Range<usize>,
    stage: Stage,
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
        Self { buffer: Box::default(), waiting: 0..0, stage: Stage::Carrying, carried: 0 }
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
