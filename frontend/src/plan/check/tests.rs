#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "smoltcp")]
use clap::Parser;

use super::*;

/// The run that the words give, or the option that is wrong.
#[cfg(feature = "smoltcp")]
fn run(words: &str) -> Result<Scenario, PlanError> {
    let words = format!("rust-tun-perf -m writer -n smoltcp {words}");
    Scenario::try_from(Cli::try_parse_from(words.split_whitespace()).unwrap().run)
}

/// A default fits a short time-out, and only the mode that takes the option has another.
#[cfg(feature = "smoltcp")]
#[test]
fn the_time_to_release_memory_fits_a_short_timeout() {
    let release = |words: &str| {
        let words = format!("rust-tun-perf --layer loopback {words}");
        Scenario::try_from(Cli::try_parse_from(words.split_whitespace()).unwrap().run).unwrap().release
    };
    assert!(release("-m idle --parallel 2 --timeout 1") < Duration::from_secs(1));
    assert_eq!(release("-m idle --parallel 2"), DEFAULT_RELEASE);
    assert_eq!(release("-m reader --timeout 1"), DEFAULT_RELEASE);
}

#[cfg(feature = "smoltcp")]
#[test]
fn a_run_delivers_a_gigabyte_and_for_a_second_by_default() {
    assert_eq!(run("").unwrap().amount, Amount::Time { time: Duration::from_secs(1), bytes: 1_000_000_000 });
    assert_eq!(run("--time 2").unwrap().amount, Amount::time(Duration::from_secs(2)));
    assert_eq!(run("--timeout 15").unwrap().amount, Amount::time(Duration::from_secs(1)), "ten seconds do not fit");
    assert_eq!(run("--bytes 5").unwrap().amount, Amount::Bytes(NonZeroU64::new(5).unwrap()));
}

#[test]
fn a_window_is_at_most_ten_times_as_long_as_its_time() {
    let amount = Amount::Time { time: Duration::from_secs(1), bytes: 1_000_000_000 };
    let is_over = |milliseconds, bytes| amount.is_over(Duration::from_millis(milliseconds), bytes);
    assert!(!is_over(999, 2_000_000_000), "the time");
    assert!(is_over(1000, 1_000_000_000));
    assert!(!is_over(1000, 200_000_000), "the bytes take five seconds");
    assert!(!is_over(4999, 999_999_999) && is_over(4999, 1_000_000_000));
    assert!(is_over(1000, 99_000_000), "they would take more than ten");
    assert!(is_over(1000, 0) && is_over(10_001, 999_999_999));
    assert!(Amount::time(Duration::from_secs(1)).is_over(Duration::from_secs(1), 0));
}

#[cfg(feature = "smoltcp")]
#[test]
fn the_default_warm_up_is_no_larger_than_the_payload() {
    let warmup = |words: &str| run(words).unwrap().warmup_bytes;
    assert_eq!(warmup("--bytes 300KB --buffer 1"), 300_000);
    assert_eq!(warmup("--bytes 300KB --warmup 1MB"), 1_000_000);
    assert_eq!((warmup("--bytes 2GB"), warmup("--time 1"), warmup("")), (64_000_000, 64_000_000, 64_000_000));
    // At a rate it is a second's worth.
    assert_eq!((warmup("--bitrate 10M"), warmup("--rate-limit 4M")), (1_250_000, 500_000));
    assert_eq!((warmup("--bitrate 10M --warmup 2MB"), warmup("--bitrate 10G")), (2_000_000, 64_000_000));
}

