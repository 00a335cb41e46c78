//! What carries the bytes of a run. It knows no load: `run` puts one on it.
//!
//! Each layer is a file with a function `prepare`, which returns a [`Prepared`].
//!
//! | layer | client | between | server |
//! |---|---|---|---|
//! | `path` | kernel sockets | TUN device | the stack |
//! | `stack` (`memory`) | [`netstacks::peer`] | link in memory | the stack |
//! | `loopback` | kernel sockets | the kernel's loopback | the kernel, on the same runtime |
//! | `device` | none | TUN device, and the kernel's routing | a task that writes packets and reads them again |
//! | `kernel` (`between`) | kernel sockets | TUN device, link, TUN device | kernel sockets in another network |
//! | `program` | kernel sockets | a program as it is | kernel sockets in another network |
//! | `given` | kernel sockets, bound to the device | a device that a program of the user's serves | kernel sockets in the same network |
//! | `forward` | kernel sockets, or iperf3 | a forwarder's process | kernel sockets in another network, or iperf3 |

mod between;
pub(crate) mod carrier;
pub(crate) mod device;
pub(crate) mod external;
pub(crate) mod forward;
pub(crate) mod given;
pub(crate) mod go;
mod impairments;
pub(crate) mod kernel;
pub(crate) mod loopback;
pub(crate) mod memory;
pub(crate) mod networks;
pub(crate) mod path;
pub(crate) mod program;
pub(crate) mod stack;
mod tun;

use std::io;
use std::path::PathBuf;

use futures_util::future::BoxFuture;
use netstacks::Effective;
use platform::{Class, Feature, Program};

use self::carrier::Carrier;
pub(crate) use self::impairments::Cut;
use self::networks::Networks;
use self::program::running::Running;
use crate::cell::Subject;
use crate::error::RunError;
use crate::failure::Failure;
use crate::load::sockets::kernel::CONGESTION;
use crate::meter::Meter;
use crate::plan::scenario::Scenario;
use crate::remedy::{SystemError, WithRemedy, or_host};
use crate::sample::DeviceFacts;

pub(crate) struct Prepared {
    pub(crate) meter: Box<dyn Meter>,
    /// Ends if the path between the two sides of the load fails.
    pub(crate) driver: BoxFuture<'static, Failure>,
    pub(crate) parts: Parts,
}

#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) device: Option<DeviceFacts>,
    pub(crate) effective: Option<Effective>,
    /// The process that carries the bytes, if it is not this one.
    pub(crate) carrier: Option<Carrier>,
    /// The program that carries them, if the run is of one as it is.
    pub(crate) program: Option<Running>,
    pub(crate) cut: Option<Cut>,
}

impl Prepared {
    fn new(meter: impl Meter, driver: BoxFuture<'static, Failure>, parts: Parts) -> Self {
        Self { meter: Box::new(meter), driver, parts }
    }
}

pub(crate) enum Network {
    Host,
    Own,
    /// The command of a stack in a process of its own. It runs in the namespace of the run or, behind a link with
    /// impairments, in the far one of two.
    With(Program, Option<Networks>),
    /// Two namespaces of its own, and the program that carries packets or connections between them.
    Pair(Networks, PathBuf),
}

impl Network {
    /// The two networks of the run, if it has two.
    pub(crate) const fn both(&self) -> Option<&Networks> {
        match self {
            Self::With(_, Some(networks)) | Self::Pair(networks, _) => Some(networks),
            _ => None,
        }
    }

    /// Gives all sockets in the run's own networks one congestion control, whoever makes them. Returns the one that our sockets
    /// get: the scenario's, where `None` is the usual one. If the kernel does not allow that one in these networks, a program
    /// cannot have it, so none of its run gets it.
    pub(crate) fn set_congestion(&self, scenario: &Scenario) -> Option<String> {
        let asked = scenario.congestion.clone();
        if matches!(self, Self::Host) {
            return asked;
        }
        let name = asked.clone().unwrap_or_else(|| CONGESTION.to_owned());
        let of_far = name.clone();
        let far =
            self.both().map(|networks| networks.far().run(move || platform::set_default_congestion_control(&of_far)));
        let is_set =
            platform::set_default_congestion_control(&name).is_ok() && far.is_none_or(|far| matches!(far, Ok(Ok(()))));
        let is_program = matches!(scenario.cell.subject(), Subject::Program(_));
        if is_program && !is_set { asked.or_else(platform::default_congestion_control) } else { asked }
    }
}

/// Enters a network of the run's own, if the layer would change the host's network or depend on its settings. The loopback
/// changes nothing, so it uses the host's network if there is no permission for another.
pub(crate) fn enter_network(scenario: &Scenario) -> Result<Network, RunError> {
    match scenario.cell.subject() {
        Subject::Forward(forwarder) => {
            if !platform::netns_supported() {
                return Err(platform::Error::unsupported(
                    Feature::Forwarder,
                    "forward packets between",
                    "two networks",
                )
                .into());
            }
            let forwarder = forward::executable(scenario, forwarder)?;
            Ok(Network::Pair(Networks::new()?, forwarder))
        }
        subject
            if !scenario.isolated
                && (matches!(subject, Subject::Program(_) | Subject::Kernel) || subject.has_process()) =>
        {
            let source = io::Error::new(io::ErrorKind::Unsupported, "it needs networks of its own");
            let operation = "run two sides in";
            Err(platform::Error::new(Class::Unavailable, operation, "the host's network", source)
                .remedy("only Linux has networks of a run's own; on Linux leave out --netns host")
                .into())
        }
        Subject::Program(_) | Subject::Kernel => Ok(Network::Pair(Networks::new()?, platform::this_program())),
        Subject::Stack(_) | Subject::Given => Ok(Network::Host),
        _ if !scenario.isolated => Ok(Network::Host),
        Subject::Path(_) | Subject::Device => {
            let command = external::command(scenario)?;
            if let Some(command) = command {
                let has_link = !scenario.cell.impairments.is_none();
                let networks =
                    if has_link { Some(Networks::new()?) } else { platform::enter_netns().map(|()| None)? };
                return Ok(Network::With(command, networks));
            }
            let is_router = scenario.cell.subject() == Subject::Device;
            platform::enter_netns().map_err(if is_router { SystemError::from } else { or_host })?;
            Ok(Network::Own)
        }
        Subject::Loopback => match platform::enter_netns() {
            Err(error) if error.class() == Class::Unavailable => Ok(Network::Host),
            entered => Ok(entered.map(|()| Network::Own)?),
        },
    }
}
