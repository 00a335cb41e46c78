//! Three networks in a row, joined by veth, and in the middle the proxy:
//!
//! ```text
//!   client                   middle                        server
//!   eth0 ─────────── to-client    to-server ─────────────── eth0 ── 10.3.1.0/24  unreachable
//!   10.1.0.2     10.1.0.1  │          ▲  10.2.0.1      10.2.0.2     10.3.2.0/24  swallowed
//!   fd01::2      fd01::1   │ utun8    │  fd02::1        fd02::2     fd03:1::/64  unreachable
//!                          └──► proxy ┘                             fd03:2::/64  swallowed
//! ```
//!
//! The client's packets are routed into the TUN. Packets from the TUN go back over the veth. Without a proxy the middle
//! forwards: then a test checks everything but the proxy.

use std::fs;
use std::thread;
use std::time::Duration;

use platform::Namespace;

use super::process::{Ended, Program, wait_until};
use crate::processes::PROGRAM;

/// The middle, between the client and the server.
#[derive(Clone, Copy)]
pub(crate) enum Between {
    /// The kernel forwards.
    Nothing,
    /// The proxy, on the stack of this name.
    Proxy(&'static str),
}

/// The server, as the client sees it.
pub(crate) const SERVER: &str = "10.2.0.2";
pub(crate) const SERVER_V6: &str = "fd02::2";
/// Destinations for which the server's network returns ICMP unreachable.
pub(crate) const UNREACHABLE: [&str; 2] = ["10.3.1.1", "fd03:1::1"];
/// Destinations that never answer.
pub(crate) const SILENT: [&str; 2] = ["10.3.2.1", "fd03:2::1"];

/// A network namespace, and the programs in it.
pub(crate) struct Host {
    namespace: Namespace,
}

impl Host {
    fn new() -> Self {
        let host = Self { namespace: Namespace::new().unwrap() };
        host.run(|| {
            for (name, value) in [
                // Duplicate address detection delays the use of an IPv6 address by a second.
                ("ipv6/conf/default/accept_dad", "0"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
                ("ipv4/ip_forward", "1"),
                ("ipv6/conf/all/forwarding", "1"),
            ] {
                fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
            }
        });
        host.ip("link set lo up");
        host
    }

    /// Calls a function in this network.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.namespace.run(job).unwrap()
    }

    /// Starts a program here.
    pub(crate) fn start(&self, words: &[&str]) -> Program {
        Program::start(&self.namespace, words)
    }

    /// Runs a program here to its end, which may be a failure.
    pub(crate) fn end_of(&self, words: &[&str]) -> Ended {
        self.start(words).end()
    }

    /// Runs a program here, which must succeed, and returns its output.
    pub(crate) fn call(&self, words: &[&str]) -> String {
        let Ended { status, stdout, stderr } = self.end_of(words);
        assert!(status.success(), "{words:?}: {status}: {stdout}{stderr}");
        stdout
    }

    /// Runs a line of a shell here, which must succeed, and returns its output.
    pub(crate) fn shell(&self, line: &str) -> String {
        // All processes of the shell end with it.
        let words = ["unshare", "--pid", "--fork", "--kill-child", "--", "sh", "-c", line];
        let Ended { status, stdout, stderr } = self.end_of(&words);
        // The status of a pipeline hides the failure of its first program, but that program writes to standard error.
        assert!(status.success() && stderr.is_empty(), "{line}: {status}: {stdout}{stderr}");
        stdout
    }

    pub(crate) fn ip(&self, arguments: &str) {
        let words: Vec<_> = ["ip"].into_iter().chain(arguments.split_whitespace()).collect();
        self.call(&words);
    }

    /// Counts the link-local addresses that are in use here. The kernel makes one when IPv6 starts on a link.
    fn link_local_addresses(&self) -> usize {
        let table = fs::read_to_string(self.namespace.folder().join("net/if_inet6")).unwrap();
        // 20 is the scope, and 80 the flags: only IFA_F_PERMANENT is set (`linux/if_addr.h`).
        table.lines().filter(|line| line.starts_with("fe80") && line.contains(" 20 80 ")).count()
    }

    /// Waits until a port is open here, in the kernel's table "tcp", "tcp6", "udp" or "udp6". A listener for both IP
    /// versions is only in the tables of IPv6.
    pub(crate) fn wait_for_port(&self, table: &str, port: u16) {
        // proc_net_tcp.rst: the local address, the remote address, and the state. 0A is LISTEN, and 07 is an
        // unconnected UDP socket.
        let state = if table.starts_with("tcp") { "0A" } else { "07" };
        wait_until(&format!("port {port} is open in the table {table}"), || {
            let table = self.namespace.folder().join("net").join(table);
            fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let local = fields.next().unwrap_or_default();
                local.ends_with(&format!(":{port:04X}")) && fields.nth(1) == Some(state)
            })
        });
    }
}

/// The three networks. They and the programs in them end when this value is dropped. Without a proxy, the figures about
/// it are 0.
pub(crate) struct Lab {
    proxy: Option<Program>,
    /// The file descriptors of the proxy at first.
    pub(crate) idle: usize,
    pub(crate) client: Host,
    pub(crate) middle: Host,
    pub(crate) server: Host,
}

impl Lab {
    /// Sets up the networks, and starts a proxy with these options if `between` asks for one.
    pub(crate) fn new(between: Between, options: &[&str]) -> Self {
        // Each of the tests that run at once needs a dozen descriptors.
        platform::allow_open_files(16_384);
        let mut lab = Self { proxy: None, idle: 0, client: Host::new(), middle: Host::new(), server: Host::new() };
        lab.join();
        if let Between::Proxy(stack) = between {
            lab.start_proxy(stack, options);
        }
        lab.idle = lab.descriptors();
        lab
    }

