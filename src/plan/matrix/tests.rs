// The counts in the tests need these stacks.
#![cfg(all(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]

use std::collections::HashSet;
use std::num::{NonZeroU16, NonZeroU64};

use super::*;
use crate::cell::{Mode, Runtime, Verify};
use crate::cli::{self, Command, Preset};
use crate::plan::scenario::Amount;

/// The order of the seed 42 in its first round, of eight scenarios.
const ORDER_OF_42: [usize; 8] = [6, 4, 5, 3, 2, 1, 0, 7];

/// The plan of `matrix` or `forward` with these words.
fn planned_of(words: &[&str]) -> Result<MatrixPlan, PlanError> {
    match cli::parse(["rust-tun-perf"].iter().chain(words)).unwrap().command {
        Some(Command::Matrix(matrix)) => MatrixPlan::try_from(*matrix),
        Some(Command::Forward(forward)) => MatrixPlan::try_from(*forward),
        command => panic!("{command:?} is no matrix"),
    }
}

fn planned(line: &str) -> Result<MatrixPlan, PlanError> {
    planned_of(&["matrix"].into_iter().chain(line.split_whitespace()).collect::<Vec<_>>())
}

fn plan(line: &str) -> MatrixPlan {
    planned(line).unwrap()
}

fn cells(plan: &MatrixPlan) -> Vec<Cell> {
    plan.scenarios.iter().map(Scenario::planned).collect()
}

/// The number of cells of a subject.
fn count(plan: &MatrixPlan, subject: &str) -> usize {
    cells(plan).iter().filter(|cell| cell.subject().name() == subject).count()
}

/// The number of stacks of this build.
fn stacks() -> usize {
    compiled_in().len()
}

/// The number of offload settings on this system.
fn offloads() -> usize {
    if platform::offload_supported() { 2 } else { 1 }
}

const ONE: &str = "-n smoltcp --runtime current-thread --offload off";

#[test]
fn rounds_until_something_have_a_limit_and_no_other_build() {
    let until = plan(&format!("{ONE} -m reader --until 5% --at-most 10min"));
    assert_eq!((until.until, until.at_most, until.runs), (Some(0.05), Some(Duration::from_mins(10)), MOST_RUNS));
    let announced = |line: &str| plan(&format!("{ONE} -m reader {line}")).announced();
    for (line, expected) in [
        (
            "--until 5% --at-most 10min",
            "rounds of 1 run take about 2 seconds; 10 or more, until each interval is within ±5 %, for at most 10 minutes",
        ),
        ("--runs 3 --time 2 --at-most 5s", "3 runs in 3 rounds take about 8 seconds, and end after 5 seconds"),
        ("--runs 100", "100 runs in 100 rounds take about 2 minutes"),
        // Seven of 43 runs of stacks stalled over such a link, and the others took 2 seconds more than their window.
        ("--delay 10ms --runs 100", "100 runs in 100 rounds take about 6 minutes"),
    ] {
        assert_eq!(announced(line).as_deref(), Some(expected));
    }
    assert_eq!(announced("--bytes 1MB"), None);
    for wrong in
        ["--until 10", "--until 0 --at-most 1", "--until 10 --at-most 0", "--until 10 --at-most 1 --against old"]
    {
        let refused = cli::parse(format!("x matrix {wrong}").split(' ')).unwrap_err().to_string();
        assert!(refused.contains("--at-most") || refused.contains("--until"), "{refused}");
    }
}

/// A matrix knows a run by its cell: a second scenario of a cell would never run, and was announced.
#[test]
fn each_cell_is_planned_once() {
    let usual = plan("");
    // Stacks, modes, runtimes, and the offloads.
    assert_eq!(usual.scenarios.len(), stacks() * 2 * 2 * offloads());
    assert_eq!((usual.runs, usual.skipped.len(), &usual.out, usual.seed), (10, 0, &None, None));
    for preset in ["streams", "requests", "connections", "datagrams", "networks", "stacks", "all", "cores"] {
        let plan = plan(&format!("--preset {preset}"));
        let different: HashSet<Cell> = cells(&plan).into_iter().collect();
        assert_eq!(different.len(), plan.scenarios.len(), "{preset}");
        let limits: HashSet<Duration> = plan.scenarios.iter().map(|run| run.timeout).collect();
        assert_eq!(limits, HashSet::from([Duration::from_secs(15)]), "{preset}: the same for all rows of a table");
        let shortest = Duration::from_secs(if preset == "stacks" { 2 } else { 1 });
        let is_long = |run: &Scenario| matches!(run.amount, Amount::Time { time, .. } if time >= shortest);
        assert!(plan.scenarios.iter().all(is_long), "{preset}");
        let skipped: HashSet<&String> = plan.skipped.iter().collect();
        assert_eq!(skipped.len(), plan.skipped.len(), "{preset}: {:?}", plan.skipped);
    }
}

