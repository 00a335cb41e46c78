//! A stack in another process, with the application in this one. docs/external-stack.md, "Conformance", describes the
//! lines that the two exchange.

use std::collections::HashMap;
use std::future;
use std::io::{self, BufRead, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use netstacks::{Datagram, Datagrams, Listener, StackConfig, StackKind, Stream};
use platform::{Child, NotReady, Program, Worker, line, read_line};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::oneshot;

use crate::protocol::{Device, Ready, Task};
use crate::server::Running;

/// How long the process may take to confirm that it has sent a datagram.
const SENT: Duration = Duration::from_secs(1);

/// The most bytes of one write order.
const MAX_WRITE: usize = 64 << 10;

/// The load of a process: none but the orders of the application.
#[derive(Serialize)]
struct Load {
    streams: [(); 0],
    requests: Option<()>,
    application: Application,
}

#[derive(Serialize)]
struct Application {
    backlog: usize,
    user_timeout_seconds: f64,
}

/// A line to the process: an operation of the application.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    Read { connection: u64, bytes: usize },
    Write { connection: u64, data: String },
    Shutdown { connection: u64 },
    Reset { connection: u64 },
    Close { connection: u64 },
    Refuse,
    Datagram { local: SocketAddr, peer: SocketAddr, data: String },
}

/// A line from the process, after the one that says that it is ready.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    Accepted { connection: u64, local: SocketAddr, peer: SocketAddr },
    Read { connection: u64, data: Option<String>, error: Option<String> },
    Written { connection: u64, error: Option<String> },
    Sent { error: Option<String> },
    Datagram { local: SocketAddr, peer: SocketAddr, data: String },
}

/// Starts the process and waits until it has opened its device. Then calls `set_up` for the device. The process ends with
/// the calling thread at the latest, which must not be a thread of the runtime.
pub(crate) fn start(
    (stack, program): (StackKind, &Program),
    device: Device<'_>,
    config: &StackConfig,
    runtime: &Handle,
    set_up: impl FnOnce() -> Result<(), platform::Error>,
) -> io::Result<Running> {
    let _entered = runtime.enter();
    let (accepted, listener) = unbounded_channel();
    let (arrived, datagrams) = channel(netstacks::MAX_WAITING_DATAGRAMS);
    let (sent, answers) = blocking::channel();
    let (ended, end) = oneshot::channel();
    let application = Application { backlog: config.backlog, user_timeout_seconds: config.user_timeout.as_secs_f64() };
    let load = Load { streams: [], requests: None, application };
    let task = line(&Task::new(device, None, (stack, config), load));
    let worker = Worker::listen(program.command(), None, task, move |orders, mut stdout| {
        let mut listening =
            Listening { orders: Orders(Some(orders)), accepted, arrived, sent, streams: HashMap::new() };
        let _nobody_waits = ended.send(listening.listen(&mut stdout));
    });
    let path = program.path.display();
    let worker = worker.map_err(|error| io::Error::other(format!("start {path}: {error}")))?;
    let ready = runtime.block_on(worker.ready(future::pending::<()>()));
    let no_start = |why: NotReady| io::Error::other(format!("the stack's process does not start: {why}"));
    let (process, Ready { offload, effective }) = ready.map_err(no_start)?;
    if let Err(error) = begin(offload, device, &process, set_up) {
        // The next case uses the same device, so this waits until the process has closed it.
        runtime.block_on(process.kill());
        return Err(error);
    }
    let orders = Orders(Some(process.orders()));
    Ok(Running {
        listener: Box::new(Accepting { orders: orders.clone(), accepted: listener }),
        datagrams: Box::new(Socket(Arc::new(Inner {
            orders,
            arrived: tokio::sync::Mutex::new(datagrams),
            answers: Mutex::new(Some(answers)),
        }))),
        driver: Box::pin(async { end.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())) }),
        effective,
        process: Some(process),
    })
}

/// Tells a process that is ready to begin, once its device is set up.
fn begin(
    offloads: bool,
    device: Device<'_>,
    process: &Child,
    set_up: impl FnOnce() -> Result<(), platform::Error>,
) -> io::Result<()> {
    if device.offload && !offloads {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the process opens its device without offload"));
    }
    set_up().map_err(io::Error::other)?;
    process.begin()
}

