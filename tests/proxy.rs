//! Real clients of real servers, with the proxy of `examples/proxy` between them, in namespaces of their own.
//!
//! They need root, `/dev/net/tun` and the programs that each test names. A test that cannot run says SKIP and why.
//! Every test is run on each stack, and once with no proxy between: what fails there too is not the proxy's fault.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
#![cfg(all(target_os = "linux", any(feature = "lwip", feature = "ipstack", feature = "smoltcp")))]

mod proxy {
    pub(crate) mod datagrams;
    pub(crate) mod endings;
    pub(crate) mod lab;
    pub(crate) mod process;
    pub(crate) mod servers;
    pub(crate) mod transfers;
}

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use proxy::lab::Between;

/// What every test calls.
const TOOLS: [&str; 4] = ["ip", "setpriv", "unshare", "kill"];

/// Why a test that calls these programs cannot run here.
fn lacks(tools: &[&str]) -> Option<String> {
    if !fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return Some("needs root".to_owned());
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        return Some(format!("/dev/net/tun: {error}"));
    }
    let mut missing = TOOLS.iter().chain(tools).filter(|tool| !is_installed(tool));
    missing.next().map(|tool| format!("there is no {tool}; install it"))
}

fn is_installed(tool: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(tool).is_file())
}

fn run(name: &str, tools: &[&str], between: Between, test: fn(Between)) {
    match lacks(tools) {
        // The line goes past the test harness, which would swallow it.
        Some(reason) => drop(writeln!(std::io::stderr(), "SKIP {name}: {reason}")),
        None => test(between),
    }
}

/// Makes a test for each of these functions and each stack.
macro_rules! real_clients {
    (@tests $between:expr, $($subject:ident: $($test:ident($($tool:ident)*))*;)*) => {
        $($(
            #[test]
            fn $test() {
                let name = concat!(module_path!(), "::", stringify!($test));
                crate::run(name, &[$(stringify!($tool)),*], $between, crate::proxy::$subject::$test);
            }
        )*)*
    };
    ($($rest:tt)*) => {
        mod direct {
            real_clients!(@tests crate::Between::Nothing, $($rest)*);
        }
        #[cfg(feature = "lwip")]
        mod lwip {
            real_clients!(@tests crate::Between::Proxy("lwip"), $($rest)*);
        }
        #[cfg(feature = "ipstack")]
        mod ipstack {
            real_clients!(@tests crate::Between::Proxy("ipstack"), $($rest)*);
        }
        #[cfg(feature = "smoltcp")]
        mod smoltcp {
            real_clients!(@tests crate::Between::Proxy("smoltcp"), $($rest)*);
        }
    };
}

real_clients! {
    transfers:
        iperf3_both_ways(iperf3)
        iperf3_both_ways_without_offload(iperf3)
        a_large_download_arrives_as_it_was(nginx curl openssl)
        several_urls_are_fetched_over_one_connection(nginx curl)
        two_hundred_downloads_at_once(nginx curl)
        everything_over_ipv6(nginx curl dnsmasq dig)
        two_thousand_short_connections_leave_nothing(nginx curl);
    endings:
        an_answer_comes_after_the_clients_half_is_closed(ncat seq sha256sum)
        the_client_goes_on_after_the_servers_half_is_closed()
        both_sides_close_at_once()
        a_server_that_refuses()
        a_destination_that_is_unreachable()
        a_destination_that_does_not_answer()
        a_server_that_resets()
        a_server_that_resets_while_the_client_sends()
        a_client_that_resets();
    datagrams:
        a_name_is_looked_up(dnsmasq dig)
        an_answer_larger_than_a_packet(dnsmasq dig)
        a_datagram_larger_than_a_packet()
        a_hundred_flows_of_datagrams()
        a_port_at_which_nobody_takes_datagrams()
        ping_is_answered(ping);
}
