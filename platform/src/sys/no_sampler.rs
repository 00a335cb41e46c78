//! Systems without SIGPROF, or without a sampler in the `pprof` crate.

use std::num::NonZeroU16;

use super::Sampler;
use crate::{Error, Feature};

/// A sampler that cannot be started, so no value of it exists.
#[derive(Debug)]
pub(crate) enum NoSampler {}

impl Sampler for NoSampler {
    fn start(_frequency_hz: NonZeroU16) -> Result<Self, Error> {
        Err(Error::unsupported(Feature::Profile, "start", "a profile of this process"))
    }

    fn finish(self) -> Result<String, Error> {
        match self {}
    }
}
