#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
// The counts in the tests need these stacks.
#![cfg(all(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]

use std::num::NonZeroU64;

use clap::Parser;
use netstacks::StackKind;

use super::*;
use crate::cli::{Cli, Command};
use crate::scenario::Amount;
use crate::scenario::{RuntimeKind, Verify};

/// The order of the seed 42 in its first round, of eight scenarios.
const ORDER_OF_42: [usize; 8] = [6, 4, 5, 3, 2, 1, 0, 7];

/// The plan of `matrix` with these arguments.
fn planned(arguments: &str) -> Result<MatrixPlan, PlanError> {
    match parse(&format!("matrix {arguments}")) {
        Command::Matrix(matrix) => MatrixPlan::try_from(*matrix),
        command => panic!("{command:?} is no matrix"),
    }
}

fn parse(arguments: &str) -> Command {
    Cli::try_parse_from(["rust-tun-perf"].into_iter().chain(arguments.split_whitespace())).unwrap().command.unwrap()
}

fn plan(arguments: &str) -> MatrixPlan {
    planned(arguments).unwrap()
}

/// The number of scenarios of a layer.
fn count(plan: &MatrixPlan, layer: Layer) -> usize {
    plan.scenarios.iter().filter(|scenario| scenario.subject.layer() == layer).count()
}

/// The number of stacks of this build.
fn stacks() -> usize {
    StackKind::ALL.into_iter().filter(|stack| stack.compiled_in()).count()
}

/// The number of offload settings on this system.
fn offloads() -> usize {
    if platform::offload_supported() { 2 } else { 1 }
}

#[test]
fn rounds_until_something_have_a_limit_and_no_other_build() {
    let one = "--netstack lwip --mode reader --runtime current-thread --offload off";
    let until = plan(&format!("{one} --until 5% --at-most 10min"));
    assert_eq!((until.until, until.at_most, until.runs), (Some(0.05), Some(Duration::from_mins(10)), MOST_RUNS));
    let announced =
        "rounds of 1 run take about 2 seconds; 10 or more, until each interval is within ±5 %, for at most 10 minutes";
    assert_eq!(until.announced().as_deref(), Some(announced));
    let limited = plan(&format!("{one} --runs 3 --time 2 --at-most 5s"));
    assert_eq!(
        limited.announced().as_deref(),
        Some("3 runs in 3 rounds take about 8 seconds, and end after 5 seconds")
    );
    assert_eq!(
        plan(&format!("{one} --runs 100")).announced().as_deref(),
        Some("100 runs in 100 rounds take about 2 minutes")
    );
    assert_eq!(plan(&format!("{one} --bytes 1MB")).announced(), None);
    for wrong in
        ["--until 10", "--until 0 --at-most 1", "--until 10 --at-most 0", "--until 10 --at-most 1 --against old"]
    {
        let refused = Cli::try_parse_from(format!("x matrix {wrong}").split(' ')).unwrap_err().to_string();
        assert!(refused.contains("--at-most") || refused.contains("--until"), "{refused}");
    }
}

#[test]
fn every_combination_is_there_once() {
    let plan = plan("");
    // Stacks, modes, runtimes, and the offloads.
    assert_eq!(plan.scenarios.len(), stacks() * 2 * 2 * offloads());
    assert_eq!((plan.runs, plan.skipped.len(), plan.out, plan.seed), (10, 0, None, None));
    let cells: HashSet<Cell> = plan.scenarios.iter().map(Cell::planned).collect();
    assert_eq!(cells.len(), plan.scenarios.len());
}

/// A matrix knows a run by its cell: a second scenario of a cell would never run, and was announced.
#[test]
fn a_preset_plans_each_cell_once() {
    for preset in ["streams", "requests", "connections", "datagrams", "networks", "stacks", "all", "repairs", "cores"] {
        let plan = plan(&format!("--preset {preset}"));
        let cells: HashSet<Cell> = plan.scenarios.iter().map(Cell::planned).collect();
        assert_eq!(cells.len(), plan.scenarios.len(), "{preset}");
        let skipped: HashSet<&String> = plan.skipped.iter().collect();
        assert_eq!(skipped.len(), plan.skipped.len(), "{preset}: {:?}", plan.skipped);
    }
}

