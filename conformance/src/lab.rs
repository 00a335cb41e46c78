//! Runs a case: starts the stack on one end of a link, and gives the case the other end.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use netstacks::{Datagram, Effective, StackConfig, StackKind, StartError, Workarounds};
use platform::{Child, Link, Program};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::{Client, Offer};
use crate::kernel;
use crate::link::{self, AnyLink, Side};
use crate::process;
use crate::protocol::Device;
use crate::recording::Recording;
use crate::server::{AnyDatagrams, AnyListener, Running, Served, Start, Then};
use crate::wire::{Arrived, Message, Segment, Wire};
use crate::{Case, Layer, Outcome, Ran, Run, Step, Stop, applies, check, same};

/// Timeout of an answer that is due at once.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// Timeout of an answer that may need a retransmission or two.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// Limit of every case. None takes as long.
const DEADLINE: Duration = Duration::from_secs(40);

/// How long to wait for the end of the previous stack, if only one can run in a process.
const TURN: Duration = Duration::from_secs(5);

/// How many times longer than usual the cases wait for something that has to come: `CONFORMANCE_PATIENCE`, a number from
/// 1, which is the default, to 100. An emulated processor needs it.
pub fn patience() -> u32 {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let read = || std::env::var("CONFORMANCE_PATIENCE").ok().and_then(|factor| factor.parse().ok());
    *FACTOR.get_or_init(|| read().unwrap_or(1).clamp(1, 100))
}

/// The limit of a wait for something that has to come. Waits in which nothing may come are as long as they are written.
pub(crate) fn patient(limit: Duration) -> Duration {
    limit * patience()
}

/// Size of the stack's receive buffer and of its send buffer in bytes, if the case sets no other.
pub(crate) const WINDOW: usize = 256 << 10;

/// The port of the first client.
const FIRST_PORT: u16 = 40_000;

/// Runs a case. A stack that does not start fails the case, and so does one that hangs or panics. A program that does not
/// start is unavailable.
pub fn run(case: &Case, run: Run) -> Ran {
    if let Some(needed) = case.offload().filter(|needed| *needed != run.offload) {
        let why = if needed { "needs a link that offloads" } else { "makes no sense with offload" };
        return Ran::of(Outcome::NotApplicable(why.to_owned()), None);
    }
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(1);
    let (result, effective) = perform(case.id, runtime, case.ipv6, run, case.run);
    let outcome = match result {
        Ok(()) => Outcome::Pass,
        Err(Stop::Fail(seen)) => Outcome::Fail(seen),
        Err(Stop::NotApplicable(why)) => Outcome::NotApplicable(why),
        Err(Stop::Unavailable(why)) => Outcome::Unavailable(why),
    };
    Ran::of(outcome, effective)
}

/// Runs a script that starts a stack, on a thread and a runtime of its own. Fails if one of them hangs or panics. Also
/// returns the settings of the stack.
pub(crate) fn perform<T: Send + 'static>(
    name: &str,
    runtime: Builder,
    ipv6: bool,
    run: Run,
    script: impl FnOnce(&Setup) -> Step<T> + Send + 'static,
) -> (Step<T>, Option<Effective>) {
    let (done, result) = mpsc::channel();
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _nobody_waits = done.send(within_deadline(runtime, ipv6, run, script));
    });
    let failed = |seen: &str| (Err(Stop::fail(seen)), None);
    let Ok(thread) = spawned else { return failed("there is no thread for the case") };
    match result.recv_timeout(patient(DEADLINE)) {
        Ok(ran) => {
            let _ended = thread.join();
            ran
        }
        Err(mpsc::RecvTimeoutError::Timeout) => failed(&format!("it did not end within {:?}", patient(DEADLINE))),
        Err(mpsc::RecvTimeoutError::Disconnected) => failed("the stack or the case panicked"),
    }
}

fn within_deadline<T>(
    mut runtime: Builder,
    ipv6: bool,
    run: Run,
    script: impl FnOnce(&Setup) -> Step<T>,
) -> (Step<T>, Option<Effective>) {
    let Run { stack, program, layer, shards, offload, mtu, repairs, trace } = run;
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return (Err(Stop::fail(format!("no runtime: {error}"))), None),
    };
    let (trace, effective) = (RefCell::new(trace), RefCell::new(None));
    let setup = Setup { stack, program, layer, shards, offload, mtu, repairs, ipv6, trace, runtime, effective };
    let result = {
        let _entered = setup.runtime.enter();
        script(&setup)
    };
    let Setup { runtime, effective, .. } = setup;
    // This ends the tasks of the stack.
    runtime.shutdown_timeout(patient(SOON));
    (result, effective.into_inner())
}

