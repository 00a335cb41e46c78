//! Where a program runs, and the command that starts it there.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{self, Path};
use std::process::Command;

use platform::Class;

use super::super::error::RunError;
use super::super::process::PARENT;
use super::super::proxy::NEAR;
use crate::program::{Profile, THIS, Unknown, fill};
use crate::scenario::{Scenario, Tun};

/// Where a program runs: what its placeholders stand for.
pub(super) struct Place<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) tun: &'a Tun,
    pub(super) server: IpAddr,
    pub(super) socks5: Option<SocketAddr>,
}

impl Place<'_> {
    /// The value of a placeholder.
    fn value(&self, placeholder: &str, folder: &Path) -> Option<String> {
        let network = &self.tun.network;
        Some(match placeholder {
            "tun" => self.tun.name.clone(),
            "mtu" => self.scenario.mtu.to_string(),
            "address" => network.address.to_string(),
            "peer" => network.peer.to_string(),
            "prefix" => network.prefix_len.to_string(),
            "interface" => NEAR.to_owned(),
            "socks5" => self.socks5?.to_string(),
            "socks5_host" => self.socks5?.ip().to_string(),
            "socks5_port" => self.socks5?.port().to_string(),
            "server" => self.server.to_string(),
            "config" => folder.join("config").display().to_string(),
            "dir" => folder.display().to_string(),
            _ => return None,
        })
    }

    /// The command of a profile, with its files in `folder`.
    pub(super) fn command(&self, profile: &Profile, folder: &Path) -> Result<Command, RunError> {
        let fill = |template: &String| {
            let unknown = |Unknown(name)| invalid(&format!("its profile uses {{{name}}}, which this run has not"));
            fill(template, |placeholder| self.value(placeholder, folder)).map_err(unknown)
        };
        if let Some(config) = &profile.config {
            let failed = |source| platform::Error::new(Class::Failed, "write", "the program's configuration", source);
            fs::write(folder.join("config"), fill(config)?).map_err(failed)?;
        }
        let words = profile.command.iter().map(fill).collect::<Result<Vec<_>, _>>()?;
        let mut command = command(&words);
        for (name, value) in &profile.environment {
            command.env(name, fill(value)?);
        }
        command.current_dir(folder);
        platform::end_with_this_thread(&mut command);
        Ok(command)
    }
}

/// A command of words. The first is a program's name, or its path from the user's folder. It does not end with the process
/// that has started this one.
pub(super) fn command(words: &[String]) -> Command {
    let name = words.first().cloned().unwrap_or_default();
    let program = match name {
        name if name == THIS => platform::this_program(),
        name if name.contains('/') => path::absolute(&name).unwrap_or_else(|_| name.into()),
        name => name.into(),
    };
    let mut command = Command::new(program);
    command.args(words.iter().skip(1)).env_remove(PARENT);
    command
}

pub(super) fn invalid(reason: &str) -> RunError {
    let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
    platform::Error::new(Class::Invalid, "run", "the program", source).into()
}
