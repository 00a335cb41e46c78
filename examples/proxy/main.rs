//! A transparent TUN proxy on any of the three stacks.
//!
//! Whatever the routes lead into the device, to any address and port, over TCP and UDP, IPv4 and IPv6, is
//! carried on by sockets of the kernel that are bound to one interface, and so not led back into it. The
//! stack's side of a connection is opened once the server's is, so a client sees what the server says:
//! refused, unreachable or nothing.
//!
//! ```sh
//! cargo run --release --example proxy -- --interface eth0 --netstack smoltcp
//! ip route add 203.0.113.0/24 dev utun8
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

mod arguments;
mod connect;
mod relay;
mod tcp;
mod udp;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use netstacks::{Effective, Gated, Netstack, StackConfig, Started, Visitor, gate};
use platform::{Class, Interrupts, Link, TunDevice};

use self::arguments::Arguments;
use self::connect::World;

/// Open files beside the sockets of flows.
const SPARE_DESCRIPTORS: u64 = 64;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.runtime().map_err(Into::into).and_then(|runtime| runtime.block_on(open(&arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(exit_code(&failure))
        }
    }
}

/// As of the benchmark itself: 2 for wrong arguments, 3 for what the system lacks, else 1.
fn exit_code(failure: &Failure) -> u8 {
    match failure.downcast_ref::<platform::Error>().map(platform::Error::class) {
        Some(Class::Invalid) => 2,
        Some(Class::Unavailable) => 3,
        None if failure.is::<netstacks::NotCompiledIn>() || failure.is::<platform::NetworkError>() => 2,
        Some(Class::Failed) | None => 1,
    }
}

async fn open(arguments: &Arguments) -> Result<(), Failure> {
    // One for each connection, one for each exchange of datagrams. Where they are not to be had, flows beyond fail.
    let _limit = rlimit::increase_nofile_limit(2 * arguments.max_flows() as u64 + SPARE_DESCRIPTORS)?;
    let world = World::new(arguments)?;
    let device = TunDevice::open(&arguments.device()?)?;
    let name = device.name().to_owned();
    let (link, gate) = gate(device, arguments.max_flows());
    let proxy = Proxy { arguments, name, gate, link, world };
    arguments.netstack().visit(proxy)?.await
}

/// A proxy that wants for a stack.
struct Proxy<'a> {
    arguments: &'a Arguments,
    name: String,
    gate: netstacks::Gate,
    link: Gated<TunDevice>,
    world: World,
}

impl<'a> Visitor<Gated<TunDevice>> for Proxy<'a> {
    type Output = std::pin::Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

    fn visit<S: Netstack<Gated<TunDevice>>>(self) -> Self::Output {
        Box::pin(self.run::<S>())
    }
}

impl Proxy<'_> {
    /// Serves until the user has enough or the device is gone.
    async fn run<S: Netstack<Gated<TunDevice>>>(self) -> Result<(), Failure> {
        let mut interrupts = Interrupts::catch()?;
        let offload = self.link.capabilities().segmentation.any();
        let config = StackConfig {
            window: self.arguments.window(),
            backlog: self.arguments.max_flows(),
            ..StackConfig::default()
        };
        let Started { listener, datagrams, driver, effective } = S::start(self.link, &config)?;
        let answers = self.gate.answers();
        let world = Arc::new(self.world);
        let driver = tokio::spawn(driver);
        let tcp = tokio::spawn(tcp::serve(self.gate, listener, Arc::clone(&world)));
        let udp = tokio::spawn(udp::serve(datagrams, answers, Arc::clone(&world)));
        announce(&self.name, self.arguments, &effective, offload)?;
        tokio::select! {
            () = interrupts.next() => Ok(()),
            ended = driver => Ok(ended??),
            ended = tcp => Ok(ended??),
            ended = udp => Ok(ended??),
        }
    }
}

/// Says that packets are served, to whoever has started the proxy and waits for it.
fn announce(name: &str, arguments: &Arguments, effective: &Effective, offload: bool) -> io::Result<()> {
    writeln!(
        io::stdout().lock(),
        "{name}: {} {}, MTU {}, offload {}, on to {}",
        arguments.netstack(),
        effective.stack_version,
        arguments.mtu,
        if offload { "on" } else { "off" },
        arguments.interface,
    )
}
