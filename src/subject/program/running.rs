//! A running program: its ends, and the SOCKS5 server that it may use.

use std::io;
use std::iter;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture, join_all, select_all};
use platform::{Adopted, Class, FaultCounter, Interface, Interrupts, Network, last_lines};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::super::networks::{FAR, NEAR, Side};
use super::echo::Echo;
use super::end::{End, LAST_LINES, LOOK, READY_TIMEOUT};
use super::file;
use super::place::Run;
use super::residents::{ProgramMeter, Residents};
use super::socks5::{Given, Socks5};
use crate::cell::Gso;
use crate::error::RunError;
use crate::failure::Failure;
use crate::meter::Counters;
use crate::plan::scenario::Scenario;
use crate::program::Role;
use crate::remedy::WithRemedy;
use crate::sample::{AdoptedFacts, DeviceFacts, ProcessFacts, ProgramFacts, Unloaded};

/// How long it may do nothing from the making of its device to the link's being up, if it sets it up at all.
const SETTLE: Duration = Duration::from_millis(100);

/// How long it may take in all.
const LONGEST_SETTLE: Duration = Duration::from_secs(3);

/// How long its connections may take to end after the load.
const CLOSE: Duration = Duration::from_millis(100);

/// A running program. Dropping it kills all its processes.
pub(crate) struct Running {
    /// Where it has processes; the first one's cost is the program's. The far ends of a tunnel's peers follow. None if the kernel
    /// alone routes.
    ends: Vec<End>,
    upstream: Option<Socks5>,
    tx_queue_len: Option<u32>,
    facts: ProgramFacts,
    begun: Instant,
    /// The folder that the ends share. Deleted last.
    shared: Option<TempDir>,
}

impl Running {
    pub(super) async fn start(run: &Run<'_>, upstream: Option<Socks5>) -> Result<Self, RunError> {
        let (role, (sha256, version)) = (Some(run.profile.role), file::origin(run.profile).await);
        let is_another = version.as_deref().is_some_and(|version| run.profile.is_for_another(version));
        let tested = run.profile.tested.clone().filter(|_| is_another);
        let upstream_kind = run.profile.upstream();
        let facts = ProgramFacts { role, upstream: upstream_kind, version, tested, sha256, ..ProgramFacts::default() };
        let begun = Instant::now();
        let sides: &[Side] = match run.profile.role {
            Role::Route => &[],
            Role::Proxy if run.profile.far_command.is_none() => &[Side::Near],
            Role::Proxy | Role::Tunnel => &[Side::Near, Side::Far],
            Role::Attach => &[Side::Far],
        };
        // A far end first: it may be a server, which the near one calls once.
        let mut ends = Vec::new();
        for side in sides.iter().rev() {
            let residents = Arc::new(Residents::new(run.networks_of(*side)));
            for peer in run.ends_at(*side).rev() {
                ends.push(End::start(run, *side, peer, Arc::clone(&residents))?);
            }
        }
        ends.reverse();
        Ok(Self { ends, upstream, tx_queue_len: None, facts, begun, shared: None })
    }

    /// Keeps a folder as long as the program runs.
    pub(super) fn keep(&mut self, shared: TempDir) {
        self.shared = Some(shared);
    }

