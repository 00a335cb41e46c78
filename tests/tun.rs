//! Runs over a real TUN device, in their own namespaces.
//!
//! They need `/dev/net/tun`, and root or user namespaces. Tests that simulate a system without one of these need root.
//! A test that cannot run prints SKIP with the reason.

use std::process::{Command, Output};

use crate::machine::{missing_program, no_device, no_root};
use crate::pairs::pairwise;
use crate::processes::{PROGRAM, STACKS, assert_said, at_once, printed, run, sample, shell, stderr, stdout, success};
use crate::proxy::device::OWNER;

/// Checks that standard output is one line with the word that scripts look for, and that standard error does not have
/// it.
fn assert_one_figure(output: &Output, what: &str) {
    assert_eq!(output.status.code(), Some(0), "{what}\n{}", stderr(output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.lines().filter(|line| line.contains("Gbps")).count(), 1, "{what}\n{stdout}");
    assert_eq!(stdout.lines().count(), 1, "{what}\n{stdout}");
    assert!(!stderr(output).contains("Gbps"), "{what}\n{}", stderr(output));
}

#[test]
fn every_cell_delivers_every_byte() {
    skip_if!(no_device());
    let axes = [&STACKS[..], &["reader", "writer"], &["--current-thread", ""], &["on", "off"], &["", "--ipv6"]];
    for [stack, mode, runtime, offload, version] in pairwise(axes) {
        let arguments = format!(
            "-m {mode} -n {stack} {runtime} --offload {offload} {version} --bytes 24MB --warmup 4MB --verify full"
        );
        assert_one_figure(&run(&arguments), &arguments);
    }
}

#[test]
fn every_option_holds_for_every_stack() {
    skip_if!(no_device());
    let options = [
        "--mtu 576 --window 64KiB",
        "--mtu 65535",
        "--mtu 9000 --worker-threads 1",
        "--mtu 9000 --window 4KiB --bytes 400KB --warmup 64KB",
        "--parallel 4 --window 256KiB",
        "--buffer 999 --congestion reno --verify off",
        "--time 0.3 --warmup 0",
        "--ipv6 --mtu 1280 --parallel 3",
        "--ipv6 --mtu 65535 --window 128KiB",
        "--ipv6 --tun-addr 2001:db8::1 --tun-dest 2001:db8::2 --tun-mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc",
        "--tun-name t0 --tun-addr 172.16.0.1 --tun-dest 172.16.3.2 --tun-mask 255.255.0.0",
    ];
    for [stack, mode, options, offload] in pairwise([&STACKS, &["reader", "writer"], &options, &["on", "off"]]) {
        let limited = options.contains("--time ") || options.contains("--bytes ");
        let bytes = if limited { "" } else { "--bytes 6MB" };
        let warmup = if options.contains("--warmup") { "" } else { "--warmup 1MB" };
        let verify = if options.contains("--verify") { "" } else { "--verify full" };
        let arguments = format!("-m {mode} -n {stack} --offload {offload} {options} {bytes} {warmup} {verify}");
        assert_one_figure(&run(&arguments), &arguments);
    }
}

/// Each shard has a queue of the device, or one shard reads the only queue and passes on the packets of the others.
#[test]
fn shards_share_a_device() {
    skip_if!(no_device());
    let stacks = ["smoltcp", "ipstack", "tcp_ip", "netstack-smoltcp"];
    let loads = [
        "-m reader --parallel 20 --warmup 1MB --bytes 8MB",
        "-m writer --parallel 20 --warmup 1MB --bytes 8MB",
        "-m rr --parallel 20 --time 0.3",
        // On many connections at once, some stacks leave a request without an answer now and then, without shards too.
        "-m crr --parallel 5 --time 0.3",
        "-m rr --protocol udp --parallel 20 --time 0.3",
    ];
    let others = ["", "--offload off", "--ipv6", "--delay 1ms --rate-limit 100M"];
    for [stack, load, queues, other] in pairwise([&stacks, &loads, &["", "--queues 1"], &others]) {
        let arguments = format!("{load} -n {stack} --shards 2 {queues} {other} --verify full");
        let sample = success(&arguments);
        let facts = &sample["queue_facts"];
        let (passed_on, received) = (facts["passed_on"].as_u64().unwrap(), sample["packets"]["rx"].as_u64().unwrap());
        assert_eq!(facts["queues"], if queues.is_empty() { 2 } else { 1 }, "{arguments}\n{sample}");
        assert!(passed_on < received, "{arguments}\n{sample}");
        // With 20 flows, one of 500,000 runs has all in one shard.
        if load.contains("-m rr") && !queues.is_empty() {
            assert!(passed_on > 0, "{arguments}\n{sample}");
        }
    }
}

#[test]
fn a_device_that_was_made_without_queues_has_one() {
    skip_if!(no_root());
    let make = "ip tuntap add utun8 mode tun || exit 42; code=0";
    let load = "\"$PROGRAM\" -m rr -n smoltcp --parallel 20 --time 0.2 --netns host --shards 2 --json";
    for (queues, code) in [("", 0), ("--queues 2", 3)] {
        let output = shell(&["-n"], &format!("{make}; {load} {queues} || code=$?; exit $code"));
        if output.status.code() == Some(42) {
            return eprintln!("SKIP: no ip tuntap");
        }
        if code == 0 {
            assert_eq!(printed(&output)["queue_facts"]["queues"], 1, "{output:?}");
        } else {
            assert_said(&output, code, &["several queues of utun8", "--queues"]);
        }
    }
}

const NOBODY: u32 = 65_534;

/// Returns the beginning of a shell line that runs a program as a user.
fn exec_as(user: u32) -> String {
    format!("exec setpriv --reuid {user} --regid {user} --clear-groups")
}

#[test]
fn an_ordinary_user_with_a_device_node_needs_no_root() {
    skip_if!(no_root());
    for run in ["-m reader -n smoltcp --bytes 6MB --warmup 1MB", "forward --bidir --time 0.3 --warmup 1MB"] {
        let node = "mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200; cd /";
        let script = format!("{node}; {} \"$PROGRAM\" {run} --verify full", exec_as(NOBODY));
        let output = shell(&["-m"], &script);
        assert_eq!(output.status.code(), Some(0), "{run}\n{}", stderr(&output));
        assert_eq!(stdout(&output).lines().filter(|line| line.contains("Gbps")).count(), 1, "{}", stdout(&output));
    }
}

/// Begins a long run in the network of the namespace, and waits until its device has received 100 packets: the second
/// number in the line of an interface.
const LONG_RUN: &str =
    "\"$PROGRAM\" ${ARGUMENTS:--m reader -n smoltcp --time 100 --timeout 200} --netns host --json 2>/dev/null & run=$!
                        trap 'kill -KILL $run 2>/dev/null || true' EXIT
                        tries=0
                        until awk '$1 == \"utun8:\" && $3 > 100 { seen = 1 } END { exit !seen }' \\
                            /proc/thread-self/net/dev; do
                            tries=$((tries + 1)); test $tries -lt 600; sleep 0.05
                        done;";

/// Each thing that is missing or taken, the flags of `unshare`, and a script that meets it.
#[test]
fn what_is_missing_or_taken_is_reported_with_the_remedy() {
    skip_if!(no_root());
    let run = "\"$PROGRAM\" -m reader -n smoltcp";
    let as_nobody = exec_as(NOBODY);
    let node = |make: &str, then: &str| format!("mount -t tmpfs none /dev/net; {make}; {then}");
    let beside = |options: &str| {
        format!(
            "{LONG_RUN} code=0; {run} --netns host {options} || code=$?; kill -INT $run; wait $run || true; exit $code"
        )
    };
    // Threads are counted for each user, and other tests run as nobody.
    let limited = |limit: &str| {
        let as_user = exec_as(64_917);
        let run = format!("{as_user} prlimit {limit} timeout 20 {run} --worker-threads 100");
        node("mknod -m 666 /dev/net/tun c 10 200", &run)
    };
    let not_created = format!("{run} || {{ code=$?; test ! -e /dev/net/tun; exit $code; }}");
    // The limit belongs to the namespace in which it is set, and ends with it.
    let no_user_namespace = "echo 0 > /proc/sys/user/max_user_namespaces
                             exec setpriv --bounding-set=-all --inh-caps=-all";
    // In a chroot nobody may create a user namespace, and without CAP_SYS_ADMIN no other one.
    let container = "chroot /mnt setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin";
    let in_it = |command: &str| format!("mount --rbind / /mnt; exec {container} {command}");
    let in_the_hosts = format!("mount --rbind / /mnt; {container} {run} --netns host --time 0.1 || exit 99; exit 3");
    let of_container = ["create a network namespace: ", "--cap-add SYS_ADMIN), or use --netns host"];
    let no_namespace = "echo 0 > /proc/sys/user/max_net_namespaces;";
    let no_ipv6 = "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; exec";
    for (unshare, script, code, words) in [
        ("-m", node("true", &not_created), 3, ["open /dev/net/tun: ", "modprobe tun"]),
        (
            "-m",
            node("mknod -m 600 /dev/net/tun c 10 200", &format!("{as_nobody} {run}")),
            3,
            ["open /dev/net/tun: ", "chmod"],
        ),
        ("-Ur", format!("{no_user_namespace} {run}"), 3, ["create a user namespace: ", "user.max_user_namespaces"]),
        ("-Ur", format!("{no_namespace} {run}"), 3, ["user.max_net_namespaces=", "or use --netns host"]),
        ("-m", in_it(run), 3, of_container),
        ("-m", in_it("\"$PROGRAM\" --program kernel -m reader"), 3, ["create a network ", "--cap-add SYS_ADMIN)\n"]),
        ("-mn", in_the_hosts, 3, ["", ""]),
        ("-n", beside("--tun-addr 10.9.9.9 --tun-dest 10.9.9.1"), 2, ["utun8", "--tun-name"]),
        ("-n", beside("--tun-name utun9"), 2, ["10.10.10.9", "--tun-addr"]),
        // Without the check, a runtime that lacks a thread would never end.
        ("-m", limited("--nofile=8"), 1, ["error: ", "ulimit"]),
        ("-m", limited("--nproc=20"), 1, ["error: ", "ulimit"]),
        ("-n", format!("{no_ipv6} {run} --ipv6 --netns host"), 3, ["utun8", "disable_ipv6"]),
    ] {
        assert_said(&shell(&[unshare], &script), code, &words);
    }
}

/// Runs a command as on a kernel with `ipv6.disable=1`: no IPv6 socket can be made (seccomp(2), EAFNOSUPPORT).
const WITHOUT_INET6: &str = r"
import ctypes, os, platform, struct, sys
socket = {'x86_64': 41, 'aarch64': 198}[platform.machine()]
code = [(0x20, 0, 0, 0), (0x15, 0, 3, socket), (0x20, 0, 0, 16), (0x15, 0, 1, 10), (6, 0, 0, 0x50061), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, struct.pack('HP', 6, ctypes.addressof(code)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])";

#[test]
fn a_kernel_without_ipv6_sockets_is_reported_with_the_remedy() {
    skip_if!(no_device().or_else(|| missing_program(&["python3"])));
    for arguments in ["-m reader -n smoltcp", "-m rr --protocol udp --layer loopback", "--program kernel -m reader"] {
        let mut command = Command::new("python3");
        command.args(["-c", WITHOUT_INET6, PROGRAM]).args(arguments.split(' ')).args(["--ipv6", "--time", "0.1"]);
        assert_said(&command.output().unwrap(), 3, &["create an IPv6 socket: ", "ipv6.disable=1", "leave out --ipv6"]);
    }
}

#[test]
fn an_option_that_cannot_be_met_is_reported_by_its_value() {
    skip_if!(no_device());
    for (options, code, words) in [
        ("--offload on --tun-fd 77", 3, ["offload", "auto"]),
        ("--congestion no-such-thing", 3, ["error: ", "no-such-thing"]),
        ("--tun-fd 77", 2, ["error: ", "file descriptor 77"]),
        ("--tun-fd 7 7</dev/null", 2, ["error: ", "file descriptor 7"]),
    ] {
        assert_said(&shell(&[], &format!("\"$PROGRAM\" -m reader -n smoltcp {options}")), code, &words);
    }
}

/// More streams than a backlog holds, and larger windows than a queue of the kernel holds.
#[test]
fn the_most_streams_and_the_largest_windows() {
    skip_if!(no_device());
    let arguments = "-m reader -n smoltcp --parallel 256 --bytes 3MB --warmup 256B --verify full";
    assert_one_figure(&run(arguments), arguments);
    let arguments = "-m writer -n lwip --window 512MB --bytes 6MB --warmup 1MB --verify full";
    assert_one_figure(&run(arguments), arguments);
}

#[test]
fn the_figure_is_printed_although_standard_error_is_closed() {
    skip_if!(no_device());
    let output = shell(&[], "\"$PROGRAM\" -m reader -n smoltcp --bytes 3MB --warmup 0 2>/dev/full");
    assert_one_figure(&output, "2>/dev/full");
}

#[test]
fn a_deleted_device_ends_the_run() {
    skip_if!(no_root());
    skip_if!(missing_program(&["ip"]));
    for [stack, mode] in pairwise([&STACKS[..], &["reader", "writer"]]) {
        let script = format!(
            "ARGUMENTS='-m {mode} -n {stack} --time 100 --timeout 200'
             {LONG_RUN} ip link delete utun8; code=0; wait $run || code=$?; exit $code"
        );
        let begin = std::time::Instant::now();
        let output = shell(&["-n"], &script);
        assert_eq!(output.status.code(), Some(1), "{stack} {mode}: {}", stderr(&output));
        assert_eq!(printed(&output)["status"], "device-lost", "{stack} {mode}: {output:?}");
        assert!(begin.elapsed().as_secs() < 90, "{stack} {mode}: it took {:?}", begin.elapsed());
    }
}

/// A device that is down for a moment, while the stack sends, loses packets. The run goes on after it.
#[test]
fn a_device_that_is_down_for_a_moment_loses_packets_and_no_run() {
    skip_if!(no_root());
    skip_if!(missing_program(&["ip"]));
    for [stack, mode, offload] in pairwise([&STACKS[..], &["reader", "writer"], &["on", "off"]]) {
        // ipstack sends a lost segment again only when a packet arrives, so a run may stall.
        if stack == "ipstack" {
            continue;
        }
        let script = format!(
            "ARGUMENTS='-m {mode} -n {stack} --offload {offload} --time 2 --warmup 0 --timeout 60 --verify full'
             {LONG_RUN} ip link set utun8 down; sleep 0.3; ip link set utun8 up
             code=0; wait $run || code=$?; exit $code"
        );
        let sample = printed(&shell(&["-n"], &script));
        assert_eq!(sample["status"], "ok", "{stack} {mode} {offload}: {sample}");
        let drops = sample["device_drops"].as_u64().unwrap();
        assert!(drops > 0 || mode == "writer", "{stack} {mode} {offload}: {sample}");
    }
}

/// The offload that the owner has asked for would give the stack super-packets. Other framing is refused at once.
#[test]
fn a_device_that_is_taken_over_is_checked_and_has_no_offload() {
    skip_if!(no_root().or_else(|| missing_program(&["python3", "ip"])));
    let arguments = "-m writer -n smoltcp --bytes 6MB --warmup 1MB --verify full --timeout 20";
    let take_over =
        |set: &str, arguments: &str| shell(&["-n"], &format!("{set} exec {OWNER} \"$PROGRAM\" {arguments}"));
    // TUN_F_CSUM, TUN_F_TSO4 and TUN_F_TSO6.
    let sample = printed(&take_over("OFFLOAD=7", &format!("{arguments} --json")));
    assert!(sample["status"] == "ok" && sample["retransmits"].as_u64() < Some(20), "{sample}");
    for (flags, reason) in
        [("0x1002", "it is a TAP device"), ("0x0001", "packet information"), ("0x5001", "IFF_VNET_HDR")]
    {
        for arguments in [arguments, "proxy --interface lo"] {
            let output = take_over(&format!("FLAGS={flags}"), arguments);
            assert_said(&output, 2, &["take over file descriptor", reason, "--tun-fd needs"]);
        }
    }
}

/// The default datagram fills the MTU of the device, and a larger one is refused by its size.
#[test]
fn datagrams_fit_the_mtu_of_a_device_that_is_taken_over() {
    skip_if!(no_root().or_else(|| missing_program(&["python3", "ip"])));
    let udp = |options: &str| {
        let options = format!("-m writer -n smoltcp --protocol udp --bitrate 50M --time 0.2 --json {options}");
        shell(&["-n"], &format!("exec {OWNER} \"$PROGRAM\" {options}"))
    };
    let sample = printed(&udp(""));
    assert_eq!((&sample["mtu"], &sample["datagram_bytes"]), (&9000.into(), &8972.into()), "{sample}");
    assert_said(&udp("--datagram 8973"), 2, &["at most 8972"]);
}

/// The path carries nothing for a while, and the connections survive it: the kernel sends again.
#[test]
fn a_path_is_cut_in_the_timed_window_and_recovers() {
    skip_if!(no_device());
    at_once(["-n smoltcp -m writer", "-m rr --program smoltcp", "-m reader -n kernel"], |options| {
        let sample = success(&format!("{options} --outage 0.5s,300ms --time 4 --verify full"));
        assert_eq!(sample["verified"], "full", "{options}: {sample}");
        assert_eq!(sample["outage"]["lasts_ns"], 300_000_000, "{sample}");
        let recovery = sample["recovery_seconds"].as_f64().unwrap();
        assert!((0.0..3.2).contains(&recovery), "{options}: {recovery}");
    });
}

/// A router behind the device carries only short packets: both ends send again, or the run stalls. lwIP's packets may be
/// fragmented.
#[test]
fn a_path_carries_short_packets_and_says_so_or_not() {
    skip_if!(no_device());
    let of = |options: &str| sample(&format!("{options} --bytes 4MB --warmup 1MB --verify full --timeout 5"));
    for options in ["-m writer -n smoltcp", "-m reader -n lwip --ipv6 off", "-m reader -n kernel --ipv6"] {
        let sample = of(&format!("{options} --path-mtu 1300"));
        assert_eq!((&sample["status"], &sample["verified"]), (&"ok".into(), &"full".into()), "{options}: {sample}");
    }
    let told = of("-m writer -n kernel --path-mtu 1300 --offload off");
    assert!(told["status"] == "ok" && told["path_mtu"] == 1300, "{told}");
    at_once(["-m writer -n kernel --path-mtu 1300 --no-icmp", "-m reader -n smoltcp --path-mtu 1300"], |options| {
        let hole = of(options);
        assert_eq!(hole["status"], "stalled", "{options}: {hole}");
        assert!(hole["link"]["too_big"].as_u64() > Some(0), "{hole}");
    });
}
