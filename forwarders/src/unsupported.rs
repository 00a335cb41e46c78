//! Systems without network namespaces have no forwarder.

use std::convert::Infallible;

use platform::{Error, Feature};

use crate::{Counts, DevicePair, ForwardConfig};

/// Carries packets between two TUN devices. On this system it cannot be opened, so no value of it exists.
#[derive(Debug)]
pub struct Forwarder(Infallible);

impl Forwarder {
    /// Fails on this system.
    ///
    /// # Errors
    ///
    /// [`platform::Class::Unavailable`].
    pub fn open(_devices: &DevicePair, _config: &ForwardConfig) -> Result<Self, Error> {
        Err(Error::unsupported(Feature::Forwarder, "forward packets between", "two TUN devices"))
    }

    /// A handle to the traffic counters. It can be read at any time.
    pub fn counters(&self) -> Counters {
        match self.0 {}
    }

    /// A handle that ends [`Forwarder::run`].
    pub fn stopper(&self) -> Stopper {
        match self.0 {}
    }

    /// Carries packets until it is stopped.
    ///
    /// # Errors
    ///
    /// None: no value of it exists.
    pub fn run(self) -> Result<(), Error> {
        match self.0 {}
    }
}

/// The traffic of both directions.
#[derive(Clone, Debug)]
pub struct Counters(Infallible);

impl Counters {
    /// The traffic so far.
    pub fn read(&self) -> Counts {
        match self.0 {}
    }
}

/// Ends a forwarder that runs in another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Infallible);

impl Stopper {
    /// Makes [`Forwarder::run`] return without an error.
    pub fn stop(&self) {
        match self.0 {}
    }
}
