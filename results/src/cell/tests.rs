use std::collections::BTreeSet;

use clap::CommandFactory;

use super::*;

/// Cells of all kinds. Each has another property than the ones before it.
const CELLS: [&str; 38] = [
    "-n smoltcp -m reader",
    "-n smoltcp -m both --parallel 3 --client-threads 4 --runtime current-thread --ipv6",
    "-n smoltcp -m writer --worker-threads 3 --offload off --mtu 9000 --window 64KiB --buffer 1",
    "-n smoltcp -m reader --shards 2 --queues 1 --queue 7 --offload on",
    "-n smoltcp -m writer --parallel 10000 --pin 3,0-1 --bitrate 20M",
    "-n smoltcp -m reader --stack-congestion cubic --workarounds=-partial-ack",
    "-n smoltcp -m writer --workarounds none",
    "-n smoltcp -m reader --delay 5ms --jitter 0.5ms --loss 0.1 --reorder 1 --duplicate 2% --rate-limit 100M",
    "-n smoltcp -m reader --corrupt 0.01",
    "-n smoltcp -m reader --path-mtu 1400 --no-icmp --outage 1s,500ms",
    "-n lwip -m writer --protocol udp --datagram 100 --bitrate 20M",
    "-n lwip -m reader --protocol udp --ipv6 --mtu 9000 --parallel 256",
    "-n lwip -m rr --protocol udp --request 64 --response 512B --background reader --bitrate 10M",
    "-n lwip -m rr --parallel 100 --depth 4 --think 1.5s",
    "-n lwip -m rr --rate 77",
    "-n lwip -m crr --protocol udp",
    "-n lwip -m idle --parallel 2 --half-closed",
    "-n lwip -m idle --parallel 2 --protocol udp",
    "-n gvisor -m reader --protocol udp",
    "-n gvisor -m reader --stack-congestion cubic --stack-recovery sack",
    "-n lwip -m reader --napi threaded --qdisc noqueue",
    "--program gotatun -m idle --parallel 2 --gso off --rest 2s",
    "-n external -m crr",
    "-n kernel -m reader --loss 1%",
    "--layer loopback -m writer",
    "--layer loopback -m reader --protocol udp --mtu 9000 --window 1MiB",
    "--layer device --offload off --window 1MiB",
    "--layer stack -n smoltcp -m writer --parallel 2 --client-threads 2",
    "--program smoltcp -m crr --blackholes 9 --shards 2 --offload on --runtime current-thread",
    "--program lwip -m rr --mtu 65520 --max-flows 20000",
    "--program kernel -m reader --protocol udp",
    "--device utun8 -m writer --protocol udp --mtu 1400 --ipv6",
    "--program gotatun -m rr --ipv6 --mtu 1400 --delay 5ms",
    "--program gotatun -m crr --inbound",
    "--program gotatun -m reader --peers 2 --parallel 3",
    "--forwarder rust",
    "--forwarder rust --io async --offload whole --hop pool --thread 2 -m both --parallel 128",
    "--forwarder go --hop channel -m reader --generator iperf3 --queue 100",
];

fn parsed(words: &str) -> Cell {
    Cell::parse(words).unwrap_or_else(|error| panic!("{words}: {error}"))
}