/// Without a delay, a loss is of no network. In a table of stacks the kernel behind the same device is beside each cell.
#[test]
#[cfg(target_os = "linux")]
fn in_presets_a_loss_has_a_delay_and_each_path_a_reference() {
    for preset in ["requests", "connections", "datagrams", "networks", "stacks"] {
        let cells = cells(&plan(&format!("--preset {preset} -n lwip")));
        let of_stack = || cells.iter().filter(|cell| cell.netstack == Some(StackKind::Lwip));
        assert!(of_stack().count() > 0, "{preset}");
        for cell in of_stack() {
            let link = &cell.impairments;
            assert!(link.loss_ppm == 0 || link.delay == Duration::from_millis(10), "{preset}: {cell}");
            let is_reference = |other: &&Cell| {
                let work =
                    |cell: &Cell| (cell.mode, cell.protocol, cell.parallel, cell.offload, cell.rate, cell.impairments);
                other.netstack == Some(StackKind::Kernel) && work(other) == work(cell)
            };
            assert!(cells.iter().any(|other| is_reference(&other)), "{preset}: {cell}");
        }
        let loopback = cells.iter().any(|cell| cell.subject() == Subject::Loopback);
        assert_eq!(loopback, preset == "stacks", "{preset}: the upper bound is in one table");
    }
}

/// The lines of a preset, typed by hand, are its cells.
#[test]
fn a_preset_is_its_lines() {
    let preset = cells(&plan("--preset requests -n smoltcp"));
    let lines =
        ["--mode rr --parallel 1,100,1000", "--mode crr --parallel 1,50", "--mode rr --background both --rate 1000"];
    // The kernel is beside any stack.
    let typed = ["smoltcp", "kernel"].map(|stack| {
        let header = format!("--runtime multi-thread --offload auto -n {stack}");
        lines.iter().flat_map(|line| cells(&plan(&format!("{line} {header}")))).collect::<Vec<_>>()
    });
    assert_eq!(preset, typed.concat());
}

/// What is in all lines of a preset cannot be typed beside it, and what is in its head can.
#[test]
fn a_preset_and_typed_words_do_not_contradict() {
    for (line, option) in
        [("requests --mode reader", "--mode"), ("cores --shards 2", "--shards"), ("programs -m rr", "--mode")]
    {
        let refused = planned(&format!("--preset {line}")).unwrap_err().to_string();
        assert_eq!(refused, format!("{option}: --preset chooses it; leave one of them out"));
    }
    let two = cells(&plan("--preset connections -n smoltcp --mtu 9000"));
    assert_eq!(two.iter().map(|cell| cell.mtu).collect::<Vec<_>>(), [Some(9000); 2], "and the kernel");
}

#[test]
fn a_comparison_has_the_rounds_that_its_verdict_needs() {
    let one = format!("{ONE} -m writer --against old");
    assert_eq!(plan(&one).runs, DEFAULT_PAIRS);
    assert_eq!(plan(&one).scenarios[0].amount, Amount::time(DEFAULT_TIME_OF_A_PAIR));
    let asked = plan(&format!("{one} --runs 6 --time 1"));
    assert_eq!((asked.runs, asked.scenarios[0].amount), (6, Amount::time(DEFAULT_TIME)));
    let error = planned(&format!("{one} --runs 5")).unwrap_err().to_string();
    assert!(error.contains("--runs") && error.contains("on 1 cell needs 6"), "{error}");
    let rows = |words: &[&str]| planned_of(&[&["forward", "--all"], words].concat()).unwrap();
    assert_eq!((rows(&[]).runs, rows(&[]).scenarios.len()), (DEFAULT_FORWARD_RUNS, ROWS.len()));
    let compared = rows(&["--against", "old"]);
    assert_eq!(compared.runs as usize, Method::WithinRounds.runs_needed(compared.scenarios.len()));
    let back = planned_of(&["forward", "--row", "2,18", "--reverse", "--mtu", "9000"]).unwrap();
    let rows: Vec<_> =
        cells(&back).iter().map(|cell| (cell.forwarder().unwrap().row(), cell.mode, cell.mtu())).collect();
    assert_eq!(rows, [(Some(2), Some(Mode::Reader), 9000), (Some(18), Some(Mode::Reader), 9000)]);
}

