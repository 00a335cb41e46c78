//! The programs that have a profile.

use std::io::{self, Write};

use crate::program::{PLACEHOLDERS, Profile, Role, Upstream};

/// Writes a line for each profile: its name, whether this machine has its program, and how to install it.
pub fn programs(profiles: &[Profile], out: &mut impl Write) -> io::Result<()> {
    for profile in profiles {
        let found = match (&profile.install, profile.is_installed()) {
            (_, true) if profile.is_of_kernel() => "if this kernel has it",
            (_, true) => "installed",
            (Some(install), false) => install,
            (None, false) => "not installed",
        };
        let untested = if profile.untested { "untested; " } else { "" };
        writeln!(out, "{:<24} {:<36} {untested}{found}", profile.name.as_str(), carries(profile))?;
    }
    Ok(())
}

/// Writes what a checked profile does, and what each placeholder stands for.
pub fn program(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}: {}", profile.name, carries(profile))?;
    let role = match profile.role {
        Role::Proxy if profile.guess().is_some() => {
            "proxy; with {peer_endpoint} or another placeholder of a tunnel it would be run as a tunnel"
        }
        Role::Proxy => "proxy",
        Role::Tunnel => "tunnel, a process in each of two networks",
        Role::Attach => "attach, a process in the servers' network",
        Role::Route => "none",
    };
    writeln!(out, "role: {role}")?;
    if profile.untested {
        writeln!(out, "untested: nobody has tried this profile")?;
    }
    if !profile.command.is_empty() {
        let words = shlex::try_join(profile.command.iter().map(String::as_str)).unwrap_or_default();
        writeln!(out, "command: {words}")?;
        match (profile.is_installed(), &profile.install) {
            (true, _) => writeln!(out, "installed: yes")?,
            (false, None) => writeln!(out, "installed: no")?,
            (false, Some(install)) => writeln!(out, "installed: no; {install}")?,
        }
    }
    writeln!(out, "placeholders:")?;
    let mut known = PLACEHOLDERS.iter().filter(|known| known.role.is_none_or(|role| role == profile.role));
    known.try_for_each(|known| writeln!(out, "  {:<16} {}", format!("{{{}}}", known.name), known.meaning))
}

fn carries(profile: &Profile) -> String {
    let protocols = if profile.udp { "TCP and UDP" } else { "TCP" };
    match (profile.role, profile.upstream()) {
        (Role::Route, Some(Upstream::Direct)) => "the kernel alone, without a program".to_owned(),
        (Role::Route, _) => format!("{protocols}, the client through SOCKS5"),
        (Role::Proxy, _) if !profile.device => format!("{protocols}, without a device"),
        (Role::Proxy, Some(Upstream::Socks5)) => format!("{protocols}, through SOCKS5"),
        (Role::Proxy, Some(Upstream::Far)) => format!("{protocols}, through its own server"),
        (Role::Proxy, _) => format!("{protocols}, by itself"),
        (Role::Tunnel, _) => "a tunnel between two networks".to_owned(),
        (Role::Attach, _) => format!("{protocols}, for another namespace"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_of_a_command_says_how_it_is_run() {
        for (typed, role) in [
            (
                "x {tun}",
                "role: proxy; with {peer_endpoint} or another placeholder of a tunnel it would be run as a tunnel\n",
            ),
            ("x {tun} {socks5}", "role: proxy\n"),
            ("x {tun} {peer_endpoint}", "role: tunnel, a process in each of two networks\n"),
        ] {
            let mut out = Vec::new();
            program(&Profile::named(typed).unwrap(), &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains(role), "{text}");
        }
    }
}
