//! Writes a scenario as the command line that repeats it.

use std::fmt::Display;

use clap::Parser;
use forwarders::{Handoff, Io};
use platform::Offload;

use crate::cli::{Cli, Command};
use crate::scenario::{
    Amount, Conditions, Devices, Forwarder, Generator, Layer, Mode, Protocol, Requests, RuntimeKind, Scenario,
};

impl Scenario {
    /// The arguments that make this run. Options at their default and `--profile` are left out. Parsing the arguments
    /// gives an equal scenario, apart from the profile.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = Words { words: Vec::new() };
        // The default comes from constant arguments. If they could not be parsed, every option would be written.
        let default = self.default_of_its_command();
        let default = default.as_ref();
        match self.subject.forwarder() {
            Some(forwarder) => {
                words.flag("forward");
                words.forwarder(forwarder);
                words.direction(self.workload.mode());
                words.differs("--queue", default, self, |scenario| scenario.queue_packets.unwrap_or_default());
            }
            None => words.subject(self),
        }
        for (name, value) in self.conditions.options() {
            words.option(name, value);
        }
        if self.conditions != Conditions::default() {
            words.differs("--link-seed", default, self, |scenario| scenario.link_seed);
        }
        if !self.has_fd() {
            words.differs("--mtu", default, self, |scenario| scenario.mtu);
        }
        if self.parallel.get() != 1 {
            words.option("--parallel", self.parallel);
        }
        words.load(self, default);
        if self.ipv6() {
            words.flag("--ipv6");
        }
        words.devices(&self.devices, default.map(|default| &default.devices));
        if !self.isolated && !self.has_fd() && platform::netns_supported() {
            words.option("--netns", "host");
        }
        if let Some(command) = &self.command {
            words.option("--command", command);
        }
        if let Some(program) = &self.go_forwarder {
            words.option("--go-forwarder", program.display());
        }
        words.words
    }

    fn has_fd(&self) -> bool {
        matches!(&self.devices, Devices::Tun(tun) if tun.fd.is_some())
    }

    /// The scenario of the same command with every option at its default.
    fn default_of_its_command(&self) -> Option<Self> {
        let command: &[&str] = if self.subject.forwarder().is_some() { &["forward"] } else { &["--layer", "device"] };
        let words = ["rust-tun-perf"].iter().chain(command).chain(self.ipv6().then_some(&"--ipv6"));
        let cli = Cli::try_parse_from(words).ok()?;
        match cli.command {
            Some(Command::Forward(forward)) => Self::try_from(*forward).ok(),
            _ => Self::try_from(cli.run).ok(),
        }
    }
}

/// A command line under construction.
struct Words {
    words: Vec<String>,
}

impl Words {
    fn flag(&mut self, name: &str) {
        self.words.push(name.to_owned());
    }

    /// Writes name and value as one word, so that no value is taken for an option.
    fn option(&mut self, name: &str, value: impl Display) {
        self.words.push(format!("{name}={value}"));
    }

    /// Writes an option if its value is not the default.
    fn differs<T: PartialEq + Display>(
        &mut self,
        name: &str,
        default: Option<&Scenario>,
        scenario: &Scenario,
        value: impl Fn(&Scenario) -> T,
    ) {
        if default.is_none_or(|default| value(default) != value(scenario)) {
            self.option(name, value(scenario));
        }
    }