#[test]
fn a_comparison_has_the_rounds_that_its_verdict_needs() {
    let one = "-n smoltcp -m writer --runtime current-thread --offload off --against old";
    assert_eq!(plan(one).runs, DEFAULT_RUNS);
    assert_eq!(plan(&format!("{one} --runs 6")).runs, 6);
    let error = planned(&format!("{one} --runs 5")).unwrap_err().to_string();
    assert!(error.contains("--runs") && error.contains("on 1 cell needs 6"), "{error}");
    let rows = |words: &str| match parse(&format!("forward --all {words}")) {
        Command::Forward(forward) => MatrixPlan::try_from(*forward).unwrap(),
        command => panic!("{command:?}"),
    };
    assert_eq!(rows("").runs, DEFAULT_FORWARD_RUNS);
    let compared = rows("--against old");
    assert_eq!(compared.runs as usize, Method::WithinRounds.runs_needed(compared.scenarios.len()));
}

#[test]
fn lists_multiply() {
    let plan =
        plan("-n smoltcp -m writer --runtime current-thread --offload off --mtu 1500,9000 --parallel 1,2,4 --ipv6 all");
    assert_eq!(plan.scenarios.len(), 2 * 3 * 2);
}

/// Each mode ignores the lists that it does not have.
#[test]
fn lists_of_loads_multiply_for_the_modes_that_have_them() {
    let one = "-n smoltcp --runtime current-thread --offload off";
    let rates = plan(&format!("{one} -m rr,crr,reader --rate 100,200 --request 1,10"));
    assert_eq!((rates.scenarios.len(), rates.skipped.len()), (4 + 4 + 1, 0), "{:?}", rates.skipped);
    let protocols = plan(&format!("{one} -m reader,rr --protocol tcp,udp --datagram 100 --bitrate 1M"));
    assert_eq!((protocols.scenarios.len(), protocols.skipped.len()), (4, 0), "{:?}", protocols.skipped);
}

