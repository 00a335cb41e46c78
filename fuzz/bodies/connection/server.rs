//! The application of the connections.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use netstacks::{Listener, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::client::pattern;

/// How long an order may wait for the stack.
const PATIENCE: Duration = Duration::from_millis(1);
/// Bytes that the server writes at the end.
const LAST: u32 = 1_000;

pub(super) enum Order {
    Read(usize),
    Write(usize),
    /// Read all that comes, until the next order.
    ReadAll,
    Shutdown,
    Drop,
    Reset,
    /// Read to the end, write the last bytes, and close.
    Finish,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    #[default]
    Open,
    Closed,
    Failed(io::ErrorKind),
    /// Dropped or reset by order.
    Gone,
}

/// The progress of the application with a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    pub(super) read: u32,
    pub(super) wrote: u32,
    pub(super) end: End,
}

#[derive(Default)]
struct Shared {
    /// The last connection of each address.
    orders: HashMap<SocketAddr, mpsc::UnboundedSender<Order>>,
    records: HashMap<u8, Record>,
    /// Addresses of clients that were dropped or reset before their number was known.
    strangers: HashSet<SocketAddr>,
    wrong: Option<String>,
    /// Whether a changed segment had a checksum that the stack accepts.
    may_be_wrong: bool,
    is_finishing: bool,
}

pub(super) struct Server {
    shared: Arc<Mutex<Shared>>,
    accepting: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    pub(super) fn new(listener: impl Listener) -> Self {
        let shared = Arc::<Mutex<Shared>>::default();
        let (accepting, accepts) = watch::channel(true);
        let task = tokio::spawn(accept(listener, accepts, Arc::clone(&shared)));
        Self { shared, accepting, task }
    }

    pub(super) fn accept(&self, accepts: bool) {
        let _same = self.accepting.send_replace(accepts);
    }

    pub(super) fn is_accepting(&self) -> bool {
        *self.accepting.borrow()
    }

    pub(super) fn order(&self, client: SocketAddr, order: Order) {
        if let Some(orders) = lock(&self.shared).orders.get(&client) {
            let _ended = orders.send(order);
        }
    }

    pub(super) fn tolerate_wrong_bytes(&self) {
        lock(&self.shared).may_be_wrong = true;
    }

    pub(super) fn finish(&self) {
        self.accept(true);
        let mut shared = lock(&self.shared);
        shared.is_finishing = true;
        for orders in shared.orders.values() {
            let _ended = orders.send(Order::Finish);
        }
    }

    pub(super) fn record(&self, id: u8, address: SocketAddr) -> Record {
        assert!(!self.task.is_finished(), "the listener has ended");
        let shared = lock(&self.shared);
        assert!(shared.may_be_wrong || shared.wrong.is_none(), "{:?}", shared.wrong);
        let end = if shared.strangers.contains(&address) { End::Gone } else { End::Open };
        shared.records.get(&id).copied().unwrap_or(Record { end, ..Record::default() })
    }

    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap()
}

async fn accept(mut listener: impl Listener, mut accepts: watch::Receiver<bool>, shared: Arc<Mutex<Shared>>) {
    loop {
        accepts.wait_for(|accepts| *accepts).await.unwrap();
        let stream = listener.accept().await.unwrap();
        let (orders, receiver) = mpsc::unbounded_channel();
        let mut locked = lock(&shared);
        if locked.is_finishing {
            orders.send(Order::Finish).unwrap();
        }
        locked.orders.insert(stream.peer_addr(), orders);
        drop(locked);
        let app = App { stream, id: None, record: Record::default(), shared: Arc::clone(&shared) };
        tokio::spawn(app.run(receiver));
    }
}

struct App<S> {
    stream: S,
    id: Option<u8>,
    record: Record,
    shared: Arc<Mutex<Shared>>,
}

impl<S: Stream> App<S> {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut reads_all = false;
        loop {
            let order = tokio::select! {
                biased;
                order = orders.recv() => order,
                more = self.read(4_096), if reads_all => {
                    if more == 0 {
                        reads_all = false;
                    }
                    continue;
                }
            };
            reads_all = false;
            match order {
                Some(Order::Read(len)) => drop(timeout(PATIENCE, self.read(len)).await),
                Some(Order::Write(len)) => drop(timeout(PATIENCE, self.write(len as u32)).await),
                Some(Order::ReadAll) => reads_all = true,
                Some(Order::Shutdown) => {
                    let _later = timeout(PATIENCE, self.stream.shutdown()).await;
                    return self.close().await;
                }
                Some(Order::Finish) => {
                    while self.read(4_096).await > 0 {}
                    self.write(LAST).await;
                    return self.close().await;
                }
                Some(Order::Reset) => {
                    self.end(End::Gone);
                    return self.stream.reset();
                }
                Some(Order::Drop) | None => return self.end(End::Gone),
            }
        }
    }

    /// Reads to the end, and closes.
    async fn close(&mut self) {
        while self.read(4_096).await > 0 {}
        match self.stream.shutdown().await {
            Ok(()) => self.end(End::Closed),
            Err(error) => self.end(End::Failed(error.kind())),
        }
    }

    /// Reads at most so many bytes, and returns how many. 0 is the end, or a failure.
    async fn read(&mut self, len: usize) -> usize {
        let mut buffer = vec![0; len.clamp(1, 8_192)];
        let len = match self.stream.read(&mut buffer).await {
            Ok(len) => len,
            Err(error) => {
                self.end(End::Failed(error.kind()));
                0
            }
        };
        for byte in &buffer[..len] {
            let id = *self.id.get_or_insert(*byte);
            if *byte != pattern(id, self.record.read, false) {
                // A panic would end this task alone.
                lock(&self.shared).wrong = Some(format!("byte {} of client {id} is wrong", self.record.read));
            }
            self.record.read += 1;
        }
        self.note();
        len
    }

    /// Writes so many bytes, once the client's number is known.
    async fn write(&mut self, len: u32) {
        let Some(id) = self.id else { return };
        let end = self.record.wrote + len.min(20_000);
        while self.record.wrote < end {
            let bytes: Vec<u8> = (self.record.wrote..end).map(|at| pattern(id, at, true)).collect();
            match self.stream.write(&bytes).await {
                Ok(len) => self.record.wrote += len as u32,
                Err(error) => return self.end(End::Failed(error.kind())),
            }
            self.note();
        }
    }

    fn end(&mut self, end: End) {
        if self.record.end == End::Open {
            self.record.end = end;
        }
        self.note();
    }

    fn note(&self) {
        let mut shared = lock(&self.shared);
        if let Some(id) = self.id {
            shared.records.insert(id, self.record);
        } else if self.record.end == End::Gone {
            shared.strangers.insert(self.stream.peer_addr());
        }
    }
}