/// The orders of the application; `None` without a process.
#[derive(Clone)]
struct Orders(Option<platform::Orders>);

impl Orders {
    fn write(&self, order: &impl Serialize) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |orders| orders.send(line(order)))
    }
}

/// The results of the reads and writes of a connection.
struct Answers {
    read: UnboundedSender<io::Result<Vec<u8>>>,
    written: UnboundedSender<io::Result<()>>,
}

/// Reads the standard output of the process.
struct Listening {
    orders: Orders,
    accepted: UnboundedSender<Connection>,
    arrived: Sender<(Vec<u8>, Datagram)>,
    sent: blocking::Sender<io::Result<()>>,
    streams: HashMap<u64, Answers>,
}

impl Listening {
    /// Passes each line to its receiver. A line without a receiver is dropped.
    fn listen(&mut self, stdout: &mut impl BufRead) -> io::Result<()> {
        loop {
            let line = read_line(stdout)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            match serde_json::from_str(&line)? {
                Event::Accepted { connection, local, peer } => {
                    let ((read, reads), (written, writes)) = (unbounded_channel(), unbounded_channel());
                    self.streams.insert(connection, Answers { read, written });
                    let orders = self.orders.clone();
                    let addresses = [local, peer];
                    let left = io::Cursor::default();
                    let stream =
                        Connection { orders, id: connection, addresses, reads, left, asked: false, writes, writing: 0 };
                    drop(self.accepted.send(stream));
                }
                Event::Read { connection, data, error } => {
                    let result = match error {
                        None => decode(data.as_deref().unwrap_or_default()),
                        Some(error) => Err(named(error)),
                    };
                    drop(self.streams.get(&connection).map(|answers| answers.read.send(result)));
                }
                Event::Written { connection, error } => {
                    let result = error.map_or(Ok(()), |error| Err(named(error)));
                    drop(self.streams.get(&connection).map(|answers| answers.written.send(result)));
                }
                Event::Sent { error } => drop(self.sent.send(error.map_or(Ok(()), |error| Err(named(error))))),
                Event::Datagram { local, peer, data } => {
                    let payload = decode(&data)?;
                    let datagram = Datagram { len: payload.len(), local, peer };
                    // A datagram beyond the bound is dropped.
                    drop(self.arrived.try_send((payload, datagram)));
                }
            }
        }
    }
}

/// Reads bytes as the output of a process, for the fuzz targets alone. Returns how many connections it accepted, how many
/// datagrams arrived, and why it ended.
#[doc(hidden)]
pub fn read_output(mut output: &[u8]) -> (usize, usize, io::Error) {
    let (sent, _answers) = blocking::channel();
    let (accepted, mut connections) = unbounded_channel();
    let (arrived, mut datagrams) = channel(netstacks::MAX_WAITING_DATAGRAMS);
    let mut listening = Listening { orders: Orders(None), accepted, arrived, sent, streams: HashMap::new() };
    let end = listening.listen(&mut output).err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
    drop(listening);
    let connections = std::iter::from_fn(|| connections.try_recv().ok()).count();
    (connections, std::iter::from_fn(|| datagrams.try_recv().ok()).count(), end)
}

fn decode(data: &str) -> io::Result<Vec<u8>> {
    STANDARD.decode(data).map_err(io::Error::other)
}

/// Returns the error that a name of the protocol stands for.
fn named(error: String) -> io::Error {
    match error.as_str() {
        "reset" => io::ErrorKind::ConnectionReset.into(),
        "timed_out" => io::ErrorKind::TimedOut.into(),
        "too_large" => io::ErrorKind::InvalidInput.into(),
        _ => io::Error::other(error),
    }
}

/// Returns the connections that the process has accepted. When this is dropped, the process refuses further ones.
struct Accepting {
    orders: Orders,
    accepted: UnboundedReceiver<Connection>,
}

impl Listener for Accepting {
    type Stream = Connection;