    fn subject(&mut self, scenario: &Scenario) {
        let layer = scenario.subject.layer();
        if layer != Layer::Path {
            self.option("--layer", layer);
        }
        if let Some(mode) = scenario.workload.mode() {
            self.option("--mode", mode);
        }
        if let Some(stack) = scenario.subject.stack() {
            self.option("--netstack", stack);
        }
        if scenario.workload.protocol() == Some(Protocol::Udp) {
            self.option("--protocol", Protocol::Udp);
        }
        if let Some(requests) = scenario.workload.requests() {
            self.requests(requests);
        }
        if let Some(mode) = scenario.background {
            self.option("--background", mode);
        }
        if let Some(rate) = scenario.bitrate {
            self.option("--bitrate", rate);
        }
        if let Some(len) = scenario.workload.datagram_bytes() {
            self.option("--datagram", len);
        }
        match scenario.runtime {
            RuntimeKind::CurrentThread => self.flag("--current-thread"),
            RuntimeKind::MultiThread(Some(workers)) => self.option("--worker-threads", workers),
            RuntimeKind::MultiThread(None) => {}
        }
        match scenario.offload {
            Offload::Auto => {}
            Offload::On => self.option("--offload", "on"),
            Offload::Off => self.option("--offload", "off"),
        }
    }

    fn requests(&mut self, requests: Requests) {
        let usual = Requests::default();
        if requests.request_bytes != usual.request_bytes {
            self.option("--request", requests.request_bytes);
        }
        if requests.response_bytes != usual.response_bytes {
            self.option("--response", requests.response_bytes);
        }
        if requests.depth != usual.depth {
            self.option("--depth", requests.depth);
        }
        if let Some(rate) = requests.rate {
            self.option("--rate", rate);
        }
    }

    fn forwarder(&mut self, forwarder: Forwarder) {
        match forwarder {
            Forwarder::Go { .. } => self.option("--forwarder", "go"),
            Forwarder::Rust(config) => {
                if config.io != Io::Sync {
                    self.option("--io", config.io.name());
                }
                if config.workers.get() != 1 {
                    self.option("--workers", config.workers);
                }
                if let Some(threads) = config.threads {
                    self.option("--thread", threads);
                }
            }
        }
        if forwarder.offload() != forwarders::Offload::On {
            self.option("--offload", forwarder.offload().name());
        }
        if forwarder.handoff() != Handoff::Direct {
            self.option("--hop", forwarder.handoff().name());
        }
    }

    fn direction(&mut self, mode: Option<Mode>) {
        match mode {
            Some(Mode::Reader) => self.flag("--reverse"),
            Some(Mode::Both) => self.flag("--bidir"),
            Some(Mode::Writer | Mode::Rr | Mode::Crr | Mode::Idle) | None => {}
        }
    }

    fn load(&mut self, scenario: &Scenario, default: Option<&Scenario>) {
        if scenario.generator != Generator::Own {
            self.option("--generator", scenario.generator);
        }
        if default.is_none_or(|default| default.amount != scenario.amount) {
            match scenario.amount {
                Amount::Bytes(bytes) => self.option("--bytes", bytes),
                Amount::Time { time, .. } => self.option("--time", time.as_secs_f64()),
            }
        }
        // The default warm-up depends on --bytes. Requests have no warm-up in bytes.
        let derived = matches!(scenario.amount, Amount::Bytes(_));
        if scenario.workload.is_stream() {
            self.differs("--warmup", default.filter(|_| !derived), scenario, |scenario| scenario.warmup_bytes);
        }
        let is_stack = scenario.subject.forwarder().is_none();
        if is_stack {
            if let Some(interval) = scenario.interval {
                self.option("--interval", interval.as_secs_f64());
            }
            self.differs("--window", default, scenario, |scenario| scenario.window_bytes);
        }
        self.differs("--buffer", default, scenario, |scenario| scenario.buffer_bytes);
        if let Some(congestion) = &scenario.congestion {
            self.option("--congestion", congestion);
        }
        self.differs("--verify", default, scenario, |scenario| scenario.verify);
        // The default timeout of a forwarder depends on --time.
        let default = default.filter(|_| is_stack);
        self.differs("--timeout", default, scenario, |scenario| scenario.timeout.as_secs_f64());
    }

