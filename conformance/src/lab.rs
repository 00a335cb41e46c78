//! Runs a case: starts the stack on one end of a link, and gives the case the other end.

mod datagrams;

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use netstacks::{Effective, StackConfig, StackKind, StartError};
use platform::{Child, Link, Program};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::{Client, Offer};
use crate::kernel;
use crate::link::{self, AnyLink, Side};
use crate::process;
use crate::protocol::Device;
use crate::server::{AnyDatagrams, AnyListener, Running, Served, Start, Then};
use crate::wire::{Segment, Wire};
use crate::{Case, Layer, Outcome, Ran, Run, Step, Stop, ms, same};

/// Timeout of an answer that is due at once.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// Timeout of an answer that may need a retransmission or two.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// The longest time that a case may take. Cases that end need less.
const DEADLINE: Duration = Duration::from_secs(40);

/// How long to wait for the end of the previous stack, if only one can run in a process.
const TURN: Duration = Duration::from_secs(5);

/// How many times longer the cases wait for a packet that must arrive: `CONFORMANCE_PATIENCE`, 1 to 100. Emulators need it.
pub fn patience() -> u32 {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let read = || std::env::var("CONFORMANCE_PATIENCE").ok().and_then(|factor| factor.parse().ok());
    *FACTOR.get_or_init(|| read().unwrap_or(1).clamp(1, 100))
}

/// The limit of a wait for a packet that must arrive. A wait in which no packet may arrive is not made longer.
pub(crate) fn patient(limit: Duration) -> Duration {
    limit * patience()
}

/// Size of the stack's receive buffer and of its send buffer in bytes, if the case sets no other.
pub(crate) const WINDOW: usize = 256 << 10;

/// A smaller one, that a case can fill.
pub(crate) const SMALL_WINDOW: fn(&mut StackConfig) = |config| config.window = 16 << 10;

const FIRST_PORT: u16 = 40_000;

/// The port of all clients that have an address of their own. It tells their packets from those of other clients.
const STRANGE_PORT: u16 = 1000;

/// How many packets of a flood are sent without a pause, so that the queue of a device can hold them.
const AT_ONCE: usize = 64;

/// Runs a case. A stack that does not start, hangs or panics fails it. A program that does not start is unavailable.
pub fn run(case: &Case, run: Run) -> Ran {
    if let Some(needed) = case.offload.filter(|needed| *needed != run.offload) {
        let why = if needed { "needs a link that offloads" } else { "makes no sense with offload" };
        return Ran::of(Outcome::NotApplicable { seen: why.to_owned() }, None);
    }
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(1);
    let Case { ipv6, configure, run: script, .. } = *case;
    let script = move |lab: &mut Lab, _: &Runtime| script(lab).and_then(|()| lab.finish());
    let (result, effective) = perform(case.id, runtime, ipv6, run, configure, script);
    let outcome = match result {
        Ok(()) => Outcome::Pass,
        Err(Stop::Fail { seen, harm }) => Outcome::Fail { seen, harm },
        Err(Stop::NotApplicable(seen)) => Outcome::NotApplicable { seen },
        Err(Stop::Unavailable(seen)) => Outcome::Unavailable { seen },
    };
    Ran::of(outcome, effective)
}

/// Runs a script on a stack, on a thread and a runtime of their own. Also returns the settings of the stack.
pub(crate) fn perform<T: Send + 'static>(
    name: &str,
    runtime: Builder,
    ipv6: bool,
    run: Run,
    configure: impl FnOnce(&mut StackConfig) + Send + 'static,
    script: impl FnOnce(&mut Lab, &Runtime) -> Step<T> + Send + 'static,
) -> (Step<T>, Option<Effective>) {
    let (done, result) = mpsc::channel();
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _nobody_waits = done.send(within_deadline(runtime, ipv6, run, configure, script));
    });
    let failed = |seen: &str| (Err(Stop::hang(seen)), None);
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
    configure: impl FnOnce(&mut StackConfig),
    script: impl FnOnce(&mut Lab, &Runtime) -> Step<T>,
) -> (Step<T>, Option<Effective>) {
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return (fail!(Hang, "no runtime: {error}"), None),
    };
    let ran = {
        let _entered = runtime.enter();
        match Lab::start(run, ipv6, configure, runtime.handle()) {
            Ok(mut lab) => (script(&mut lab, &runtime), lab.effective.take()),
            Err(stop) => (Err(stop), None),
        }
    };
    // This ends the tasks of the stack.
    runtime.shutdown_timeout(patient(SOON));
    ran
}

impl Ran {
    pub(crate) fn of(outcome: Outcome, effective: Option<Effective>) -> Self {
        let version = effective.as_ref().map(|effective| effective.stack_version.to_string());
        let workarounds = effective.map(|effective| effective.workarounds).unwrap_or_default();
        Self { outcome, version, workarounds: workarounds.into_iter().map(Into::into).collect() }
    }
}

