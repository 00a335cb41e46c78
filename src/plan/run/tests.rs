#![cfg(all(feature = "smoltcp", feature = "lwip"))]

use super::*;

/// The run that the words give, or the option that is wrong.
fn run(line: &str) -> Result<Scenario, PlanError> {
    Scenario::of_words(line.split_whitespace().map(ToOwned::to_owned).collect())
}

/// A writer on smoltcp.
fn writer(line: &str) -> Scenario {
    run(&format!("-m writer -n smoltcp {line}")).unwrap()
}

/// A default fits a short time-out, and only the mode that takes the option has another.
#[test]
fn the_time_to_release_memory_fits_a_short_timeout() {
    let release = |words: &str| run(&format!("--layer loopback {words}")).unwrap().release;
    assert!(release("-m idle --parallel 2 --timeout 1") < Duration::from_secs(1));
    assert_eq!(release("-m idle --parallel 2"), DEFAULT_RELEASE);
    assert_eq!(release("-m reader --timeout 1"), DEFAULT_RELEASE);
}

#[test]
fn a_run_delivers_a_gigabyte_and_for_a_second_by_default() {
    let seconds = Duration::from_secs;
    assert_eq!(writer("").amount, Amount::Time { time: seconds(1), bytes: 1_000_000_000 });
    assert_eq!(writer("--time 2").amount, Amount::time(seconds(2)));
    assert_eq!(writer("--timeout 15").amount, Amount::time(seconds(1)), "ten seconds do not fit");
    assert_eq!(writer("--bytes 5B").amount, Amount::Bytes(NonZeroU64::new(5).unwrap()));
    let forward = run("--forwarder rust").unwrap();
    assert_eq!((forward.amount, forward.timeout), (Amount::time(seconds(10)), seconds(40)));
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

#[test]
fn the_default_warm_up_is_no_larger_than_the_payload() {
    let warmup = |words: &str| writer(words).warmup_bytes;
    assert_eq!(warmup("--bytes 300KB --buffer 1"), 300_000);
    assert_eq!(warmup("--bytes 300KB --warmup 1MB"), 1_000_000);
    assert_eq!((warmup("--bytes 2GB"), warmup("--time 1"), warmup("")), (64_000_000, 64_000_000, 64_000_000));
    // At a rate it is a second's worth.
    assert_eq!((warmup("--bitrate 10M"), warmup("--rate-limit 4M")), (1_250_000, 500_000));
    assert_eq!((warmup("--bitrate 10M --warmup 2MB"), warmup("--bitrate 10G")), (2_000_000, 64_000_000));
}

/// An option that a run does not take is refused by its name, also if the run could ignore it.
#[test]
fn an_option_without_effect_is_refused() {
    for (words, refused) in [
        ("-m writer -n smoltcp --command true", "--command: only --netstack external"),
        ("-m writer -n external", "--command: the stack external needs it"),
        (
            "-m writer -n smoltcp --outage 1s,1s --time 2",
            "--outage: must end within the timed window; use a --time of more than 2 s",
        ),
        ("-m writer -n smoltcp --outage 1s,1s --bytes 2GB", "--outage: must end within"),
        ("-m rr -n smoltcp --bytes 1MB", "--bytes: requests, idle connections and datagrams last for a time"),
        ("-m idle -n smoltcp --parallel 2 --warmup 1MB", "--warmup: requests"),
        ("-m rr -n smoltcp --release 1s", "--release: only the mode idle"),
        ("-m reader -n smoltcp --layer stack --congestion reno", "--congestion: there are no TCP sockets"),
        ("-m reader -n smoltcp --upstream socks5", "--upstream: only the programs"),
        ("-m rr --program pasta --upstream socks5", "--upstream: pasta opens its connections itself"),
        ("-m rr --program gotatun --upstream direct", "--upstream: gotatun has no upstream"),
        ("-m rr --program gotatun --peers 2 --parallel 2 --tun-addr 10.0.0.9", "--peers: each peer has a device and"),
        ("-m writer -n smoltcp --tun-fd 9 --queue 5", "--queue: a device that is taken over"),
        ("-m writer -n smoltcp --tun-fd 9 --napi on", "--napi: a device that is taken over keeps its NAPI"),
        ("-m rr -n smoltcp --shards 2 --queues 2 --tun-fd 9", "--queues: the device of --tun-fd has one"),
        ("-m rr --layer loopback --tun-fd 9", "--tun-fd: the layer loopback makes its own device"),
        ("-m rr -n smoltcp --profile x.svg --tun-fd 2", "--tun-fd: must be the number of an open"),
        ("-m rr --program lwip --profile x.svg", "--profile: only this program"),
        ("--forwarder rust --generator iperf3 --time 0.5", "--time: iperf3 takes whole seconds"),
        ("--forwarder rust --generator iperf3 --verify full", "--verify: iperf3 checks no bytes"),
        ("--forwarder rust --near-name lo", "--near-name: \"lo\" is taken in every network"),
        ("--forwarder rust --far-addr 10.0.1.2", "--far-addr: 10.0.1.1 and 10.0.1.2 are in one network"),
        ("-m reader -n smoltcp --time 60", "--time: 60 seconds do not fit into --timeout 60"),
        ("-m reader -n smoltcp --timeout 0", "--timeout: must be more than 0 seconds"),
        ("-m reader -n smoltcp --interval 1ms", "--interval: must be at least 0.01 seconds"),
        ("-m reader -n lwip-published", "--netstack: this build is without lwip-published"),
        #[cfg(target_os = "linux")]
        ("-m writer --layer loopback --pin 0,1023", "--pin: there is no processor 1023"),
        #[cfg(not(target_os = "linux"))]
        ("-m writer --layer loopback --pin 0", "--pin: only Linux can"),
        ("", "--mode, --netstack: a run needs both"),
        ("-n lwip", "--mode: a run needs it: reader, writer"),
        ("-m reader,writer -n lwip", "--mode: invalid value 'reader,writer' for '--mode <MODE>'"),
    ] {
        let error = run(words).unwrap_err().to_string();
        assert!(error.starts_with(refused), "{words}: {error}");
    }
}

#[test]
fn a_switch_and_a_short_word_are_the_same_run() {
    let same = |one: &str, other: &str| assert_eq!(writer(one).cell, writer(other).cell);
    same("--runtime current-thread", "--current-thread");
    same("--ipv6", "--ipv6 on");
    same("--ipv6 off", "");
    same("--mtu 1500 --window 4MiB --buffer 1MB", "");
}

/// The words of a run make it again, with another seed, and as the check of its path.
#[test]
fn the_words_of_a_run_are_the_run() {
    for line in [
        "-m writer -n smoltcp",
        "-m rr -n lwip --parallel 9 --rate 100 --delay 2ms --time 3 --link-seed=7",
        "--layer device --offload off",
        "-m reader --program kernel --netns auto",
        "--forwarder rust --io async --offload whole --mtu 9000",
    ] {
        let one = run(line).unwrap();
        let seeded = one.seeded(5);
        assert_eq!((seeded.link_seed, run(&seeded.words.join(" ")).unwrap()), (5, seeded), "{line}");
        let check = one.path_check();
        assert_eq!(run(&check.words.join(" ")).unwrap(), Scenario { words: check.words.clone(), ..check.clone() });
        assert_eq!(check.verify, Verify::Full);
    }
}