    /// Waits for the devices, sets them up, and waits for the first answers.
    pub(super) async fn get_ready(&mut self, run: &Run<'_>, interrupts: &mut Interrupts) -> Result<(), Reason> {
        let role = run.profile.role;
        let has_process = self.ends.iter().any(End::has_process);
        if !has_process {
            self.set_up(run, interrupts).await?;
        }
        let devices: &[Side] = match role {
            _ if !run.profile.has_device() => &[],
            Role::Route => &[],
            Role::Proxy | Role::Attach => &[Side::Near],
            Role::Tunnel => &[Side::Near, Side::Far],
        };
        for side in devices {
            self.find_devices(run, *side, interrupts).await?;
        }
        if role != Role::Attach || run.scenario.cell.inbound {
            for side in devices.iter().rev() {
                self.settle(run, *side, interrupts).await?;
            }
        }
        if matches!(role, Role::Proxy | Role::Tunnel) && !devices.is_empty() {
            self.adopt(run)?;
        }
        if has_process && run.setup().next().is_some() {
            // The programs learn that their devices are up.
            sleep(LOOK).await;
            self.begun += LOOK;
            self.set_up(run, interrupts).await?;
        }
        let echo = Echo::start(run)?;
        if run.scenario.cell.inbound {
            // A datagram that comes too early is lost. A connection may keep a program busy long after its end.
            self.await_datagrams(run, &echo, interrupts).await?;
        }
        let answered = self.await_connections(run, &echo, interrupts).await?;
        self.facts.start_seconds = self.begun.elapsed().as_secs_f64();
        if has_process || self.upstream.is_some() {
            // While it has the connections of one client. Without it all sockets of the load are our own.
            let _lost = spawn_blocking(run.networks.look_at_controls()).await;
        }
        drop(answered);
        self.await_datagrams(run, &echo, interrupts).await?;
        drop(echo);
        if role == Role::Attach {
            // It has set its device up itself: an address of ours before would have been one too many.
            self.adopt(run)?;
        }
        set_segmentation(run)?;
        self.watch_at_rest(run.scenario.cell.rest, interrupts).await
    }

    /// Waits for an answer of the server behind each peer, and returns the connections.
    async fn await_connections(
        &mut self,
        run: &Run<'_>,
        echo: &Echo<'_>,
        interrupts: &mut Interrupts,
    ) -> Result<Vec<TcpStream>, Reason> {
        let guess = run.profile.guess().map(|guess| format!("; {guess}")).unwrap_or_default();
        let mut answered = Vec::new();
        for (peer, server) in run.scenario.servers(run.server).into_iter().enumerate() {
            answered.push(loop {
                match echo.over_tcp(server).await {
                    Ok(answered) => break answered,
                    Err(error) => {
                        let late = format!("let no answer through over TCP: {error}{guess}");
                        self.look(end_of(peer), interrupts, &late).await?;
                    }
                }
            });
        }
        Ok(answered)
    }

    async fn await_datagrams(
        &mut self,
        run: &Run<'_>,
        echo: &Echo<'_>,
        interrupts: &mut Interrupts,
    ) -> Result<(), Reason> {
        for (peer, server) in run.scenario.servers(run.server).into_iter().enumerate() {
            while run.profile.udp
                && let Err(error) = echo.over_udp(server).await
            {
                let late = format!("let no answer through over UDP: {error}; udp = false if it has none");
                self.look(end_of(peer), interrupts, &late).await?;
            }
        }
        Ok(())
    }

    async fn watch_at_rest(&mut self, time: Duration, interrupts: &mut Interrupts) -> Result<(), Reason> {
        let [near, far] = self.residents();
        let (near, far) = tokio::select! {
            rested = future::join(rest(near, time), rest(far, time)) => rested,
            () = interrupts.next() => return Err(Reason::Other(RunError::Interrupted)),
        };
        let (at_rest, before) = near.unzip();
        (self.facts.at_rest, self.facts.rest_cpu_share) =
            (at_rest.unwrap_or_default(), before.and_then(Unloaded::cpu_share));
        self.facts.unloaded.before = before;
        let (far_at_rest, far_before) = far.unzip();
        (self.facts.far_at_rest, self.facts.far_rest_cpu_share) =
            (far_at_rest, far_before.and_then(Unloaded::cpu_share));
        Ok(())
    }

    /// Runs the commands that set the program up, each until it succeeds: first at the far end, which the near one calls.
    async fn set_up(&mut self, run: &Run<'_>, interrupts: &mut Interrupts) -> Result<(), Reason> {
        let ends: Vec<_> = self.ends.iter().map(|end| (end.side, end.peer)).enumerate().collect();
        let ends = ends.into_iter().rev().filter(|(_, (side, _))| !run.is_server(*side));
        let commands =
            ends.flat_map(|(index, (side, peer))| run.setup_at(side, peer).map(move |command| (index, command)));
        for (index, (peer, words)) in commands {
            loop {
                let set_up = tokio::select! {
                    set_up = self.ends[index].set_up(run, peer, words) => set_up?,
                    () = interrupts.next() => return Err(Reason::Other(RunError::Interrupted)),
                };
                let Err(reason) = set_up else { break };
                if !self.ends[index].has_process() {
                    // Nothing will change.
                    let text = format!("{} cannot be set up: {reason}", run.profile.name);
                    return Err(RunError::Process { class: Class::Unavailable, text }.into());
                }
                self.look(index, interrupts, &format!("not been set up: {reason}")).await?;
            }
        }
        Ok(())
    }

