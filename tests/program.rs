//! Programs as they are, between two networks of a run: our proxy as a program, and programs that misbehave. A test that
//! cannot run prints SKIP with the reason.

use std::fs;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use netstacks::StackCongestion;
use platform::{Napi, Offload};
use rust_tun_perf::cli;
use rust_tun_perf::plan::Plan;
use serde_json::Value;

use crate::fixture;
use crate::machine::{no_root, no_setting};
use crate::pairs::pairwise;
use crate::processes::{
    PROGRAM, STACKS, assert_said, at_once, count, folder, printed, run, stderr, stdout, success, write_script,
};

/// A reason if no run is possible here. A run writes settings of its network.
pub(crate) fn no_device() -> Option<String> {
    no_setting("conf/all/rp_filter")
}

/// How long the kernel may take to end what was killed.
const DEADLINE: Duration = Duration::from_mins(1);

/// The words that start our proxy as a program.
pub(crate) fn proxy(marker: &str) -> String {
    let options =
        "--interface {interface} --tun-name {tun} --tun-addr {address} --tun-dest {peer} --tun-prefix {prefix}";
    // The proxy takes no notice of this variable. It finds its processes.
    format!("env MARKER={marker} {PROGRAM} proxy {options}")
}

/// Runs a mode through a program. Afterwards no process of it is left.
pub(crate) fn through(marker: &str, command: &str, options: &str) -> Output {
    let output = Command::new(PROGRAM).args(options.split_whitespace()).args(["--program", command]).output().unwrap();
    let deadline = Instant::now() + DEADLINE;
    while !marked(marker).is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(marked(marker), Vec::<u32>::new(), "{command} is left: {output:?}");
    output
}

/// The processes with this marker in their environment.
pub(crate) fn marked(marker: &str) -> Vec<u32> {
    let marker = format!("MARKER={marker}\0");
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has = |process: &u32| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.windows(marker.len()).any(|part| part == marker.as_bytes())
    };
    processes.filter(has).collect()
}

pub(crate) fn has_warning(sample: &Value, text: &str) -> bool {
    sample["warnings"].as_array().unwrap().iter().any(|warning| warning.as_str().unwrap().contains(text))
}

#[test]
fn every_load_goes_through_a_program() {
    skip_if!(no_device());
    let command = proxy("loads");
    for options in [
        "-m reader --bytes 8MB --warmup 1MB",
        "-m writer --bytes 8MB --warmup 1MB --parallel 3",
        "-m both --time 0.1 --warmup 1MB --mtu 9000",
        "-m rr --time 0.1 --parallel 20 --request 100 --response 10KB",
        "-m crr --time 0.1 --parallel 5",
        "-m rr --time 0.1 --protocol udp",
        "-m crr --time 0.1 --protocol udp",
        "-m writer --time 0.1 --protocol udp --bitrate 20M",
        "-m idle --time 0.1 --parallel 50",
    ] {
        let output = through("loads", &command, &format!("{options} --verify full --json"));
        let sample = printed(&output);
        assert_eq!((&sample["status"], &sample["layer"]), (&"ok".into(), &Value::Null), "{options}: {sample}");
        let facts = &sample["program_facts"];
        assert_eq!(
            (&sample["program"], &facts["was_killed"], &facts["left_behind"]),
            (&"env".into(), &false.into(), &0.into())
        );
        assert_eq!(facts["device"]["address"], "10.10.10.9", "{facts}");
        assert_eq!((&facts["device"]["vnet_header"], &facts["device"]["queues"]), (&true.into(), &1.into()), "{facts}");
        for state in ["at_rest", "under_load", "afterwards"] {
            assert_eq!(facts[state]["processes"], 1, "{facts}");
            assert!(facts[state]["pss_bytes"].as_u64() > Some(1_000_000), "{facts}");
        }
        // Idle connections cost nothing.
        if sample["mode"] != "idle" {
            assert!(sample["cpu"]["subject_seconds"].as_f64() > Some(0.0), "{sample}");
            assert!(sample["packets"]["rx"].as_u64() > Some(0), "{sample}");
        }
    }
}