#[test]
#[cfg(target_os = "linux")]
fn forwarders_multiply_without_stacks_and_each_has_its_own_options() {
    let plan = plan("--forwarder rust,go --io sync,uring --offload off --napi off,threaded");
    let name = |cell: &Cell| format!("{}, {}", cell.forwarder().unwrap(), cell.napi.name());
    let names: Vec<_> = cells(&plan).iter().map(name).collect();
    let both =
        ["sync", "uring", "go"].map(|io| ["off", "threaded"].map(|napi| format!("{io}, offload off, direct, {napi}")));
    assert_eq!((names, plan.skipped), (both.concat(), Vec::new()));
}

/// Each mode ignores the lists that it does not have.
#[test]
fn lists_multiply_for_the_cells_that_have_them() {
    for (line, planned) in [
        ("-m writer --mtu 1500,9000 --parallel 1,2,4 --ipv6 all", 2 * 3 * 2),
        ("-m rr,crr,reader --rate 100,200 --request 1,10", 4 + 4 + 1),
        ("-m reader,rr --protocol tcp,udp --datagram 100 --bitrate 1M", 4),
        ("-m reader --stack-congestion all", 3),
        ("-m reader,writer,reader", 2),
        ("-m reader --pin 0 --pin 0,0", 0),
    ] {
        let Ok(plan) = self::planned(&format!("{ONE} {line}")) else {
            assert_eq!(planned, 0, "{line}");
            continue;
        };
        assert_eq!((plan.scenarios.len(), plan.skipped.len()), (planned, 0), "{line}: {:?}", plan.skipped);
    }
    let several = plan(
        &format!("{ONE},lwip -m reader --stack-congestion all")
            .replace("smoltcp --runtime", "smoltcp,lwip --runtime")
            .replace("off,lwip", "off"),
    );
    assert_eq!(several.scenarios.len(), 3 + 1);
}

/// Names of workarounds are one value, and a stack without them is left out.
#[test]
fn workarounds_multiply() {
    let one = "-m reader --runtime current-thread --offload off -n smoltcp,lwip";
    let all = plan(&format!("{one} --workarounds all,none --workarounds=-spare-sockets"));
    let names: Vec<_> = cells(&all).iter().map(Cell::to_string).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(names[1].ends_with("workarounds none") && names[2].ends_with("workarounds -spare-sockets"), "{names:?}");
    assert!(all.skipped[0].contains("lwip has no workaround spare-sockets"), "{:?}", all.skipped);
}

#[test]
fn a_matrix_delivers_by_time_unless_it_is_told_how_many_bytes() {
    let amounts = |line: &str| plan(line).scenarios.iter().map(|run| run.amount).collect::<Vec<_>>();
    assert!(amounts("").iter().all(|amount| *amount == Amount::time(DEFAULT_TIME)));
    let bytes = Amount::Bytes(NonZeroU64::new(5_000_000).unwrap());
    assert!(amounts("--bytes 5MB").iter().all(|amount| *amount == bytes));
    assert!(amounts("--time 0.25").iter().all(|amount| *amount == Amount::time(Duration::from_millis(250))));
}

#[test]
fn only_the_multi_thread_runtime_has_workers() {
    let runtimes: HashSet<_> =
        cells(&plan("--worker-threads 3")).iter().map(|cell| (cell.runtime, cell.worker_threads)).collect();
    let three = NonZeroU16::new(3);
    assert_eq!(runtimes, HashSet::from([(Runtime::CurrentThread, None), (Runtime::MultiThread, three)]));
}

#[test]
fn an_impossible_combination_is_left_out_with_the_reason() {
    let plan = plan("-n smoltcp,lwip -m reader --runtime current-thread --offload off --mtu 576,1500 --ipv6 all");
    assert_eq!(plan.scenarios.len(), 2 * 3);
    let reasons: Vec<_> = plan.skipped.iter().map(|line| line.split_once(": ").unwrap().1).collect();
    assert_eq!(reasons, ["--mtu: 576 bytes; IPv6 needs at least 1280"; 2]);
    assert!(
        plan.skipped[0].contains("--netstack=smoltcp") && plan.skipped[0].contains("--mtu=576"),
        "{:?}",
        plan.skipped
    );
}

