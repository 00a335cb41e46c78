//! A program as it is, between two networks of the run's own, under load.
//!
//! ```text
//!        near network                                                    far network
//! client ── kernel TCP ── TUN ──► program ──► to-far ── veth ── to-near ── kernel TCP ── server
//!                                                                   └── SOCKS5 server ──┘
//! ```
//!
//! The networks are as for our proxy (`proxy`). The program is started from its profile and makes its device. This process
//! sets the device up where the program has not, and gives the servers' address a route into it. The program sends its
//! connections to a SOCKS5 server, which has an address of its own, or to the servers, through `to-far`. It is ready when
//! an answer has come back through it (`echo`).
//!
//! Everything that lives in the near network is the program's: its processes are found, measured and ended by their network,
//! even those that have left their parent (`residents`).

mod echo;
mod place;
mod residents;

use std::future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use platform::{Adopted, Cause, Child, Class, Interface, Interrupts, Printed, ProcessEnd};
use tempfile::TempDir;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use self::echo::Echo;
use self::place::{Place, command, invalid};
use self::residents::{ProgramMeter, Residents};
use super::carrier::{Carrier, CarrierProgram};
use super::error::RunError;
use super::failure::Failure;
use super::kernel_load;
use super::networks::{Networks, socks5_address};
use super::prepared::Prepared;
use super::process;
use super::protocol::Task;
use super::proxy::{self, FAR, NEAR};
use crate::load::meter::Counters;
use crate::program::{Profile, ProgramName, Role, Upstream};
use crate::remedy::WithRemedy;
use crate::sample::{AdoptedFacts, DeviceFacts, ProgramFacts, Status};
use crate::scenario::{Scenario, Tun};

/// How long a program may take until an answer comes back through it.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to end when it is asked to.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How long its other processes may take after it.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(200);

/// How long its version may take.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

/// How long it may take from the making of its device to the link's being up, if it sets it up at all.
const SETTLE: Duration = Duration::from_millis(100);

/// How long it is measured at rest.
const REST: Duration = Duration::from_millis(200);

/// How long its connections may take to end after the load.
const CLOSE: Duration = Duration::from_millis(100);

/// How often its state is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How many of its last lines are in an error.
const LAST_LINES: usize = 3;

/// Prepares a program between the two networks.
pub(super) async fn prepare(
    scenario: &Scenario,
    tun: &Tun,
    networks: &Networks,
    interrupts: &mut Interrupts,
) -> Result<Prepared, RunError> {
    let profile = scenario.program.as_deref().ok_or_else(|| invalid("the scenario has no profile of it"))?;
    let server = proxy::join(scenario, &tun.network, networks)?;
    if profile.role == Role::Proxy && platform::interface_names(&platform::folder_of_thread()).contains(&tun.name) {
        let source = io::ErrorKind::AlreadyExists.into();
        return Err(platform::Error::new(Cause::NameTaken, "let a program make the device", &tun.name, source).into());
    }
    let upstream = match profile.upstream {
        Upstream::Socks5 => Some(Socks5::start(tun, server, networks, interrupts).await?),
        Upstream::Direct => None,
    };
    let place = Place { scenario, tun, server, socks5: upstream.as_ref().map(|upstream| upstream.address) };
    let mut running = Running::start(profile, &place, upstream).await?;
    if let Err(reason) = running.get_ready(profile, &place, networks, interrupts).await {
        return Err(running.refuse(reason).await);
    }
    let meter = running.meter(networks, tun);
    let prepared = kernel_load::prepare_between(scenario, networks, server, running.driver(), meter)?;
    let cut = Some(networks.cut(NEAR, FAR));
    Ok(Prepared { device: running.device(scenario, tun), program: Some(running), cut, ..prepared })
}

/// The SOCKS5 server of a run.
struct Socks5 {
    address: SocketAddr,
    process: Carrier,
}

