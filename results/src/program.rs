//! Programs that carry traffic as they are, and their profiles: see docs/your-program.md.

mod built_in;
mod name;
mod placeholder;
mod template;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::iter;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use netstacks::StackKind;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cell::Cell;

pub(crate) use self::built_in::{SOCKS5, has_no_program, is_baseline, role, upstream};
pub use self::built_in::{names, text};
pub use self::name::{Program, ProgramName};
pub(crate) use self::placeholder::PLACEHOLDERS;
use self::placeholder::role_of;
pub use self::template::{Unknown, fill, placeholders};

/// The bytes of the headers that a tunnel adds by default: 40 of IPv6, 8 of UDP and 32 of `WireGuard`.
const TUNNEL_OVERHEAD: u16 = 80;

/// The name of this program in a command: it is this executable, wherever it is.
pub const THIS: &str = "rust-tun-perf";

/// The placeholder of the words for what a run sets.
const SET: &str = "set";

const MAX_PROFILE: u64 = 64 << 10;

/// The start of an executable (ELF) and of a script. A profile may begin like a script: `#` begins a comment in TOML.
const PROGRAM_STARTS: [&[u8]; 2] = [b"\x7fELF", b"#!"];

/// The start of a program, and the things that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name in tables and files.
    pub name: ProgramName,
    /// What it does.
    pub role: Role,
    /// The program and its arguments, with placeholders.
    #[serde(default)]
    pub command: Vec<String>,
    /// The same for the far end of a tunnel, if it differs; the server that a proxy sends its connections to, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far_command: Option<Vec<String>>,
    /// Commands that make what the ends need, such as certificates. They run once, before the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepare: Vec<Vec<String>>,
    /// Commands that set the program up when it runs, at each end of a tunnel. Each is tried again until it succeeds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<Vec<String>>,
    /// More of them for a run in which the servers are in the clients' network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inbound_setup: Vec<Vec<String>>,
    /// Commands that add a further peer to the near end of a tunnel, which runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_setup: Vec<Vec<String>>,
    /// The command that prints its version: the first line with a digit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub version: Vec<String>,
    /// The version that the profile was tried with, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested: Option<String>,
    /// Whether nobody has tried the profile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untested: bool,
    /// The command that installs it, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
    /// Where a proxy sends connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Upstream>,
    /// Whether it carries UDP.
    #[serde(default = "yes")]
    pub udp: bool,
    /// Whether it makes a device. To a proxy without one, the commands that set it up lead the connections.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub device: bool,
    /// The text of `{config}`, with placeholders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The same for the far end, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far_config: Option<String>,
    /// The bytes of the headers that a tunnel adds to a packet: the MTU of its devices is so much less than that of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<u16>,
    /// Words for what a run sets, such as the MTU. As its authors ship it, a program has none of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<Setting, Vec<String>>,
    /// Environment variables, with placeholders in their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// What the user typed for it. Plans of runs have it, files do not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub typed: String,
}

fn yes() -> bool {
    true
}

/// What a run may set in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// The MTU of its device.
    Mtu,
    /// Its limit of connections and flows.
    MaxFlows,
    /// The ports that it forwards to servers in the clients' network.
    Inbound,
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It makes a TUN device, ends the connections in it and opens others.
    Proxy,
    /// It has two processes, one in each network. Each makes a TUN device, and packets from one come out of the other.
    Tunnel,
    /// It runs in the servers' network, and makes a TUN or TAP device in the clients' network, as for a container.
    Attach,
    /// No program: the kernel routes, or the client itself speaks SOCKS5. Only profiles of this program have it.
    Route,
}

/// Where a program sends connections and datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Upstream {
    /// To a SOCKS5 server of this program (RFC 1928)
    #[default]
    Socks5,
    /// To the servers, through {interface}
    Direct,
    /// To a process of its own in the far network
    Far,
}

