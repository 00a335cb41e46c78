//! Any system without a supported TUN device. Everything that needs no device still works.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::process::ExitStatus;
use std::task::{Context, Poll};

use super::no_sampler::NoSampler;
use super::{Interrupts, System, Tun};
use crate::doctor::Check;
use crate::{Capabilities, DropCounter, Error, Feature, Link, PacketBuffer, PacketMeta, ProcessEnd, TunConfig};

/// Any other system.
pub(crate) struct Unsupported;

impl System for Unsupported {
    type Tun = NoTun;
    type Interrupts = NoInterrupts;
    type Sampler = NoSampler;

    fn check_name(_name: &str) -> Result<(), &'static str> {
        Ok(())
    }

    fn is_local_address(_address: IpAddr) -> bool {
        false
    }

    fn process_end(status: ExitStatus) -> ProcessEnd {
        status.code().map_or_else(|| ProcessEnd::Crashed(status.to_string()), ProcessEnd::Exited)
    }

    fn examine(_window_bytes: usize) -> Vec<Check> {
        vec![Check::of("device", Err(no_device()))]
    }
}

fn no_device() -> Error {
    Error::unsupported(Feature::Tun, "open", "a TUN device")
}

/// A device that cannot be opened, so no value of it exists.
#[derive(Debug)]
pub(crate) enum NoTun {}

impl Tun for NoTun {
    fn open(config: &TunConfig) -> Result<Self, Error> {
        config.do_without_offload("there is no device that would have any")?;
        Err(no_device())
    }

    fn sender(&self) -> Result<Self, Error> {
        match *self {}
    }

    fn name(&self) -> &str {
        match *self {}
    }

    fn drop_counter(&self) -> DropCounter {
        match *self {}
    }
}

impl Link for NoTun {
    fn capabilities(&self) -> Capabilities {
        match *self {}
    }

    fn try_recv(&mut self, _buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        match *self {}
    }

    fn try_send(&mut self, _meta: PacketMeta, _slices: &[IoSlice<'_>]) -> io::Result<()> {
        match *self {}
    }

    fn poll_readable(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }

    fn poll_writable(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

/// Catches nothing: an interrupt ends the program.
#[derive(Debug)]
pub(crate) struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn catch() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        std::future::pending().await
    }
}
