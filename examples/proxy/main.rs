//! A transparent TUN proxy on any of the stacks: a command line for [`rust_tun_perf::proxy`].
//!
//! ```sh
//! cargo run --release --example proxy -- --interface eth0 --netstack smoltcp
//! ip route add 203.0.113.0/24 dev utun8
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

mod arguments;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use platform::{Class, Interrupts, Link, TunDevice};
use rust_tun_perf::proxy::{Proxy, Running};
use rust_tun_perf::remedy::SystemError;

use self::arguments::Arguments;

/// Open files other than the sockets of flows.
const SPARE_DESCRIPTORS: u64 = 64;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.runtime().map_err(Into::into).and_then(|runtime| runtime.block_on(serve(&arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(exit_code(&failure))
        }
    }
}

/// The exit codes of the benchmark: 2 for wrong arguments, 3 for something that the system lacks, else 1.
fn exit_code(failure: &Failure) -> u8 {
    match failure.downcast_ref().map(SystemError::class) {
        Some(Class::Invalid) => 2,
        Some(Class::Unavailable) => 3,
        None if failure.is::<platform::NetworkError>() => 2,
        None => match failure.downcast_ref::<rust_tun_perf::proxy::Error>() {
            Some(rust_tun_perf::proxy::Error::NotCompiledIn(_)) => 2,
            _ => 1,
        },
        Some(Class::Failed) => 1,
    }
}

/// Serves until the user interrupts it or the device is gone.
async fn serve(arguments: &Arguments) -> Result<(), Failure> {
    // One socket for each connection, and one for each UDP flow. If the limit stays lower, flows beyond it fail.
    let _limit = rlimit::increase_nofile_limit(2 * arguments.max_flows() as u64 + SPARE_DESCRIPTORS)?;
    let proxy = Proxy::new(arguments.proxy()).map_err(SystemError::from)?;
    let device = TunDevice::open(&arguments.device()?).map_err(SystemError::from)?;
    let mut interrupts = Interrupts::catch()?;
    let (name, offload) = (device.name().to_owned(), device.capabilities().segmentation.any());
    let mut running = proxy.start(device, arguments.netstack)?;
    announce(&name, offload, arguments, &running)?;
    tokio::select! {
        () = interrupts.next() => Ok(()),
        ended = running.ended() => Ok(ended?),
    }
}

/// Prints a line when packets are served. Callers wait for this line.
fn announce(name: &str, offload: bool, arguments: &Arguments, running: &Running) -> io::Result<()> {
    writeln!(
        io::stdout().lock(),
        "{name}: {} {}, MTU {}, offload {}, on to {}",
        arguments.netstack,
        running.effective().stack_version,
        arguments.mtu,
        if offload { "on" } else { "off" },
        arguments.interface,
    )
}