fn start_here(run: &Run, ipv6: bool, config: &StackConfig) -> Step<(AnyLink, Running)> {
    let until = Instant::now() + patient(TURN);
    loop {
        let (links, peer) = link::ends(run.layer, run.shards, ipv6, run.offload, run.mtu).map_err(no_link)?;
        let start = Start { links, config: config.clone() };
        match run.stack.visit(start).map_err(|error| Stop::NotApplicable(error.to_string()))? {
            Err(StartError::AlreadyRunning(_)) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            result => return Ok((peer, result.map_err(|error| Stop::hang(error.to_string()))?)),
        }
    }
}

fn start_process(
    program: &Program,
    run: &Run,
    ipv6: bool,
    config: &StackConfig,
    runtime: &Handle,
) -> Step<(AnyLink, Running)> {
    let peer = link::device(Side::Peer, ipv6, run.offload, run.mtu).map_err(no_link)?;
    let device = Device { name: Side::Stack.name(), mtu: run.mtu, offload: run.offload };
    let set_up = || link::set_up(Side::Stack, ipv6, run.mtu);
    match process::start((run.stack, program), device, config, runtime, set_up) {
        Ok(running) => Ok((peer, running)),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(Stop::NotApplicable(error.to_string())),
        Err(error) => Err(Stop::Unavailable(error.to_string())),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is for map_err")]
fn no_link(error: platform::Error) -> Stop {
    Stop::hang(format!("there is no link: {error}"))
}

pub(crate) struct Lab {
    wire: Rc<RefCell<Wire>>,
    listener: Option<Box<dyn AnyListener>>,
    datagrams: Option<Box<dyn AnyDatagrams>>,
    driver: JoinHandle<io::Result<()>>,
    process: Option<Child>,
    effective: Option<Effective>,
    runtime: Handle,
    pub(crate) verifies_checksums: bool,
    pub(crate) ipv6: bool,
    pub(crate) mtu: u16,
    /// Routers between the peer and the stack. Each reduces the hop limit of a packet by one.
    pub(crate) routers: u8,
    shards: u16,
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
    fn start(mut run: Run, ipv6: bool, configure: impl FnOnce(&mut StackConfig), runtime: &Handle) -> Step<Self> {
        let mut config =
            StackConfig { window: WINDOW, user_timeout: Duration::from_secs(20), ..StackConfig::default() };
        configure(&mut config);
        (config.workarounds, config.congestion) = (run.workarounds, run.congestion);
        let (peer, running) = match &run.program {
            Some(program) => start_process(program, &run, ipv6, &config, runtime)?,
            None if run.stack == StackKind::Kernel => {
                kernel::start(ipv6, run.offload, run.mtu, &config).map_err(|error| Stop::hang(error.to_string()))?
            }
            None => start_here(&run, ipv6, &config)?,
        };
        let peer = match run.trace.take() {
            Some(trace) => peer.traced(trace),
            None => peer,
        };
        Ok(Self::new(peer, running, &run, runtime, ipv6))
    }

    pub(crate) fn new(peer: AnyLink, running: Running, run: &Run, runtime: &Handle, ipv6: bool) -> Self {
        let Running { listener, datagrams, driver, effective, process } = running;
        let is_kernel = run.stack == StackKind::Kernel;
        Self {
            // If the link has verified them, only the kernel verifies them again.
            verifies_checksums: is_kernel || !peer.capabilities().checksum.rx,
            wire: Rc::new(RefCell::new(Wire::new(peer))),
            listener: Some(listener),
            datagrams: Some(datagrams),
            driver: runtime.spawn(driver),
            process,
            effective,
            runtime: runtime.clone(),
            ipv6,
            mtu: run.mtu,
            routers: u8::from(run.layer == Layer::Path && !is_kernel),
            shards: run.shards,
            next_port: Cell::new(FIRST_PORT),
        }
    }

    pub(crate) fn wire(&self) -> RefMut<'_, Wire> {
        self.wire.borrow_mut()
    }

    pub(crate) fn finish(&self) -> Step {
        self.wire().take()?;
        if let Some(violation) = self.wire().violation.take() {
            return fail!("{violation}");
        }
        check!(!self.driver.is_finished(), Hang, "the stack's driver has ended")
    }

    /// Skips the case if the backlog is divided between shards: one may be full while another has room.
    pub(crate) fn needs_whole_backlog(&self) -> Step {
        applies!(self.shards == 1, "each shard has a part of the backlog")
    }

    pub(crate) fn needs_checksums(&self) -> Step {
        applies!(self.verifies_checksums, "the link vouches for checksums, so that stacks need not verify them")
    }

    pub(crate) fn server(&self) -> SocketAddr {
        let [server, ..] = link::stack_addresses(self.ipv6);
        server
    }

    pub(crate) fn client(&self) -> Client {
        self.client_to(self.server())
    }

    pub(crate) fn client_to(&self, server: SocketAddr) -> Client {
        let port = self.next_port.replace(self.next_port.get() + 1);
        self.client_from(SocketAddr::new(link::peer_ip(self.ipv6), port), server)
    }

    pub(crate) fn client_from(&self, local: SocketAddr, server: SocketAddr) -> Client {
        Client::new(Rc::clone(&self.wire), local, server)
    }

    pub(crate) fn connect(&mut self) -> Step<(Client, Served)> {
        self.connect_with(&Offer::default())
    }

    pub(crate) fn connect_and_exchange(&mut self) -> Step<(Client, Served)> {
        let (mut client, mut served) = self.connect()?;
        exchange(&mut client, &mut served)?;
        Ok((client, served))
    }

    pub(crate) fn connect_with(&mut self, offer: &Offer) -> Step<(Client, Served)> {
        let mut client = self.client();
        client.open_with(offer)?;
        Ok((client, self.accept()?))
    }

    /// Connects with an MSS that fills the MTU. Ends the case if a super-packet has no room for two segments.
    pub(crate) fn connect_for_super_packets(&mut self) -> Step<(Client, Served)> {
        let mss = self.wire().capabilities().mtu - if self.ipv6 { 60 } else { 40 };
        applies!(2 * mss <= usize::from(u16::MAX - 60), "no super-packet has room for two segments")?;
        self.connect_with(&Offer { mss: Some(mss as u16), ..Offer::default() })
    }

    pub(crate) fn half_open(&self) -> Step<(Client, Segment)> {
        let mut client = self.client();
        client.syn()?;
        let syn_ack = client.syn_ack(SOON)?;
        Ok((client, syn_ack))
    }

    pub(crate) fn accept(&mut self) -> Step<Served> {
        match self.accept_within(SOON)? {
            Some(served) => Ok(served),
            None => fail!(Hang, "the listener returned no connection"),
        }
    }

    pub(crate) fn accept_within(&mut self, within: Duration) -> Step<Option<Served>> {
        let Some(listener) = &mut self.listener else { return Ok(None) };
        match self.runtime.block_on(async { timeout(patient(within), listener.accept()).await }) {
            Ok(Ok(stream)) => Ok(Some(Served::new(stream, self.runtime.clone()))),
            Ok(Err(error)) => fail!(Hang, "the listener failed: {error}"),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn take_listener(&mut self) -> Option<Box<dyn AnyListener>> {
        self.listener.take()
    }

    /// Checks that the server accepts the connection that this client has opened, and exchanges bytes on it.
    pub(crate) fn serves(&mut self, mut client: Client) -> Step {
        let mut served = self.accept()?;
        exchange(&mut client, &mut served)
    }

    pub(crate) fn still_serves(&mut self) -> Step {
        let mut client = self.client();
        client.open()?;
        loop {
            let mut served = self.accept()?;
            // Other connections may have been opened before.
            if served.addresses()[1].port() == client.port() {
                return exchange(&mut client, &mut served);
            }
        }
    }

    /// Returns a client with an address of its own in the peer's network. All of these have the same port.
    pub(crate) fn stranger(&self, number: u16) -> Client {
        self.client_from(SocketAddr::new(link::ip(self.ipv6, 1, 0x100 + number), STRANGE_PORT), self.server())
    }

    pub(crate) fn send_packet(&self, packet: &[u8]) -> Step {
        self.wire().send(packet)
    }

    pub(crate) fn flood(&self, packets: impl IntoIterator<Item = Vec<u8>>) -> Step {
        for (index, packet) in packets.into_iter().enumerate() {
            self.send_packet(&packet)?;
            if index % AT_ONCE == AT_ONCE - 1 {
                thread::sleep(ms(1));
                while self.wire().take()? {}
            }
        }
        Ok(())
    }
}

pub(crate) fn deliver(client: &mut Client, served: Served, bytes: &[u8], within: Duration) -> Step<Served> {
    deliver_with(client, served, bytes, within, |_, _| Ok(false))
}

/// Sends bytes to the client over a link that loses the segments for which `is_lost` is true.
pub(crate) fn deliver_with(
    client: &mut Client,
    served: Served,
    bytes: &[u8],
    within: Duration,
    is_lost: impl FnMut(&mut Client, &Segment) -> Step<bool>,
) -> Step<Served> {
    let sending = served.send(bytes.to_vec(), Then::Keep);
    same(&client.receive_with(bytes.len(), within, is_lost)?, bytes)?;
    sending.served()
}

pub(crate) fn exchange(client: &mut Client, served: &mut Served) -> Step {
    client.data(b"ping")?;
    served.reads(b"ping")?;
    served.write(b"pong")?;
    client.receives(b"pong", SOON)
}

/// Retransmits without SACK until all is acknowledged. Checks that the server reads all bytes.
pub(crate) fn repair(client: &mut Client, served: &mut Served, bytes: &[u8]) -> Step {
    let mut done = 0;
    // The ACKs of the last segments may be delayed.
    for _ in 0..bytes.len() / 500 + 30 {
        while let Some(segment) = client.next_segment(ms(20))? {
            done = segment.ack.wrapping_sub(client.next) as usize;
        }
        check!(done <= bytes.len(), Data, "more is acknowledged than was sent")?;
        if done == bytes.len() {
            break;
        }
        client.put(client.part(bytes, done..bytes.len().min(done + 500)))?;
    }
    client.sent(bytes.len());
    served.reads(bytes)?;
    exchange(client, served)
}