impl Socks5 {
    /// Starts it in the far network, at an address that no route leads into the device.
    async fn start(
        tun: &Tun,
        server: IpAddr,
        networks: &Networks,
        interrupts: &mut Interrupts,
    ) -> Result<Self, RunError> {
        let (_, prefix_len) = proxy::ends(&tun.network);
        let address = socks5_address(server);
        // The packets to the servers, which are in the same network, pass the loopback.
        networks.far().run(move || {
            platform::set_loopback_up().and_then(|_| platform::add_address(FAR, address.ip(), prefix_len))
        })??;
        let program = CarrierProgram::with_task("SOCKS5 server", Task::Socks5(address));
        let (process, _) = Carrier::start(program, Some(networks.far()), interrupts).await?;
        process.begin();
        Ok(Self { address, process })
    }
}

/// A running program. Dropping it kills all its processes.
pub(super) struct Running {
    name: ProgramName,
    /// The process that was started; `None` for the kernel alone.
    process: Option<Child>,
    /// Whether that process has ended in good order and left others.
    is_daemon: bool,
    printed: Printed,
    /// Empty for the kernel alone.
    residents: Arc<Residents>,
    upstream: Option<Socks5>,
    tx_queue_len: Option<u32>,
    facts: ProgramFacts,
    begun: Instant,
    /// Deleted last.
    _folder: TempDir,
}

impl Running {
    /// Starts a program.
    async fn start(profile: &Profile, place: &Place<'_>, upstream: Option<Socks5>) -> Result<Self, RunError> {
        let failed = |source| platform::Error::new(Class::Failed, "make", "a folder for the program", source);
        let folder = TempDir::new().map_err(failed)?;
        let facts = ProgramFacts { version: version(profile).await, ..ProgramFacts::default() };
        let residents = Arc::new(Residents::new(platform::folder_of_thread()));
        let begun = Instant::now();
        let (process, printed) = match profile.role {
            Role::Route => (None, Printed::default()),
            Role::Proxy => {
                let command = place.command(profile, folder.path())?;
                let (process, printed) = Child::watch(command, None).map_err(|source| cannot_start(profile, source))?;
                (Some(process), printed)
            }
        };
        Ok(Self {
            name: profile.name,
            process,
            is_daemon: false,
            printed,
            residents,
            upstream,
            tx_queue_len: None,
            facts,
            begun,
            _folder: folder,
        })
    }

    /// Waits for the device, sets it up, and waits for the first answers.
    async fn get_ready(
        &mut self,
        profile: &Profile,
        place: &Place<'_>,
        networks: &Networks,
        interrupts: &mut Interrupts,
    ) -> Result<(), Reason> {
        if self.process.is_some() {
            let near = platform::folder_of_thread();
            loop {
                let mut made = platform::interface_names(&near);
                if made.contains(&place.tun.name) {
                    break;
                }
                made.retain(|name| !["lo", NEAR].contains(&name.as_str()));
                let late = if made.is_empty() {
                    format!("made no device {}", place.tun.name)
                } else {
                    format!("made the device {} instead of {}; its name is {{tun}}", made.join(", "), place.tun.name)
                };
                self.look(interrupts, &late).await?;
            }
            let waited = self.settle(place, interrupts).await?;
            self.adopt(place)?;
            self.begun += waited;
        }
        let echo = Echo::start(networks, place.server)?;
        while let Err(error) = echo.over_tcp().await {
            self.look(interrupts, &format!("let no answer through over TCP: {error}")).await?;
        }
        self.facts.start_seconds = self.begun.elapsed().as_secs_f64();
        if profile.udp {
            while let Err(error) = echo.over_udp().await {
                self.look(interrupts, &format!("let no answer through over UDP: {error}; udp = false if it has none"))
                    .await?;
            }
        }
        drop(echo);
        if self.process.is_some() {
            self.residents.find();
            let before = self.residents.cpu();
            sleep(REST).await;
            self.facts.at_rest = self.residents.facts();
            let taken = self.residents.cpu().saturating_sub(before);
            self.facts.rest_cpu_share = Some(taken.as_secs_f64() / REST.as_secs_f64());
        }
        Ok(())
    }

