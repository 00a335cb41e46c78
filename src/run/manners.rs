//! Runs cases of manners on programs: real clients and servers, with the program between them.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use conformance::Outcome;
use conformance::manners::{Lab, Manner, Of, Subject};
use futures_util::FutureExt;
use platform::{Class, Feature, Interrupts};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use super::RunError;
use super::loaded::unfit;
use super::runtime::runtime;
use crate::plan::MannersPlan;
use crate::plan::scenario::{Devices, Scenario, Tun};
use crate::program::{Profile, Role, Upstream};
use crate::remedy::WithRemedy;
use crate::sample::MannerScore;
use crate::subject::networks::{FAR, NEAR, Networks, ends, next};
use crate::subject::program::Given;
use crate::subject::program::running::Running;
use crate::subject::{Cut, enter_network, program};

/// A thousand connections, both ends of which are in this process.
const FILES: u64 = 8192;

/// Runs the cases of a plan that have no `earlier` result, and reports each new result as it comes. Returns all results, by program.
pub fn manners<E: From<RunError>>(
    plan: &MannersPlan,
    earlier: Vec<MannerScore>,
    mut report: impl FnMut(&MannerScore) -> Result<(), E>,
) -> Result<Vec<MannerScore>, E> {
    if !platform::netns_supported() {
        let error = platform::Error::unsupported(Feature::Forwarding, "run a program between", "two networks");
        return Err(RunError::from(error.remedy("only Linux has networks of a run's own")).into());
    }
    // It gets the right to make networks, while there is one thread.
    platform::enter_netns().map_err(RunError::from)?;
    let done: HashSet<_> = earlier.iter().map(|score| (score.program, score.case.clone())).collect();
    let mut scores = earlier;
    let mut keep = |scores: &mut Vec<_>, score| {
        report(&score)?;
        scores.push(score);
        Ok::<_, E>(())
    };
    for scenario in plan.programs.iter().flatten() {
        let Some(profile) = profile(scenario) else { continue };
        let is_left = |case: &&Manner| !done.contains(&(profile.name, case.id.to_owned()));
        let of_version = plan.cases.iter().filter(|case| case.ipv6 == scenario.ipv6());
        let (foreign, mut left): (Vec<_>, Vec<_>) =
            of_version.filter(is_left).copied().partition(|case| foreign(case, profile).is_some());
        for case in foreign {
            let seen = self::foreign(&case, profile).unwrap_or_default().to_owned();
            keep(&mut scores, MannerScore::new(&case, profile.name, None, Outcome::NotApplicable { seen }))?;
        }
        while !left.is_empty() {
            // The near network is that of a thread, so each start has a new one.
            let (send, results) = mpsc::channel();
            let cases = left.clone();
            thread::scope(|scope| {
                let session = scope.spawn(move || session(scenario, profile, &cases, |score| send.send(score).is_ok()));
                for score in results {
                    left.remove(0);
                    keep(&mut scores, score)?;
                }
                session.join().unwrap_or_else(|_| Err(unfit(scenario))).map_err(E::from)
            })?;
        }
    }
    let place = |score: &MannerScore| {
        let program = |[one, _]: &[Scenario; 2]| profile(one).is_some_and(|profile| profile.name == score.program);
        let case = plan.cases.iter().position(|case| case.id == score.case);
        (plan.programs.iter().position(program), case)
    };
    scores.sort_by_key(place);
    Ok(scores)
}

fn profile(scenario: &Scenario) -> Option<&Profile> {
    scenario.cell.program.as_ref()?.profile()
}

/// Of the kernel and tunnels.
const NO_SOCKETS: &str = "it passes packets on, and has no connections of its own";

/// Why a case does not apply to a program.
fn foreign(case: &Manner, profile: &Profile) -> Option<&'static str> {
    let is_socks5 = profile.upstream() == Some(Upstream::Socks5);
    match (case.of, profile.role) {
        (of, _) if !profile.udp && (of == Of::Udp || case.subject() == "UDP") => Some("it carries no UDP"),
        (Of::Device, Role::Route) => Some("there is no device"),
        (Of::Sockets | Of::Direct, Role::Route | Role::Tunnel) => Some(NO_SOCKETS),
        (Of::Direct, _) if is_socks5 => Some("the SOCKS5 server has the port of the flow"),
        (Of::Packets, _) if is_socks5 => Some("a SOCKS5 server passes on no ICMP, and ours no datagram above 8 KiB"),
        (Of::Roaming, Role::Route | Role::Attach) => Some("the address is not its own"),
        _ => None,
    }
}

