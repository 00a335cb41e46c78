//! Tunnels and programs that join a namespace: a plain tunnel of this test program's own, and real ones where they are
//! installed. A test that cannot run prints SKIP with the reason.

use std::env;
use std::fs;
use std::future::poll_fn;
use std::io::{self, IoSlice, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use platform::{Link, Network, Offload, PacketBuffer, PacketMeta, TunConfig, TunDevice};
use tokio::net::UdpSocket;

use crate::machine::missing_program;
use crate::processes::{PROGRAM, assert_said, folder, printed, run, stderr, stdout, success};
use crate::program::{has_warning, marked, no_device, not_installed, proxy, through};

/// The environment variables of an end of the tunnel.
const DEVICE: &str = "TUNNEL_DEVICE";
const ADDRESS: &str = "TUNNEL_ADDRESS";
const INSIDE: &str = "TUNNEL_INSIDE";
const PREFIX: &str = "TUNNEL_PREFIX";
const MTU: &str = "TUNNEL_MTU";
const PORT: &str = "TUNNEL_PORT";
const PEER: &str = "TUNNEL_PEER";
/// For how many seconds it carries.
const LIFE: &str = "TUNNEL_LIFE";

/// The words that start an end of a tunnel without encryption, for so many seconds. The marker finds its processes.
pub(crate) fn tunnel(marker: &str, life: f64) -> String {
    let test = env::current_exe().unwrap();
    let variables = format!(
        "MARKER={marker} {DEVICE}={{tun}} {ADDRESS}={{address}} {INSIDE}={{peer}} {PREFIX}={{prefix}} {MTU}={{mtu}} \
         {PORT}={{port}} {PEER}={{peer_endpoint}} {LIFE}={life}"
    );
    format!("env {variables} {} --exact tunnel::carry --ignored", test.display())
}

/// An end of the tunnel: each packet of the device is a datagram.
#[test]
#[ignore = "carries until it is ended"]
fn carry() {
    let of = |name: &str| env::var(name).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let life = Duration::from_secs_f64(of(LIFE).parse().unwrap());
    let carrying = async {
        let network = Network {
            address: of(ADDRESS).parse().unwrap(),
            peer: of(INSIDE).parse().unwrap(),
            prefix_len: of(PREFIX).parse().unwrap(),
        };
        let mtu = of(MTU).parse().unwrap();
        let config = TunConfig {
            name: of(DEVICE),
            or_next: false,
            network,
            mtu,
            tx_queue_len: 1000,
            offload: Offload::Off,
            fd: None,
            tuning: platform::Tuning::default(),
        };
        let mut device = TunDevice::open(&config).unwrap();
        let peer: SocketAddr = of(PEER).parse().unwrap();
        let any = if peer.is_ipv6() { "[::]" } else { "0.0.0.0" };
        let socket = UdpSocket::bind(format!("{any}:{}", of(PORT))).await.unwrap();
        socket.connect(peer).await.unwrap();
        let mut packets: Vec<_> = (0..device.capabilities().batch).map(|_| PacketBuffer::new(65536)).collect();
        let mut datagram = vec![0; 65536];
        loop {
            tokio::select! {
                ready = poll_fn(|cx| device.poll_readable(cx)) => {
                    ready.unwrap();
                    let count = device.try_recv(&mut packets).unwrap_or_default();
                    for packet in &packets[..count] {
                        // The other end may not be there yet.
                        let _lost = socket.send(packet.packet()).await;
                    }
                }
                received = socket.recv(&mut datagram) => {
                    let Ok(len) = received else { continue };
                    // A device that is full, or still down, drops it.
                    let _lost = device.try_send(PacketMeta::default(), &[IoSlice::new(&datagram[..len])]);
                    device.flush().unwrap();
                }
            }
        }
    };
    let carried = runtime.block_on(async { tokio::time::timeout(life, carrying).await });
    assert!(carried.is_err(), "its life is over");
    // Not by a macro, whose output the test harness keeps.
    writeln!(io::stderr(), "its life is over").unwrap();
    std::process::exit(7);
}

/// A profile with these lines, as a file in a folder of the test.
pub(crate) fn profile(folder: &Path, lines: &str) -> String {
    let path = folder.join("mine.toml");
    fs::write(&path, format!("name = \"mine\"\nrole = \"tunnel\"\n{lines}\n")).unwrap();
    path.display().to_string()
}

/// A command as a list of TOML.
pub(crate) fn words(command: &str) -> String {
    let words: Vec<_> = shlex::split(command).unwrap().iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(", "))
}