    /// Gives the program time to set up its device, until the link is up. Returns the time that was in vain.
    async fn settle(&mut self, place: &Place<'_>, interrupts: &mut Interrupts) -> Result<Duration, Reason> {
        let found = Instant::now();
        while found.elapsed() < SETTLE {
            if platform::interface_is_up(&place.tun.name) {
                // The address comes before it or with it, for a route needs both.
                sleep(LOOK).await;
                return Ok(Duration::ZERO);
            }
            self.look(interrupts, "kept its device down").await?;
        }
        Ok(found.elapsed())
    }

    /// Sets up what the program has left undone on its device.
    fn adopt(&mut self, place: &Place<'_>) -> Result<(), Reason> {
        let network = &place.tun.network;
        let interface = Interface {
            name: place.tun.name.clone(),
            address: network.address,
            prefix_len: network.prefix_len,
            route_to: Some(place.server),
            mtu: place.scenario.mtu,
            tx_queue_len: place.scenario.queue_packets,
        };
        let Adopted { mtu, is_up, address, tx_queue_len, vnet_header, queues } = interface.adopt()?;
        self.tx_queue_len = place.scenario.queue_packets.or(Some(tx_queue_len));
        self.facts.device = Some(AdoptedFacts { mtu, is_up, address, vnet_header, queues });
        Ok(())
    }

    /// Waits a moment.
    ///
    /// # Errors
    ///
    /// The program has ended, the user interrupted it, or the time is over, for the reason `late`.
    async fn look(&mut self, interrupts: &mut Interrupts, late: &str) -> Result<(), Reason> {
        if let Some(by) = self.ended() {
            self.residents.find();
            if by != ProcessEnd::Exited(0) || self.residents.is_empty() {
                return Err(Reason::Program(process::ending(&format!("program {}", self.name), &by)));
            }
            self.is_daemon = true;
        }
        if self.begun.elapsed() > READY_TIMEOUT {
            let seconds = READY_TIMEOUT.as_secs();
            return Err(Reason::Program(format!("after {seconds} s the program {} has {late}", self.name)));
        }
        tokio::select! {
            biased;
            () = interrupts.next() => Err(Reason::Other(RunError::Interrupted)),
            () = sleep(LOOK) => Ok(()),
        }
    }

    /// How the process has ended, if it has and it is the whole program.
    fn ended(&self) -> Option<ProcessEnd> {
        let end = self.process.as_ref().filter(|_| !self.is_daemon)?.ended().now_or_never()?;
        Some(end.map_or_else(|| ProcessEnd::Crashed("an unknown cause".to_owned()), |end| end.by.clone()))
    }

    /// Ends a program that did not become ready, and says why it did not.
    async fn refuse(mut self, reason: Reason) -> RunError {
        let (is_running, before) = (self.ended().is_none(), self.printed.text());
        self.end().await;
        match reason {
            Reason::Other(error) => error,
            Reason::Program(text) => {
                // Its output after it was asked to end is no reason.
                let printed = if is_running && !before.is_empty() { before } else { self.printed.text() };
                RunError::Process { class: Class::Failed, text: process::last_lines(&text, &printed, LAST_LINES) }
            }
        }
    }

    /// The device of the run.
    fn device(&self, scenario: &Scenario, tun: &Tun) -> Option<DeviceFacts> {
        let adopted = self.facts.device?;
        Some(DeviceFacts {
            name: tun.name.clone(),
            mtu: scenario.mtu.into(),
            offload: adopted.vnet_header == Some(true),
            tx_queue_len: self.tx_queue_len,
        })
    }

    fn meter(&self, networks: &Networks, tun: &Tun) -> ProgramMeter {
        let device = if self.process.is_some() { tun.name.as_str() } else { NEAR };
        ProgramMeter {
            residents: self.process.is_some().then(|| Arc::clone(&self.residents)),
            network: platform::folder_of_thread(),
            device: device.to_owned(),
            drops: Box::new(networks.drops(&[device, NEAR], &[FAR])),
            upstream: self.upstream.as_ref().map(|upstream| upstream.process.process()),
        }
    }