/// Starts a program once, and runs cases until one may have broken it. If it does not start, no case is run.
fn session(
    scenario: &Scenario,
    profile: &Profile,
    cases: &[Manner],
    keep: impl Fn(MannerScore) -> bool,
) -> Result<(), RunError> {
    let network = enter_network(scenario)?;
    let (Some(networks), Devices::Tun(tun)) = (network.both(), &scenario.devices) else { return Err(unfit(scenario)) };
    // One that the machine does not have changes no result.
    let _congestion = network.set_congestion(scenario);
    platform::allow_open_files(FILES);
    let failed = |source| platform::Error::new(Class::Failed, "start", "the runtime of the program", source);
    let runtime = runtime(Some(1), None).map_err(failed)?;
    let started = runtime.block_on(async {
        let mut interrupts = Interrupts::catch().map_err(failed)?;
        let (prepared, server) = program::prepare((scenario, None, 0), tun, networks, &mut interrupts).await?;
        Ok((prepared.parts, server, interrupts))
    });
    let (parts, server, interrupts) = match started {
        Ok(started) => started,
        Err(RunError::Interrupted) => return Err(RunError::Interrupted),
        Err(error) => {
            let seen = error.to_string();
            let unavailable =
                |case| MannerScore::new(case, profile.name, None, Outcome::Unavailable { seen: seen.clone() });
            cases.iter().all(|case| keep(unavailable(case)));
            return Ok(());
        }
    };
    let Some(program) = parts.program else { return Err(unfit(scenario)) };
    let version = program.version();
    let targets: Vec<_> = Lab::PORTS.map(|port| SocketAddr::new(server, port)).collect();
    let given = program.connections_to(&targets);
    let mut between = Between { runtime: &runtime, program, cut: parts.cut, given, interrupts, is_interrupted: false };
    let mut lab = lab(scenario, profile.role, tun, networks, server, &mut between)?;
    let mut ended = Ok(());
    for case in cases {
        let outcome = case.run(&mut lab);
        // A failure may have consequences.
        let is_broken = case.breaks || !matches!(outcome, Outcome::Pass | Outcome::NotApplicable { .. });
        if lab.subject.is_interrupted() {
            ended = Err(RunError::Interrupted);
            break;
        }
        if !keep(MannerScore::new(case, profile.name, version.clone(), outcome)) || is_broken {
            break;
        }
    }
    runtime.block_on(between.program.end());
    runtime.shutdown_background();
    ended
}

/// The networks of a case. The servers get one more address.
fn lab<'a>(
    scenario: &Scenario,
    role: Role,
    tun: &'a Tun,
    networks: &'a Networks,
    server: IpAddr,
    subject: &'a mut Between<'_>,
) -> Result<Lab<'a>, RunError> {
    let ([near, ..], prefix_len) = ends(&tun.network);
    // Between the two is the SOCKS5 server.
    let other = next(next(server));
    // Both are for documentation (RFC 5737, RFC 3849).
    let nobody =
        if server.is_ipv6() { IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 9]) } else { [203, 0, 113, 9].into() };
    let nobody = (role == Role::Proxy).then_some(nobody);
    let (interface, len) = match role {
        Role::Attach => ("lo", platform::host_prefix_len(other)),
        _ => (FAR, prefix_len),
    };
    // The kernel tells the program over it that an address is unreachable.
    platform::set_loopback_up()?;
    if matches!(role, Role::Proxy | Role::Attach) {
        networks.far().run(move || platform::add_address(interface, other, len))??;
    }
    if let Some(nobody) = nobody {
        // The servers' address has one already.
        [other, nobody].into_iter().try_for_each(|host| platform::add_host_route(&tun.name, host))?;
    }
    Ok(Lab {
        far: networks.far(),
        servers: [server, other],
        nobody,
        device: &tun.name,
        link: (role != Role::Attach).then_some([NEAR, FAR]),
        near: (near, prefix_len),
        mtu: scenario.cell.mtu(),
        subject,
        port: Lab::PORTS.start,
    })
}

/// A program between the two networks.
struct Between<'a> {
    runtime: &'a Runtime,
    program: Running,
    cut: Option<Cut>,
    /// The connections that it asks the SOCKS5 server for, if it does.
    given: Option<UnboundedReceiver<Given>>,
    interrupts: Interrupts,
    is_interrupted: bool,
}

impl Subject for Between<'_> {
    fn accept(&mut self, target: SocketAddr, within: Duration) -> Option<io::Result<TcpStream>> {
        let given = self.given.as_mut().filter(|_| Lab::PORTS.contains(&target.port()))?;
        // Those of earlier cases may still come.
        let next = async {
            while let Some((stream, to)) = given.recv().await {
                if to == target {
                    return Some(stream);
                }
            }
            None
        };
        let came = self.runtime.block_on(async { timeout(within, next).await });
        let stream = came.ok().flatten().ok_or_else(|| io::ErrorKind::TimedOut.into());
        Some(stream.and_then(|stream| stream.set_nonblocking(false).map(|()| stream)))
    }

    fn ended(&mut self) -> Option<String> {
        self.program.ended()
    }

    fn is_interrupted(&mut self) -> bool {
        let next = async { self.interrupts.next().now_or_never() };
        self.is_interrupted |= self.runtime.block_on(next).is_some();
        self.is_interrupted
    }

    fn is_busy(&self) -> bool {
        self.program.is_busy()
    }

    fn limit_files(&self, more: Option<u64>) -> io::Result<()> {
        self.program.limit_files(more)
    }

    fn cut(&self, is_cut: bool) -> Result<(), String> {
        let cut = self.cut.as_ref().ok_or("there is no link")?;
        cut(is_cut).map_err(|error| error.to_string())
    }
}
