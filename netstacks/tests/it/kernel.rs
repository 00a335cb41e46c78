//! The kernel as the peer, over a real TUN device in its own namespace. The kernel fills in the partial checksums that
//! a stack sends, sends partial ones itself, and verifies all others. Without a device, a test prints SKIP with the
//! reason.

use std::io::Write;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use netstacks::{Datagram, Datagrams, Netstack, StackConfig, Started};
use platform::{Link, Namespace, Network, Offload, TunConfig, TunDevice};
use tokio::net::UdpSocket;

use crate::take_turns;

const DEADLINE: Duration = Duration::from_secs(20);

/// Echoes datagrams of all lengths, with offload and without. `lengths` is the range over IPv4.
fn echo<S: Netstack<TunDevice>>(lengths: RangeInclusive<usize>) {
    let _turn = take_turns::<S>();
    for (index, (ipv6, offload)) in
        [(false, Offload::On), (false, Offload::Off), (true, Offload::On), (true, Offload::Off)].into_iter().enumerate()
    {
        let (name, lengths) = (format!("t{index}"), lengths.clone());
        let job = move || within::<S>(&name, ipv6, offload, lengths);
        // In an existing namespace, only a panic makes this fail.
        let skipped = match Namespace::new() {
            Ok(namespace) => namespace.run(job).unwrap(),
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = skipped {
            let _closed = writeln!(std::io::stderr(), "SKIP {}: {reason}", module_path!());
        }
    }
}

/// The part within the namespace. Returns the reason if it cannot run.
fn within<S: Netstack<TunDevice>>(
    name: &str,
    ipv6: bool,
    offload: Offload,
    lengths: RangeInclusive<usize>,
) -> Option<String> {
    let [own, peer, mask] =
        if ipv6 { ["fd00::1", "fd00::2", "ffff:ffff::"] } else { ["10.0.0.1", "10.0.0.2", "255.255.255.0"] }
            .map(|address| address.parse().unwrap());
    let network = Network::new(own, peer, mask).unwrap();
    let config = TunConfig { name: name.to_owned(), network, mtu: 1500, tx_queue_len: 4096, offload, fd: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let device = match TunDevice::open(&config) {
            Ok(device) => device,
            Err(error) => return Some(error.to_string()),
        };
        assert_eq!(device.capabilities().checksum.tx, offload == Offload::On);
        let Started { listener: _listener, datagrams, driver, .. } = S::start(device, &StackConfig::default()).unwrap();
        let driver = tokio::spawn(driver);
        let server = tokio::spawn(answer(datagrams));
        let lengths = if ipv6 { *lengths.start()..=1_452 } else { lengths };
        let asked = ask(SocketAddr::new(own, 0), SocketAddr::new(peer, 53), lengths);
        tokio::time::timeout(DEADLINE, asked).await.expect("an answer is missing");
        server.abort();
        driver.abort();
        None
    })
}

async fn answer(datagrams: impl Datagrams) {
    let mut buffer = vec![0; 65_535];
    loop {
        let Datagram { len, local, peer } = datagrams.recv(&mut buffer).await.unwrap();
        datagrams.try_send(local, peer, &buffer[..len]).unwrap();
    }
}

async fn ask(from: SocketAddr, to: SocketAddr, lengths: RangeInclusive<usize>) {
    let socket = UdpSocket::bind(from).await.unwrap();
    socket.connect(to).await.unwrap();
    let mut buffer = vec![0; 65_535];
    for len in [0, 1, 2, 99, 1_000, 1_452, 1_472, 1_473, 3_001, 20_000, 65_507] {
        let payload: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
        while lengths.contains(&len) && !is_answered(&socket, &payload, &mut buffer).await {}
    }
}

/// Returns whether a datagram comes back. One may be lost: over IPv6 the kernel may drop the first answer from an
/// interface that has just come up. A late answer to an earlier datagram is ignored.
async fn is_answered(socket: &UdpSocket, payload: &[u8], buffer: &mut [u8]) -> bool {
    socket.send(payload).await.unwrap();
    let answer = async { while socket.recv(buffer).await.unwrap() != payload.len() {} };
    let came = tokio::time::timeout(Duration::from_millis(500), answer).await.is_ok();
    assert!(!came || buffer[..payload.len()] == *payload, "{} bytes came back changed", payload.len());
    came
}

macro_rules! of_stacks {
    ($($feature:literal $test:ident $stack:ident $lengths:expr;)+) => {$(
        #[cfg(feature = $feature)]
        #[test]
        fn $test() {
            echo::<netstacks::$stack>($lengths);
        }
    )+};
}

of_stacks! {
    "lwip" lwip Lwip 0..=65_507;
    "ipstack" ipstack Ipstack 0..=1_472;
    "smoltcp" smoltcp Smoltcp 0..=65_507;
    "tcp_ip" tcp_ip TcpIp 0..=1_472;
    // It sends no datagram without a payload.
    "netstack-smoltcp" netstack_smoltcp NetstackSmoltcp 1..=1_472;
}