    async fn find_devices(&mut self, run: &Run<'_>, side: Side, interrupts: &mut Interrupts) -> Result<(), Reason> {
        let (network, wanted) = (run.folder_at(side), run.devices_at(side));
        let first = self.ends.iter().position(|end| end.side == side).unwrap_or_default();
        loop {
            let mut made = platform::interface_names(&network);
            let Some(peer) = wanted.iter().position(|name| !made.contains(name)) else { return Ok(()) };
            made.retain(|name| !["lo", NEAR, FAR].contains(&name.as_str()) && !wanted.contains(name));
            let late = if made.is_empty() {
                format!("made no device {}", wanted[peer])
            } else {
                format!("made the device {} instead of {}; its name is {{tun}}", made.join(", "), wanted[peer])
            };
            self.look(first + peer, interrupts, &late).await?;
        }
    }

    /// Gives the program time to set up its device, until the link is up. That time is not the program's, if it was in vain.
    async fn settle(&mut self, run: &Run<'_>, side: Side, interrupts: &mut Interrupts) -> Result<(), Reason> {
        let found = Instant::now();
        let mut worked = found;
        while self.ends.iter().any(End::has_process) && worked.elapsed() < SETTLE && found.elapsed() < LONGEST_SETTLE {
            if run.is_up(side)? {
                // The address comes before it or with it, for a route needs both.
                sleep(LOOK).await;
                self.begun += LOOK;
                return Ok(());
            }
            // On a busy machine it may be about to set it up for long.
            if self.is_busy() {
                worked = Instant::now();
            }
            self.look(0, interrupts, "kept its device down").await?;
        }
        self.begun += found.elapsed();
        Ok(())
    }

    /// Sets up the devices where the program has not.
    fn adopt(&mut self, run: &Run<'_>) -> Result<(), Reason> {
        let role = run.profile.role;
        let interface = |side, peer| {
            let network = run.network_at(side, peer);
            Interface {
                name: run.device_at(side, peer),
                address: network.address,
                prefix_len: network.prefix_len,
                route_to: (role == Role::Proxy).then_some(run.server),
                mtu: run.mtu_to_set(),
                tx_queue_len: run.scenario.cell.queue,
                tuning: run.scenario.cell.tuning(),
            }
        };
        // First: a near end that is up calls a far one at once, and waits long before it calls again.
        for peer in run.ends_at(Side::Far).filter(|_| role == Role::Tunnel) {
            let far = interface(Side::Far, peer);
            let wanted = far.address;
            let found = run.networks.far().run(move || far.adopt())??.address;
            if let Some(other) = found.filter(|found| *found != wanted) {
                let reason =
                    format!("given its far device the address {other}; the servers have {wanted}, {{address}} there");
                let end = 1 + usize::from(peer);
                return Err(Reason::Program(end, format!("the program {} has {reason}", run.profile.name)));
            }
        }
        let Adopted { mtu, is_up, address, tx_queue_len, vnet_header, queues } = interface(Side::Near, 0).adopt()?;
        // Each peer has a network, so that a client's address decides by which of the far devices the answers come.
        for peer in run.ends_at(Side::Far).skip(1) {
            let Network { address, prefix_len, .. } = run.network_at(Side::Near, peer);
            platform::add_address(run.device, address, prefix_len)?;
        }
        self.tx_queue_len = run.scenario.cell.queue.or(Some(tx_queue_len));
        self.facts.device = Some(AdoptedFacts { mtu, is_up, address, vnet_header, queues });
        Ok(())
    }