/// The mean size of the packets in the payload's direction.
pub(crate) fn bytes_per_packet(sample: &Value) -> f64 {
    let way = if sample["mode"] == "reader" { "tx" } else { "rx" };
    let [bytes, packets] = [format!("{way}_bytes"), way.to_owned()].map(|name| sample["packets"][name].as_f64());
    bytes.unwrap() / packets.unwrap()
}

#[test]
fn our_proxy_passes_every_byte_on_every_stack() {
    skip_if!(no_device());
    let runtimes = ["", "--current-thread"];
    let options = ["", "--parallel 3", "--mtu 9000 --window 64KiB", "--mtu 65535 --parallel 2"];
    let lengths = ["--bytes 8MB --warmup 1MB", "--time 0.1 --warmup 1MB"];
    let axes = [
        &STACKS[..3],
        &["reader", "writer"],
        &["on", "off"],
        &["", "--ipv6"],
        &runtimes[..],
        &options[..],
        &lengths[..],
    ];
    for [stack, mode, offload, version, runtime, options, length] in pairwise(axes) {
        let words = format!("--program {stack} -m {mode} --offload {offload} {version} {runtime} {options} {length}");
        let sample = success(&format!("{words} --verify full"));
        let control = sample["sysctls"]["tcp_congestion_control"].as_str().unwrap();
        for (name, expected) in
            [("program", stack), ("mode", mode), ("congestion", control), ("verified", "full"), ("offload", offload)]
        {
            assert_eq!(sample[name], expected, "{words}: {sample}");
        }
        let is_on = offload == "on";
        assert_eq!(
            (&sample["device"]["name"], &sample["device"]["offload"]),
            (&"utun8".into(), &is_on.into()),
            "{sample}"
        );
        assert!(sample["bytes"].as_u64().unwrap() > 0, "{sample}");
        assert!(
            sample["cpu"]["subject_seconds"].is_number() && sample["cpu"]["client_seconds"].is_number(),
            "{sample}"
        );
        assert!(sample["peak_rss_bytes"].as_u64().unwrap() > 1_000_000, "{sample}");
        assert!(sample["device_drops"].is_u64(), "{sample}");
        for way in ["rx", "tx"] {
            assert!(sample["packets"][way].as_u64().unwrap() > 0, "{sample}");
        }
        // As shipped it has its own MTU, and the sample the one that the device had.
        let (size, mtu) = (bytes_per_packet(&sample), sample["device"]["mtu"].as_f64().unwrap());
        let is_set = options.contains(&format!("--mtu {mtu}"));
        assert!(
            is_set || sample["mtu"].is_null() && sample["program_facts"]["device"]["mtu"] == sample["device"]["mtu"]
        );
        if is_on && mtu < 2000.0 {
            assert!(size > mtu, "{size}: {sample}");
        } else if !is_on {
            assert!(size <= mtu, "{size}: {sample}");
        }
    }
}

/// The words of a cell that its proxy is started with have the proxy do what they say.
#[test]
fn our_proxy_has_the_properties_of_its_cell() {
    let words = "--offload off --napi threaded --runtime current-thread --shards 2 --queues 1 --window 64KiB --workarounds none";
    let cell = fixture::cell(&format!("--program smoltcp -m reader --stack-congestion reno {words}"));
    let start = ["rust-tun-perf", "proxy", "--interface", "lo", "--netstack", "smoltcp"].map(str::to_owned);
    let plan = Plan::try_from(cli::parse(start.into_iter().chain(cell.proxy_words())).unwrap()).unwrap();
    let Plan::Proxy(plan) = plan else { panic!("{plan:?}") };
    assert_eq!((plan.device.offload, plan.workers, plan.shards, plan.queues), (Offload::Off, None, 2, Some(1)));
    assert_eq!(plan.device.tuning.napi, Napi::Threaded);
    let joined_twice =
        ["rust-tun-perf", "proxy", "--interface", "lo", "--napi", "on", "--offload", "on"].map(str::to_owned);
    let refused = Plan::try_from(cli::parse(joined_twice).unwrap()).unwrap_err().to_string();
    assert!(refused.starts_with("--napi: needs --offload off"), "{refused}");
    let config = &plan.config;
    let of_stack = (config.window, config.workarounds, config.stack_congestion);
    assert_eq!(of_stack, (64 << 10, "none".parse().unwrap(), StackCongestion::Reno));
}