impl Profile {
    /// The profile that a user names: one of this program's by its name, a file by its path, or a command by its words.
    pub fn named(typed: &str) -> Result<Self, String> {
        // A command has at least the placeholder of its device. One without says so, rather than that no file has its name.
        let is_command = typed.contains(char::is_whitespace) && (typed.contains('{') || !Path::new(typed).exists());
        let profile = if is_command {
            Self::of_command(typed).and_then(Self::with_own_name)
        } else if is_path(typed) {
            Self::read(Path::new(typed)).and_then(Self::with_own_name)
        } else {
            let text = text(typed).ok_or_else(|| {
                let names: Vec<_> = names().collect();
                format!(
                    "no program has this name; there are {}, and profiles by their path; a command has {{tun}}",
                    names.join(", ")
                )
            })?;
            Self::of_text(&text)
        }?;
        Ok(Self { typed: typed.to_owned(), ..profile })
    }

    /// Reads the text of a user's profile.
    pub fn parse(text: &str) -> Result<Self, String> {
        let profile = Self::of_text(text)?;
        let is_route = profile.role == Role::Route;
        refuse(is_route, &format!("role = \"route\" has no program; a profile has {ROLES}"))?;
        refuse(!profile.typed.is_empty(), "unknown field `typed`")?;
        profile.check()?;
        Ok(profile)
    }