#[test]
fn if_nothing_is_possible_the_wrong_option_is_named() {
    for (arguments, error) in [
        ("--mtu 576 --ipv6 on", "--mtu: 576 bytes; IPv6 needs at least 1280"),
        ("--timeout 0", "--timeout: must be more than 0 seconds and at most a day, 86400"),
        ("-m reader --rate 5", "--rate: only rr and crr have requests; bulk bytes have --bitrate"),
        ("--layer device --delay 1ms", "--delay: only the path, the kernel behind a device, and programs"),
        ("--mtu 1500,fast", "--mtu: invalid value 'fast' for '--mtu <N>': invalid digit found in string"),
        ("--mode up,down", "--mode: invalid value 'up' for '--mode <MODE>'"),
        (
            "--ipv6 on --tun-addr 10.0.0.9",
            "--tun-addr: 10.0.0.9 is of the other IP version; leave out --ipv6, or give IPv6 addresses",
        ),
    ] {
        let refused = planned(arguments).unwrap_err().to_string();
        assert!(refused.starts_with(error), "{arguments}: {refused}");
    }
}

#[test]
fn a_baseline_runs_once_for_each_setting_that_it_has() {
    let plan = plan("--baseline --mtu 1500,9000 --parallel 1,4");
    let runtimes = 2;
    assert_eq!(count(&plan, "path"), stacks() * 2 * runtimes * offloads() * 2 * 2);
    let kernel = if platform::netns_supported() { 2 * runtimes * offloads() * 2 * 2 } else { 0 };
    assert_eq!(count(&plan, "kernel"), kernel, "the reference of the path");
    // It has no MTU and no offload, but several streams.
    assert_eq!(count(&plan, "loopback"), 2 * runtimes * 2);
    assert_eq!(count(&plan, "stack"), stacks() * 2 * runtimes * offloads() * 2 * 2);
    // It has one stream only.
    let devices = if platform::netns_supported() { runtimes * offloads() * 2 } else { 0 };
    assert_eq!(count(&plan, "device"), devices);
    assert!(plan.skipped.is_empty(), "{:?}", plan.skipped);
    assert_eq!(cells(&plan).into_iter().collect::<HashSet<_>>().len(), plan.scenarios.len());
    assert_eq!(count(&self::plan("--baseline -n smoltcp --ipv6 all"), "loopback"), 2 * 2 * 2);
}

#[test]
fn a_baseline_of_the_device_needs_a_network_of_its_own() {
    let plan = plan("--baseline -n smoltcp --netns host --mtu 1500,9000 --parallel 1,4");
    assert_eq!(count(&plan, "device"), 0);
    assert!(count(&plan, "stack") > 0 && count(&plan, "loopback") > 0);
    assert_eq!(plan.skipped.iter().filter(|layer| layer.contains("the layer device")).count(), 1, "{:?}", plan.skipped);
    let cell = Cell::parse("--layer device").unwrap();
    let device = |isolated, supported| left_out(&cell, isolated, supported);
    let reason = "the layer device: it makes a router of its network, so it needs one of its own;";
    assert_eq!(device(true, true), None);
    assert_eq!(device(false, true), Some(format!("{reason} leave out --netns host")));
    assert_eq!(device(false, false), Some(format!("{reason} this system has no namespaces")));
}

#[test]
fn a_round_runs_every_scenario_once() {
    for round in 1..=50 {
        let mut order = MatrixPlan::order(24, 1, 7, round);
        order.sort_unstable();
        assert_eq!(order, (0..24).map(|cell| (cell, 0)).collect::<Vec<_>>(), "round {round}");
    }
}

/// The nearer two runs are, the less the machine changes between them; and each build is first as often as the other.
#[test]
fn two_builds_run_a_cell_right_after_each_other_in_turns_first() {
    let mut firsts = [[0; 2]; 6];
    for round in 1..=10 {
        for pair in MatrixPlan::order(6, 2, 7, round).chunks(2) {
            let [(cell, first), (other, second)] = [pair[0], pair[1]];
            assert_eq!((cell, first + second), (other, 1), "round {round}");
            firsts[cell][first] += 1;
        }
    }
    assert_eq!(firsts, [[5; 2]; 6]);
}

