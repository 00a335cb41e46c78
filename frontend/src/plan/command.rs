//! Writes a scenario as the command line that repeats it.

use clap::Parser;

use super::axes;
use crate::cli::{Cli, Command};
use crate::scenario::{Devices, End, Forwarder, Generator, Mode, Scenario, Tun};

impl Scenario {
    /// The arguments that make this run. Options at their default and `--profile` are left out. Parsing the arguments
    /// gives an equal scenario, apart from the profile.
    pub fn arguments(&self) -> Vec<String> {
        let (command, mut options) = match self.subject.forwarder() {
            Some(forwarder) => (vec!["forward".to_owned()], self.options_of_forward(forwarder)),
            None => (Vec::new(), axes::words(self)),
        };
        options.extend(self.settings());
        // A default may depend on other options, so each is left out where that makes no difference.
        for index in (0..options.len()).rev() {
            let option = options.remove(index);
            if !self.is_made_by(&[command.as_slice(), options.as_slice()].concat()) {
                options.insert(index, option);
            }
        }
        [command, options].concat()
    }

    /// Whether these arguments make this run, apart from its profile.
    fn is_made_by(&self, arguments: &[String]) -> bool {
        let program = "rust-tun-perf".to_owned();
        let Ok(cli) = Cli::try_parse_from([&program].into_iter().chain(arguments)) else { return false };
        let made = match cli.command {
            Some(Command::Forward(forward)) => Self::try_from(*forward),
            _ => Self::try_from(cli.run),
        };
        made.is_ok_and(|made| made == Self { profile: None, ..self.clone() })
    }

    /// The options that are no axes, each with its value as one word, so that no value is taken for an option.
    fn settings(&self) -> Vec<String> {
        let is_run = self.subject.forwarder().is_none();
        let mut words = vec![format!("--timeout={}", self.timeout.as_secs_f64())];
        words.extend(self.interval.filter(|_| is_run).map(|every| format!("--interval={}", every.as_secs_f64())));
        words.extend(self.go_forwarder.as_ref().map(|program| format!("--go-forwarder={}", program.display())));
        if is_run && !self.isolated && self.tun_fd().is_none() {
            words.push("--netns=host".to_owned());
        }
        match &self.devices {
            Devices::Tun(Tun { name, network, fd }) => {
                words.push(format!("--tun-addr={}", network.address));
                words.push(format!("--tun-dest={}", network.peer));
                words.push(format!("--tun-mask={}", network.mask()));
                words.push(fd.map_or_else(|| format!("--tun-name={name}"), |fd| format!("--tun-fd={fd}")));
            }
            Devices::Pair { near, far } => {
                for (side, End { name, address }) in [("near", near), ("far", far)] {
                    words.extend([format!("--{side}-name={name}"), format!("--{side}-addr={address}")]);
                }
            }
        }
        words
    }

    /// The options of the command `forward`.
    fn options_of_forward(&self, forwarder: Forwarder) -> Vec<String> {
        let mut words = match forwarder {
            Forwarder::Go { .. } => vec!["--forwarder=go".to_owned()],
            Forwarder::Rust(config) => {
                let threads = config.threads.map(|threads| format!("--thread={threads}"));
                [format!("--io={}", config.io.name()), format!("--workers={}", config.workers)]
                    .into_iter()
                    .chain(threads)
                    .collect()
            }
        };
        words.push(format!("--offload={}", forwarder.offload().name()));
        words.push(format!("--hop={}", forwarder.handoff().name()));
        words.extend(match self.workload.mode() {
            Some(Mode::Reader) => Some("--reverse".to_owned()),
            Some(Mode::Both) => Some("--bidir".to_owned()),
            Some(Mode::Writer | Mode::Rr | Mode::Crr | Mode::Idle) | None => None,
        });
        words.extend(self.queue_packets.map(|packets| format!("--queue={packets}")));
        if self.generator != Generator::Own {
            words.push(format!("--generator={}", self.generator));
        }
        let is_shared = |word: &String| SHARED.iter().any(|option| word.starts_with(option));
        words.extend(axes::words(self).into_iter().filter(is_shared));
        words
    }
}

/// The axes that are options of `forward`, too.
const SHARED: [&str; 8] =
    ["--mtu=", "--parallel=", "--ipv6", "--time=", "--warmup=", "--buffer=", "--congestion=", "--verify="];

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