/// A program that has its network choose another control stands for one that chooses for its own sockets.
#[test]
fn all_sockets_of_a_run_have_one_congestion_control_or_the_sample_names_both() {
    skip_if!(no_device());
    let through = |script: &str, options: &str| {
        let command = format!("sh -c '{script}exec {}'", proxy("control"));
        printed(&through("control", &command, &format!("{options} --time 0.1 --verify full --json")))
    };
    for options in ["-m crr", "-m writer --ipv6"] {
        let sample = through("", &format!("{options} --congestion reno"));
        let controls = (&sample["congestion"], &sample["sysctls"]["tcp_congestion_control"]);
        assert_eq!(controls, (&"reno".into(), &"reno".into()), "{options}: {sample}");
    }
    let mixed = through("echo reno >/proc/sys/net/ipv4/tcp_congestion_control; ", "-m crr");
    let ours = mixed["sysctls"]["tcp_congestion_control"].as_str().unwrap();
    assert_eq!(mixed["congestion"], format!("{ours} and reno"), "{mixed}");
    assert!(has_warning(&mixed, "did not have one congestion control"), "{mixed}");
    let kernel = success("-n kernel -m reader --time 0.1 --warmup 1MB --congestion reno");
    assert_eq!(kernel["congestion"], "reno", "{kernel}");
}

/// The servers get another network than the device, or no route to them would work.
#[test]
fn a_device_may_have_any_addresses() {
    skip_if!(no_device());
    for network in [
        "--tun-addr 198.18.1.9 --tun-dest 198.18.1.10 --tun-mask 255.255.255.0 --tun-name tun0",
        "--tun-addr 198.0.0.9 --tun-dest 198.0.0.10 --tun-mask 255.0.0.0",
        "--tun-addr 10.18.1.1 --tun-dest 10.18.1.2 --tun-mask 255.255.255.252",
        "--ipv6 --tun-addr 2001:2:0:2::2 --tun-dest 2001:2:0:2::3 --tun-mask ffff:ffff:ffff:ffff::",
    ] {
        let sample = success(&format!("--program smoltcp -m reader --time 0.05 --verify full {network}"));
        assert!(sample["bytes"].as_u64().unwrap() > 0, "{sample}");
    }
}

#[test]
fn a_program_keeps_its_queue_unless_another_is_given() {
    skip_if!(no_device());
    let command = proxy("queue");
    let measured = |options: &str| {
        let options = format!("-m writer --bytes 20MB --warmup 1MB --parallel 4 --verify full --json {options}");
        printed(&through("queue", &command, &options))
    };
    let kept = measured("");
    assert_eq!((&kept["queue_packets"], &kept["device"]["tx_queue_len"]), (&Value::Null, &16384.into()), "{kept}");
    let given = measured("--queue 4");
    assert_eq!((&given["status"], &given["device"]["tx_queue_len"]), (&"ok".into(), &4.into()), "{given}");
    assert!(given["device_drops"].as_u64() > Some(0), "{given}");
}

#[test]
fn an_outage_behind_a_program_is_recovered_from() {
    skip_if!(no_device());
    let options = "-m rr --outage 0.3s,300ms --time 3 --verify full --json";
    let sample = printed(&through("outage", &proxy("outage"), options));
    assert_eq!(sample["status"], "ok", "{sample}");
    assert!(sample["recovery_seconds"].as_f64().is_some_and(|seconds| seconds < 2.4), "{sample}");
    assert!(sample["program_facts"]["afterwards"]["open_files"].as_u64() > Some(0), "{sample}");
}

