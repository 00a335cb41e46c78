//! Real clients of real servers, with the command `proxy` between them, in namespaces of their own.
//!
//! They need root, `/dev/net/tun` and the programs that each test names. A test that cannot run prints SKIP with the
//! reason. Tests of connections run on each stack, those of the proxy itself on some, and each once without a proxy: a failure
//! there is not the fault of the proxy.

mod datagrams;
pub(crate) mod device;
mod endings;
mod lab;
mod limits;
mod process;
mod reuse;
mod scans;
mod servers;
mod transfers;
mod upstream;
mod wire;

use crate::machine::{missing_program, no_root};
use crate::proxy::lab::Between;

/// The programs that every test calls.
const TOOLS: [&str; 4] = ["ip", "setpriv", "unshare", "kill"];

fn lacks(tools: &[&str]) -> Option<String> {
    no_root().or_else(|| missing_program(&TOOLS)).or_else(|| missing_program(tools))
}

const LOSES: &str = "on a busy machine long transfers sometimes fail on ipstack";

const WAITS: &str = "it keeps a connection in TIME-WAIT for seconds, whatever SYN comes";

const KEEPS: &str = "ipstack keeps a connection after a RST until its task has ended, and drops a SYN for it";

const FRAGMENTS: &str = "it neither makes nor reassembles fragments";

const DEAF: &str = "it reports a RST only as the end of the bytes, which was before";

/// Tests that the proxy fails on a stack, with the reason.
const KNOWN_FAILURES: [(&str, &str, &str); 17] = [
    ("ipstack", "an_answer_comes_after_the_clients_half_is_closed", LOSES),
    ("ipstack", "iperf3_both_ways", LOSES),
    ("ipstack", "iperf3_both_ways_without_offload", LOSES),
    ("ipstack", "a_port_is_used_again_after_the_clients_fin", WAITS),
    (
        "netstack-smoltcp",
        "short_connections_leave_nothing",
        "it polls thousands in TIME-WAIT for each packet, and is slow",
    ),
    ("ipstack", "a_device_that_is_down_for_a_moment", LOSES),
    ("ipstack", "a_reset_and_a_syn_back_to_back", KEEPS),
    ("ipstack", "resets_in_each_state", KEEPS),
    ("ipstack", "half_closed_connections_rest", "ipstack does not wake a task of a half-closed connection for a RST"),
    (
        "tcp_ip",
        "a_reset_and_a_syn_back_to_back",
        "on a busy machine it sometimes ends the second connection without its data",
    ),
    ("tcp_ip", "a_datagram_larger_than_a_packet", FRAGMENTS),
    ("tcp_ip", "an_answer_larger_than_a_packet", FRAGMENTS),
    ("tcp_ip", "half_closed_connections_rest", DEAF),
    ("tcp_ip", "a_client_resets_while_the_server_does_not_read", "tcp_ip reports no RST while bytes wait to be read"),
    ("netstack-smoltcp", "a_datagram_larger_than_a_packet", FRAGMENTS),
    ("netstack-smoltcp", "an_answer_larger_than_a_packet", FRAGMENTS),
    ("netstack-smoltcp", "half_closed_connections_rest", DEAF),
];

/// Returns the reason of a known failure.
fn known_failure(between: Between, test: &str) -> Option<&'static str> {
    let Between::Proxy(name) = between else { return None };
    KNOWN_FAILURES.iter().find(|(stack, known, _)| *stack == name && *known == test).map(|(.., reason)| *reason)
}

/// Makes a test of each of these functions.
macro_rules! real_clients {
    ($between:expr, $($subject:ident: $($test:ident($($tool:ident)*))*;)*) => {
        $($(
            #[test]
            fn $test() {
                skip_if!(crate::proxy::lacks(&[$(stringify!($tool)),*]));
                skip_if!(crate::proxy::known_failure($between, stringify!($test)));
                crate::proxy::$subject::$test($between);
            }
        )*)*
    };
}

macro_rules! on_every_stack {
    ($between:expr) => {
        real_clients! {
            $between,
            transfers:
                iperf3_both_ways(iperf3)
                iperf3_both_ways_without_offload(iperf3)
                a_large_download_arrives_as_it_was(nginx curl openssl)
                two_hundred_downloads_at_once(nginx curl)
                everything_over_ipv6(nginx curl dnsmasq dig)
                short_connections_leave_nothing(nginx curl);
            endings:
                an_answer_comes_after_the_clients_half_is_closed(ncat seq sha256sum)
                the_client_goes_on_after_the_servers_half_is_closed()
                both_sides_close_at_once()
                a_server_that_resets()
                a_server_that_resets_while_the_client_sends()
                a_client_that_resets()
                urgent_bytes_arrive_in_their_place();
            datagrams:
                a_name_is_looked_up(dnsmasq dig)
                an_answer_larger_than_a_packet(dnsmasq dig)
                a_datagram_larger_than_a_packet()
                a_hundred_flows_of_datagrams()
                a_udp_port_without_a_listener()
                ping_is_answered(ping);
            scans:
                a_half_open_scan()
                a_client_resets_while_the_server_does_not_read()
                resets_in_each_state();
            reuse:
                a_port_is_used_again_after_a_reset()
                a_port_is_used_again_after_the_clients_fin()
                a_reset_and_a_syn_back_to_back();
            limits:
                half_closed_connections_rest()
                connections_that_end_badly_leave_nothing()
                a_device_that_is_down_for_a_moment()
                a_server_that_vanishes();
        }
    };
}

/// What the proxy does itself, or its gate in front of the stack. ipstack has datagrams of its own kind.
macro_rules! on_some_stacks {
    ($between:expr) => {
        real_clients! {
            $between,
            endings:
                a_server_that_refuses()
                a_destination_that_is_unreachable()
                a_destination_that_does_not_answer()
                a_dead_server_is_noticed();
            upstream:
                an_address_that_changes()
                an_interface_that_is_made_again()
                a_path_that_is_narrower_than_the_device()
                one_port_for_all_servers()
                a_port_for_each_server()
                link_local_addresses_are_not_forwarded();
            scans:
                a_client_gives_up_while_the_server_is_silent();
            limits:
                connections_beyond_max_flows_are_refused()
                connections_beyond_max_memory_are_refused()
                a_flood_of_syns_locks_nobody_out()
                a_scan_of_datagrams_displaces_no_flow_with_an_answer();
        }
    };
}

mod direct {
    on_every_stack!(crate::proxy::Between::Nothing);
    on_some_stacks!(crate::proxy::Between::Nothing);
}
#[cfg(feature = "lwip")]
mod lwip {
    on_every_stack!(crate::proxy::Between::Proxy("lwip"));
}
#[cfg(feature = "ipstack")]
mod ipstack {
    on_every_stack!(crate::proxy::Between::Proxy("ipstack"));
    on_some_stacks!(crate::proxy::Between::Proxy("ipstack"));
}
#[cfg(feature = "smoltcp")]
mod smoltcp {
    on_every_stack!(crate::proxy::Between::Proxy("smoltcp"));
    on_some_stacks!(crate::proxy::Between::Proxy("smoltcp"));
}
#[cfg(feature = "tcp_ip")]
mod tcp_ip {
    on_every_stack!(crate::proxy::Between::Proxy("tcp_ip"));
}
#[cfg(feature = "netstack-smoltcp")]
mod netstack_smoltcp {
    on_every_stack!(crate::proxy::Between::Proxy("netstack-smoltcp"));
}
#[cfg(feature = "smoltcp")]
mod smoltcp_in_two_shards {
    on_every_stack!(crate::proxy::Between::Proxy("smoltcp --shards 2"));
}
