//! The device of the proxy: whose it is, and what comes back into it.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Output;
use std::time::Duration;

use super::lab::{Between, Lab};
use super::lacks;
use super::process::wait_until;
use crate::processes::{assert_said, shell, stderr, stdout};

/// Runs a program that takes over a device of this one, which has these flags of `TUNSETIFF`, `IFF_TUN` and `IFF_NO_PI` by
/// default, and this offload of `TUNSETOFFLOAD`.
pub(crate) const OWNER: &str = "python3 -c \"import fcntl, os, struct, sys
fd = os.open('/dev/net/tun', os.O_RDWR)
value = lambda name, default: int(os.environ.get(name, default), 0)
fcntl.ioctl(fd, 0x400454CA, struct.pack('16sH22x', b'owned', value('FLAGS', '0x1001')))
fcntl.ioctl(fd, 0x400454D0, value('OFFLOAD', '0'))
os.system('ip link set owned mtu 9000 up; ip address add 10.10.10.9/24 dev owned')
os.set_inheritable(fd, True)
os.execvp(sys.argv[1], [*sys.argv[1:], '--tun-fd', str(fd)])\"";

/// `serve` starts a proxy and waits until it replies to a ping, `stop` ends it.
const PRELUDE: &str = "
    ip link add up0 type veth peer name up1; ip link set up0 up; device=px0; first=
    trap 'kill $first 2>/dev/null || true' EXIT
    carries() { ip route replace 10.7.0.0/24 dev $device 2>/dev/null && ping -c 1 -W 1 10.7.0.1 >/dev/null 2>&1; }
    serve() {
        \"$@\" & first=$!; tries=0
        until carries; do tries=$((tries + 1)); test $tries -lt 100; sleep 0.05; done
    }
    stop() { kill -TERM $first; wait $first; first=; }
    proxy=\"$PROGRAM proxy -i up0 --tun-name px0\";";

fn said(script: &str) -> Output {
    shell(&["-mn"], &format!("{PRELUDE} {script}"))
}

/// With several queues, the kernel lets a second process join.
#[test]
fn a_device_in_use_is_refused_and_not_touched() {
    skip_if!(lacks(&["ping", "timeout"]));
    for (first, second) in [
        ("--shards 2 --offload off", "$proxy --shards 2"),
        ("--shards 2", "$proxy --shards 2 --tun-addr 10.1.1.1 --tun-dest 10.1.1.2 --mtu 1280 --offload off"),
        ("--shards 2", "$proxy"),
        ("", "$proxy --shards 2"),
        ("--shards 2", "$PROGRAM -m rr -n smoltcp --parallel 9 --shards 2 --time 0.2 --netns host --tun-name px0"),
        ("--shards 2", "$PROGRAM -m rr -n smoltcp --time 0.2 --netns host --tun-name px0"),
    ] {
        let script = format!(
            "serve $proxy {first} >&2; before=$(ip -d address show px0)
             code=0; timeout 20 {second} || code=$?
             test \"$(ip -d address show px0)\" = \"$before\"; carries; stop; exit $code"
        );
        assert_said(&said(&script), 2, &["px0", "the name is taken"]);
    }
}

