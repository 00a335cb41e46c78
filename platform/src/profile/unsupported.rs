//! Systems without SIGPROF, or for which the `pprof` crate has no sampler.

use std::convert::Infallible;
use std::num::NonZeroU16;

use crate::Error;

#[derive(Debug)]
pub(super) struct Sampler(Infallible);

impl Sampler {
    pub(super) fn start(_frequency_hz: NonZeroU16) -> Result<Self, Error> {
        Err(Error::unsupported("start", "a profile of this process", "it takes Linux or macOS; leave out --profile"))
    }

    pub(super) fn finish(self) -> Result<String, Error> {
        match self.0 {}
    }
}