    fn devices(&mut self, devices: &Devices, default: Option<&Devices>) {
        match (devices, default) {
            (Devices::Tun(tun), default) => {
                let network = &tun.network;
                let default = match default {
                    Some(Devices::Tun(tun)) => Some(tun),
                    _ => None,
                };
                if default.is_none_or(|default| default.network != *network) {
                    self.option("--tun-addr", network.address);
                    self.option("--tun-dest", network.peer);
                    self.option("--tun-mask", network.mask());
                }
                match tun.fd {
                    Some(fd) => self.option("--tun-fd", fd),
                    None if default.is_none_or(|default| default.name != tun.name) => {
                        self.option("--tun-name", &tun.name);
                    }
                    None => {}
                }
            }
            (Devices::Pair { near, far }, default) => {
                let defaults = match default {
                    Some(Devices::Pair { near, far }) => [Some(near), Some(far)],
                    _ => [None, None],
                };
                let ends = [("--near-name", "--near-addr", near), ("--far-name", "--far-addr", far)];
                for ((name, address, end), default) in ends.into_iter().zip(defaults) {
                    if default.is_none_or(|default| default.name != end.name) {
                        self.option(name, &end.name);
                    }
                    if default.is_none_or(|default| default.address != end.address) {
                        self.option(address, end.address);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, feature = "smoltcp"))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

    use super::*;
    use crate::plan::Plan;

    fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Scenario {
        let cli = Cli::try_parse_from(["rust-tun-perf"].into_iter().chain(words)).unwrap();
        match Plan::try_from(cli).unwrap() {
            Plan::Run { scenario, .. } => *scenario,
            plan => panic!("no run: {plan:?}"),
        }
    }

    #[test]
    fn the_arguments_of_a_scenario_give_the_scenario_as_its_json_does() {
        let mut typed = vec![
            "-m reader -n smoltcp",
            "-m writer -n smoltcp --bytes 1MB",
            "-m writer -n smoltcp --current-thread --offload on --mtu 9000 --time 0.25 --warmup 0",
            "-m writer -n smoltcp --worker-threads 3 --offload off --bytes 123456789 --interval 0.1 --parallel 4",
            "-m reader -n smoltcp --ipv6 --window 64KiB --buffer 1 --verify full --netns host --timeout 3.5",
            "-m reader -n smoltcp --tun-name tun3 --tun-addr 10.0.0.2 --tun-dest 10.0.0.1 --tun-mask 255.255.255.252",
            "-m reader -n smoltcp --congestion reno --tun-fd 5 --verify off",
            "--layer loopback --mode writer",
            "--layer device --offload off",
            "--layer stack --mode reader --netstack smoltcp",
            "--layer proxy --mode reader --netstack smoltcp --interval 0.5",
            "-m reader -n smoltcp --protocol udp --datagram 100 --bitrate 20M --time 3",
            "-m writer -n smoltcp --protocol udp",
            "-m rr -n smoltcp --protocol udp --request 64 --response 512B --background reader --bitrate 10M",
            "-m both -n smoltcp --bitrate 100M",
            "forward",
            "forward --io async --offload whole --hop pool --thread 2 --time 0.5 --warmup 1MB --parallel 3",
            "forward --forwarder go --offload off --hop channel --reverse --ipv6 --mtu 9000 --queue 100",
            "forward --workers 2 --bidir --buffer 1KB --congestion reno --verify off --timeout 12.5 --near-name a0",
            "forward --generator iperf3 --time 3 --far-addr 10.9.0.1 --far-name b0 --go-forwarder /x/y",
        ];
        if !platform::netns_supported() {
            typed.retain(|typed| !typed.contains("proxy"));
        }
        for typed in typed {
            let scenario = parse(typed.split(' '));
            let arguments = scenario.arguments();
            assert_eq!(parse(arguments.iter().map(String::as_str)), scenario, "{typed}: {arguments:?}");
            let json = serde_json::to_string(&scenario).unwrap();
            assert_eq!(serde_json::from_str::<Scenario>(&json).unwrap(), scenario, "{json}");
        }
    }
}