/// Names of repairs are one value, and a stack without them is left out. Only smoltcp has a choice of congestion control.
#[test]
fn repairs_multiply() {
    let one = "-m reader --runtime current-thread --offload off";
    let all = plan(&format!("{one} -n smoltcp,lwip --repairs all,none --repairs=-late-fin,-spare-sockets"));
    let names: Vec<_> = all.scenarios.iter().map(|scenario| Cell::planned(scenario).to_string()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert_eq!(names[1], "smoltcp reader current-thread offload off MTU 1500 repairs none");
    assert_eq!(names[2], "smoltcp reader current-thread offload off MTU 1500 repairs -late-fin,-spare-sockets");
    assert!(all.skipped[0].contains("lwip has no repair late-fin"), "{:?}", all.skipped);
    let several = plan(&format!("{one} -n smoltcp,lwip --stack-congestion all"));
    assert_eq!(several.scenarios.len(), 3 + 1);
}

#[test]
fn a_matrix_delivers_by_time_unless_it_is_told_how_many_bytes() {
    assert!(plan("").scenarios.iter().all(|scenario| scenario.amount == Amount::time(DEFAULT_TIME)));
    let bytes = Amount::Bytes(NonZeroU64::new(5_000_000).unwrap());
    assert!(plan("--bytes 5MB").scenarios.iter().all(|scenario| scenario.amount == bytes));
    let time = Amount::time(Duration::from_millis(250));
    assert!(plan("--time 0.25").scenarios.iter().all(|scenario| scenario.amount == time));
}

#[test]
fn only_the_multi_thread_runtime_has_workers() {
    let plan = plan("--worker-threads 3");
    let runtimes: HashSet<RuntimeKind> = plan.scenarios.iter().map(|scenario| scenario.runtime).collect();
    let three = RuntimeKind::MultiThread(std::num::NonZeroUsize::new(3));
    assert_eq!(runtimes, HashSet::from([RuntimeKind::CurrentThread, three]));
}

#[test]
fn an_impossible_combination_is_left_out_with_the_reason() {
    let plan = plan("-n smoltcp,lwip -m reader --runtime current-thread --offload off --mtu 576,1500 --ipv6 all");
    assert_eq!(plan.scenarios.len(), 2 * 3);
    assert_eq!(
        plan.skipped,
        [
            "smoltcp reader MTU 576, IPv6: --mtu: 576 bytes; IPv6 needs at least 1280",
            "lwip reader MTU 576, IPv6: --mtu: 576 bytes; IPv6 needs at least 1280"
        ]
    );
}

#[test]
fn if_nothing_is_possible_the_wrong_option_is_named() {
    for (arguments, error) in [
        ("--mtu 576 --ipv6 on", "--mtu: 576 bytes; IPv6 needs at least 1280"),
        ("--timeout 0", "--timeout: must be more than 0 seconds and at most a day, 86400"),
        (
            "--ipv6 on --tun-addr 10.0.0.9",
            "--tun-addr: 10.0.0.9 is of the other IP version; leave out --ipv6, or give IPv6 addresses",
        ),
    ] {
        assert_eq!(planned(arguments).unwrap_err().to_string(), error, "{arguments}");
    }
}

#[test]
fn a_baseline_runs_once_for_each_setting_that_it_has() {
    let plan = plan("--baseline --mtu 1500,9000 --parallel 1,4");
    let runtimes = 2;
    assert_eq!(count(&plan, Layer::Path), stacks() * 2 * runtimes * offloads() * 2 * 2);
    // It has no MTU and no offload, but several streams.
    assert_eq!(count(&plan, Layer::Loopback), 2 * runtimes * 2);
    assert_eq!(count(&plan, Layer::Stack), stacks() * 2 * runtimes * offloads() * 2 * 2);
    // It has one stream only.
    let devices = if platform::netns_supported() { runtimes * offloads() * 2 } else { 0 };
    assert_eq!(count(&plan, Layer::Device), devices);
    assert!(plan.skipped.is_empty(), "{:?}", plan.skipped);
    let cells: HashSet<Cell> = plan.scenarios.iter().map(Cell::planned).collect();
    assert_eq!(cells.len(), plan.scenarios.len());
}

#[test]
fn a_baseline_of_the_device_needs_a_network_of_its_own() {
    let plan = plan("--baseline -n smoltcp --netns host --mtu 1500,9000 --parallel 1,4");
    assert_eq!(count(&plan, Layer::Device), 0);
    assert!(count(&plan, Layer::Stack) > 0 && count(&plan, Layer::Loopback) > 0);
    let device: Vec<_> = plan.skipped.iter().filter(|layer| layer.contains("the layer device")).collect();
    assert_eq!(device.len(), 1, "{:?}", plan.skipped);
    let device = |isolated, supported| left_out(Layer::Device, isolated, supported);
    assert_eq!(device(true, true), None);
    let reason = "the layer device: it makes a router of its network, so it needs one of its own;";
    assert_eq!(device(false, true), Some(format!("{reason} leave out --netns host")));
    assert_eq!(device(false, false), Some(format!("{reason} this system has no namespaces")));
}

#[test]
fn a_baseline_of_loopback_is_over_either_ip_version() {
    let plan = plan("--baseline -n smoltcp --ipv6 all");
    assert_eq!(count(&plan, Layer::Loopback), 2 * 2 * 2);
}

#[test]
fn loopback_ignores_the_mtu() {
    let plan = plan("--baseline -n smoltcp -m reader --runtime current-thread --mtu 576,1500 --ipv6 on");
    assert_eq!(count(&plan, Layer::Loopback), 1);
}

#[test]
fn a_round_runs_every_scenario_once() {
    let plan = plan("");
    let all: Vec<usize> = (0..plan.scenarios.len()).collect();
    for round in 1..=50 {
        let mut order = MatrixPlan::order(plan.scenarios.len(), 7, round);
        order.sort_unstable();
        assert_eq!(order, all, "round {round}");
    }
}

#[test]
fn equal_seeds_and_rounds_give_equal_orders() {
    let order = |seed, round| MatrixPlan::order(24, seed, round);
    assert_eq!(order(7, 3), order(7, 3));
    assert_ne!(order(7, 3), order(8, 3));
    let orders: HashSet<Vec<usize>> = (1..=50).map(|round| order(7, round)).collect();
    assert_eq!(orders.len(), 50);
    // A later build may continue a file: the order of a seed never changes.
    assert_eq!(MatrixPlan::order(8, 42, 1), ORDER_OF_42);
}

#[test]
fn every_run_is_first_equally_often() {
    let mut firsts = [0; 4];
    for round in 1..=4000 {
        firsts[MatrixPlan::order(4, 1, round)[0]] += 1;
    }
    // 1000 each, with a standard deviation of 27.
    assert!(firsts.iter().all(|count| (870..=1130).contains(count)), "{firsts:?}");
}

/// The layer loopback has no stacks, so it is planned once without a word.
#[test]
fn runs_that_no_table_tells_apart_are_left_out_with_a_reason() {
    let skipped = |options: &str| plan(&format!("--layer loopback,path -n lwip,smoltcp -m reader {options}")).skipped;
    assert_eq!(skipped(""), [""; 0]);
    let left_out = skipped("--verify sample,off");
    assert_eq!(left_out.len(), 3, "{left_out:?}");
    assert!(left_out.iter().all(|line| line.contains("such as --verify")), "{left_out:?}");
}

#[test]
fn a_seed_is_short_enough_to_be_typed() {
    assert_eq!(plan("--seed 18446744073709551615").seed(), u64::MAX);
    assert!(plan("").seed() < 100_000_000_000);
}

#[test]
fn the_check_of_a_path_is_short_and_compares_every_byte() {
    for scenario in plan("--parallel 1,200 --verify off --timeout 3").scenarios {
        let check = scenario.path_check();
        let bytes = 1_000_000 * u64::from(scenario.parallel.get());
        assert_eq!(check.amount, Amount::Bytes(NonZeroU64::new(bytes).unwrap()));
        assert_eq!((check.verify, check.warmup_bytes, check.timeout), (Verify::Full, 0, Duration::from_secs(3)));
        assert_eq!(Cell::planned(&check), Cell::planned(&scenario));
    }
    let many = &plan("--parallel 5000 -n smoltcp -m reader").scenarios[0];
    assert_eq!(many.path_check().amount, Amount::Bytes(NonZeroU64::new(200_000_000).unwrap()));
    let idle = &plan("-m idle --parallel 2 -n smoltcp --release 20s").scenarios[0];
    assert!(idle.path_check().release < Duration::from_secs(1));
}

/// A stack in a process of its own has bulk datagrams, too.
#[test]
#[cfg(target_os = "linux")]
fn the_preset_of_datagrams_has_the_same_modes_for_gvisor() {
    let plan = plan("--preset datagrams -n smoltcp,gvisor");
    let modes = |stack| -> Vec<_> {
        let of_stack = plan.scenarios.iter().filter(|scenario| scenario.subject.stack() == Some(stack));
        of_stack.map(|scenario| scenario.workload.mode()).collect()
    };
    assert_eq!(modes(StackKind::Gvisor).len(), 3);
    assert_eq!(modes(StackKind::Gvisor), modes(StackKind::Smoltcp));
    assert!(plan.skipped.is_empty(), "{:?}", plan.skipped);
}

/// A list has names and paths, and a command is one value, so the option may be repeated.
#[test]
#[cfg(target_os = "linux")]
fn programs_come_from_lists_and_from_commands() {
    let words = [
        "rust-tun-perf",
        "matrix",
        "-m",
        "rr",
        "--program",
        "kernel,lwip",
        "--program",
        "a {tun},1",
        "--program",
        "kernel",
    ];
    let planned = |words: &[&str]| match Cli::try_parse_from(words).unwrap().command {
        Some(Command::Matrix(matrix)) => MatrixPlan::try_from(*matrix),
        command => panic!("{command:?}"),
    };
    let names = |plan: &MatrixPlan| -> Vec<_> {
        plan.scenarios.iter().map(|scenario| scenario.subject.program().unwrap().to_string()).collect()
    };
    assert_eq!(names(&planned(&words).unwrap()), ["kernel", "lwip", "a"]);
    let with_blanks = ["rust-tun-perf", "matrix", "-m", "rr", "--program", "kernel, lwip"];
    assert_eq!(names(&planned(&with_blanks).unwrap()), ["kernel", "lwip"]);
    let twice = planned(&[&words[..], &["--program", "x/a {tun},2"]].concat()).unwrap_err();
    let remedy = "give one of them another in a profile; see docs/your-program.md";
    assert_eq!(twice.to_string(), format!("--program: two programs have the name a; {remedy}"));
    let baseline = planned(&[&words[..], &["--baseline"]].concat()).unwrap_err().to_string();
    assert!(baseline.starts_with("--baseline: ") && baseline.ends_with("add kernel to --program"), "{baseline}");
    let filtered = planned(&[&words[..8], &["--program", "tun2proxy", "--upstream", "socks5"]].concat()).unwrap();
    assert_eq!(names(&filtered), ["tun2proxy"]);
    assert_eq!(filtered.skipped.len(), 3, "{:?}", filtered.skipped);
    assert!(filtered.skipped[2].contains("a rr program, MTU 1500: --upstream: a opens its connections itself"));
}

#[test]
#[cfg(target_os = "linux")]
fn the_preset_of_programs_has_the_installed_ones_and_takes_minutes() {
    let six = plan("--preset programs --program kernel,lwip,smoltcp,tun2proxy,sing-box-gvisor,sing-box-gvisor-direct");
    assert_eq!((six.scenarios.len(), six.runs, six.gives_up), (6 * 9, 3, true));
    assert!(six.skipped.is_empty(), "{:?}", six.skipped);
    assert!(six.time().unwrap() < Duration::from_mins(15), "{:?}", six.time());
    let limits = |scenario: &Scenario| (scenario.amount, scenario.timeout);
    let expected = (Amount::time(Duration::from_secs(1)), Duration::from_secs(15));
    assert!(six.scenarios.iter().all(|scenario| limits(scenario) == expected));
    assert_eq!(plan("--preset programs --program kernel --timeout 5").scenarios[0].timeout, Duration::from_secs(5));
    // The kernel is always there, and our proxy; the client through SOCKS5 has no UDP.
    let all = plan("--preset programs");
    let names: HashSet<_> = all.scenarios.iter().filter_map(|scenario| scenario.subject.program()).collect();
    assert!(["kernel", "socks5", "lwip"].iter().all(|name| names.contains(&name.parse().unwrap())), "{names:?}");
    assert!(all.skipped.iter().any(|cell| cell.ends_with("--protocol: socks5 carries TCP alone")), "{:?}", all.skipped);
    assert!(!plan("--preset streams").gives_up);
    let refused = planned("--preset programs --netstack lwip").unwrap_err().to_string();
    assert!(refused.starts_with("--netstack: the preset has programs"), "{refused}");
}

/// The settings of the repairs and the congestion control in the stack, of the cells of the preset with this mode.
#[cfg(target_os = "linux")]
fn settings(preset: &str, mode: Mode) -> Vec<String> {
    let plan = plan(&format!("--preset {preset}"));
    assert!(plan.skipped.is_empty(), "{:?}", plan.skipped);
    let of_mode = plan.scenarios.iter().filter(|scenario| scenario.workload.mode() == Some(mode));
    let words = of_mode.map(|scenario| {
        let Scenario { subject, repairs, stack_congestion, conditions, .. } = scenario;
        let stack = subject.stack().map_or_else(|| subject.layer().to_string(), |stack| stack.to_string());
        format!("{stack} {repairs} {} {conditions}", stack_congestion.name()).trim_end().to_owned()
    });
    words.collect()
}

/// Without offload, `tcp_ip` has the same repairs with `all` and with `none`.
#[test]
#[cfg(target_os = "linux")]
fn the_preset_of_stacks_has_each_stack_as_it_is() {
    let cells = settings("stacks -n smoltcp,tcp_ip", Mode::Reader);
    let smoltcp =
        ["smoltcp all none", "smoltcp none none", "smoltcp all cubic loss 1 %", "smoltcp none cubic loss 1 %"];
    let tcp_ip = ["tcp_ip all none", "tcp_ip none none", "tcp_ip all none loss 1 %"];
    let expected = [&["loopback all none"], &smoltcp[..2], &tcp_ip[..2], &["kernel all none loss 1 %"]];
    assert_eq!(cells, [&expected.concat()[..], &smoltcp[2..], &tcp_ip[2..]].concat());
    let chosen = settings("stacks -n smoltcp --repairs=-late-fin --stack-congestion reno", Mode::Idle);
    assert_eq!(chosen, ["loopback all none", "smoltcp -late-fin reno"]);
    let short = plan("--preset stacks -n smoltcp");
    let is_short = |run: &&Scenario| run.timeout < Duration::from_mins(1);
    // All cells without repairs, and both at a loss with them.
    assert_eq!((short.gives_up, short.scenarios.iter().filter(is_short).count()), (true, 7 + 2));
    let long = plan("--preset stacks -n smoltcp --time 20");
    assert!(long.scenarios.iter().all(|run| run.timeout >= Duration::from_secs(40)));
}

#[test]
#[cfg(target_os = "linux")]
fn a_stack_over_a_bad_network_has_congestion_control() {
    let cells = settings("networks -n smoltcp,lwip", Mode::Writer);
    let of_smoltcp: Vec<_> = cells.iter().filter(|cell| cell.starts_with("smoltcp")).collect();
    let [delay, loss] = ["smoltcp all cubic delay 5 ms", "smoltcp all cubic loss 0.1 %"];
    let both = "smoltcp all cubic delay 5 ms, loss 0.1 %";
    assert_eq!(of_smoltcp, ["smoltcp all none", loss, delay, both]);
    assert_eq!(cells.len(), 3 * 4);
}

/// What a cell does not take is tried, so that it is planned as soon as it is taken.
#[test]
fn the_preset_of_cores_has_shards_with_a_worker_each() {
    let of = |plan: &MatrixPlan, layer, stack| -> Vec<_> {
        let of_stack = plan.scenarios.iter().filter(|run| run.subject.layer() == layer);
        let of_stack = of_stack.filter(|run| run.subject.stack() == Some(stack));
        of_stack.map(|run| (Cell::planned(run).to_string(), run.shards.get(), run.runtime)).collect()
    };
    let plan = plan("--preset cores -n smoltcp,lwip --shards 1,2,4");
    let memory = of(&plan, Layer::Stack, StackKind::Smoltcp);
    // One stream has one shard.
    assert_eq!(memory.len(), 2 + 5 * 3, "{memory:?}");
    let has_its_workers =
        |runtime, shards| runtime == RuntimeKind::MultiThread(std::num::NonZeroUsize::new(usize::from(shards)));
    assert!(memory.iter().all(|(_, shards, runtime)| has_its_workers(*runtime, *shards)), "{memory:?}");
    let udp = memory.iter().filter(|(name, ..)| name.contains("rr UDP") && name.contains("16 connections"));
    assert_eq!(udp.map(|(_, shards, _)| *shards).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(of(&plan, Layer::Stack, StackKind::Lwip).len(), 7);
    assert_eq!(of(&plan, Layer::Path, StackKind::Lwip).len(), 7);
    // A reason for those that cannot, and one for each number of shards that one stream is too few for.
    let reasons: Vec<_> = plan.skipped.iter().map(|line| line.split_once(": ").unwrap().1).collect();
    let one_instance = reasons.iter().filter(|reason| reason.contains("one instance a process"));
    assert_eq!(one_instance.count(), 1, "{:?}", plan.skipped);
    assert!(reasons.iter().any(|reason| reason.starts_with("--shards: 2 shards for 1 ")), "{reasons:?}");
    assert!(reasons.iter().collect::<HashSet<_>>().len() == reasons.len() && reasons.len() < 5, "{reasons:?}");
}

#[test]
fn the_preset_of_cores_goes_up_to_the_processors() {
    let own = plan("--preset cores -n smoltcp");
    let counts: HashSet<_> = own.scenarios.iter().map(|run| usize::from(run.shards.get())).collect();
    let processors = platform::parallelism().unwrap_or(1);
    let most = counts.iter().max().copied().unwrap();
    assert!(most <= processors && 2 * most > processors.min(1000), "{counts:?} of {processors}");
    assert!(counts.iter().all(|count| count.is_power_of_two()), "{counts:?}");
    let three = RuntimeKind::MultiThread(std::num::NonZeroUsize::new(3));
    let asked = plan("--preset cores -n smoltcp --worker-threads 3");
    assert!(!asked.scenarios.is_empty() && asked.scenarios.iter().all(|run| run.runtime == three));
}

#[test]
#[cfg(target_os = "linux")]
fn the_preset_of_repairs_switches_one_off_at_a_time_and_takes_half_an_hour() {
    let plan = plan("--preset repairs -n lwip,ipstack,smoltcp,tcp_ip,netstack-smoltcp,gvisor");
    assert!(plan.scenarios.iter().all(|scenario| scenario.subject.layer() == Layer::Path));
    assert!(plan.gives_up && plan.time().unwrap() < Duration::from_mins(32), "{:?}", plan.time());
    let of_smoltcp = settings("repairs -n smoltcp", Mode::Crr);
    let one_off: Vec<_> = netstacks::Workaround::of(StackKind::Smoltcp).collect();
    assert_eq!(of_smoltcp[..2], ["smoltcp all none", "smoltcp none none"]);
    assert_eq!(of_smoltcp.len(), 2 + one_off.len());
    assert!(of_smoltcp.contains(&"smoltcp -late-fin none".to_owned()), "{of_smoltcp:?}");
    // Its one repair is `none`, too, and needs offload.
    assert_eq!(settings("repairs -n tcp_ip", Mode::Writer), ["tcp_ip all none", "tcp_ip none none"]);
    assert_eq!(settings("repairs -n tcp_ip", Mode::Reader).len(), 2 + 1);
    let time = |millis| Amount::time(Duration::from_millis(millis));
    let is_long = |run: &Scenario| run.conditions.loss_ppm > 0;
    assert!(plan.scenarios.iter().all(|run| run.amount == time(if is_long(run) { 600 } else { 300 })));
}
