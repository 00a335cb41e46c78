//! Where a process of a program runs, and the commands that are started there.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{self, Path, PathBuf};
use std::process::Command;

use platform::{Class, Namespace, Network, PARENT};

use super::super::networks::{FAR, FORWARDED_PORT, NEAR, Networks, SOCKS5_PORT, Side};
use super::keys::Keys;
use crate::error::RunError;
use crate::plan::scenario::Scenario;
use crate::program::{Profile, Role, THIS, Unknown, fill};

/// The port of each end of a tunnel: the usual one of `WireGuard`.
const PORT: u16 = 51820;

/// The port for the server that a proxy has in the far network: shadowsocks' usual one.
const FAR_PORT: u16 = 8388;

/// The folder of sockets that control a program, by both its names.
const RUN_FOLDERS: [&str; 2] = ["/run", "/var/run"];

/// What all processes of a program have in common.
pub(super) struct Run<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) profile: &'a Profile,
    /// Those that it is kept on.
    pub(super) processors: Option<&'a [u16]>,
    /// The ports of the load's servers.
    pub(super) server_ports: usize,
    pub(super) networks: &'a Networks,
    /// The name of each device.
    pub(super) device: &'a str,
    /// The near device's.
    pub(super) network: Network,
    /// The addresses of the link's ends.
    pub(super) link: [IpAddr; 2],
    pub(super) server: IpAddr,
    /// The address of the SOCKS5 server, or for the server that the proxy has itself.
    pub(super) beside: Option<IpAddr>,
    /// The folder that the ends share.
    pub(super) shared: &'a Path,
    /// Of a tunnel.
    pub(super) keys: Option<Keys>,
}

impl Run<'_> {
    /// The commands that set the program up.
    pub(super) fn setup(&self) -> impl Iterator<Item = &Vec<String>> {
        self.profile.setup_of(&self.scenario.cell)
    }

    /// The same on a side, each with the number of the peer that it is about: far, each end has one; near, the first comes with
    /// the setup, and each other one by commands of its own.
    pub(super) fn setup_at(&self, side: Side, peer: u16) -> impl Iterator<Item = (u16, &Vec<String>)> {
        let further = if side == Side::Near { 1..self.peers() } else { 0..0 };
        let adds = further.flat_map(|number| self.profile.peer_setup.iter().map(move |words| (number, words)));
        self.setup().map(move |words| (peer, words)).chain(adds)
    }

    fn peers(&self) -> u16 {
        self.scenario.cell.peers.get()
    }

    /// The numbers of the ends on a side. At the far side of a tunnel each peer has one.
    pub(super) fn ends_at(&self, side: Side) -> Range<u16> {
        0..if side == Side::Far { self.peers() } else { 1 }
    }

    /// The devices on a side, in the order of its ends.
    pub(super) fn devices_at(&self, side: Side) -> Vec<String> {
        self.ends_at(side).map(|peer| self.device_at(side, peer)).collect()
    }

    pub(super) fn device_at(&self, side: Side, peer: u16) -> String {
        if side == Side::Near || peer == 0 { self.device.to_owned() } else { format!("peer{peer}") }
    }

    pub(super) fn mtu(&self) -> u16 {
        self.profile.device_mtu(self.scenario.cell.mtu())
    }

    /// The MTU to give the devices: none if the program has its own. That of a tunnel depends on the link, as with wg-quick.
    pub(super) fn mtu_to_set(&self) -> Option<u16> {
        (self.scenario.cell.mtu.is_some() || self.profile.role == Role::Tunnel).then(|| self.mtu())
    }

    /// The addresses of the device on this side, and of a peer's on the other.
    pub(super) fn network_at(&self, side: Side, peer: u16) -> Network {
        let near = self.network.after(peer);
        match side {
            Side::Near => near,
            Side::Far => Network { address: near.peer, peer: near.address, ..near },
        }
    }

    /// Whether a side has the server that a proxy sends its connections to.
    pub(super) fn is_server(&self, side: Side) -> bool {
        self.profile.role == Role::Proxy && side == Side::Far
    }

    pub(super) fn namespace(&self, side: Side) -> Option<&Namespace> {
        (side == Side::Far).then(|| self.networks.far())
    }

    /// Whether all devices on a side are up.
    pub(super) fn is_up(&self, side: Side) -> Result<bool, platform::Error> {
        let devices = self.devices_at(side);
        let are_up = move || devices.iter().all(|device| platform::interface_is_up(device));
        match self.namespace(side) {
            Some(network) => network.run(are_up),
            None => Ok(are_up()),
        }
    }

    /// The networks in which an end on this side may have processes: a program that attaches itself, also in that of the clients.
    pub(super) fn networks_of(&self, side: Side) -> Vec<PathBuf> {
        let sides: &[Side] = if self.profile.role == Role::Attach { &[Side::Near, Side::Far] } else { &[side] };
        sides.iter().map(|side| self.folder_at(*side)).collect()
    }

    /// The folder under `/proc` of a thread in the network of a side.
    pub(super) fn folder_at(&self, side: Side) -> PathBuf {
        self.namespace(side).map_or_else(platform::folder_of_thread, |network| network.folder().to_owned())
    }
}

