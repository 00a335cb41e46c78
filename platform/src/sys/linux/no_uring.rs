//! Processors whose structures of `io_uring` the crate io-uring does not have.
#![allow(missing_docs, reason = "the documentation is in the other file")]

use std::convert::Infallible;
use std::io;
use std::iter::Empty;
use std::os::fd::BorrowedFd;

use crate::{Cause, Error};

/// A ring that cannot be made, so no value of it exists.
pub struct PacketRing(Infallible);

impl PacketRing {
    pub fn new(_packets: u32) -> Result<Self, Error> {
        let source = io::Error::new(io::ErrorKind::Unsupported, "not supported on this processor");
        Err(Error::new(Cause::NoUring, "read packets by", "io_uring", source))
    }

    pub fn check(_device: BorrowedFd<'_>) -> Result<(), Error> {
        Self::new(1).map(drop)
    }

    pub fn read(&mut self, _: BorrowedFd<'_>, _: &mut [Vec<u8>]) -> io::Result<Empty<io::Result<usize>>> {
        match self.0 {}
    }

    pub fn write<'a>(
        &mut self,
        _: BorrowedFd<'_>,
        _: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<Empty<io::Result<usize>>> {
        match self.0 {}
    }
}