    async fn accept(&mut self) -> io::Result<Connection> {
        self.accepted.recv().await.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        let _unheard = self.orders.write(&Order::Refuse);
    }
}

/// A connection of the process. The process reads only as many bytes as it is told to.
struct Connection {
    orders: Orders,
    id: u64,
    addresses: [SocketAddr; 2],
    reads: UnboundedReceiver<io::Result<Vec<u8>>>,
    /// Bytes that the process has read, and the application has not.
    left: io::Cursor<Vec<u8>>,
    /// Whether a read order is outstanding.
    asked: bool,
    writes: UnboundedReceiver<io::Result<()>>,
    /// Bytes of the outstanding write order; 1 for a shutdown, 0 if there is none.
    writing: usize,
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let connection = self.id;
        if self.left.position() == self.left.get_ref().len() as u64 {
            if !self.asked {
                self.orders.write(&Order::Read { connection, bytes: buffer.remaining() })?;
                self.asked = true;
            }
            let bytes = ready!(self.reads.poll_recv(cx)).unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
            self.asked = false;
            self.left = io::Cursor::new(bytes?);
        }
        let len = self.left.read(buffer.initialize_unfilled())?;
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl Connection {
    /// Waits for the result of the outstanding order. If there is none, writes the order first.
    fn poll_written(
        &mut self,
        cx: &mut Context<'_>,
        bytes: usize,
        order: impl FnOnce() -> Order,
    ) -> Poll<io::Result<usize>> {
        if self.writing == 0 {
            self.orders.write(&order())?;
            self.writing = bytes;
        }
        let result = ready!(self.writes.poll_recv(cx)).unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
        let written = std::mem::take(&mut self.writing);
        Poll::Ready(result.map(|()| written))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let connection = self.id;
        let bytes = &bytes[..bytes.len().min(MAX_WRITE)];
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_written(cx, bytes.len(), || Order::Write { connection, data: STANDARD.encode(bytes) })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = self.id;
        self.poll_written(cx, 1, || Order::Shutdown { connection }).map_ok(|_| ())
    }
}

impl Stream for Connection {
    fn local_addr(&self) -> SocketAddr {
        self.addresses[0]
    }

    fn peer_addr(&self) -> SocketAddr {
        self.addresses[1]
    }

    fn reset(self) {
        let _unheard = self.orders.write(&Order::Reset { connection: self.id });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // After a reset this changes nothing.
        let _unheard = self.orders.write(&Order::Close { connection: self.id });
    }
}

/// The datagrams of the process.
#[derive(Clone)]
struct Socket(Arc<Inner>);

struct Inner {
    orders: Orders,
    arrived: tokio::sync::Mutex<Receiver<(Vec<u8>, Datagram)>>,
    /// `None` after an answer was late: it would be taken for the answer to the next datagram.
    answers: Mutex<Option<blocking::Receiver<io::Result<()>>>>,
}

impl Datagrams for Socket {
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let next = self.0.arrived.lock().await.recv().await;
        let (payload, datagram) = next.ok_or(io::ErrorKind::BrokenPipe)?;
        let len = payload.len().min(buffer.len());
        buffer[..len].copy_from_slice(&payload[..len]);
        Ok(Datagram { len, ..datagram })
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let mut answers = self.0.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.orders.write(&Order::Datagram { local, peer, data: STANDARD.encode(payload) })?;
        let answer = answers.as_ref().and_then(|answers| answers.recv_timeout(SENT).ok());
        answer.unwrap_or_else(|| {
            *answers = None;
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use platform::MAX_OUTPUT;

    use super::*;

    /// A process must not take the memory of the run by a line without end.
    #[test]
    fn output_without_an_end_has_a_limit() {
        // The blanks before an event are a part of its line.
        let event = br#"{"accepted":{"connection":1,"local":"10.2.0.2:5201","peer":"10.1.0.2:40000"}}"#;
        let connections = |blanks: usize| read_output(&[&vec![b' '; blanks], event.as_slice()].concat()).0;
        assert_eq!([connections(MAX_OUTPUT - event.len()), connections(MAX_OUTPUT)], [1, 0]);
    }
}