#[test]
fn a_profile_is_a_cell_of_a_matrix_beside_the_kernel_and_our_proxy() {
    skip_if!(no_device());
    let folder = folder("program-matrix");
    let (profile, file) = (folder.join("mine.toml"), folder.join("samples.jsonl"));
    let words: Vec<_> = proxy("matrix").split(' ').map(|word| format!("{word:?}")).collect();
    let lines =
        ["name = \"mine\"", "role = \"proxy\"", "upstream = \"direct\"", &format!("command = [{}]", words.join(", "))];
    fs::write(&profile, lines.join("\n")).unwrap();
    let list = format!("kernel,{},{}", STACKS[2], profile.display());
    let (list, file) = (format!("--program={list}"), file.display().to_string());
    let fixed = ["matrix", "-m", "crr", "--runs", "2", "--time", "0.1"];
    let output = Command::new(PROGRAM).args(fixed).args([&list, "--out", &file]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    for row in [" kernel ", " mine ", " smoltcp "] {
        assert!(table.contains(row), "{table}");
    }
    // The file is read again, and continued.
    let again = Command::new(PROGRAM).args(fixed).args([&list, "--out", &file]).output().unwrap();
    assert!(stderr(&again).contains("6 runs, 6 of them made before") || stdout(&again).contains("mine"), "{again:?}");
    let report = run(&format!("report {file} --format csv"));
    assert!(stdout(&report).contains(",mine,"), "{}", stdout(&report));
    let compared = run(&format!("compare --programs smoltcp,mine {file}"));
    assert!(stdout(&compared).contains("mine new connections "), "{compared:?}");
    assert!(stderr(&compared).contains("too few runs for a verdict: 2 a side"), "{}", stderr(&compared));
}

#[test]
fn a_program_that_forks_leaves_or_daemonises_is_measured_and_ended() {
    skip_if!(no_device());
    let command = |marker: &str, script: &str| format!("sh -c '{}'", script.replace("PROXY", &proxy(marker)));
    let rests = |marker: &str, script: &str, rest: &str| {
        printed(&through(marker, &command(marker, script), &format!("-m rr --time 0.3 --rest {rest} --json")))
    };
    let run = |marker: &str, script: &str| rests(marker, script, "0.2");
    // Nine processes, eight of which work at rest and stay: together they have their share on a busy machine, too.
    let works = "for each in 1 2 3 4 5 6 7 8; do env MARKER=busy sh -c \"while :; do :; done\" & done";
    let busy = rests("busy", &format!("{works}; exec PROXY"), "1.5");
    assert_eq!((&busy["status"], &busy["program_facts"]["at_rest"]["processes"]), (&"ok".into(), &9.into()), "{busy}");
    assert!(count(&busy["program_facts"]["unloaded"]["after"]["cpu_ns"]) > 5e7, "{busy}");
    assert!(has_warning(&busy, "at rest") && has_warning(&busy, "left 8 processes behind"), "{busy}");
    // The process that was started ends, and another one carries.
    let daemon = run("daemon", "setsid PROXY & sleep 0.2");
    assert_eq!(daemon["status"], "ok", "{daemon}");
    assert!(daemon["cpu"]["subject_seconds"].as_f64() > Some(0.0), "{daemon}");
    // It does not hear SIGTERM.
    let deaf = run("deaf", "trap : TERM; PROXY & while :; do sleep 0.05; done");
    assert!(deaf["program_facts"]["was_killed"] == true && has_warning(&deaf, "SIGTERM"), "{deaf}");
    // It prints without end, on both outputs.
    let loud = run("loud", "env MARKER=loud yes & env MARKER=loud yes >&2 & exec PROXY");
    assert_eq!(loud["status"], "ok", "{loud}");
}

#[test]
fn a_program_that_dies_under_load_has_failed() {
    skip_if!(no_device());
    let script = format!("sh -c '{} & sleep 1; kill -KILL $!; echo the reason >&2; exit 9'", proxy("dies"));
    let output = through("dies", &script, "-m reader --time 5 --json");
    let sample = printed(&output);
    assert_eq!((output.status.code(), &sample["status"]), (Some(1), &"panicked".into()), "{sample}");
    let detail = sample["detail"].as_str().unwrap();
    assert!(detail.starts_with("the program sh ended with exit code 9; its last words: "), "{detail}");
    assert!(detail.ends_with(" / the reason"), "{detail}");
    assert_eq!(sample["program_facts"]["was_killed"], false, "{sample}");
}

#[test]
fn a_program_that_does_not_get_ready_says_why_and_leaves_nothing() {
    skip_if!(no_device());
    let rows = [
        (
            "ends",
            "echo {tun} is bad >&2; echo sorry >&2; exit 3",
            "ended with exit code 3; its last words: utun8 is bad / sorry",
        ),
        (
            "none",
            "echo on the wrong output; env MARKER=none sleep 60 # {tun}",
            "made no device utun8; its last words: on the wrong output",
        ),
        (
            "named",
            "ip tuntap add mode tun name other; env MARKER=named sleep 60 # {tun}",
            "made the device other instead of utun8; its name is {tun}",
        ),
        ("mute", "ip tuntap add mode tun name {tun}; env MARKER=mute sleep 60", "has let no answer through over TCP: "),
    ];
    at_once(rows, |(marker, script, expected)| {
        let output = through(marker, &format!("sh -c '{script}'"), "-m rr --time 0.3");
        assert_said(&output, 1, &["error: ", expected]);
        let said = stderr(&output);
        assert_eq!(said.contains("it was run as a proxy"), marker == "mute", "{script}: {said}");
    });
}

#[test]
fn a_program_that_cannot_be_run_is_refused_by_name() {
    let refused = |arguments: &[&str], code: i32, expected: &str| {
        assert_said(&Command::new(PROGRAM).args(arguments).output().unwrap(), code, &[expected]);
    };
    let folder = folder("program-refused");
    let bad = folder.join("bad.toml");
    fs::write(&bad, "name = \"bad\"\nrole = \"proxy\"\ncommand = [\"x\", \"{tun}\"]\nnme = 1\n").unwrap();
    let bad = bad.display().to_string();
    refused(&["-m", "rr", "--program", &bad], 2, "'--program <PROGRAM>': line 4, column 1: unknown field `nme`");
    refused(&["programs", "check", &bad], 2, &format!("error: {bad}: line 4, column 1: unknown field `nme`"));
    refused(&["-m", "rr", "--program", "x --device {device}"], 2, "{device} is no placeholder: these are {tun}, ");
    refused(&["-m", "rr", "--program", "nonesuch"], 2, "no program has this name; there are kernel, socks5, ");
    refused(&["-m", "rr", "--program", "kernel", "--layer", "stack"], 2, "cannot be used with");
    refused(&["-m", "rr", "--program", "tun2proxy", "--upstream", "direct"], 2, "--upstream: tun2proxy sends its ");
    refused(&["-m", "rr", "--program", "kernel", "--netns", "host"], 3, "--netns host");
    refused(&["programs", "show", "nonesuch"], 2, "no program has this name");
    // It would wait for a writer.
    let fifo = folder.join("fifo.toml").display().to_string();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for file in [&fifo, "/dev/zero", "/"] {
        refused(&["-m", "rr", "--program", file], 2, ": it is not a regular file");
    }
    refused(&["-m", "rr", "--program", "x {tun} 'y"], 2, "a quote is not closed");
    refused(&["-m", "rr", "--program", "\u{1b}[2J {tun}"], 2, r#"not "\u{1b}[2J""#);
    skip_if!(no_device());
    for name in ["lo", "to-far"] {
        refused(
            &["-m", "rr", "--tun-name", name, "--program", "true {tun}"],
            2,
            "the name is taken; choose another one",
        );
    }
    let missing = folder.join("missing");
    refused(&["-m", "rr", "--program", &format!("{} {{tun}}", missing.display())], 3, "install it, or give its path");
}

#[test]
fn a_relative_path_is_that_of_the_users_folder_and_a_configuration_is_a_file() {
    skip_if!(no_device());
    let folder = folder("program-paths");
    write_script(&folder.join("start"), "cat $1 >&2; pwd >&2; ls >&2; exit 5");
    let profile = "name = \"start\"\nrole = \"proxy\"\ncommand = [\"./start\", \"{config}\"]\nenvironment = { X = \"{mtu}\" }\n\
                   config = \"{ {{tun}} is {tun}, mtu {mtu}\"\n";
    fs::write(folder.join("p.toml"), profile).unwrap();
    let mut command = Command::new(PROGRAM);
    let output =
        command.current_dir(&folder).args(["-m", "rr", "--program", "./p.toml", "--mtu", "1400"]).output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("its last words: { {tun} is utun8, mtu 1400") && said.contains(" / config"), "{said}");
}

/// Why a program of a profile cannot be run here.
pub(crate) fn not_installed(name: &str) -> Option<String> {
    let list = stdout(&run("programs list"));
    let line = list.lines().find(|line| line.split(' ').next() == Some(name)).unwrap().to_owned();
    let missing = !line.ends_with(" installed");
    no_device().or_else(|| missing.then(|| format!("{name} is not installed: scripts/programs.sh")))
}

/// Real programs carry requests, datagrams and bytes.
#[test]
fn installed_programs_are_measured_as_they_are() {
    const LOADS: [&str; 4] = [
        "-m rr --time 0.3",
        "-m rr --time 0.3 --protocol udp",
        "-m writer --time 0.3 --warmup 100KB",
        "-m reader --time 0.3 --warmup 100KB --mtu 9000",
    ];
    let measure = |(name, loads): (&str, &[&str])| {
        skip_if!(not_installed(name));
        for load in loads {
            let sample = success(&format!("{load} --program {name} --verify full"));
            assert_eq!(sample["program"], name, "{load}: {sample}");
            assert!(sample["cpu"]["subject_seconds"].as_f64() > Some(0.0), "{sample}");
            // A module that go has fetched, and some tunnels, do not know their version.
            let version = &sample["program_facts"]["version"];
            assert!(name != "tun2proxy" || version.as_str().unwrap().contains('.'), "{sample}");
        }
    };
    for program in [
        ("tun2proxy", &LOADS[..3]),
        ("hev-socks5-tunnel", &LOADS[..3]),
        ("xray-vless", &LOADS[..3]),
        ("sing-box-gvisor", &LOADS[..3]),
        ("wireguard-go", &LOADS),
        ("openvpn", &LOADS),
        ("nebula", &LOADS),
        ("slirp4netns", &LOADS),
        ("pasta", &LOADS[..2]),
    ] {
        measure(program);
    }
}

#[test]
fn profiles_are_listed_shown_and_checked() {
    let list = stdout(&run("programs list"));
    assert!(list.starts_with("kernel ") && list.contains("\ntun2proxy "), "{list}");
    let is_untested = |name: &str| list.lines().any(|line| line.starts_with(name) && line.contains(" untested; "));
    assert!(is_untested("mihomo ") && !is_untested("tun2proxy "), "{list}");
    let documented = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/your-program.md")).unwrap();
    for line in list.lines() {
        let name = line.split(' ').next().unwrap();
        let names = |row: &&str| row.split(" | ").next().is_some_and(|names| names.contains(&format!("`{name}`")));
        let row = documented.lines().filter(|row| row.starts_with("| `")).find(names);
        let is_named = row.map(|row| row.contains("| untested |"));
        let has_no_row = ["kernel", "socks5"].contains(&name) || STACKS.contains(&name);
        assert!(has_no_row || is_named == Some(is_untested(&format!("{name} "))), "{line}: {row:?}");
        let shown = stdout(&run(&format!("programs show {name}")));
        assert!(shown.starts_with(&format!("name = {name:?}\n")), "{shown}");
        let checked = run(&format!("programs check {name}"));
        assert_eq!(checked.status.code(), Some(0), "{checked:?}");
        assert!(stdout(&checked).contains("{config}"), "{checked:?}");
    }
}

/// The program says something else, or nothing.
#[test]
fn a_missing_device_node_is_the_cause_of_a_programs_failure() {
    skip_if!(no_root());
    let script = "mount -t tmpfs none /dev/net; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh", PROGRAM, "-m", "rr", "--program", &proxy("node")]);
    assert_said(&command.output().unwrap(), 3, &["error: open /dev/net/tun: ", "modprobe tun"]);
}