/// Where a process of a program runs: what its placeholders stand for.
pub(super) struct Place<'a> {
    pub(super) run: &'a Run<'a>,
    pub(super) side: Side,
    /// The number of its peer; at the near end, of the peer that a command is about.
    pub(super) peer: u16,
    /// Of its own.
    pub(super) folder: &'a Path,
}

impl Place<'_> {
    pub(super) fn write(&self) -> Result<(), RunError> {
        let Self { run, side, peer, folder } = self;
        let failed = |source| platform::Error::new(Class::Failed, "write", "the program's files", source);
        let write = |name: &str, text: String| fs::write(folder.join(name), text).map_err(failed);
        match run.profile.role {
            Role::Tunnel => {
                if RUN_FOLDERS.iter().any(|hidden| folder.starts_with(hidden)) {
                    let reason = "a tunnel has a /run of its own, and TMPDIR is in there; set it to another folder";
                    return Err(invalid(reason));
                }
                write("key", run.keys.as_ref().map(|keys| keys.own(*side, *peer)).unwrap_or_default())?;
                fs::create_dir(folder.join("run")).map_err(failed)?;
            }
            Role::Attach => write("netns", String::new())?,
            Role::Proxy | Role::Route => {}
        }
        if let Some(config) = run.profile.config_at(*side == Side::Far) {
            write("config", self.fill(config)?)?;
        }
        Ok(())
    }

    fn value(&self, placeholder: &str) -> Option<String> {
        let Self { run, side, peer, folder } = *self;
        let network = if run.profile.role == Role::Tunnel { run.network_at(side, peer) } else { run.network };
        let [near, far] = run.link;
        let (interface, other) = if side == Side::Near { (NEAR, far) } else { (FAR, near) };
        // The far ends share a network.
        let port = |side| PORT + if side == Side::Far { peer } else { 0 };
        let path = |name: &str| folder.join(name).display().to_string();
        let beside = |port| Some(SocketAddr::new(run.beside?, port));
        Some(match placeholder {
            "tun" => run.device_at(side, peer),
            "mtu" => run.mtu().to_string(),
            "max_flows" => run.scenario.cell.max_flows?.to_string(),
            "set" => {
                let words = run.profile.words_of(&run.scenario.cell).map(|word| self.fill(word).ok());
                words.collect::<Option<Vec<_>>>()?.join("\n")
            }
            "address" => network.address.to_string(),
            "peer" => network.peer.to_string(),
            "prefix" => network.prefix_len.to_string(),
            "interface" => interface.to_owned(),
            "socks5" => beside(SOCKS5_PORT)?.to_string(),
            "socks5_port" => SOCKS5_PORT.to_string(),
            "far" => beside(FAR_PORT)?.to_string(),
            "far_port" => FAR_PORT.to_string(),
            "socks5_host" | "far_host" => run.beside?.to_string(),
            "server" => run.server.to_string(),
            "port" => port(side).to_string(),
            "peer_endpoint" => SocketAddr::new(other, port(side.opposite())).to_string(),
            "peer_host" => other.to_string(),
            "end" => name_of(side).to_owned(),
            "other_end" => name_of(side.opposite()).to_owned(),
            "key" => run.keys.as_ref()?.own(side, peer),
            "key_file" => path("key"),
            "peer_key" => run.keys.as_ref()?.of_peer(side, peer),
            "netns" => path("netns"),
            "first_port" => FORWARDED_PORT.to_string(),
            // Of UDP there is one.
            "last_port" => (usize::from(FORWARDED_PORT) + run.server_ports.max(1)).to_string(),
            "pid" => platform::folder_of_thread().file_name()?.to_str()?.to_owned(),
            "config" => path("config"),
            "shared" => run.shared.display().to_string(),
            "dir" => folder.display().to_string(),
            _ => return None,
        })
    }

    fn fill(&self, template: &str) -> Result<String, RunError> {
        let unknown = |Unknown(name)| invalid(&format!("its profile uses {{{name}}}, which this run has not"));
        fill(template, |placeholder| self.value(placeholder)).map_err(unknown)
    }

    /// The words that start the process. Our proxy has properties of the cell.
    pub(super) fn words(&self) -> Vec<String> {
        let Run { profile, scenario, .. } = self.run;
        let words = profile.far_command.as_ref().filter(|_| self.side == Side::Far).unwrap_or(&profile.command);
        let has_set = !words.is_empty() && !profile.sets_in_config() && !self.run.is_server(self.side);
        let set = profile.words_of(&scenario.cell).filter(|_| has_set);
        let is_ours = scenario.cell.adapter().is_some();
        words.iter().chain(set).cloned().chain(if is_ours { scenario.cell.proxy_words() } else { Vec::new() }).collect()
    }

    /// The command that starts the process; none if the kernel does its work.
    pub(super) fn command(&self) -> Result<Option<Command>, RunError> {
        let words = self.words();
        if words.is_empty() { Ok(None) } else { self.command_of(&words).map(Some) }
    }

    /// A command of the profile, in the view of the file system that the process has.
    pub(super) fn command_of(&self, words: &[String]) -> Result<Command, RunError> {
        let mut command = self.command_without_mounts(words)?;
        let mounts = self.mounts();
        if !mounts.is_empty() {
            let failed = |source| platform::Error::new(Class::Failed, "mount for", "the program", source);
            platform::with_mounts(&mut command, &mounts).map_err(failed)?;
        }
        Ok(command)
    }

    pub(super) fn command_without_mounts(&self, words: &[String]) -> Result<Command, RunError> {
        let words = words.iter().map(|word| self.fill(word)).collect::<Result<Vec<_>, _>>()?;
        let mut command = command(&words);
        for (name, value) in &self.run.profile.environment {
            command.env(name, self.fill(value)?);
        }
        command.current_dir(self.folder);
        if let Some(processors) = self.run.processors {
            let failed = |source| platform::Error::new(Class::Failed, "keep on processors", "the program", source);
            platform::keep_on(&mut command, processors).map_err(failed)?;
        }
        platform::end_with_this_thread(&mut command);
        Ok(command)
    }

    /// Both ends of a tunnel may use the same path in `/run`, so each has a folder of its own there. A program that gives up
    /// rights may not open this process's namespace, but a file that is bound to it.
    fn mounts(&self) -> Vec<(PathBuf, PathBuf)> {
        let own = |name: &str| self.folder.join(name);
        match self.run.profile.role {
            Role::Tunnel => {
                let found = RUN_FOLDERS.map(|folder| fs::canonicalize(folder).ok());
                let mut folders: Vec<_> = found.into_iter().flatten().collect();
                folders.dedup();
                folders.into_iter().map(|folder| (own("run"), folder)).collect()
            }
            Role::Attach => vec![(platform::folder_of_thread().join("ns/net"), own("netns"))],
            Role::Proxy | Role::Route => Vec::new(),
        }
    }
}

fn name_of(side: Side) -> &'static str {
    if side == Side::Near { "near" } else { "far" }
}

/// A command of words. The first is a program's name, or its path from the user's folder.
pub(super) fn command(words: &[String]) -> Command {
    let mut command = Command::new(located(words.first().map_or("", String::as_str)));
    command.args(words.iter().skip(1)).env_remove(PARENT);
    command
}

/// The path of a program, or its name if it is looked for in `PATH`.
pub(super) fn located(name: &str) -> PathBuf {
    match name {
        THIS => platform::this_program(),
        name if name.contains('/') => path::absolute(name).unwrap_or_else(|_| name.into()),
        name => name.into(),
    }
}

pub(super) fn invalid(reason: &str) -> RunError {
    let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
    platform::Error::new(Class::Invalid, "run", "the program", source).into()
}
