//! A scenario as the command line that means it: what another process is told, and what a reader of a
//! table can type to repeat a cell.

use clap::Parser;
use platform::Offload;

use super::{Amount, Layer, RuntimeKind, Scenario, Verify};
use crate::cli::{Cli, DEFAULT_MTU};

/// The arguments of a scenario: see [`Runnable::arguments`](super::Runnable).
pub(super) fn of(scenario: &Scenario) -> Vec<String> {
    let mut arguments = Arguments::default();
    scenario.cell(&mut arguments);
    let default = Scenario::default_over(scenario.network.address.is_ipv6());
    scenario.settings(&mut arguments, default.as_ref());
    scenario.device(&mut arguments, default.as_ref());
    arguments.into_vec()
}

impl Scenario {
    fn cell(&self, arguments: &mut Arguments) {
        if self.subject.layer() != Layer::Path {
            arguments.option("--layer", self.subject.layer().name());
        }
        if let Some(mode) = self.subject.mode() {
            arguments.option("--mode", mode.name());
        }
        if let Some(stack) = self.subject.stack() {
            arguments.option("--netstack", stack.name());
        }
        match self.runtime {
            RuntimeKind::CurrentThread => arguments.flag("--current-thread"),
            RuntimeKind::MultiThread(Some(workers)) => arguments.option("--worker-threads", workers),
            RuntimeKind::MultiThread(None) => {}
        }
        match self.offload {
            Offload::Auto => {}
            Offload::On => arguments.option("--offload", "on"),
            Offload::Off => arguments.option("--offload", "off"),
        }
        if self.mtu != DEFAULT_MTU && self.tun_fd.is_none() {
            arguments.option("--mtu", self.mtu);
        }
        if self.parallel.get() != 1 {
            arguments.option("--parallel", self.parallel);
        }
    }

    fn settings(&self, arguments: &mut Arguments, default: Option<&Self>) {
        if default.is_none_or(|default| self.amount != default.amount) {
            match self.amount {
                Amount::Bytes(bytes) => arguments.option("--bytes", bytes),
                Amount::Time(time) => arguments.option("--time", time.as_secs_f64()),
            }
        }
        if default.is_none_or(|default| self.warmup_bytes != default.warmup_bytes) {
            arguments.option("--warmup", self.warmup_bytes);
        }
        if let Some(interval) = self.interval {
            arguments.option("--interval", interval.as_secs_f64());
        }
        if default.is_none_or(|default| self.window_bytes != default.window_bytes) {
            arguments.option("--window", self.window_bytes);
        }
        if default.is_none_or(|default| self.buffer_bytes != default.buffer_bytes) {
            arguments.option("--buffer", self.buffer_bytes);
        }
        if let Some(congestion) = &self.congestion {
            arguments.option("--congestion", congestion);
        }
        arguments.verify(self.verify);
        if default.is_none_or(|default| self.timeout != default.timeout) {
            arguments.option("--timeout", self.timeout.as_secs_f64());
        }
    }

    fn device(&self, arguments: &mut Arguments, default: Option<&Self>) {
        let network = &self.network;
        if network.address.is_ipv6() {
            arguments.flag("--ipv6");
        }
        if default.is_none_or(|default| *network != default.network) {
            arguments.option("--tun-addr", network.address);
            arguments.option("--tun-dest", network.peer);
            arguments.option("--tun-mask", network.mask());
        }
        if let Some(fd) = self.tun_fd {
            arguments.option("--tun-fd", fd);
            return;
        }
        if default.is_none_or(|default| self.tun_name != default.tun_name) {
            arguments.option("--tun-name", &self.tun_name);
        }
        if !self.isolated && platform::netns_supported() {
            arguments.option("--netns", "host");
        }
    }

    /// A scenario of which every option is at its default.
    fn default_over(ipv6: bool) -> Option<Self> {
        let arguments = ["rust-tun-perf", "--layer", "device"].into_iter().chain(ipv6.then_some("--ipv6"));
        Self::try_from(Cli::try_parse_from(arguments).ok()?.run).ok()
    }
}

/// A command line under way.
#[derive(Default)]
pub(super) struct Arguments(Vec<String>);

impl Arguments {
    /// The words.
    pub(super) fn into_vec(self) -> Vec<String> {
        self.0
    }

    pub(super) fn verify(&mut self, verify: Verify) {
        match verify {
            Verify::Sample => {}
            Verify::Full => self.option("--verify", "full"),
            Verify::Off => self.option("--verify", "off"),
        }
    }

    pub(super) fn flag(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    /// In one word, so that no value is taken for an option.
    pub(super) fn option(&mut self, name: &str, value: impl std::fmt::Display) {
        self.0.push(format!("{name}={value}"));
    }
}

#[cfg(all(test, feature = "smoltcp"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::plan::Runnable;

    fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Scenario {
        let arguments = ["rust-tun-perf"].into_iter().chain(arguments);
        Scenario::try_from(Cli::try_parse_from(arguments).unwrap().run).unwrap()
    }

    #[test]
    fn arguments_of_a_scenario_mean_the_scenario() {
        for typed in [
            "-m reader -n smoltcp",
            "-m writer -n smoltcp --current-thread --offload on --mtu 9000 --time 0.25 --warmup 0",
            "-m writer -n smoltcp --worker-threads 3 --offload off --bytes 123456789 --interval 0.1 --parallel 4",
            "-m reader -n smoltcp --ipv6 --window 64KiB --buffer 1 --verify full --netns host --timeout 3.5",
            "-m reader -n smoltcp --tun-name tun3 --tun-addr 10.0.0.2 --tun-dest 10.0.0.1 --tun-mask 255.255.255.252",
            "-m reader -n smoltcp --congestion reno --tun-fd 5 --verify off",
            "--layer loopback --mode writer",
            "--layer device --offload off",
            "--layer stack --mode reader --netstack smoltcp",
        ] {
            let scenario = parse(typed.split(' '));
            let arguments = scenario.arguments();
            assert_eq!(parse(arguments.iter().map(String::as_str)), scenario, "{typed}: {arguments:?}");
        }
    }
}
