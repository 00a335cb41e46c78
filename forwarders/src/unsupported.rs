//! Systems without network namespaces have no forwarder, so no value of these types exists.

#![allow(missing_docs, reason = "the documentation is at Linux's functions")]

use std::convert::Infallible;

use platform::{Error, Feature};

use crate::{Counts, DevicePair, ForwardConfig};

#[derive(Debug)]
pub struct Forwarder(Infallible);

impl Forwarder {
    pub fn open(_devices: &DevicePair, _config: &ForwardConfig) -> Result<Self, Error> {
        Err(Error::unsupported(Feature::Forwarder, "forward packets between", "two TUN devices"))
    }

    pub fn counters(&self) -> Counters {
        match self.0 {}
    }

    pub fn stopper(&self) -> Stopper {
        match self.0 {}
    }

    pub fn run(self) -> Result<(), Error> {
        match self.0 {}
    }
}

#[derive(Clone, Debug)]
pub struct Counters(Infallible);

impl Counters {
    pub fn read(&self) -> Counts {
        match self.0 {}
    }
}

#[derive(Clone, Debug)]
pub struct Stopper(Infallible);

impl Stopper {
    pub fn stop(&self) {
        match self.0 {}
    }
}