    fn of_text(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| at(text, &error))
    }

    fn read(path: &Path) -> Result<Self, String> {
        let bytes = beginning(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NO_FILE.to_owned(),
            _ => error.to_string(),
        })?;
        let is_program = PROGRAM_STARTS.iter().any(|start| bytes.starts_with(start));
        let profile = match String::from_utf8(bytes) {
            Ok(text) if text.len() as u64 <= MAX_PROFILE => Self::parse(&text),
            Err(error) if error.as_bytes().len() as u64 <= MAX_PROFILE => Err(error.utf8_error().to_string()),
            _ => Err(format!("a profile has at most {MAX_PROFILE} bytes")),
        };
        let no_profile = || {
            let command = format!("--program '{} {{tun}} …'", path.display());
            format!("it is a program, not a profile; write its command: {command}, see docs/your-program.md")
        };
        profile.map_err(|reason| if is_program { no_profile() } else { reason })
    }

    fn with_own_name(self) -> Result<Self, String> {
        if names().chain(StackKind::ALL.map(StackKind::name)).any(|name| name == self.name.as_str()) {
            return Err(format!("the name {} belongs to a profile or a stack of this program", self.name));
        }
        Ok(self)
    }

    /// A command: its placeholders tell its role. If it does not name the SOCKS5 server, it opens its connections itself.
    fn of_command(typed: &str) -> Result<Self, String> {
        let command = shlex::split(typed).ok_or("a quote is not closed")?;
        let program = command.first().map(String::as_str).unwrap_or_default();
        let name = Path::new(program).file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let uses_socks5 = command.iter().any(|word| word.contains("{socks5"));
        let role = command.iter().flat_map(|word| placeholders(word)).find_map(role_of).unwrap_or(Role::Proxy);
        let name: ProgramName = name.parse()?;
        let upstream = (role == Role::Proxy && !uses_socks5).then_some(Upstream::Direct);
        let fields = json!({ "name": name, "role": role, "command": command, "upstream": upstream });
        let profile = Self::deserialize(fields).map_err(|error| error.to_string())?;
        profile.check()?;
        Ok(profile)
    }

    fn is_of_command(&self) -> bool {
        shlex::split(&self.typed).as_ref() == Some(&self.command)
    }

    /// Whether it is from a file.
    pub fn is_of_file(&self) -> bool {
        is_path(&self.typed) && !self.is_of_command()
    }

    /// Why it is run as a proxy, if nothing says that it is one: it is a command without a placeholder of one role.
    pub fn guess(&self) -> Option<&'static str> {
        let mut used = self.command.iter().flat_map(|word| placeholders(word));
        (self.is_of_command() && used.all(|placeholder| role_of(placeholder).is_none())).then_some(
            "it was run as a proxy, which is one process, because its command has no placeholder of a tunnel such as \
             {peer_endpoint}",
        )
    }

    /// Whether this machine has the program and those that set it up.
    pub fn is_installed(&self) -> bool {
        self.missing().is_none()
    }

    /// The first of them that is neither in a folder of `PATH` nor at its path.
    pub fn missing(&self) -> Option<&String> {
        let programs = self.commands().chain([&self.version]).filter_map(|words| words.first());
        programs.filter(|program| *program != THIS).find(|program| found(program).is_none())
    }

    /// Whether a version that its program prints is one that the profile was not tried with.
    pub fn is_for_another(&self, version: &str) -> bool {
        let is_tested = |tested: &str| {
            let of_word = |word: &str| word.strip_prefix('v').unwrap_or(word).strip_prefix(tested).map(str::to_owned);
            version.split_whitespace().filter_map(of_word).any(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.tested.as_deref().is_some_and(|tested| !is_tested(tested))
    }

    /// The file of its program, unless that is this program or the kernel. The command may begin with another, such as a shell.
    pub fn file(&self) -> Option<PathBuf> {
        let program = self.version.first().or(self.command.first()).filter(|_| !self.command.is_empty());
        program.filter(|program| *program != THIS).and_then(|program| found(program))
    }

    /// Where it, or the client itself, sends connections; none for a tunnel, which has packets alone.
    pub fn upstream(&self) -> Option<Upstream> {
        match self.role {
            Role::Proxy if self.far_command.is_some() => Some(Upstream::Far),
            Role::Proxy | Role::Route => Some(self.upstream.unwrap_or(Upstream::Socks5)),
            Role::Attach => Some(Upstream::Direct),
            Role::Tunnel => None,
        }
    }

    pub(crate) fn overhead(&self) -> u16 {
        self.overhead.unwrap_or(if self.role == Role::Tunnel { TUNNEL_OVERHEAD } else { 0 })
    }

    /// The MTU of its devices over a link with this one, in bytes.
    pub fn device_mtu(&self, mtu: u16) -> u16 {
        mtu.saturating_sub(self.overhead())
    }

    /// The words for what a cell sets.
    pub fn words_of<'a>(&'a self, cell: &Cell) -> impl Iterator<Item = &'a String> {
        let (mtu, max_flows) = (cell.mtu.is_some(), cell.max_flows.is_some());
        let is_set = [(Setting::Mtu, mtu), (Setting::MaxFlows, max_flows), (Setting::Inbound, cell.inbound)];
        let has = move |setting: &Setting| is_set.contains(&(*setting, true));
        self.set.iter().filter(move |(setting, _)| has(setting)).flat_map(|(_, words)| words)
    }

    /// The commands that set it up for a cell.
    pub fn setup_of(&self, cell: &Cell) -> impl Iterator<Item = &Vec<String>> {
        self.setup.iter().chain(self.inbound_setup.iter().filter(|_| cell.inbound))
    }

    /// Refuses connections from outside to a program that cannot have them.
    pub(crate) fn check_inbound(&self) -> Result<(), String> {
        let name = self.name;
        let has_words = self.set.contains_key(&Setting::Inbound) || !self.inbound_setup.is_empty();
        let without = format!("the profile of {name} does not say how it forwards ports (set.inbound)");
        match self.role {
            Role::Tunnel => Ok(()),
            Role::Attach => refuse(!has_words, &without),
            Role::Route if self.upstream() == Some(Upstream::Direct) => Ok(()),
            Role::Proxy | Role::Route => Err(format!("{name} opens connections and accepts none from outside")),
        }
    }

    /// Refuses several peers of a program that cannot have them.
    pub(crate) fn check_peers(&self) -> Result<(), String> {
        let name = self.name;
        refuse(self.role != Role::Tunnel, &format!("{name} is no tunnel; only a tunnel has peers"))?;
        let without =
            format!("the profile of {name} does not say how a peer is added to a process that runs (peer_setup)");
        refuse(self.peer_setup.is_empty(), &without)
    }

    /// Whether the words for what a run sets have a place in the configuration, and not at the end of the command.
    pub fn sets_in_config(&self) -> bool {
        [&self.config, &self.far_config]
            .into_iter()
            .flatten()
            .any(|config| placeholders(config).any(|used| used == SET))
    }

    /// Whether there is a device.
    pub fn has_device(&self) -> bool {
        self.device && self.role != Role::Route
    }

    /// Whether the kernel does the work of a tunnel.
    pub fn is_of_kernel(&self) -> bool {
        self.role == Role::Tunnel && self.command.is_empty()
    }

    fn commands(&self) -> impl Iterator<Item = &Vec<String>> {
        let setup = self.setup.iter().chain(&self.peer_setup);
        iter::once(&self.command).chain(&self.far_command).chain(&self.prepare).chain(setup)
    }

    fn templates(&self, is_far: bool) -> impl Iterator<Item = &String> {
        let command = self.far_command.as_ref().filter(|_| is_far).unwrap_or(&self.command);
        let setup = self.setup.iter().chain(&self.inbound_setup).chain(&self.peer_setup);
        let others = self.prepare.iter().chain(setup).flatten().chain(self.set.values().flatten());
        command.iter().chain(others).chain(self.environment.values())
    }

    /// The template of `{config}` at one end.
    pub fn config_at(&self, is_far: bool) -> Option<&String> {
        self.far_config.as_ref().filter(|_| is_far).or(self.config.as_ref())
    }

    fn check(&self) -> Result<(), String> {
        let all = || self.commands().chain(&self.inbound_setup);
        let is_empty = |command: &Vec<String>| command.first().is_none_or(String::is_empty);
        let may_be_empty = self.role == Role::Route
            || (self.role == Role::Tunnel && self.far_command.is_none() && !self.setup.is_empty());
        let commands_are_empty = (!may_be_empty && is_empty(&self.command)) || all().skip(1).any(is_empty);
        refuse(commands_are_empty, "the command is empty")?;
        let has_zero = all().flatten().chain(&self.version).any(|word| word.contains('\0'));
        refuse(has_zero, "a word of a command has a zero byte")?;
        let is_tunnel = self.role == Role::Tunnel;
        refuse(self.overhead.is_some() && !is_tunnel, "overhead is for role = \"tunnel\"")?;
        refuse(!self.peer_setup.is_empty() && !is_tunnel, "peer_setup is for role = \"tunnel\"")?;
        let is_attach = self.role == Role::Attach;
        refuse(!self.inbound_setup.is_empty() && !is_attach, "inbound_setup is for role = \"attach\"")?;
        let has_far_end = is_tunnel || (self.role == Role::Proxy && self.far_command.is_some());
        let reason = "far_command and far_config are for role = \"tunnel\", and for a proxy with both or the first";
        refuse((self.far_command.is_some() || self.far_config.is_some()) && !has_far_end, reason)?;
        let has_no_upstream = matches!(self.role, Role::Tunnel | Role::Attach) || has_far_end;
        let reason =
            "upstream is for role = \"proxy\", and not for one with a far_command, which it sends its connections to";
        refuse(self.upstream.is_some() && has_no_upstream, reason)?;
        let used_at = |is_far| {
            let templates = self.templates(is_far).chain(self.config_at(is_far));
            templates.flat_map(|template| placeholders(template)).collect::<Vec<_>>()
        };
        let ends = [used_at(false), used_at(true)];
        let used = ends.concat();
        if let Some(unknown) = used.iter().find(|used| PLACEHOLDERS.iter().all(|known| known.name != **used)) {
            let known: Vec<_> = PLACEHOLDERS.iter().map(|known| format!("{{{}}}", known.name)).collect();
            return Err(format!(
                "{{{unknown}}} is no placeholder: these are {}; {{{{{unknown}}}}} is the text {{{unknown}}}",
                known.join(", ")
            ));
        }
        let lacks_config =
            |is_far: bool| self.config_at(is_far).is_none() && ends[usize::from(is_far)].contains(&"config");
        let lacks_any = lacks_config(false) || lacks_config(has_far_end);
        refuse(lacks_any, "{config} is used, and the profile has no config")?;
        let other = |used: &&&str| role_of(used).is_some_and(|role| role != self.role);
        if let Some(other) = used.iter().find(other) {
            return Err(format!("{{{other}}} is not for this role; see programs show, and its placeholders"));
        }
        let mut templates = self.templates(false).chain(self.templates(true)).flat_map(|word| placeholders(word));
        refuse(templates.any(|used| used == SET), "{set} is for the config; a command gets its words at its end")?;
        let has = |start: &str| used.iter().any(|used| used.starts_with(start));
        let reason = "it uses the SOCKS5 server; leave out upstream = \"direct\", or the far_command";
        refuse(self.upstream() != Some(Upstream::Socks5) && has("socks5"), reason)?;
        refuse(!has_far_end && has("far"), "{far}, {far_host} and {far_port} are those of a far_command")?;
        refuse(!self.device && self.role != Role::Proxy, "device = false is for role = \"proxy\"")?;
        let reason = "the command and the config do not use {tun}, the name of the device; a program that opens no TUN \
                      device, such as a SOCKS5 server alone, cannot be measured";
        let makes_device = if is_tunnel { &ends[..] } else { &ends[..1] };
        refuse(self.has_device() && makes_device.iter().any(|used| !used.contains(&"tun")), reason)
    }
}