    /// Waits a moment for the end with this index.
    async fn look(&mut self, of: usize, interrupts: &mut Interrupts, late: &str) -> Result<(), Reason> {
        for (index, end) in self.ends.iter_mut().enumerate() {
            end.look().map_err(|reason| Reason::Program(index, reason))?;
        }
        if self.begun.elapsed() > READY_TIMEOUT {
            let name = self.ends.get(of).map_or("kernel", |end| end.name.as_str());
            let reason = format!("after {} s the {name} has {late}", READY_TIMEOUT.as_secs());
            return Err(Reason::Program(of, reason));
        }
        tokio::select! {
            biased;
            () = interrupts.next() => Err(Reason::Other(RunError::Interrupted)),
            () = sleep(LOOK) => Ok(()),
        }
    }

    /// Ends a program that did not become ready, and says why it did not.
    pub(super) async fn refuse(mut self, reason: Reason) -> RunError {
        let (index, text) = match reason {
            Reason::Program(index, text) => (index, text),
            Reason::Other(error) => {
                self.end().await;
                return error;
            }
        };
        // The cause, whatever the program says of it.
        if let Err(missing) = platform::check_device_node() {
            self.end().await;
            return missing.into();
        }
        let hint = self.ends.get(index).and_then(|end| end.hint.clone());
        let text = [text].into_iter().chain(hint).collect::<Vec<_>>().join("; ");
        let speaks = self.ends.get(index).map(End::printed);
        let before = speaks.as_ref().map(|(_, printed)| printed.text()).unwrap_or_default();
        self.end().await;
        // The thread that reads the output may be a moment behind.
        sleep(LOOK).await;
        // What a running one prints after it was asked to end is no reason.
        let printed = match speaks {
            Some((is_running, printed)) if !is_running || before.is_empty() => printed.text(),
            _ => before,
        };
        RunError::Process { class: Class::Failed, text: last_lines(&text, &printed, LAST_LINES) }
    }

    /// The processes that count as the program, and those at the far end of a tunnel.
    fn residents(&self) -> [Option<Arc<Residents>>; 2] {
        [0, 1].map(|at| self.ends.get(at).filter(|end| end.has_process()).map(|end| Arc::clone(&end.residents)))
    }

    pub(super) fn device(&self, run: &Run<'_>) -> Option<DeviceFacts> {
        let adopted = self.facts.device?;
        Some(DeviceFacts {
            name: run.device.to_owned(),
            mtu: run.mtu_to_set().map_or(adopted.mtu as usize, usize::from),
            offload: adopted.vnet_header == Some(true),
            tx_queue_len: self.tx_queue_len,
            qdisc: platform::qdisc_of(run.device),
        })
    }

    pub(super) fn meter(&self, run: &Run<'_>, faults: Option<Arc<FaultCounter>>) -> ProgramMeter {
        let (device, near): (_, &[&str]) =
            if run.profile.has_device() { (run.device, &[run.device, NEAR]) } else { (NEAR, &[NEAR]) };
        let devices = if run.profile.role == Role::Tunnel { run.devices_at(Side::Far) } else { Vec::new() };
        let far: Vec<_> = iter::once(FAR).chain(devices.iter().map(String::as_str)).collect();
        let [residents, far_residents] = self.residents();
        ProgramMeter {
            residents,
            network: platform::folder_of_thread(),
            device: device.to_owned(),
            drops: Box::new(run.networks.drops(near, &far)),
            far: far_residents,
            faults,
            sockets: run.folder_at(if run.profile.role == Role::Attach { Side::Far } else { Side::Near }),
        }
    }