impl Ran {
    pub(crate) fn of(outcome: Outcome, effective: Option<Effective>) -> Self {
        let version = effective.as_ref().map(|effective| effective.stack_version.to_string());
        let repairs = effective.map(|effective| effective.workarounds).unwrap_or_default();
        Self { outcome, version, repairs: repairs.into_iter().map(Into::into).collect() }
    }
}

/// Starts the stack of a case.
pub(crate) struct Setup {
    stack: StackKind,
    program: Option<Program>,
    layer: Layer,
    shards: u16,
    offload: bool,
    pub(crate) mtu: u16,
    repairs: Workarounds,
    pub(crate) ipv6: bool,
    trace: RefCell<Option<Recording>>,
    pub(crate) runtime: Runtime,
    effective: RefCell<Option<Effective>>,
}

impl Setup {
    /// Starts the stack.
    pub(crate) fn start(&self) -> Step<Lab> {
        self.start_with(|_| ())
    }

    /// Starts the stack, and opens a connection to it. Returns the client and the server's side, too.
    pub(crate) fn connect(&self) -> Step<(Lab, Client, Served)> {
        let mut lab = self.start()?;
        let (client, served) = lab.connect()?;
        Ok((lab, client, served))
    }

    /// Returns how many routers are between the peer and the stack. Each takes one from a packet's hop limit.
    pub(crate) fn routers(&self) -> u8 {
        u8::from(self.layer == Layer::Path && self.stack != StackKind::Kernel)
    }

    /// Ends the case if the backlog is divided between shards: then one may be full while another has room.
    pub(crate) fn needs_whole_backlog(&self) -> Step {
        applies(self.shards == 1, || "each shard has a part of the backlog".to_owned())
    }

    /// Starts the stack with another configuration.
    pub(crate) fn start_with(&self, change: impl FnOnce(&mut StackConfig)) -> Step<Lab> {
        let mut config =
            StackConfig { window: WINDOW, user_timeout: Duration::from_secs(20), ..StackConfig::default() };
        change(&mut config);
        config.workarounds = self.repairs;
        let (peer, running) = match &self.program {
            Some(program) => self.start_process(program, &config)?,
            None if self.stack == StackKind::Kernel => kernel::start(self.ipv6, self.offload, self.mtu, &config)
                .map_err(|error| Stop::fail(error.to_string()))?,
            None => self.start_here(&config)?,
        };
        let peer = match self.trace.take() {
            Some(trace) => peer.traced(trace),
            None => peer,
        };
        self.effective.borrow_mut().clone_from(&running.effective);
        Ok(Lab::new(peer, running, self.stack, self.runtime.handle(), self.ipv6))
    }