/// An option that a subject does not take is refused by its name, also if the subject could ignore it.
#[cfg(feature = "smoltcp")]
#[test]
fn an_option_without_effect_is_refused() {
    let of = |words: &str| {
        let words = format!("rust-tun-perf {words}");
        Scenario::try_from(Cli::try_parse_from(words.split_whitespace()).unwrap().run)
    };
    for (words, option) in [
        ("--layer device --rate 5", "--rate"),
        ("--layer device --request 5B", "--request"),
        ("--layer device --depth 2", "--depth"),
        ("--layer device --protocol udp", "--protocol"),
        ("--layer device --datagram 100B", "--datagram"),
        ("--layer device --bitrate 1M", "--bitrate"),
        ("--layer device --delay 1ms", "--delay"),
        ("-m writer -n smoltcp --command true", "--command"),
        ("-m writer --layer loopback --command true", "--command"),
        ("-m writer --layer loopback --window 1MiB", "--window"),
        ("-m rr --layer loopback --protocol udp --window 1MiB", "--window"),
        ("-m writer --layer kernel --window 1MiB", "--window"),
        ("-m writer --layer loopback --queue 5", "--queue"),
        ("-m writer -n smoltcp --path-mtu 1500", "--path-mtu: must be less than the device's MTU, 1500"),
        ("-m writer -n smoltcp --path-mtu 1200 --ipv6", "--path-mtu: 1200 bytes; IPv6 needs at least 1280"),
        (
            "-m writer -n smoltcp --outage 1s,1s --time 2",
            "--outage: must end within the timed window; use a --time of more than 2 s",
        ),
        ("-m writer -n smoltcp --outage 1s,1s --bytes 2GB", "--outage: must end within"),
        ("-m idle --parallel 9 -n smoltcp --outage 1s,1s --time 5", "--outage: only the layers"),
        ("-m writer -n smoltcp --no-icmp", "--no-icmp: there is nothing to tell"),
        ("-m rr --program pasta --path-mtu 1400", "--program: pasta runs in the servers' network"),
        ("-m rr --program pasta --upstream socks5", "--upstream: pasta opens its connections itself"),
        ("-m rr --program gotatun --upstream direct", "--upstream: gotatun has no upstream"),
        ("-m rr --program gotatun --ipv6 --mtu 1300", "--mtu: 1300 bytes less the 80 of gotatun are 1220"),
        ("-m writer --protocol udp --program gotatun --datagram 1450", "--datagram: must be"),
        ("-m writer -n smoltcp --tun-fd 9 --queue 5", "--queue"),
        (
            "-m writer -n smoltcp --repairs quiet-timers",
            "--repairs: smoltcp has no repair quiet-timers; it has task-turns",
        ),
        ("-m writer -n external --command true --repairs none", "--repairs: only a stack with an adapter"),
        ("-m writer --layer loopback --repairs none", "--repairs"),
        #[cfg(target_os = "linux")]
        (
            "-m writer --layer loopback --pin 0,1023",
            "--pin: there is no processor 1023, or this process may not use it",
        ),
        #[cfg(not(target_os = "linux"))]
        ("-m writer --layer loopback --pin 0", "--pin: only Linux can"),
        ("-m rr --program pasta --offload off", "--offload: a program opens its own device and decides this itself"),
        ("-m writer --layer loopback --mtu 9000", "--mtu: the layer loopback has no device"),
        ("-m rr", "--netstack: a run needs it, or --program in its place"),
        ("-m rr --layer stack", "--netstack: the layer stack needs it"),
        ("-n lwip", "--mode: a run needs it: reader, writer"),
        ("-m rr --program pasta --pin 0", "--pin: its threads are another program's; use taskset"),
        ("-m rr -n external --command true --pin 0", "--pin: its threads"),
        ("-m rr -n lwip --shards 2", "lwip has one instance a process"),
        ("-m rr -n gvisor --parallel 2 --shards 2", "--shards: only the layers path and proxy"),
        ("-m rr --program pasta --parallel 2 --shards 2", "--shards: only the layers path and proxy"),
        ("-m rr -n smoltcp --layer stack --parallel 2 --shards 2", "--shards: only the layers path and proxy"),
        ("-m rr -n smoltcp --layer stack --queues 2", "--queues: only the layers path and proxy"),
        ("-m rr -n smoltcp --shards 4 --queues 2", "--queues: 2 queues for 4 shards; there is one for each, or 1"),
        ("-m rr -n smoltcp --queues 2", "--queues: 2 queues for 1 shard"),
        ("-m rr -n smoltcp --shards 2 --queues 2 --tun-fd 0", "--queues: the device of --tun-fd has one"),
    ] {
        let refused = of(words).unwrap_err().to_string();
        assert!(refused.contains(option), "{words}: {refused}");
    }
    for words in ["-m writer --layer loopback --protocol udp --window 1MiB", "--layer device --window 1MiB"] {
        assert_eq!(of(words).unwrap().window_bytes, 1 << 20, "{words}");
    }
}