    /// Ends when a process of the program ends by itself, or when the program takes too much memory.
    pub(super) fn driver(&self) -> BoxFuture<'static, Failure> {
        let parts: Vec<_> = self.ends.iter().map(|end| end.driver().boxed()).collect();
        if parts.is_empty() {
            future::pending().boxed()
        } else {
            select_all(parts).map(|(failure, ..)| failure).boxed()
        }
    }

    /// Connections to these targets that come from now on, if the program asks the SOCKS5 server for them.
    pub(crate) fn connections_to(&self, targets: &[SocketAddr]) -> Option<UnboundedReceiver<Given>> {
        self.upstream.as_ref()?.give(targets)
    }

    /// Watches it once more at rest, unless its run did not end, and ends it.
    pub(crate) async fn finish(
        mut self,
        scenario: &Scenario,
        counters: Option<&Counters>,
    ) -> Result<ProgramFacts, RunError> {
        if let Some(counters) = counters {
            self.facts.far_seconds = counters.far_cpu.map(|time| time.as_secs_f64());
        }
        let [near, far] = self.residents();
        self.facts.far = far.map(|residents| residents.read());
        if let Some(residents) = near {
            self.facts.under_load = residents.read();
            sleep(CLOSE).await;
            let time = counters.map_or(Duration::ZERO, |_| scenario.cell.rest);
            let failed = |source| platform::Error::new(Class::Failed, "catch", "interrupts", source);
            let mut interrupts = Interrupts::catch().map_err(failed)?;
            let rested = tokio::select! {
                rested = rest(Some(residents), time) => rested,
                () = interrupts.next() => {
                    self.end().await;
                    return Err(RunError::Interrupted);
                }
            };
            let (afterwards, after) = rested.unzip();
            (self.facts.afterwards, self.facts.unloaded.after) =
                (afterwards.unwrap_or_default(), after.filter(|_| counters.is_some()));
        }
        self.end().await;
        Ok(self.facts.clone())
    }

    /// Why it no longer runs, if so.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.ends.iter_mut().find_map(|end| end.look().err())
    }

    pub(crate) fn version(&self) -> Option<String> {
        self.facts.version.clone()
    }

    /// An end of each network, which has the residents of all ends there.
    fn each_network(&self) -> impl Iterator<Item = &End> {
        self.ends.iter().filter(|end| end.peer == 0)
    }

    /// Whether any of its processes has something to do now.
    pub(crate) fn is_busy(&self) -> bool {
        self.each_network().any(|end| end.residents.is_busy())
    }

    /// Lets each of its processes open this many files more than it has now, or as many as it likes.
    pub(crate) fn limit_files(&self, more: Option<u64>) -> io::Result<()> {
        self.each_network().try_for_each(|end| end.residents.limit_files(more))
    }

    /// Asks all processes to end, and kills those that are left.
    pub(crate) async fn end(&mut self) {
        let killed = join_all(self.ends.iter_mut().map(End::end)).await;
        let others = join_all(self.each_network().map(End::end_others)).await;
        self.facts.was_killed |=
            killed.into_iter().chain(others.iter().map(|(killed, _)| *killed)).any(|killed| killed);
        self.facts.left_behind += others.iter().map(|(_, left)| left).sum::<u64>();
    }
}

/// The index of the end to blame if a peer does not answer. Without further ones that is the program, whose cost is measured.
const fn end_of(peer: usize) -> usize {
    if peer == 0 { 0 } else { 1 + peer }
}

/// Why a program is not ready.
pub(super) enum Reason {
    /// For a reason of the end with this index, which its last words may explain.
    Program(usize, String),
    Other(RunError),
}

impl<E: Into<RunError>> From<E> for Reason {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// The resources of one end's processes after a time without a load, and what they did in it.
async fn rest(residents: Option<Arc<Residents>>, time: Duration) -> Option<(ProcessFacts, Unloaded)> {
    let residents = residents?;
    let (before, cpu, begun) = (residents.facts(), residents.cpu(), Instant::now());
    sleep(time).await;
    let (taken, time) = (residents.cpu().saturating_sub(cpu), begun.elapsed());
    let after = residents.facts();
    Some((after, Unloaded::of(time, Some(taken), Some(after.switches.since(before.switches)))))
}

/// Switches super-packets of the program's devices on or off, or of the clients' interface without a program.
fn set_segmentation(run: &Run<'_>) -> Result<(), Reason> {
    let Some(gso) = run.scenario.cell.gso else { return Ok(()) };
    let is_on = gso == Gso::On;
    let advise = |error: platform::Error| error.remedy("leave out --gso, or give what the program can");
    let near = if run.profile.has_device() { run.device } else { NEAR };
    platform::set_segmentation(near, is_on).map_err(advise)?;
    if run.profile.role == Role::Tunnel {
        let far = run.devices_at(Side::Far);
        let set = move || far.iter().try_for_each(|device| platform::set_segmentation(device, is_on));
        run.networks.far().run(set)?.map_err(advise)?;
    }
    Ok(())
}
