//! A pipe that passes bytes from one socket to another within the kernel (`splice(2)`).

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// What a pipe may hold, in bytes; without this size it has the kernel's default.
const SIZE: libc::c_int = 1 << 18;

/// A pipe between two sockets. Dropping it drops the bytes in it.
#[derive(Debug)]
pub struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
    len: usize,
}

impl Pipe {
    /// An empty pipe. It fails where a process may not have more files, and on other systems than Linux.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        // SAFETY: it takes a number, and no memory of this process.
        let _usual = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, SIZE) };
        Ok(Self { reader, writer, len: 0 })
    }

    /// How many bytes are in it.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes bytes from a socket that does not block into an empty pipe. Returns how many; 0 is the socket's end.
    pub fn fill(&mut self, from: &impl AsFd) -> io::Result<usize> {
        let taken = splice(from, &self.writer, SIZE as usize)?;
        self.len += taken;
        Ok(taken)
    }

    /// Passes bytes on to a socket that does not block. Returns how many.
    pub fn drain(&mut self, to: &impl AsFd) -> io::Result<usize> {
        let passed = splice(&self.reader, to, self.len)?;
        self.len -= passed;
        Ok(passed)
    }
}

fn splice(from: &impl AsFd, to: &impl AsFd, len: usize) -> io::Result<usize> {
    let (from, to) = (from.as_fd().as_raw_fd(), to.as_fd().as_raw_fd());
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: both descriptors are borrowed, and open until the call returns. Without offsets it reads no memory of this process.
    let moved = unsafe { libc::splice(from, ptr::null_mut(), to, ptr::null_mut(), len, flags) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}