#[test]
fn equal_seeds_and_rounds_give_equal_orders() {
    let order =
        |seed, round| -> Vec<usize> { MatrixPlan::order(24, 1, seed, round).into_iter().map(|run| run.0).collect() };
    assert_eq!(order(7, 3), order(7, 3));
    assert_ne!(order(7, 3), order(8, 3));
    let orders: HashSet<Vec<usize>> = (1..=50).map(|round| order(7, round)).collect();
    assert_eq!(orders.len(), 50);
    // A later build may continue a file: the order of a seed never changes.
    assert_eq!(MatrixPlan::order(8, 1, 42, 1), ORDER_OF_42.map(|cell| (cell, 0)));
    assert_eq!(plan("--seed 18446744073709551615").seed(), u64::MAX);
    assert!(plan("").seed() < 100_000_000_000, "it is short enough to be typed");
}

#[test]
fn every_run_is_first_equally_often() {
    let mut firsts = [0; 4];
    for round in 1..=4000 {
        firsts[MatrixPlan::order(4, 1, 1, round)[0].0] += 1;
    }
    // 1000 each, with a standard deviation of 27.
    assert!(firsts.iter().all(|count| (870..=1130).contains(count)), "{firsts:?}");
}

#[test]
fn the_check_of_a_path_is_short_and_compares_every_byte() {
    for scenario in plan("--parallel 1,200 --verify off --timeout 3 -n smoltcp").scenarios {
        let check = scenario.path_check();
        let bytes = 1_000_000 * u64::from(scenario.cell.parallel.get());
        assert_eq!(check.amount, Amount::Bytes(NonZeroU64::new(bytes).unwrap()));
        assert_eq!((check.verify, check.warmup_bytes, check.timeout), (Verify::Full, 0, Duration::from_secs(3)));
        assert_eq!(check.planned(), scenario.planned());
    }
    let many = &plan("--parallel 5000 -n smoltcp -m reader").scenarios[0];
    assert_eq!(many.path_check().amount, Amount::Bytes(NonZeroU64::new(200_000_000).unwrap()));
    let idle = &plan("-m idle --parallel 2 -n smoltcp --release 20s").scenarios[0];
    assert!(idle.path_check().release < Duration::from_secs(1));
}

/// A list has names and paths, and a command is one value, so the option may be repeated.
#[test]
#[cfg(target_os = "linux")]
fn programs_come_from_lists_and_from_commands() {
    let words = ["matrix", "-m", "rr", "--program", "kernel,lwip", "--program", "a {tun},1", "--program", "kernel"];
    let names =
        |plan: &MatrixPlan| -> Vec<_> { cells(plan).iter().map(|cell| cell.program().unwrap().to_string()).collect() };
    let once = names(&planned_of(&words).unwrap());
    assert_eq!(once, ["kernel", "lwip", "a"]);
    let proxies = plan("-m rr --program lwip --runtime all --offload all");
    assert_eq!(proxies.scenarios.len(), 2 * offloads(), "our proxy has a runtime and offload");
    let twice = planned_of(&[&words[..], &["--program", "x/a {tun},2"]].concat()).unwrap_err();
    let remedy = "give one of them another in a profile; see docs/your-program.md";
    assert_eq!(twice.to_string(), format!("--program: two programs have the name a; {remedy}"));
    let baseline = planned_of(&[&words[..], &["--baseline"]].concat()).unwrap_err().to_string();
    assert!(baseline.starts_with("--baseline: ") && baseline.ends_with("add kernel to --program"), "{baseline}");
    let filtered = planned_of(&[&words[..7], &["--program", "tun2proxy", "--upstream", "socks5"]].concat()).unwrap();
    assert_eq!(names(&filtered), ["tun2proxy"]);
    assert!(filtered.skipped.iter().any(|line| line.contains("--upstream: a opens its connections itself")));
}