#[test]
fn every_load_goes_through_a_tunnel_and_both_ends_are_paid_for() {
    skip_if!(no_device());
    // This tunnel drops what does not fit into its socket's buffer, so a load fits.
    for options in [
        "-m reader --bytes 100KB --warmup 10KB",
        "-m writer --bytes 90KB --warmup 9KB --parallel 3 --ipv6",
        "-m rr --time 0.2 --parallel 5 --request 100 --response 5KB",
        "-m crr --time 0.2 --parallel 5 --mtu 9000",
        "-m writer --time 0.2 --protocol udp --bitrate 5M",
        "-m rr --time 1 --delay 2ms",
    ] {
        let output = through("tunnel", &tunnel("tunnel", 60.0), &format!("{options} --verify full --json"));
        let sample = printed(&output);
        assert_eq!((&sample["status"], &sample["program"]), (&"ok".into(), &"env".into()), "{options}: {output:?}");
        let facts = &sample["program_facts"];
        assert!(sample["cpu"]["subject_seconds"].as_f64() > Some(0.0), "{sample}");
        assert!(facts["far_seconds"].as_f64() > Some(0.0), "{facts}");
        assert!(facts["far_at_rest"]["processes"].as_u64() > Some(0), "{facts}");
        assert!(facts["far_rest_cpu_share"].as_f64() >= Some(0.0), "{facts}");
        assert_eq!((&facts["far"]["processes"], &facts["under_load"]["processes"]), (&1.into(), &1.into()), "{facts}");
        assert_eq!((&facts["was_killed"], &facts["left_behind"]), (&false.into(), &0.into()), "{facts}");
        // As shipped the devices have what Ethernet's MTU leaves.
        let mtu = options.contains("9000").then_some(9000);
        let of_device = mtu.unwrap_or(1500) - 80;
        assert_eq!((&sample["mtu"], &sample["device"]["mtu"]), (&mtu.into(), &of_device.into()), "{sample}");
        if options.contains("delay") {
            assert!(sample["requests"]["latency"]["p50_us"].as_f64() > Some(4000.0), "{sample}");
        }
    }
}

/// Tunnels, ports that containers' networks forward, and the kernel.
#[test]
fn servers_inside_are_reached_from_outside() {
    const FULL: [&str; 8] = [
        "-m reader --time 0.2 --warmup 1MB --parallel 3",
        "-m writer --time 0.2 --warmup 1MB",
        "-m both --time 0.2 --warmup 1MB",
        "-m rr --time 0.2 --parallel 5 --background reader",
        "-m crr --time 0.2 --parallel 5",
        "-m idle --time 0.2 --parallel 20",
        "-m rr --time 0.2 --protocol udp",
        "-m reader --time 0.2 --protocol udp --bitrate 10M",
    ];
    // For a backlog of 1.
    const SINGLE: [&str; 4] = [
        "-m reader --time 0.2 --warmup 1MB",
        "-m crr --time 0.2",
        "-m idle --time 0.2 --parallel 2",
        "-m rr --time 0.2 --protocol udp",
    ];
    let measure = |command: &str, loads: &[&str]| {
        for load in loads {
            let output = through("inbound", command, &format!("{load} --inbound --verify full --json"));
            let sample = printed(&output);
            assert_eq!(
                (&sample["status"], &sample["inbound"]),
                (&"ok".into(), &true.into()),
                "{command} {load}: {sample}"
            );
            let bytes = |field: &str| sample["packets"][field].as_u64().unwrap_or_default();
            // The kernel inside receives what the clients write.
            match sample["mode"].as_str().unwrap() {
                "reader" => assert!(bytes("rx_bytes") > bytes("tx_bytes"), "{command} {load}: {sample}"),
                "writer" => assert!(bytes("tx_bytes") > bytes("rx_bytes"), "{command} {load}: {sample}"),
                _ => {}
            }
        }
    };
    skip_if!(no_device());
    measure(
        &tunnel("inbound", 60.0),
        &["-m reader --bytes 100KB --warmup 10KB", "-m writer --bytes 90KB --warmup 9KB --ipv6"],
    );
    measure("kernel", &FULL[3..5]);
    for (name, loads) in [("pasta", &FULL[..]), ("slirp4netns", &SINGLE), ("gotatun", &FULL[2..6])] {
        let measure_installed = || {
            skip_if!(not_installed(name));
            measure(name, loads);
        };
        measure_installed();
    }
}