/// The file of a program: at its path, or in a folder of `PATH`.
fn found(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn refuse(is_wrong: bool, reason: &str) -> Result<(), String> {
    if is_wrong { Err(reason.to_owned()) } else { Ok(()) }
}

fn is_path(typed: &str) -> bool {
    typed.contains('/') || Path::new(typed).extension().is_some_and(|end| end == "toml")
}

const NO_FILE: &str = "there is no such file; write a name of `programs list`, the path of a profile, or a command with \
                       {tun} in quotation marks";

const SHELL_WORDS: [&str; 9] = [">", ">>", "<", "|", "||", "&", "&&", ";", "2>&1"];

const SHELLS: [&str; 7] = ["sh", "ash", "bash", "dash", "fish", "ksh", "zsh"];

/// What to say of a command that failed if it has a word for a shell, and starts none.
pub fn no_shell(words: &[String]) -> Option<String> {
    let is_for_shell =
        |word: &&String| word.contains('$') || word.starts_with('~') || SHELL_WORDS.contains(&word.as_str());
    let is_shell =
        |word: &String| SHELLS.iter().any(|shell| Path::new(word).file_name().is_some_and(|name| name == *shell));
    let word = words.iter().find(is_for_shell).filter(|_| !words.iter().any(is_shell))?;
    Some(format!("there is no shell, so {} is passed as it is", word.replace(char::is_control, " ")))
}

fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a FIFO waits for a writer, and a device may have no end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_PROFILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

const ROLES: &str = "\"proxy\", \"tunnel\" or \"attach\"";

/// Parts of serde's errors in the words of a profile: two names are internal, and each list is one of words.
const WORDING: [(&str, &str); 3] = [
    (", `typed`", ""),
    (", `route`", ""),
    ("expected a sequence", r#"expected a list of words, such as ["./mytun", "{tun}"]"#),
];

fn at(text: &str, error: &toml::de::Error) -> String {
    // It names what it found, which may be anything.
    let message = error.message().replace(char::is_control, " ");
    let mut message = WORDING.iter().fold(message, |message, (written, meant)| message.replace(written, meant));
    if message == "missing field `role`" {
        message = format!("{message}, which is {ROLES}");
    }
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return message };
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: {message}")
}

#[cfg(test)]
mod tests;