/// The user has started the proxy: no part of a run makes, finds or ends it.
#[test]
fn a_proxy_that_runs_already_is_measured_through_its_device() {
    skip_if!(lacks(&["ping", "timeout"]));
    let prepared = "ip link set lo up; ip link set up1 up; ip address add 10.2.0.1/24 dev up0; serve $proxy >&2
        run() { timeout 30 $PROGRAM --timeout 20 --mode \"$@\"; }; code=0";
    let accepts = "echo 1 >/proc/sys/net/ipv4/conf/px0/accept_local";
    for (script, exit, words) in [
        ("run reader --device px0 --dest 10.2.0.1", 3, &["sysctl net.ipv4.conf.px0.accept_local=1"][..]),
        ("run reader --device px9 --dest 10.2.0.1", 2, &["px9", "--device"]),
        ("run reader --device px0 --dest 10.9.0.1", 2, &["10.9.0.1", "no other interface"]),
        ("run reader --device up0 --dest 10.2.0.1", 2, &["10.2.0.1", "no other interface"]),
        ("run reader --device px0", 2, &["--dest"]),
        ("run reader -n lwip --dest 10.2.0.1", 2, &["only --device takes it"]),
        ("run idle --parallel 2 --device px0 --dest 10.2.0.1", 2, &["--mode"]),
    ] {
        let script = format!("{PRELUDE} {prepared}; {script} || code=$?; carries; stop; exit $code");
        assert_said(&shell(&["-mn"], &script), exit, words);
    }
    let runs = "for load in reader writer 'both --parallel 3'; do run $load --bytes 3MB --warmup 1MB --verify full $through; done
        for load in rr crr 'rr --protocol udp' 'writer --protocol udp --bitrate 10M'; do run $load --time 0.2 $through; done
        rounds=$(mktemp); run reader,rr --runs 1 --time 0.2 $through --out $rounds";
    let runs = runs.replace("run reader,rr", "timeout 60 $PROGRAM matrix --mode reader,rr");
    let script = format!(
        "{PRELUDE} {prepared}; {accepts}; through='--device px0 --dest 10.2.0.1'; {runs}; rm $rounds; carries; stop"
    );
    let output = shell(&["-mn"], &script);
    assert_said(&output, 0, &[]);
    let (said, lines) = (stdout(&output), |word: &str| stdout(&output).matches(word).count());
    assert!(lines("Gbps") >= 4 && lines("transactions") >= 3 && said.contains("px0"), "{said}");
}

/// Twice by root, whatever it was made with, and by the user whom root has made it for.
#[test]
fn a_prepared_device_serves_again_and_again() {
    skip_if!(lacks(&["ping"]));
    let run = "$PROGRAM -m rr -n smoltcp --shards 2 --time 0.2 --netns host --tun-name px0 >&2";
    for (made, options) in
        [("", ""), ("multi_queue", ""), ("multi_queue vnet_hdr", "--shards 2"), ("pi", "--offload off")]
    {
        let script = format!(
            "ip tuntap add px0 mode tun {made}
             for time in 1 2; do serve $proxy {options} >&2; stop; {run}; done"
        );
        let output = said(&script);
        assert_eq!(output.status.code(), Some(0), "{made}: {}", stderr(&output));
    }
    let prepared = |user: u32| {
        format!(
            "mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200
             ip tuntap add px0 mode tun user {user}; ip link set px0 up; ip address add 198.18.0.1/24 dev px0
             as_user='setpriv --reuid 65534 --regid 65534 --clear-groups';"
        )
    };
    let output = said(&format!("{} for time in 1 2; do serve $as_user $proxy >&2; stop; done", prepared(65_534)));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = said(&format!("{} exec $as_user $proxy", prepared(65_533)));
    assert_said(&output, 3, &["create TUN interface px0: ", "run as root"]);
}

#[test]
fn an_open_device_is_taken_over() {
    skip_if!(lacks(&["ping", "python3"]));
    let output = said(&format!("device=owned; serve {OWNER} \"$PROGRAM\" proxy -i up0; stop"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("owned: smoltcp") && stdout(&output).contains("MTU 9000, offload off"),
        "{output:?}"
    );
}

/// The kernel would drop the answers of servers.
#[test]
fn strict_reverse_paths_are_said_at_the_start_and_by_the_doctor() {
    skip_if!(lacks(&["ping"]));
    let set = "echo 1 >/proc/sys/net/ipv4/conf/up0/rp_filter;";
    let output = said(&format!("{set} serve $proxy >&2; stop; $PROGRAM doctor >&2"));
    let sysctl = "sysctl net.ipv4.conf.up0.rp_filter=2";
    assert_said(&output, 0, &["warning: reverse paths: strict on up0, ", "note     reverse paths ", sysctl]);
    assert_eq!(stderr(&output).matches(sysctl).count(), 2, "{}", stderr(&output));
}

#[test]
fn a_proxy_does_not_send_to_its_own_device() {
    skip_if!(lacks(&["python3"]));
    let by_descriptor = format!("exec timeout 20 {OWNER} \"$PROGRAM\" proxy -i owned");
    for command in ["ip tuntap add px0 mode tun; exec timeout 20 $PROGRAM proxy -i px0 --tun-name px0", &by_descriptor]
    {
        assert_said(&said(command), 2, &["it is the proxy's own device"]);
    }
}

/// The server's network sends back what it does not know. Without the check, each SYN and each datagram would make
/// another one, without end. Of IPv4, the kernel drops what comes back from an address of its own.
#[test]
fn packets_of_the_proxy_that_come_back_are_dropped() {
    skip_if!(lacks(&[]));
    let lab = Lab::new(Between::Proxy("smoltcp --shards 2"), &[]);
    lab.middle.ip("-6 route add fd09::/16 via fd02::2");
    lab.middle.ip("-6 rule add iif to-server table 200");
    let lost: SocketAddr = "[fd09::1]:80".parse().unwrap();
    lab.client.run(move || {
        TcpStream::connect_timeout(&lost, Duration::from_secs(2)).unwrap_err();
        UdpSocket::bind("[::]:0").unwrap().send_to(b"lost", lost).unwrap();
    });
    wait_until("the proxy has seen both", || lab.descriptors() >= lab.idle + 2);
    std::thread::sleep(Duration::from_millis(300));
    assert!(lab.descriptors() <= lab.idle + 2, "{} for {}", lab.descriptors(), lab.idle);
    assert_eq!(lab.complaints().matches("come back into its device").count(), 1, "{}", lab.complaints());
}
