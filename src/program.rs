//! Programs that carry traffic as they are, and their profiles.
//!
//! A [`Profile`] is a TOML file of a few lines: how a program is started on a TUN device, and what it needs. The profiles in
//! `program/profiles/` are part of this program; docs/your-program.md explains one line by line.

mod name;
mod template;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use netstacks::StackKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::name::ProgramName;
pub(crate) use self::template::{Unknown, fill, placeholders};

/// The placeholders of a profile, and what the run puts in their place.
pub const PLACEHOLDERS: [(&str, &str); 12] = [
    ("tun", "name of the device that the program must make"),
    ("mtu", "MTU of the device, in bytes"),
    ("address", "the client's address on the device"),
    ("peer", "the address on the other side of the device"),
    ("prefix", "prefix length of the device's network, in bits"),
    ("interface", "interface for the program's own connections to the servers"),
    ("socks5", "address and port of the SOCKS5 server"),
    ("socks5_host", "its address"),
    ("socks5_port", "its port"),
    ("server", "address of the servers"),
    ("config", "path of the configuration"),
    ("dir", "a folder for the program's files, its working directory; it is deleted after the run"),
];

/// The name of this program in a command: it is this executable, wherever it is.
pub(crate) const THIS: &str = env!("CARGO_PKG_NAME");

/// Longest profile, in bytes.
const MAX_PROFILE: u64 = 64 << 10;

/// The start of a program, and the things that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name in tables and files.
    pub name: ProgramName,
    /// What it does.
    pub role: Role,
    /// The program and its arguments, with placeholders.
    #[serde(default)]
    pub command: Vec<String>,
    /// The command that prints its version: the first line with a digit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub version: Vec<String>,
    /// The command that installs it, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
    /// Where it sends connections.
    #[serde(default)]
    pub upstream: Upstream,
    /// Whether it carries UDP.
    #[serde(default = "yes")]
    pub udp: bool,
    /// The text of `{config}`, with placeholders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Environment variables, with placeholders in their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// What was typed for it; a profile has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub typed: String,
}

fn yes() -> bool {
    true
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It makes a TUN device, ends the connections in it and opens others.
    Proxy,
    /// There is no program: the kernel routes to the servers, or the client itself asks the SOCKS5 server for connections.
    Route,
}

/// Where a program sends connections and datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Upstream {
    /// To a SOCKS5 server of this program (RFC 1928)
    #[default]
    Socks5,
    /// To the servers, through {interface}
    Direct,
}

/// The profiles of this program, but for our proxy: the name, the text, and the word that stands for STACK in the text.
static BUILT_IN: [(&str, &str, &str); 8] = [
    ("kernel", include_str!("program/profiles/kernel.toml"), ""),
    ("socks5", include_str!("program/profiles/socks5.toml"), ""),
    ("tun2proxy", include_str!("program/profiles/tun2proxy.toml"), ""),
    ("sing-box-gvisor", SING_BOX, "gvisor"),
    ("sing-box-system", SING_BOX, "system"),
    ("sing-box-mixed", SING_BOX, "mixed"),
    ("sing-box-gvisor-direct", SING_BOX_DIRECT, "gvisor"),
    ("sing-box-system-direct", SING_BOX_DIRECT, "system"),
];

const SING_BOX: &str = include_str!("program/profiles/sing-box.toml");
const SING_BOX_DIRECT: &str = include_str!("program/profiles/sing-box-direct.toml");

/// The profile of our proxy on a stack.
const OWN: &str = include_str!("program/profiles/own.toml");

/// All profiles of this program: those of stacks that this build has are our proxy.
fn built_in() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let stacks = StackKind::ALL.into_iter().filter(|stack| stack.compiled_in());
    BUILT_IN.into_iter().chain(stacks.map(|stack| (stack.name(), OWN, stack.name())))
}

/// The profiles without a program, with which the others are compared.
const BASELINES: [&str; 2] = ["kernel", "socks5"];

/// Whether a profile without a program has this name.
pub(crate) fn is_baseline(name: ProgramName) -> bool {
    BASELINES.contains(&name.as_str())
}

/// The names of the profiles that are part of this program.
pub fn names() -> impl Iterator<Item = &'static str> {
    built_in().map(|(name, ..)| name)
}

/// The text of a profile that is part of this program.
pub fn text(name: &str) -> Option<String> {
    built_in().find(|(of, ..)| *of == name).map(|(_, text, stack)| text.replace("STACK", stack))
}