/// A value for every axis, and whether a run of some kind takes it: on each of them the option is typed, planned, written
/// as a command line and read again, or refused by its name.
#[cfg(feature = "smoltcp")]
#[test]
fn every_axis_is_taken_and_repeated_or_refused_by_its_name() {
    let kinds = [
        "-n smoltcp -m reader",
        "-n smoltcp -m both --parallel 3",
        "-n smoltcp -m writer --protocol udp",
        "-n smoltcp -m rr",
        "-n smoltcp -m rr --background reader",
        "-n smoltcp -m crr --protocol udp",
        "-n smoltcp -m crr --layer proxy",
        "-n smoltcp -m idle --parallel 2",
        "-n smoltcp -m idle --parallel 2 --protocol udp",
        "-n smoltcp -m writer --layer stack --parallel 2",
        "-m writer --layer loopback",
        "--layer device",
    ];
    let values = [
        ("--worker-threads", "2"),
        ("--shards", "2"),
        ("--queues", "1"),
        ("--queue", "7"),
        ("--offload", "off"),
        ("--mtu", "9000"),
        ("--client-threads", "1"),
        #[cfg(target_os = "linux")]
        ("--pin", "0"),
        ("--ipv6", "on"),
        ("--datagram", "99"),
        ("--bitrate", "20M"),
        ("--request", "64B"),
        ("--response", "2KB"),
        ("--depth", "3"),
        ("--rate", "77"),
        ("--think", "1.5s"),
        ("--release", "3s"),
        ("--half-closed", "on"),
        ("--blackholes", "9"),
        ("--bytes", "5MB"),
        ("--time", "300ms"),
        ("--warmup", "1MB"),
        ("--window", "1MiB"),
        ("--buffer", "9KB"),
        ("--congestion", "reno"),
        ("--repairs", "none"),
        ("--repairs", "-late-fin,-no-nagle"),
        ("--stack-congestion", "cubic"),
        ("--verify", "full"),
        ("--delay", "2ms"),
        ("--loss", "0.5%"),
        ("--reorder", "1"),
        ("--duplicate", "1"),
        ("--corrupt", "1"),
        ("--rate-limit", "100M"),
        ("--path-mtu", "1400"),
        ("--time 3 --outage", "1s,500ms"),
        ("--no-icmp --path-mtu", "1400"),
        ("--runtime", "current-thread"),
    ];
    let run = |words: &str| {
        let words = format!("x {words}");
        Scenario::try_from(Cli::try_parse_from(words.split_whitespace()).unwrap().run)
    };
    for (option, value) in values {
        let mut taken = 0;
        for kind in kinds {
            match run(&format!("{kind} {option} {value}")) {
                Ok(scenario) => {
                    taken += 1;
                    let arguments = scenario.arguments();
                    let is_there = |option: &str| {
                        arguments.iter().any(|word| word.starts_with(option) || word == "--current-thread")
                    };
                    let mut options = option.split(' ').filter(|word| word.starts_with("--"));
                    assert!(options.all(is_there), "{kind}: {option}: {arguments:?}");
                    assert_eq!(run(&arguments.join(" ")).unwrap(), scenario, "{arguments:?}");
                    let json = serde_json::to_string(&scenario).unwrap();
                    assert_eq!(serde_json::from_str::<Scenario>(&json).unwrap(), scenario, "{json}");
                }
                // A link that loses datagrams needs a rate.
                Err(error) if kind.contains("udp") && error.to_string().starts_with("--bitrate: must be set") => {}
                Err(error) => {
                    assert!(
                        option.split(' ').any(|option| error.to_string().starts_with(option)),
                        "{kind} {option}: {error}"
                    );
                }
            }
        }
        assert!(taken > 0, "{option}");
    }
}

#[cfg(feature = "smoltcp")]
#[test]
fn a_run_is_a_matrix_of_one_cell() {
    let refused = run("--mtu 1500,9000").unwrap_err().to_string();
    assert_eq!(refused, "--mtu: has 2 values; use matrix, which runs them all");
    assert_eq!(run("--runtime current-thread").unwrap(), run("--current-thread").unwrap());
    assert_eq!(run("--ipv6").unwrap(), run("--ipv6 on").unwrap());
    assert_eq!(run("--ipv6 off").unwrap(), run("").unwrap());
}

/// The buffers of many streams share the memory.
#[cfg(feature = "smoltcp")]
#[test]
fn many_streams_have_smaller_buffers_by_default() {
    let of = |words: &str| run(words).map(|run| (run.window_bytes, run.buffer_bytes.get())).unwrap();
    assert_eq!(of("--parallel 256"), (4 << 20, 1_000_000));
    assert_eq!(of("--parallel 10000"), (107_374, 26_843));
    assert_eq!(of("--parallel 10000 --window 1MiB --buffer 10KB"), (1 << 20, 10_000));
}