    fn join_one(&self, host: &Host, middle_end: &str, network: &str) {
        let path = self.middle.namespace.path();
        host.ip(&format!("link add eth0 type veth peer name {middle_end} netns {}", path.display()));
        for (host, interface, last) in [(host, "eth0", "2"), (&self.middle, middle_end, "1")] {
            host.ip(&format!("address add 10.{network}.0.{last}/24 dev {interface}"));
            host.ip(&format!("address add fd0{network}::{last}/64 dev {interface} nodad"));
            host.ip(&format!("link set {interface} up"));
        }
        host.ip(&format!("route add default via 10.{network}.0.1"));
        host.ip(&format!("-6 route add default via fd0{network}::1"));
    }

    /// Makes the link to the server.
    pub(crate) fn join_server(&self) {
        self.join_one(&self.server, "to-server", "2");
    }

    fn join(&self) {
        self.join_one(&self.client, "to-client", "1");
        self.join_server();
        self.middle.ip(&format!("route add 10.3.0.0/16 via {SERVER}"));
        // The network behind the client, for `Wire`.
        self.middle.ip("route add 10.4.0.0/24 via 10.1.0.2");
        self.middle.ip(&format!("-6 route add fd03::/16 via {SERVER_V6}"));
        self.server.ip("route add unreachable 10.3.1.0/24");
        self.server.ip("route add blackhole 10.3.2.0/24");
        self.server.ip("-6 route add unreachable fd03:1::/64");
        self.server.ip("-6 route add blackhole fd03:2::/64");
        // The kernel announces new links to IPv6 at most once a second. Packets that are sent before are lost.
        for (host, links) in [(&self.client, 1), (&self.middle, 2), (&self.server, 1)] {
            wait_until("IPv6 has come to every link", || host.link_local_addresses() == links);
        }
    }

    /// Leads the client's packets into the device of the proxy.
    fn add_routes(&self) {
        for version in ["-4", "-6"] {
            self.middle.ip(&format!("{version} route add default dev utun8 table 200"));
        }
    }

    /// Takes the device of the proxy down for a time. The kernel removes its routes then.
    pub(crate) fn device_down_for(&self, time: Duration) {
        let device = if self.proxy.is_some() { "utun8" } else { "to-server" };
        self.middle.ip(&format!("link set {device} down"));
        thread::sleep(time);
        self.middle.ip(&format!("link set {device} up"));
        if self.proxy.is_some() {
            self.add_routes();
        }
    }

    /// Starts the proxy. Once it serves packets, routes the client's packets into its TUN.
    fn start_proxy(&mut self, stack: &str, options: &[&str]) {
        // Options may follow the name.
        let stack: Vec<_> = stack.split(' ').collect();
        let fixed = [PROGRAM, "proxy", "--interface", "to-server", "--netstack"];
        let mut program = self.middle.start(&[&fixed, &stack[..], options].concat());
        wait_until("the proxy serves packets", || {
            assert!(program.runs(), "the proxy ended before it served packets");
            program.said().contains('\n')
        });
        self.add_routes();
        for version in ["-4", "-6"] {
            // Without the device, no packet may find another way to the server, which would reset its connection.
            self.middle.ip(&format!("{version} route add blackhole default table 200 metric 4000"));
            self.middle.ip(&format!("{version} rule add iif to-client table 200"));
        }
        self.proxy = Some(program);
    }

    /// Returns how many file descriptors the proxy has open.
    pub(crate) fn descriptors(&self) -> usize {
        let Some(proxy) = &self.proxy else { return 0 };
        // This fails if the proxy is dead, which has no descriptors either.
        assert!(self.peak_bytes() > 0);
        fs::read_dir(format!("/proc/{}/fd", proxy.id())).unwrap().count()
    }

    /// Returns the errors and warnings of the proxy so far.
    pub(crate) fn complaints(&self) -> String {
        self.proxy.as_ref().map_or_else(String::new, Program::complaints)
    }

    /// Returns the peak of the proxy's resident memory.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let Some(proxy) = &self.proxy else { return 0 };
        let status = fs::read_to_string(format!("/proc/{}/status", proxy.id())).unwrap();
        let Some(line) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) else {
            panic!("the proxy has ended by itself");
        };
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    }

    /// Returns the processor time of the proxy so far, in ticks, and how often its threads have waited.
    pub(crate) fn activity(&self) -> (u64, u64) {
        let Some(proxy) = &self.proxy else { return (0, 0) };
        let folder = format!("/proc/{}", proxy.id());
        let stat = fs::read_to_string(format!("{folder}/stat")).unwrap();
        // proc_pid_stat(5): behind the name in parentheses, the twelfth and thirteenth field are utime and stime.
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        let mut waits = 0;
        for task in fs::read_dir(format!("{folder}/task")).unwrap() {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            waits += line.trim().parse::<u64>().unwrap();
        }
        (ticks, waits)
    }

    /// Waits until the proxy has closed the sockets that it had not at first.
    pub(crate) fn assert_freed(&self) {
        wait_until("all sockets are closed", || self.descriptors() <= self.idle);
    }
}

/// Ends the proxy with a signal, and checks that it succeeds.
impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(proxy) = self.proxy.take().filter(|_| !thread::panicking()) {
            proxy.signal("-TERM");
            let Ended { status, stderr, .. } = proxy.end();
            assert!(status.success() && !stderr.contains("panicked"), "the proxy: {status}: {stderr}");
        }
    }
}