/// The process at the hub is the one that is measured; each peer has one at the far end, and an answer comes through each.
#[test]
fn one_process_has_several_peers() {
    const LOADS: [&str; 4] = [
        "-m reader --time 0.2 --warmup 1MB --parallel 3",
        "-m idle --time 0.2 --parallel 7 --ipv6",
        "-m rr --time 0.2 --parallel 4 --protocol udp",
        "-m crr --time 0.2 --parallel 3 --inbound --ipv6",
    ];
    for name in ["wireguard-go", "boringtun", "gotatun"] {
        let measure_installed = || {
            skip_if!(not_installed(name));
            for load in LOADS {
                let sample = printed(&through("peers", name, &format!("{load} --peers 3 --verify full --json")));
                assert_eq!((&sample["status"], &sample["peers"]), (&"ok".into(), &3.into()), "{load}: {sample}");
                let facts = &sample["program_facts"];
                let processes = ["under_load", "far"].map(|end| facts[end]["processes"].as_u64());
                assert_eq!(processes, [Some(1), Some(3)], "{facts}");
                assert_eq!((&facts["was_killed"], &facts["left_behind"]), (&false.into(), &0.into()), "{facts}");
            }
        };
        measure_installed();
    }
}

/// The further peers of this tunnel get no answer: the near end does not know them.
#[test]
fn a_peer_without_an_answer_is_named() {
    skip_if!(not_installed("wireguard-go"));
    let shown = stdout(&run("programs show wireguard-go"));
    let lines: Vec<_> = shown.lines().filter(|line| !line.starts_with("peer_setup")).collect();
    let text = lines.join("\n").replace("wireguard-go", "mine");
    let path = folder("tunnel-peers").join("mine.toml");
    fs::write(&path, format!("{text}\npeer_setup = [[\"true\"]]\n")).unwrap();
    let output = through("peers", path.to_str().unwrap(), "-m rr --peers 2 --parallel 2");
    assert_said(&output, 1, &["after 10 s the far end 2 of program mine has let no answer through over TCP"]);
}

#[test]
fn a_far_end_that_dies_under_load_is_named() {
    skip_if!(no_device());
    let folder = folder("tunnel-dies");
    let [near, far] = [60.0, 4.0].map(|life| words(&tunnel("tunnel-dies", life)));
    let profile = profile(&folder, &format!("command = {near}\nfar_command = {far}"));
    let output = through("tunnel-dies", &profile, "-m rr --time 10 --json");
    let sample = printed(&output);
    assert_eq!((output.status.code(), &sample["status"]), (Some(1), &"panicked".into()), "{sample}");
    let detail = sample["detail"].as_str().unwrap();
    assert!(detail.starts_with("the far end of program mine ended with exit code 7"), "{detail}");
    assert!(detail.ends_with("its life is over"), "{detail}");
}

/// Runs `rr` through a profile, for what it says.
fn rr(profile: &str) -> (Option<i32>, String) {
    let output = Command::new(PROGRAM).args(["-m", "rr", "--time", "0.2", "--program", profile]).output().unwrap();
    (output.status.code(), stderr(&output))
}

