//! The run of a forwarder as the command line that means it.

use std::time::Duration;

use clap::Parser;
use forwarders::{Handoff as Hop, Io, Offload};

use super::{Direction, ForwardScenario, Forwarder, Generator};
use crate::cli::{Cli, Command};
use crate::plan::Verify;
use crate::plan::arguments::Arguments;
use crate::plan::matrix::{CHECK_TIMEOUT, CHECKED_BYTES, Runnable};

/// For how long a path is checked once its first bytes have been compared.
const CHECK_TIME: Duration = Duration::from_millis(50);

impl ForwardScenario {
    fn choice(&self, arguments: &mut Arguments) {
        match self.forwarder {
            Forwarder::Go { .. } => arguments.option("--forwarder", "go"),
            Forwarder::Rust(way) => {
                if way.io != Io::Sync {
                    arguments.option("--io", way.io.name());
                }
                if way.workers.get() != 1 {
                    arguments.option("--workers", way.workers);
                }
                if let Some(threads) = way.threads {
                    arguments.option("--thread", threads);
                }
            }
        }
        if self.forwarder.offload() != Offload::On {
            arguments.option("--offload", self.forwarder.offload().name());
        }
        if self.forwarder.hop() != Hop::Direct {
            arguments.option("--hop", self.forwarder.hop().name());
        }
    }

    fn load(&self, arguments: &mut Arguments, default: Option<&Self>) {
        if self.generator == Generator::Iperf3 {
            arguments.option("--generator", "iperf3");
        }
        match self.direction {
            Direction::Forward => {}
            Direction::Reverse => arguments.flag("--reverse"),
            Direction::Bidir => arguments.flag("--bidir"),
        }
        if default.is_none_or(|default| self.time != default.time) {
            arguments.option("--time", self.time.as_secs_f64());
        }
        if default.is_none_or(|default| self.warmup_bytes != default.warmup_bytes) {
            arguments.option("--warmup", self.warmup_bytes);
        }
        if self.parallel.get() != 1 {
            arguments.option("--parallel", self.parallel);
        }
        if default.is_none_or(|default| self.buffer_bytes != default.buffer_bytes) {
            arguments.option("--buffer", self.buffer_bytes);
        }
        if let Some(congestion) = &self.congestion {
            arguments.option("--congestion", congestion);
        }
        arguments.verify(self.verify);
        arguments.option("--timeout", self.timeout.as_secs_f64());
    }

    fn devices(&self, arguments: &mut Arguments, default: Option<&Self>) {
        if self.ipv6() {
            arguments.flag("--ipv6");
        }
        if default.is_none_or(|default| self.mtu != default.mtu) {
            arguments.option("--mtu", self.mtu);
        }
        if default.is_none_or(|default| self.queue_packets != default.queue_packets) {
            arguments.option("--queue", self.queue_packets);
        }
        let ends = [("--near-name", "--near-addr", &self.near), ("--far-name", "--far-addr", &self.far)];
        let defaults = default.map(|default| [&default.near, &default.far]);
        for (index, (name, address, end)) in ends.into_iter().enumerate() {
            if defaults.is_none_or(|defaults| end.name != defaults[index].name) {
                arguments.option(name, &end.name);
            }
            if defaults.is_none_or(|defaults| end.address != defaults[index].address) {
                arguments.option(address, end.address);
            }
        }
    }

    /// A run of which every option is at its default.
    fn default_over(ipv6: bool) -> Option<Self> {
        let arguments = ["rust-tun-perf", "forward"].into_iter().chain(ipv6.then_some("--ipv6"));
        match Cli::try_parse_from(arguments).ok()?.command? {
            Command::Forward(forward) => Self::try_from(*forward).ok(),
            _ => None,
        }
    }
}

impl Runnable for ForwardScenario {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = Arguments::default();
        arguments.flag("forward");
        let default = Self::default_over(self.ipv6());
        self.choice(&mut arguments);
        self.load(&mut arguments, default.as_ref());
        self.devices(&mut arguments, default.as_ref());
        arguments.into_vec()
    }

    fn path_check(&self) -> Self {
        Self {
            generator: Generator::Own,
            time: CHECK_TIME,
            warmup_bytes: CHECKED_BYTES * u64::from(self.parallel.get()),
            verify: Verify::Full,
            timeout: self.timeout.min(CHECK_TIMEOUT),
            profile: None,
            ..self.clone()
        }
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}