#[test]
#[cfg(target_os = "linux")]
fn the_preset_of_programs_has_the_installed_ones_and_takes_minutes() {
    use std::collections::BTreeSet;

    let six = plan("--preset programs --program kernel,pasta,tun2proxy,sing-box-gvisor,sing-box-gvisor-direct,gotatun");
    assert_eq!((six.scenarios.len(), six.runs, six.gives_up), (6 * (9 + 6), 3, true), "{:?}", six.skipped);
    assert!(six.skipped.is_empty(), "{:?}", six.skipped);
    assert!(six.time().unwrap() < Duration::from_mins(16), "{:?}", six.time());
    // Each as it is shipped, and all alike: at two MTUs, with as many flows where the program has an option for it.
    let set = |cell: &Cell| (cell.mtu, cell.max_flows.map(NonZeroU16::get));
    let of = |name: &str| -> BTreeSet<_> {
        cells(&six).iter().filter(|cell| cell.program().unwrap().as_str() == name).map(set).collect()
    };
    assert_eq!(
        of("tun2proxy"),
        BTreeSet::from([(None, None), (Some(1500), Some(20_000)), (Some(65_520), Some(20_000))])
    );
    assert_eq!(of("pasta"), BTreeSet::from([(None, None), (Some(1500), None), (Some(65_520), None)]));
    assert_eq!(cells(&six).iter().filter(|cell| cell.is_shipped()).count(), 6 * 9);
    // Idle connections rest until their memory is compared.
    let expected = |cell: &Cell| {
        (Amount::time(Duration::from_secs(if cell.mode == Some(Mode::Idle) { 5 } else { 1 })), Duration::from_secs(15))
    };
    assert!(six.scenarios.iter().all(|scenario| (scenario.amount, scenario.timeout) == expected(&scenario.cell)));
    assert_eq!(plan("--preset programs --program kernel --timeout 5").scenarios[0].timeout, Duration::from_secs(5));
    // The kernel is always there, and our proxy; the client through SOCKS5 has no UDP.
    let all = plan("--preset programs");
    let names: HashSet<_> = cells(&all).iter().filter_map(Cell::program).collect();
    assert!(["kernel", "socks5", "lwip"].iter().all(|name| names.contains(&name.parse().unwrap())), "{names:?}");
    assert!(all.skipped.iter().any(|cell| cell.ends_with("--protocol: socks5 carries TCP alone")), "{:?}", all.skipped);
    assert!(!plan("--preset streams").gives_up);
}

/// The settings of the stacks, of the cells of a preset with this mode.
#[cfg(target_os = "linux")]
fn settings(preset: &str, mode: Mode) -> Vec<String> {
    let plan = plan(&format!("--preset {preset}"));
    assert!(plan.skipped.is_empty(), "{:?}", plan.skipped);
    let cells = cells(&plan);
    let of_mode = cells.iter().filter(|cell| cell.mode == Some(mode));
    let words = of_mode.map(|cell| {
        let stack = cell.netstack.map_or_else(|| cell.subject().name().to_owned(), |stack| stack.to_string());
        format!("{stack} {}", cell.workarounds)
    });
    words.collect()
}

#[test]
#[cfg(target_os = "linux")]
fn the_preset_of_stacks_has_each_stack_with_workarounds_and_without() {
    assert_eq!(
        settings("stacks -n smoltcp,tcp_ip", Mode::Reader),
        ["loopback all", "smoltcp all", "smoltcp none", "tcp_ip all", "tcp_ip none", "kernel all"]
    );
    let chosen = settings("stacks -n smoltcp --workarounds=-spare-sockets", Mode::Idle);
    assert_eq!(chosen, ["loopback all", "smoltcp -spare-sockets", "kernel all"]);
    let plan = plan("--preset stacks -n smoltcp");
    assert!(plan.gives_up && plan.scenarios.iter().all(|run| run.timeout == Duration::from_secs(15)));
}

#[test]
fn the_preset_of_cores_goes_up_to_the_processors_with_a_worker_each() {
    let plan = plan("--preset cores -n smoltcp,lwip");
    let cells = cells(&plan);
    let counts: HashSet<_> = cells.iter().map(|cell| usize::from(cell.shards.get())).collect();
    let processors = platform::parallelism().unwrap_or(1);
    let most = counts.iter().max().copied().unwrap();
    assert!(most <= processors && 2 * most > processors.min(15), "{counts:?} of {processors}");
    assert!(
        cells
            .iter()
            .filter(|cell| cell.stack() == Some(StackKind::Smoltcp))
            .all(|cell| cell.worker_threads == Some(cell.shards))
    );
    assert!(cells.iter().filter(|cell| cell.stack() == Some(StackKind::Lwip)).all(|cell| cell.shards.get() == 1));
}

/// Every line of the file is one that can be typed.
#[test]
fn every_preset_is_read() {
    use clap::ValueEnum;
    for preset in Preset::value_variants() {
        let (_, lines) = presets::lines(*preset, &Words::default()).unwrap();
        assert!(!lines.is_empty(), "{preset:?}");
    }
}