/// Each end writes a file of the same path, which the other must not see, and its commands see what it wrote. The keys of
/// both ends fit together.
#[test]
fn each_end_has_a_run_folder_and_keys_of_its_own() {
    skip_if!(no_device());
    let folder = folder("tunnel-run");
    let script = format!("test ! -e /run/one && echo {{key}} >/run/one && exec {}", tunnel("tunnel-run", 60.0));
    let check = "test \"$(cat /var/run/one)\" = \"$(cat {key_file})\" && test {key} != {peer_key} && \
                 test \"$(cat {config})\" = \"{address} to {peer}, {peer_endpoint} on {interface}\"";
    let lines = |script: &str, check: &str| {
        format!(
            "command = [\"sh\", \"-c\", {script:?}]\nsetup = [[\"sh\", \"-c\", {check:?}]]\n\
             config = \"10.10.10.9 to 10.10.10.1, 198.18.2.1:51820 on to-far\"\n\
             far_config = \"10.10.10.1 to 10.10.10.9, 198.18.1.1:51820 on to-near\""
        )
    };
    let (code, said) = rr(&profile(&folder, &lines(&script, check)));
    assert_eq!(code, Some(0), "{said}");
    // Nothing of it is in the system's own folder.
    assert!(!Path::new("/run/one").exists());
    let (code, said) = rr(&profile(&folder, &lines(&script, "echo it is shut; exit 4")));
    assert_eq!(code, Some(1), "{said}");
    let expected = "after 10 s the far end of program mine has not been set up: the command sh ended with exit code 4; its \
                    last words: it is shut";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_tunnel_that_cannot_be_set_up_is_unavailable() {
    skip_if!(no_device());
    let folder = folder("tunnel-setup");
    let command = words(&tunnel("tunnel-setup", 60.0));
    let (code, said) = rr(&profile(&folder, &format!("command = {command}\nsetup = [[\"./no-such\", \"{{tun}}\"]]")));
    assert!(code == Some(3) && said.contains("./no-such") && said.contains("install it"), "{said}");
    // Without a process, the kernel is to make the device; it says at once that it does not.
    let of_kernel = "setup = [[\"ip\", \"link\", \"add\", \"{tun}\", \"type\", \"no-such\"]]";
    let (code, said) = rr(&profile(&folder, of_kernel));
    assert!(code == Some(3) && said.contains("mine cannot be set up: the command ip ended with exit code "), "{said}");
}

/// The server has an address that the program reaches, what was prepared, and a configuration of its own. It is paid for apart.
#[test]
fn a_proxy_may_have_a_server_in_the_far_network() {
    skip_if!(no_device());
    let folder = folder("tunnel-server");
    let listens = "test $(cat {shared}/word) = fish && ip -o address | grep -qw {far_host} && cp {config} {shared}/far && \
                   exec env MARKER=server sleep 60";
    let connects =
        format!("until test -e {{shared}}/far; do sleep 0.01; done; cp {{shared}}/far far; exec {}", proxy("far"));
    let path = folder.join("mine.toml");
    let profile = |prepare: &str, version: &str| {
        let lines = format!(
            "name = \"mine\"\nrole = \"proxy\"\ncommand = [\"sh\", \"-c\", {connects:?}]\nset.mtu = [\"--mtu\", \"{{mtu}}\"]\n\
             far_command = [\"sh\", \"-c\", {listens:?}]\nfar_config = \"at {{far}}, {{far_port}}\"\n\
             prepare = [[\"sh\", \"-c\", {prepare:?}]]\ntested = \"3.1\"\nversion = [{version}]\n"
        );
        fs::write(&path, lines).unwrap();
        path.display().to_string()
    };
    for family in ["", "--ipv6"] {
        let mine = profile("echo fish >word", "\"echo\", \"mine 3.1.4\"");
        let output = through("far", &mine, &format!("-m rr --time 0.3 --json {family}"));
        let sample = printed(&output);
        let facts = &sample["program_facts"];
        assert_eq!((&sample["status"], &facts["upstream"]), (&"ok".into(), &"far".into()), "{output:?}");
        assert_eq!((&facts["at_rest"]["processes"], &facts["far"]["processes"]), (&1.into(), &1.into()), "{facts}");
        assert!(facts["tested"].is_null(), "{facts}");
        assert_eq!(marked("server"), Vec::<u32>::new());
    }
    let sample =
        printed(&through("far", &profile("echo fish >word", "\"echo\", \"mine 3.2\""), "-m rr --time 0.3 --json"));
    let warning = "the profile was tried with version 3.1 of the program, and this is mine 3.2";
    assert!(has_warning(&sample, warning), "{sample}");
    let output = through("far", &profile("echo no fish; exit 4", "\"echo\""), "-m rr");
    let reason = "error: mine cannot be prepared: the command sh ended with exit code 4; its last words: no fish";
    assert_said(&output, 1, &[reason]);
    let output = through("far", &profile("true", "\"no-such-program\""), "-m rr");
    assert_said(&output, 3, &["start the program no-such-program: ", "install it"]);
    let output = through("far", &profile("true", "\"echo\""), "-m rr");
    assert_said(&output, 1, &["the server of program mine ended with exit code "]);
}

#[test]
fn the_example_of_a_tunnel_is_measured() {
    skip_if!(no_device().or_else(|| missing_program(&["python3"])));
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tunnel.py");
    let command = format!("{} {{tun}} {{port}} {{peer_endpoint}}", example.display());
    let sample = printed(&through("example", &command, "-m rr --time 0.3 --json"));
    assert_eq!(sample["status"], "ok", "{sample}");
}

/// The kernel's work is done by processes that `setup` starts: they are found, paid for and ended.
#[test]
fn a_tunnel_of_processes_in_the_background_is_measured() {
    skip_if!(no_device());
    let folder = folder("tunnel-background");
    let script = format!("setsid {} </dev/null >/dev/null 2>&1 &", tunnel("tunnel-background", 60.0));
    let profile = profile(&folder, &format!("setup = [[\"sh\", \"-c\", {script:?}]]"));
    let output = through("tunnel-background", &profile, "-m rr --time 0.3 --json");
    let sample = printed(&output);
    assert_eq!(sample["status"], "ok", "{sample}");
    let facts = &sample["program_facts"];
    assert!(sample["cpu"]["subject_seconds"].as_f64() > Some(0.0), "{sample}");
    assert_eq!((&facts["left_behind"], &facts["was_killed"]), (&0.into(), &false.into()), "{facts}");
}

/// It goes on where the clients are, and is ended there.
#[test]
fn a_process_in_the_clients_network_is_the_programs_too() {
    skip_if!(not_installed("slirp4netns"));
    let script = "nsenter --net={netns} env MARKER=attached sleep 60 & \
                  exec slirp4netns -c --mtu {mtu} --netns-type=path {netns} {tun}";
    let output = through("attached", &format!("sh -c '{script}'"), "-m rr --time 0.3 --json");
    let sample = printed(&output);
    assert_eq!(sample["status"], "ok", "{sample}");
    let facts = &sample["program_facts"];
    assert_eq!((&facts["at_rest"]["processes"], &facts["left_behind"]), (&2.into(), &1.into()), "{facts}");
}

#[test]
fn conditions_of_the_link_are_those_of_every_program_with_one() {
    skip_if!(no_device());
    for (program, options) in [
        ("socks5", "-m rr --time 0.3 --ipv6 --request 100 --response 10KB"),
        ("socks5", "-m writer --bytes 4MB --warmup 1MB --parallel 2"),
        ("kernel", "-m writer --warmup 0 --outage 100ms,100ms --time 1 --loss 0.1"),
    ] {
        let sample = success(&format!("{options} --program {program} --delay 2ms --verify full"));
        assert_eq!(sample["delay_ns"], 2_000_000, "{sample}");
    }
}