impl Profile {
    /// The profile that a user names: one of this program's by its name, a file by its path, or a command by its words.
    ///
    /// # Errors
    ///
    /// The reason why it is refused: for a file, with line and column.
    pub fn named(typed: &str) -> Result<Self, String> {
        // A command has at least the placeholder of its device.
        let is_command = typed.contains(char::is_whitespace) && typed.contains('{');
        let is_path = typed.contains('/') || Path::new(typed).extension().is_some_and(|end| end == "toml");
        let profile = if is_command {
            Self::of_command(typed).and_then(Self::with_own_name)
        } else if is_path {
            let of_file = |reason| format!("{typed}: {reason}");
            Self::read(Path::new(typed)).and_then(Self::with_own_name).map_err(of_file)
        } else {
            let text = text(typed).ok_or_else(|| {
                let names: Vec<_> = names().collect();
                format!(
                    "no program has this name; there are {}, and profiles by their path; a command has {{tun}}",
                    names.join(", ")
                )
            })?;
            Self::parse(&text)
        }?;
        Ok(Self { typed: typed.to_owned(), ..profile })
    }

    /// Reads the text of a profile.
    ///
    /// # Errors
    ///
    /// Says what is wrong, with line and column.
    pub fn parse(text: &str) -> Result<Self, String> {
        let profile: Self = toml::from_str(text).map_err(|error| at(text, &error))?;
        profile.check()?;
        Ok(profile)
    }

    fn read(path: &Path) -> Result<Self, String> {
        let bytes = beginning(path).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > MAX_PROFILE {
            return Err(format!("a profile has at most {MAX_PROFILE} bytes"));
        }
        Self::parse(&String::from_utf8(bytes).map_err(|error| error.utf8_error().to_string())?)
    }

    /// Refuses a user's profile with the name of a profile or a stack of this program.
    fn with_own_name(self) -> Result<Self, String> {
        if names().chain(StackKind::ALL.map(StackKind::name)).any(|name| name == self.name.as_str()) {
            return Err(format!("the name {} belongs to a profile or a stack of this program", self.name));
        }
        Ok(self)
    }

    /// A command that uses the SOCKS5 server if it names it, and else opens its connections itself.
    fn of_command(typed: &str) -> Result<Self, String> {
        let command = shlex::split(typed).ok_or("a quote is not closed")?;
        let program = command.first().map(String::as_str).unwrap_or_default();
        let name = Path::new(program).file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let uses_socks5 = command.iter().any(|word| word.contains("{socks5"));
        let profile = Self {
            name: name.parse()?,
            role: Role::Proxy,
            command,
            version: Vec::new(),
            install: None,
            upstream: if uses_socks5 { Upstream::Socks5 } else { Upstream::Direct },
            udp: true,
            config: None,
            environment: BTreeMap::new(),
            typed: String::new(),
        };
        profile.check()?;
        Ok(profile)
    }

    /// Whether this machine has the program, in a folder of `PATH` or at its path.
    pub fn is_installed(&self) -> bool {
        let Some(program) = self.command.first().filter(|program| *program != THIS) else { return true };
        let folders = env::var_os("PATH").unwrap_or_default();
        let named = |folder: PathBuf| folder.join(program).is_file();
        Path::new(program).is_file() || (!program.contains('/') && env::split_paths(&folders).any(named))
    }

    /// Refuses a profile that no run could use.
    fn check(&self) -> Result<(), String> {
        if self.role == Role::Proxy && self.command.first().is_none_or(String::is_empty) {
            return Err("the command is empty".to_owned());
        }
        if self.command.iter().chain(&self.version).any(|word| word.contains('\0')) {
            return Err("a word of a command has a zero byte".to_owned());
        }
        let templates = self.command.iter().chain(&self.config).chain(self.environment.values());
        let used: Vec<_> = templates.flat_map(|template| placeholders(template)).collect();
        if let Some(unknown) = used.iter().find(|used| PLACEHOLDERS.iter().all(|(known, _)| known != *used)) {
            let known: Vec<_> = PLACEHOLDERS.iter().map(|(name, _)| format!("{{{name}}}")).collect();
            return Err(format!(
                "{{{unknown}}} is no placeholder: these are {}; {{{{{unknown}}}}} is the text {{{unknown}}}",
                known.join(", ")
            ));
        }
        if self.config.is_none() && used.contains(&"config") {
            return Err("{config} is used, and the profile has no config".to_owned());
        }
        if self.upstream == Upstream::Direct && used.iter().any(|used| used.starts_with("socks5")) {
            return Err("it uses the SOCKS5 server; leave out upstream = \"direct\"".to_owned());
        }
        if self.role == Role::Proxy && !used.contains(&"tun") {
            return Err("the command and the config do not use {tun}, the name of the device".to_owned());
        }
        Ok(())
    }
}

/// The bytes of a regular file, up to one more than a profile may have.
fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a FIFO waits for a writer, and a device may have no end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_PROFILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// An error in a profile, with its line and column, both from 1.
fn at(text: &str, error: &toml::de::Error) -> String {
    // It names what it found, which may be anything.
    let message = error.message().replace(char::is_control, " ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return message };
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: {message}")
}

#[cfg(test)]
mod tests;