    /// Ends when the program or the SOCKS5 server ends by itself, or when the program takes too much memory.
    fn driver(&self) -> impl Future<Output = Failure> + Send + use<> {
        let name = format!("program {}", self.name);
        let ended = self.process.as_ref().filter(|_| !self.is_daemon).map(Child::ended);
        let (is_program, residents, printed) =
            (self.process.is_some(), Arc::clone(&self.residents), self.printed.clone());
        let upstream = self.upstream.as_ref().map(|upstream| upstream.process.ended());
        async move {
            let failed = |detail| Failure { status: Status::Panicked, detail };
            let program = async {
                let end = match ended {
                    Some(ended) => ended.await,
                    None => future::pending().await,
                };
                residents.find();
                match end {
                    // It has left the work to another process.
                    Some(end) if end.by == ProcessEnd::Exited(0) && !residents.is_empty() => future::pending().await,
                    Some(end) => {
                        // The thread that reads the output may be a moment behind.
                        sleep(LOOK).await;
                        failed(process::last_lines(&process::ending(&name, &end.by), &printed.text(), LAST_LINES))
                    }
                    None => failed(format!("the {name} is lost")),
                }
            };
            let upstream = async {
                match upstream {
                    Some(ended) => ended.await,
                    None => future::pending().await,
                }
            };
            tokio::select! {
                failure = program => failure,
                failure = upstream => failure,
                what = residents.misbehave(), if is_program => failed(format!("the {name} {what}")),
            }
        }
    }

    /// Ends the program after a run.
    pub(super) async fn finish(mut self, counters: Option<&Counters>) -> ProgramFacts {
        if let Some(counters) = counters {
            self.facts.upstream_seconds = counters.upstream_cpu.map(|time| time.as_secs_f64());
        }
        if self.process.is_some() {
            self.facts.under_load = self.residents.read();
            sleep(CLOSE).await;
            self.facts.afterwards = self.residents.facts();
        }
        self.end().await;
        if let Some(upstream) = self.upstream.take() {
            // Its work is done, whatever it says.
            let _ended = upstream.process.finish(true).await;
        }
        self.facts.clone()
    }

    /// Asks it to end, and kills what is left of it.
    async fn end(&mut self) {
        let Some(process) = self.process.take() else { return };
        let (_, was_killed) = process.terminate(END_TIMEOUT).await;
        let deadline = Instant::now() + OTHERS_TIMEOUT;
        self.residents.find();
        while !self.is_daemon && !self.residents.is_empty() && Instant::now() < deadline {
            sleep(LOOK).await;
            self.residents.find();
        }
        self.facts.was_killed = was_killed;
        self.facts.left_behind = self.residents.kill();
    }
}

/// Why a program is not ready.
enum Reason {
    /// For a reason of its own, which its last words may explain.
    Program(String),
    Other(RunError),
}

impl<E: Into<RunError>> From<E> for Reason {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

fn cannot_start(profile: &Profile, source: io::Error) -> RunError {
    let class = if source.kind() == io::ErrorKind::NotFound { Class::Unavailable } else { Class::Failed };
    let program = profile.command.first().cloned().unwrap_or_default();
    let remedy = match &profile.install {
        Some(install) => format!("install it: {install}"),
        None => "install it, or give its path".to_owned(),
    };
    platform::Error::new(class, "start the program", program, source).remedy(remedy).into()
}

/// The first line with a digit of what a program prints as its version.
async fn version(profile: &Profile) -> Option<String> {
    if profile.version.is_empty() {
        return None;
    }
    let command = command(&profile.version);
    let printed = spawn_blocking(move || process::printed(command, VERSION_TIMEOUT)).await.ok()??;
    printed
        .lines()
        .map(str::trim)
        .find(|line| line.contains(|letter: char| letter.is_ascii_digit()))
        .map(process::shown)
}