fn checked(words: &str) -> Cell {
    parsed(words).checked().unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// A cell that was not checked, as a file that somebody wrote could have it.
fn raw(cell: &Cell) -> Map<String, Value> {
    let [Value::Object(mut fields), usual] = [cell, &Cell::default()].map(|cell| serde_json::to_value(cell).unwrap())
    else {
        unreachable!()
    };
    fields.retain(|name, value| usual[name.as_str()] != *value);
    fields
}

#[test]
fn a_cell_is_the_same_from_words_and_from_json() {
    for words in CELLS {
        let cell = checked(words);
        assert_eq!(cell.clone().checked(), Ok(cell.clone()), "{words}");
        assert_eq!(Cell::of_fields(&cell.fields()), Ok(cell.clone()), "{words}");
        assert_eq!(Cell::of_fields(&raw(&parsed(words))), Ok(cell.clone()), "{words}");
    }
}

#[test]
fn every_forwarder_that_can_be_is_the_same_from_words_and_from_json() {
    let mut built = 0;
    for io in ["sync", "async", "framed", "uring"] {
        for hop in ["direct", "channel", "pool"] {
            for offload in ["off", "on", "whole"] {
                for more in ["", " --workers 3", " --thread 2"] {
                    let words = format!("--forwarder rust --io {io} --hop {hop} --offload {offload}{more}");
                    let Ok(cell) = parsed(&words).checked() else { continue };
                    assert_eq!(Cell::of_fields(&cell.fields()), Ok(cell), "{words}");
                    built += 1;
                }
            }
        }
    }
    assert!((20..108).contains(&built), "{built} forwarders");
}

#[test]
fn every_property_is_an_option_and_a_field() {
    let options: BTreeSet<_> =
        Words::command().get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
    let properties: BTreeSet<_> = PROPERTIES.iter().map(Property::long).collect();
    assert_eq!(options, properties);
    let fields: BTreeSet<_> = CELLS.iter().flat_map(|words| checked(words).fields()).map(|(name, _)| name).collect();
    let properties: BTreeSet<_> = PROPERTIES.iter().map(|property| property.name.to_owned()).collect();
    assert_eq!(fields, properties);
}

/// Words that cannot be run, and the option and the reason.
const WRONG: &str = "\
-m rr => --netstack: a run needs it, or --program in its place
-m rr --layer stack => --netstack: the layer stack needs it
-n lwip => --mode: a run needs it: reader, writer
-n gvisor -m reader --layer stack => --netstack: gvisor has the layer path alone
-n kernel -m reader --layer stack => --netstack: kernel has the layer path alone
-n lwip -m writer --layer loopback => --netstack: only the layers stack and path have one
-m writer --layer device => --mode: the layer device has packets without connections
--layer device --rate 5 => --rate: only rr and crr have requests; bulk bytes have --bitrate
--layer device --request 5B => --request: only rr and crr have requests
--layer device --depth 2 => --depth: only rr over TCP
--layer device --protocol udp => --protocol: the layer device and forwarders have no choice
--layer device --datagram 100B => --datagram: only reader, writer and both over UDP
--layer device --bitrate 1M => --bitrate: there are no bulk bytes
--layer device --delay 1ms => --delay: only the path, the kernel behind a device, and programs
-m writer --layer loopback --window 1MiB => --window: there is no stack
-m rr --layer loopback --protocol udp --window 1MiB => --window: there is no stack
-m writer -n kernel --window 1MiB => --window: there is no stack
-m writer --layer loopback --queue 5 => --queue: only the path
-m writer --layer loopback --mtu 9000 => --mtu: the layer loopback has no device
-m writer --layer loopback --offload off => --offload: a program opens its own device
-m writer --layer loopback --workarounds none => --workarounds: only a stack with an adapter
-m writer -n external --workarounds none => --workarounds: only a stack with an adapter
-m writer -n smoltcp --workarounds short-writes => --workarounds: smoltcp has no workaround short-writes; it has 
-m reader -n lwip --stack-congestion cubic => --stack-congestion: only the stacks smoltcp and gvisor have a choice
-m reader -n smoltcp --stack-recovery rack => --stack-recovery: only the stack gvisor has a choice
-m reader -n smoltcp --napi on --offload on => --napi: needs --offload off: super-packets
-m reader -n gvisor --napi on => --napi: only a device that this program
-m reader -n smoltcp --layer stack --napi on => --napi: only a device that this program
-m reader --program tun2proxy --napi on => --napi: only a device that this program
--forwarder rust --offload tso => --offload: not tso
-m reader -n gvisor --offload tso => --offload: not tso
-m reader -n smoltcp --gso off => --gso: only the device of a program has it
-m reader --layer loopback --qdisc fq => --qdisc: only the path
-m rr -n smoltcp --rest 1s => --rest: only programs and the mode idle
--forwarder rust --napi on --offload whole => --napi: needs --offload off
-m rr -n smoltcp --buffer 1 => --buffer: only streams have it
-m reader -n smoltcp --think 1s => --think: only the connections of rr wait
-m rr -n smoltcp --think 1s --rate 5 => --think: a rate has its own schedule
-m rr -n smoltcp --background crr => --background: crr is no stream
-m reader -n smoltcp --background reader => --background: only the requests of rr and crr
-m crr -n smoltcp --blackholes 1 => --blackholes: only crr over TCP through a program
-m reader -n smoltcp --half-closed => --half-closed: only the TCP connections of idle
-m rr -n smoltcp --inbound => --inbound: only through a program
-m rr -n smoltcp --peers 2 --parallel 2 => --peers: only a program can be a tunnel with several peers
-m rr --program gotatun --peers 3 --parallel 2 => --parallel: each of 3 peers has a connection or several; at least 3
-m crr --program pasta --inbound --blackholes 1 => --blackholes: only crr over TCP through a program has them, not inbound
-m idle -n smoltcp => --parallel: idle compares the memory
-m reader -n smoltcp --protocol udp --parallel 257 => --parallel: at most 256 flows
-m reader -n smoltcp --protocol udp --datagram 11 => --datagram: must be 12 bytes or more, to hold its number, and at most 1472
-m reader -n smoltcp --protocol udp --ipv6 --datagram 1453 => --datagram: must be 12 bytes or more, to hold its number, and at most 1452
-m rr -n smoltcp --protocol udp --request 1473 => --request: over UDP it is one packet, of 1472 bytes at most
-m reader -n smoltcp --protocol udp --loss 1 => --bitrate: must be set: on a link that loses
-m both -n smoltcp --client-threads 3 => --client-threads: 3 threads for 2 sockets
-m idle -n smoltcp --parallel 2 --client-threads 2 => --client-threads: idle connections have one thread
-m reader -n smoltcp --runtime current-thread --worker-threads 2 => --worker-threads: the current-thread runtime has none
-m rr -n lwip --shards 2 => --shards: only the path and our proxy have several instances of a stack; lwip has one
-m rr -n smoltcp --layer stack --shards 2 => --shards: only the path and our proxy
-m rr -n smoltcp --shards 4 --queues 2 => --queues: 2 queues for 4 shards; there is one for each, or 1
-m rr -n smoltcp --queues 2 => --queues: 2 queues for 1 shard
-m reader -n smoltcp --mtu 1279 --ipv6 => --mtu: 1279 bytes; IPv6 needs at least 1280
-m writer -n smoltcp --path-mtu 1500 => --path-mtu: must be less than the device's MTU, 1500
-m writer -n smoltcp --path-mtu 1200 --ipv6 => --path-mtu: 1200 bytes; IPv6 needs at least 1280
-m writer -n smoltcp --no-icmp => --no-icmp: there is nothing to tell
-m writer -n smoltcp --jitter 1ms => --jitter: must not be more than --delay
-m writer -n smoltcp --corrupt 1 --offload on => --corrupt: needs --offload off
-m idle -n smoltcp --parallel 9 --outage 1s,1s => --outage: only the path
-m reader -n smoltcp --buffer 1MiB --parallel 1025 => --buffer: 1048576 bytes for each of 1025 streams are more than 1 GiB
-m idle -n gvisor --parallel 2 --half-closed => --half-closed: gvisor is a process of its own
-m reader -n gvisor --bitrate 1M => --bitrate: gvisor is a process of its own
-m reader -n gvisor --protocol udp --parallel 2 => --parallel: gvisor is a process of its own
-m rr -n external --pin 0 => --pin: only this program's threads and those of --program are kept
-m rr -n smoltcp --max-flows 5 => --max-flows: only a program has a limit
-m rr --device tun0 --pin 0 => --pin: only this program's threads
-m rr --program kernel --offload off => --offload: a program opens its own device
-m rr --program kernel --shards 2 => --shards: only the path and our proxy
-m rr --program kernel --runtime current-thread => --runtime: a program or a forwarder has its own
-m rr --forwarder rust => --mode: a forwarder has reader, writer and both
-m reader -n smoltcp --hop direct => --hop: only a forwarder has it
-m reader --device utun8 --mtu 9000 => --mtu: the layer loopback has no device, and --device names one
-m reader --device utun8 --delay 5ms => --delay: only the path
-m reader --device utun8 --queue 5 => --queue: only the path
-m reader --device utun8 --offload off => --offload: a program opens its own device
-m reader --device utun8 --runtime current-thread => --runtime: a program or a forwarder has its own
-m idle --device utun8 --parallel 2 => --mode: idle reads the memory of the program
--forwarder go --io sync => --io: only the forwarder of this program has it
--forwarder go --workers 2 => --workers: only the forwarder of this program has it
--forwarder go --offload whole => --offload: the forwarder in Go splits and coalesces
--forwarder rust --io sync --thread 2 => --thread: not with --io sync
--forwarder rust --io uring --offload on => --offload: not on with --io uring
--forwarder go --io uring => --io: only the forwarder of this program has it
--forwarder rust --parallel 129 => --parallel: at most 128 streams over a forwarder
--forwarder rust --delay 5ms => --delay: only the path
--forwarder rust --protocol udp => --protocol: the layer device and forwarders
--forwarder rust --generator iperf3 --buffer 2MB => --buffer: iperf3 takes at most 1048576 bytes
-m reader -n smoltcp --generator iperf3 => --generator: only a forwarder has it
";

/// What cannot be run is refused in the same words, whether it was typed or is in a file.
#[test]
fn a_cell_that_cannot_be_run_is_refused_by_the_option_and_the_reason() {
    for (words, reason) in WRONG.lines().filter_map(|line| line.split_once(" => ")) {
        let cell = parsed(words);
        let refused = cell.clone().checked().unwrap_err().to_string();
        assert!(refused.starts_with(reason), "{words}: {refused}");
        assert_eq!(Cell::of_fields(&raw(&cell)), Err(refused), "{words}");
    }
}

/// A file of samples does not say how a program is started, so these are of words alone.
#[test]
fn a_program_is_not_run_as_its_profile_cannot() {
    for (words, reason) in [
        (
            "-m rr --program pasta --max-flows 9",
            "--max-flows: only a program has a limit, and its profile must say how",
        ),
        ("-m rr --program gvisor-tap-vsock --inbound", "--inbound: the profile of gvisor-tap-vsock does not say how"),
        ("-m rr --program tun2proxy --inbound", "--inbound: tun2proxy opens connections and accepts none"),
        (
            "-m rr --program tinc --peers 2 --parallel 2",
            "--peers: the profile of tinc does not say how a peer is added",
        ),
        ("-m rr --program lwip --peers 2 --parallel 2", "--peers: lwip is no tunnel; only a tunnel has peers"),
        ("-m rr --program pasta --path-mtu 1400", "--program: pasta runs in the servers' network"),
        ("-m rr --program gotatun --ipv6 --mtu 1300", "--mtu: 1300 bytes less the 80 of gotatun are 1220"),
        ("-m writer --protocol udp --program gotatun --datagram 1450", "--datagram: must be"),
        ("-m rr --program wireguard-kernel --pin 0", "--pin: the kernel's own threads do the work"),
        ("-m rr --program tproxy --queue 50", "--queue: tproxy has no device of its own"),
        ("-m rr --program tproxy --protocol udp", "--protocol: tproxy carries TCP alone"),
        ("-m rr --program kernel --qdisc fq", "--qdisc: kernel has no device of its own"),
        ("-m rr --program pasta --qdisc fq --outage 1s,1s", "--qdisc: --outage takes the place"),
    ] {
        let refused = parsed(words).checked().unwrap_err().to_string();
        assert!(refused.starts_with(reason), "{words}: {refused}");
    }
}

#[test]
fn a_number_beyond_its_range_is_refused_by_its_range() {
    for (kind, option, range) in [
        ("-n smoltcp -m reader", "mtu", [576_u64, 65_535]),
        ("-n smoltcp -m reader", "parallel", [1, 10_000]),
        ("-n smoltcp -m reader", "worker-threads", [1, 1024]),
        ("-n smoltcp -m reader", "shards", [1, 256]),
        ("-n smoltcp -m reader", "window", [4096, (1 << 30) - 1]),
        ("-n smoltcp -m reader", "buffer", [1, 64 << 20]),
        ("-n smoltcp -m reader", "queue", [1, 262_144]),
        ("-n smoltcp -m reader --mtu 65535", "path-mtu", [576, 65_534]),
        ("-n smoltcp -m rr --parallel 64", "client-threads", [1, 64]),
        ("-n smoltcp -m rr", "request", [1, 64 << 20]),
        ("-n smoltcp -m rr", "response", [1, 64 << 20]),
        ("-n smoltcp -m rr", "depth", [1, 1024]),
        ("-n smoltcp -m rr", "rate", [1, 1_000_000]),
        ("--program kernel -m crr", "blackholes", [0, 1000]),
        ("--program gotatun -m crr --parallel 64", "peers", [1, 64]),
        ("--program smoltcp -m crr", "max-flows", [1, 65_535]),
    ] {
        for (number, is_within) in
            [(range[0], true), (range[1], true), (range[0].wrapping_sub(1), false), (range[1] + 1, false)]
        {
            let cell = Cell::parse(&format!("{kind} --{option} {number}"));
            // The parser refuses what its type cannot hold.
            let Ok(cell) = cell else {
                assert!(!is_within, "{option} {number}");
                continue;
            };
            let refused = cell.checked().map(|_| ()).map_err(|error| error.to_string());
            let of_bytes = if ["window", "buffer", "request", "response"].contains(&option) { " of bytes" } else { "" };
            let error = format!("--{option}: must be a whole number{of_bytes} from {} to {}", range[0], range[1]);
            assert_eq!(refused, if is_within { Ok(()) } else { Err(error) }, "{option} {number}");
        }
    }
}

/// The buffers of many streams share the memory, and those of requests do not. Workarounds that make no difference are all.
const DEFAULTS: &str = r#"-n smoltcp -m reader => {"window_bytes": 4194304, "buffer_bytes": 1000000, "queue_packets": null, "offload": "auto"}
-n smoltcp -m writer --parallel 256 => {"window_bytes": 4194304, "buffer_bytes": 1000000}
-n smoltcp -m writer --parallel 10000 => {"window_bytes": 107374, "buffer_bytes": 26843}
-n smoltcp -m writer --parallel 10000 --window 1MiB --buffer 10KB => {"window_bytes": 1048576, "buffer_bytes": 10000}
-n smoltcp -m rr --parallel 10000 => {"window_bytes": 4194304, "buffer_bytes": null, "request_bytes": 1}
-n smoltcp -m rr --background both => {"buffer_bytes": 1000000}
--layer loopback -m reader => {"window_bytes": null, "mtu": null, "offload": null}
--layer device => {"window_bytes": 4194304, "buffer_bytes": 1000000, "mode": null}
-n lwip -m reader --protocol udp => {"datagram_bytes": 1472, "buffer_bytes": null, "mtu": 1500}
--program smoltcp -m reader => {"mtu": null, "max_flows": null}
-n lwip -m reader --protocol udp --ipv6 --mtu 9000 => {"datagram_bytes": 8952}
--program gotatun -m reader --protocol udp => {"datagram_bytes": 1392, "window_bytes": null}
-n lwip -m reader --corrupt 1 => {"offload": "off"}
--program kernel -m reader --corrupt 1 => {"offload": null, "runtime": null}
--forwarder rust => {"mode": "writer", "io": "sync", "hop": "direct", "workers": 1, "thread": null, "offload": "on"}
--forwarder rust => {"buffer_bytes": 131072, "queue_packets": 500, "generator": "own", "layer": null}
--forwarder go => {"io": null, "hop": "direct", "workers": null, "offload": "on", "queue_packets": 500}
-n tcp_ip -m reader --workarounds none --offload off => {"workarounds": "all"}
-n tcp_ip -m reader --workarounds none --offload on => {"workarounds": "none"}"#;

#[test]
fn defaults_depend_on_the_other_properties() {
    for (words, fields) in DEFAULTS.lines().filter_map(|line| line.split_once(" => ")) {
        let (made, fields) = (checked(words).fields(), serde_json::from_str::<Map<_, _>>(fields).unwrap());
        for (name, value) in &fields {
            assert_eq!(made.get(name).unwrap_or(&Value::Null), value, "{words}: {name}");
        }
    }
}

#[test]
fn the_device_decides_on_offload_only_where_that_is_left_to_it() {
    for (words, offload) in [
        ("-n lwip -m reader", Offload::On),
        ("-n lwip -m reader --offload off", Offload::Off),
        ("--layer loopback -m reader", Offload::Auto),
        ("--program kernel -m reader", Offload::Auto),
        ("--program lwip -m reader", Offload::On),
        ("--forwarder rust --offload whole", Offload::Whole),
    ] {
        assert_eq!(checked(words).with_offload(true).offload, offload, "{words}");
    }
}

#[test]
fn the_rows_of_the_published_table_are_different_forwarders() {
    let rows = Forwarder::rows();
    assert_eq!(rows.len(), ROWS.len());
    for (number, row) in (1..).zip(rows) {
        assert_eq!(row.row(), Some(number), "{row}");
        assert_eq!(row.check(), Ok(()), "{row}");
    }
    let mut sorted: Vec<_> = ROWS.iter().rev().map(|words| checked(words)).collect();
    sorted.sort_by(|one, other| one.place().cmp(&other.place()));
    assert_eq!(sorted, ROWS.map(checked));
}

#[test]
fn cells_with_the_same_work_differ_in_the_subject_alone() {
    for (one, other, is_same) in [
        (
            "-n lwip -m reader",
            "-n smoltcp -m reader --runtime current-thread --shards 2 --stack-congestion cubic",
            true,
        ),
        ("-n lwip -m reader", "-n lwip -m reader --mtu 9000", false),
        ("-n lwip -m reader --offload on", "-n smoltcp -m reader --offload off", false),
        ("-n lwip -m reader", "-n lwip -m reader --layer stack", false),
        ("-n lwip -m reader", "-n kernel -m reader", false),
        // A foreign program has a device and buffers of its own.
        ("--program kernel -m reader", "--program lwip -m reader --offload off --window 1MiB", true),
        ("--program kernel -m reader", "--program lwip -m reader --parallel 2", false),
        (ROWS[0], ROWS[17], true),
        (ROWS[0], "--forwarder go -m both", false),
    ] {
        let [one, other] = [one, other].map(checked);
        assert_eq!((one.same_work(&other), other.same_work(&one)), (is_same, is_same), "{one}; {other}");
    }
}

#[test]
fn a_name_says_what_tells_a_cell_apart() {
    for (words, name) in [
        ("-n lwip -m reader --offload on", "lwip download multi-thread offload on MTU 1500"),
        ("-n lwip -m both --parallel 2 --bitrate 100M", "lwip both multi-thread MTU 1500 2 streams at 100 Mbit/s"),
        (
            "-n kernel -m rr --delay 5ms --outage 1s,500ms",
            "kernel requests multi-thread MTU 1500 delay 5 ms outage 1s for 0.5s",
        ),
        ("-n lwip -m idle --parallel 9 --half-closed", "lwip at rest multi-thread MTU 1500 9 half-closed connections"),
        ("--layer stack -n lwip -m writer", "lwip in memory upload multi-thread MTU 1500"),
        ("--layer loopback -m crr --parallel 50", "loopback new connections multi-thread 50 connections"),
        ("--program kernel -m reader --protocol udp", "kernel UDP download datagrams of 1472 bytes"),
        ("--program lwip -m rr --mtu 1500 --max-flows 9", "lwip requests multi-thread MTU 1500 at most 9 flows"),
        (ROWS[11], "sync, offload on, direct, 2 workers"),
        ("--forwarder go -m both --parallel 4 --mtu 9000", "go, offload on, direct, both, MTU 9000, 4 streams"),
    ] {
        assert_eq!(checked(words).to_string(), name);
    }
}

#[test]
fn no_two_sizes_have_one_text() {
    for (bytes, window, buffer) in [
        (1_000_000, "1.0 MB", "1.0 MB"),
        (1 << 20, "1.0 MiB", "1.0 MiB"),
        (1_000_001, "1000001 bytes", "1000001 bytes"),
    ] {
        let cell = checked(&format!("-n lwip -m reader --window {bytes} --buffer {bytes}"));
        let texts = ["window", "buffer"]
            .map(|option| PROPERTIES.iter().find(|property| property.option == option).unwrap().text(&cell));
        assert_eq!(texts, [window, buffer]);
    }
}