    /// Starts a stack in this process. Also returns the peer's end of its link.
    fn start_here(&self, config: &StackConfig) -> Step<(AnyLink, Running)> {
        let until = Instant::now() + patient(TURN);
        loop {
            let (links, peer) =
                link::ends(self.layer, self.shards, self.ipv6, self.offload, self.mtu).map_err(no_link)?;
            let start = Start { links, config: config.clone() };
            match self.stack.visit(start).map_err(|error| Stop::NotApplicable(error.to_string()))? {
                // The stack of the previous case has not ended yet.
                Err(StartError::AlreadyRunning(_)) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(5));
                }
                result => return Ok((peer, result.map_err(|error| Stop::fail(error.to_string()))?)),
            }
        }
    }

    /// Starts a stack in another process, which opens its device itself.
    fn start_process(&self, program: &Program, config: &StackConfig) -> Step<(AnyLink, Running)> {
        let peer = link::device(Side::Peer, self.ipv6, self.offload, self.mtu).map_err(no_link)?;
        let device = Device { name: Side::Stack.name(), mtu: self.mtu, offload: self.offload };
        let set_up = || link::set_up(Side::Stack, self.ipv6, self.mtu);
        match process::start((self.stack, program), device, config, self.runtime.handle(), set_up) {
            Ok(running) => Ok((peer, running)),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(Stop::NotApplicable(error.to_string())),
            Err(error) => Err(Stop::Unavailable(error.to_string())),
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is for map_err")]
fn no_link(error: platform::Error) -> Stop {
    Stop::fail(format!("there is no link: {error}"))
}

/// A running stack, and the peer's end of its link.
pub(crate) struct Lab {
    wire: Rc<RefCell<Wire>>,
    listener: Option<Box<dyn AnyListener>>,
    datagrams: Option<Box<dyn AnyDatagrams>>,
    driver: JoinHandle<io::Result<()>>,
    /// The stack's process, if it has one of its own.
    process: Option<Child>,
    runtime: Handle,
    pub(crate) verifies_checksums: bool,
    ipv6: bool,
    next_port: Cell<u16>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.driver.abort();
        // The next case uses the same device, so this waits until the process has closed it.
        drop(self.process.take().map(|process| self.runtime.block_on(process.kill())));
    }
}

impl Lab {
    pub(crate) fn new(peer: AnyLink, running: Running, stack: StackKind, runtime: &Handle, ipv6: bool) -> Self {
        let Running { listener, datagrams, driver, process, .. } = running;
        Self {
            // On a link that vouches for them, only the kernel itself does.
            verifies_checksums: stack == StackKind::Kernel || !peer.capabilities().checksum.rx,
            wire: Rc::new(RefCell::new(Wire::new(peer))),
            listener: Some(listener),
            datagrams: Some(datagrams),
            driver: runtime.spawn(driver),
            process,
            runtime: runtime.clone(),
            ipv6,
            next_port: Cell::new(FIRST_PORT),
        }
    }

    pub(crate) fn wire(&self) -> RefMut<'_, Wire> {
        self.wire.borrow_mut()
    }

    /// Fails if the stack has sent an invalid packet, or has ended.
    pub(crate) fn finish(self) -> Step {
        self.wire().take()?;
        if let Some(violation) = self.wire().violation.take() {
            return Err(Stop::Fail(violation));
        }
        check(!self.driver.is_finished(), || "the stack's driver has ended".to_owned())
    }

    /// The same, with a check that the stack still serves.
    pub(crate) fn finish_serving(mut self) -> Step {
        self.still_serves()?;
        self.finish()
    }

    /// The same, with an exchange on the connection that this client has opened.
    pub(crate) fn finish_opened(mut self, mut client: Client) -> Step {
        let mut served = self.accept()?;
        exchange(&mut client, &mut served)?;
        self.finish()
    }

    /// Ends the case if the stack need not verify checksums.
    pub(crate) fn needs_checksums(&self) -> Step {
        if self.verifies_checksums {
            return Ok(());
        }
        Err(Stop::NotApplicable("the link vouches for checksums, so that stacks need not verify them".to_owned()))
    }

    /// The server's address.
    pub(crate) fn server(&self) -> SocketAddr {
        let [server, ..] = link::stack_addresses(self.ipv6);
        server
    }

    /// Returns a client with a new port. It has sent nothing yet.
    pub(crate) fn client(&self) -> Client {
        self.client_to(self.server())
    }

    /// The same for another address of the stack.
    pub(crate) fn client_to(&self, server: SocketAddr) -> Client {
        let port = self.next_port.replace(self.next_port.get() + 1);
        self.client_from(SocketAddr::new(link::peer_ip(self.ipv6), port), server)
    }

    /// The same from any local address.
    pub(crate) fn client_from(&self, local: SocketAddr, server: SocketAddr) -> Client {
        Client::new(Rc::clone(&self.wire), local, server)
    }

    /// Returns the wire, to send packets while a client waits.
    pub(crate) fn messenger(&self) -> Rc<RefCell<Wire>> {
        Rc::clone(&self.wire)
    }

    /// Opens a connection. Returns the client and the server's side.
    pub(crate) fn connect(&mut self) -> Step<(Client, Served)> {
        self.connect_with(&Offer::default())
    }

    /// The same with other options in the SYN.
    pub(crate) fn connect_with(&mut self, offer: &Offer) -> Step<(Client, Served)> {
        let mut client = self.client();
        client.open(offer)?;
        Ok((client, self.accept()?))
    }

    /// The same with an MSS that fills the MTU. Ends the case if a super-packet has no room for two segments.
    pub(crate) fn connect_for_super_packets(&mut self) -> Step<(Client, Served)> {
        let mss = self.wire().capabilities().mtu - if self.ipv6 { 60 } else { 40 };
        applies(2 * mss <= usize::from(u16::MAX - 60), || "no super-packet has room for two segments".to_owned())?;
        self.connect_with(&Offer { mss: Some(mss as u16), ..Offer::default() })
    }

    /// Begins a connection. Returns the SYN+ACK, which the client has not answered.
    pub(crate) fn half_open(&self) -> Step<(Client, Segment)> {
        let mut client = self.client();
        client.syn(&Offer::default())?;
        let syn_ack = client.syn_ack(SOON)?;
        Ok((client, syn_ack))
    }

    /// Accepts a connection, or fails if none is there.
    pub(crate) fn accept(&mut self) -> Step<Served> {
        match self.accept_within(SOON)? {
            Some(served) => Ok(served),
            None => Err(Stop::fail("the listener returned no connection")),
        }
    }

    /// Accepts a connection, if one comes in time.
    pub(crate) fn accept_within(&mut self, within: Duration) -> Step<Option<Served>> {
        let Some(listener) = &mut self.listener else { return Ok(None) };
        match self.runtime.block_on(async { timeout(patient(within), listener.accept()).await }) {
            Ok(Ok(stream)) => Ok(Some(Served::new(stream, self.runtime.clone()))),
            Ok(Err(error)) => Err(Stop::fail(format!("the listener failed: {error}"))),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn take_listener(&mut self) -> Option<Box<dyn AnyListener>> {
        self.listener.take()
    }

    /// Checks that the stack still works, with an exchange on a new connection.
    pub(crate) fn still_serves(&mut self) -> Step {
        let mut client = self.client();
        client.open(&Offer::default())?;
        loop {
            let mut served = self.accept()?;
            // Other connections may have been opened before.
            if served.addresses()[1].port() == client.port() {
                return exchange(&mut client, &mut served);
            }
        }
    }

    /// Sends a packet unchanged.
    pub(crate) fn send_packet(&self, packet: &[u8]) -> Step {
        self.wire().send(packet)
    }

    /// Waits for a datagram from the stack.
    pub(crate) fn datagram(&self, within: Duration) -> Step<Option<Arrived>> {
        self.wire().datagram(Instant::now() + patient(within))
    }

    /// Waits for an ICMP message from the stack.
    pub(crate) fn message(&self, within: Duration) -> Step<Option<Message>> {
        self.wire().message(Instant::now() + patient(within))
    }

    /// Drops the server's datagrams: it has no open port any more.
    pub(crate) fn drop_datagrams(&mut self) {
        self.datagrams = None;
    }

    /// Returns the next datagram that the server receives in time, with its destination and its sender.
    pub(crate) fn received(&self, within: Duration) -> Step<Option<(Vec<u8>, [SocketAddr; 2])>> {
        let Some(datagrams) = &self.datagrams else { return Ok(None) };
        let mut buffer = vec![0; 65_535];
        match self.runtime.block_on(async { timeout(patient(within), datagrams.recv(&mut buffer)).await }) {
            Ok(Ok(Datagram { len, local, peer })) => {
                buffer.truncate(len);
                Ok(Some((buffer, [local, peer])))
            }
            Ok(Err(error)) => Err(Stop::fail(format!("the datagrams failed: {error}"))),
            Err(_) => Ok(None),
        }
    }

    /// Sends a datagram from the server.
    pub(crate) fn send_datagram(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        self.datagrams.as_ref().map_or(Ok(()), |datagrams| datagrams.try_send(local, peer, payload))
    }

    /// Sends datagrams of `segment_len` bytes each from the server. Returns the bytes of those that were sent.
    pub(crate) fn send_datagrams(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        self.datagrams.as_ref().map_or(Ok(0), |datagrams| datagrams.try_send_batch(local, peer, payloads, segment_len))
    }
}

/// Sends bytes from the server over a link that loses the segments for which `lost` is true.
pub(crate) fn deliver(
    client: &mut Client,
    served: Served,
    bytes: &[u8],
    within: Duration,
    lost: impl FnMut(&Segment) -> bool,
) -> Step<Option<Served>> {
    let sending = served.send(bytes.to_vec(), Then::Keep);
    same(&client.receive_with(bytes.len(), within, lost)?, bytes)?;
    sending.finish()
}

/// Sends bytes to the server and back.
pub(crate) fn exchange(client: &mut Client, served: &mut Served) -> Step {
    client.data(b"ping")?;
    same(&served.read(4)?, b"ping")?;
    served.write(b"pong")?;
    same(&client.receive(4, SOON)?, b"pong")
}
