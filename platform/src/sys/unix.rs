//! Code that Linux and macOS share.

use std::ffi::c_int;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal as SignalName;
use nix::sys::socket::SockaddrStorage;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use socket2::{SockRef, Type};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tun_rs::{BorrowedSyncDevice, SyncDevice};

use crate::{Class, Error, ProcessEnd};

/// Raises the limit on open files to `wanted`, or as far as the system allows.
pub fn allow_open_files(wanted: u64) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    // It has 32 bits on some systems. Nobody wants as many files.
    let wanted = wanted as libc::rlim_t;
    if soft < wanted {
        let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted));
        // Only root may raise the hard limit.
        let _as_it_is = raised.or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard));
    }
}

/// The size of a page of memory; `None` if the system does not say it.
pub fn page_bytes() -> Option<u64> {
    u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()
}

/// A non-blocking descriptor in the reactor of the current tokio runtime. Tokio's `try_io` makes no syscall until the
/// reactor has seen it ready: a trip through the scheduler for each packet. This makes syscalls at any time, and polls
/// only after one would have blocked. A deleted TUN device of Linux reports only an error (`drivers/net/tun.c`,
/// `tun_chr_poll`), which for tokio is no readiness to read, so a task that waits for a packet waits for an error too.
pub(super) struct Readiness<T: AsRawFd> {
    fd: Arc<AsyncFd<Owner<T>>>,
    error: Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>,
}

/// Implements `AsFd` for owners that have only `AsRawFd`.
pub(super) struct Owner<T>(pub(super) T);

impl<T: AsRawFd> AsRawFd for Owner<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl<T: AsRawFd> AsFd for Owner<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the owner keeps its descriptor open while `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}

impl<T: AsRawFd + Send + Sync + 'static> Readiness<T> {
    /// Registers `owner` with the current runtime. Its descriptor must be non-blocking.
    pub(super) fn new(owner: T) -> io::Result<Self> {
        // SAFETY: the owner keeps the same descriptor open as long as it lives, and the registration with the reactor
        // ends when the owner is dropped.
        let registered = unsafe { AsyncFd::register(Owner(owner)) };
        let fd = Arc::new(registered.map_err(|error| error.into_parts().1)?);
        Ok(Self { error: wait_for_error(&fd), fd })
    }

    /// The same descriptor for another task, which must not wait for it: only the last waker of each direction is remembered.
    #[cfg(target_os = "linux")]
    pub(super) fn share(&self) -> Self {
        Self { error: wait_for_error(&self.fd), fd: Arc::clone(&self.fd) }
    }

    pub(super) fn get_ref(&self) -> &T {
        &self.fd.get_ref().0
    }

    /// Makes a syscall that reads. If it returns `WouldBlock`, an event that was reported before it is used up.
    pub(super) fn try_read<R>(&self, read: impl FnOnce(&T) -> io::Result<R>) -> io::Result<R> {
        let mut read = Some(read);
        let result = self.fd.try_io(Interest::READABLE, |owner| match read.take() {
            Some(read) => read(&owner.0),
            None => Err(io::ErrorKind::WouldBlock.into()),
        });
        // Without an event, tokio has not made the call.
        read.map_or(result, |read| read(self.get_ref()))
    }

    /// Ready if the reactor has reported an event, and no [`Self::try_read`] has blocked since.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(guard) = self.fd.poll_read_ready(cx) {
            guard?.retain_ready();
            return Poll::Ready(Ok(()));
        }
        let failed = ready!(self.error.as_mut().poll(cx));
        // The next system call tells the error, if it still stands.
        self.error = wait_for_error(&self.fd);
        Poll::Ready(failed)
    }

    pub(super) fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let guard = ready!(self.fd.poll_write_ready(cx))?;
            if is_writable(guard)? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

fn wait_for_error<T: AsRawFd + Send + Sync + 'static>(
    fd: &Arc<AsyncFd<Owner<T>>>,
) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>> {
    let fd = Arc::clone(fd);
    Box::pin(async move {
        fd.ready(Interest::ERROR).await?.clear_ready();
        Ok(())
    })
}

/// Clears the readiness, which may be old, and then asks the kernel: one of them reports an event meanwhile.
fn is_writable<T: AsRawFd>(mut guard: AsyncFdReadyGuard<'_, Owner<T>>) -> io::Result<bool> {
    guard.clear_ready();
    let mut fds = [PollFd::new(guard.get_inner().as_fd(), PollFlags::POLLOUT)];
    loop {
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(0) => return Ok(false),
            // An error or a hang-up counts as ready: the next syscall reports it.
            Ok(_) => break,
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}

/// Registers a TUN device with the current runtime. Returns its name and MTU, too.
pub(super) fn register(device: SyncDevice) -> Result<(Readiness<SyncDevice>, String, usize), Error> {
    let failed = |operation| move |source| Error::new(Class::Failed, operation, "the TUN device", source);
    device.set_nonblocking(true).map_err(failed("make non-blocking"))?;
    let name = device.name().map_err(failed("ask the name of"))?;
    let mtu = usize::from(device.mtu().map_err(failed("ask the MTU of"))?);
    Ok((Readiness::new(device).map_err(failed("register with the runtime"))?, name, mtu))
}

pub(super) fn socket_option(fd: RawFd, level: c_int, option: c_int, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, which is that long.
    let result = unsafe { libc::getsockopt(fd, level, option, value.as_mut_ptr().cast(), &raw mut len) };
    if result == 0 { Ok(len as usize) } else { Err(io::Error::last_os_error()) }
}

#[cfg(target_os = "linux")]
pub(super) fn set_socket_option(fd: RawFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the kernel reads the bytes of `value`.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size_of::<c_int>() as _) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// CPU time of all threads of this process so far. Linux counts other processors up to their last tick.
pub fn cpu_of_process() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok().map(Into::into)
}

/// CPU time of the calling thread so far.
pub fn cpu_of_thread() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Into::into)
}

/// An interface's name has at most 15 bytes (`IFNAMSIZ`).
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() < libc::IFNAMSIZ { Ok(()) } else { Err("this system takes at most 15 bytes") }
}

/// The MTU of the TUN device behind a descriptor, in bytes; `None` if there is none, and on Windows.
pub fn mtu_of_descriptor(fd: i32) -> Option<u16> {
    // The copy is asked, so the descriptor stays its owner's.
    // SAFETY: F_DUPFD_CLOEXEC touches no memory, and fails if the descriptor is not open.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return None;
    }
    // SAFETY: the copy is open, and nothing else has it.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    // SAFETY: the copy is open until the end of this function. Only the interface is asked, no packet is read.
    unsafe { BorrowedSyncDevice::borrow_raw(copy.as_raw_fd()) }.ok()?.mtu().ok()
}

/// Whether an interface has this address, other than that of this name.
pub fn is_local_address(address: IpAddr, but_of: &str) -> bool {
    let Ok(interfaces) = getifaddrs() else { return false };
    let mut others = interfaces.filter(|interface| !is_name(&interface.interface_name, but_of));
    others.any(|interface| interface.address.as_ref().and_then(socket_addr).map(|own| own.ip()) == Some(address))
}

/// The addresses of an interface in the calling thread's network.
pub fn addresses_of(interface: &str) -> io::Result<Vec<IpAddr>> {
    let all = getifaddrs()?.filter(|of| is_name(&of.interface_name, interface));
    Ok(all.filter_map(|of| Some(socket_addr(of.address.as_ref()?)?.ip())).collect())
}

/// The folder with the descriptors of this process.
const DESCRIPTORS: &str = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };

/// The sockets of this process that wait for a connection or have none, with their kinds and addresses.
pub fn sockets() -> Vec<(Type, SocketAddr)> {
    let files = fs::read_dir(DESCRIPTORS).into_iter().flatten().flatten();
    let descriptors = files.filter_map(|file| file.file_name().to_str()?.parse().ok());
    let unconnected = descriptors.filter_map(|descriptor| {
        // SAFETY: the calls only read, and fail if the descriptor is closed by now or is no socket.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let socket = SockRef::from(&descriptor);
        let address = socket.local_addr().ok()?.as_socket()?;
        // A socket that connects has no peer yet (on Linux `net/ipv4/af_inet.c`, `inet_getname`).
        socket.peer_addr().is_err().then_some((socket.r#type().ok()?, address))
    });
    unconnected.collect()
}

/// Whether an address is of this interface: its label may follow the name, as in `eth0:1`.
pub(super) fn is_name(label: &str, interface: &str) -> bool {
    label.split(':').next() == Some(interface)
}

pub(super) fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|address| (*address).into()).map(SocketAddr::V4);
    v4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}

pub(crate) fn process_end(status: ExitStatus) -> ProcessEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessEnd::Exited(code),
        (None, Some(libc::SIGINT)) => ProcessEnd::Interrupted,
        (None, number) => {
            let number = number.unwrap_or_default();
            // nix has no names of real-time signals.
            let name = SignalName::try_from(number).map(SignalName::as_str);
            ProcessEnd::Crashed(name.map_or_else(|_| format!("signal {number}"), ToOwned::to_owned))
        }
    }
}

/// Catches Ctrl-C, and on Unix SIGTERM and SIGHUP (a closed terminal) too, from its creation on.
#[derive(Debug)]
pub struct Interrupts(Vec<Signal>);

impl Interrupts {
    /// From now on, an interrupt does not end the program. Call it inside a tokio runtime.
    pub fn catch() -> io::Result<Self> {
        let numbers = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter();
        // Under nohup(1) the program outlives its terminal.
        let caught = numbers.filter(|number| *number != libc::SIGHUP || !is_ignored(*number));
        caught.map(|number| signal(SignalKind::from_raw(number))).collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the next interrupt. Returns at once if one has already arrived.
    pub async fn next(&mut self) {
        let mut is_any = |cx: &mut Context<'_>| self.0.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
        poll_fn(move |cx| if is_any(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

fn is_ignored(number: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the present one, which is read if it succeeds.
    unsafe {
        libc::sigaction(number, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The end of a full pipe reports an error and nothing else when the other end is closed, as a deleted TUN does.
    #[tokio::test]
    async fn an_error_wakes_the_task_that_waits_for_packets() {
        let (other_end, mut pipe) = io::pipe().unwrap();
        nix::fcntl::fcntl(&pipe, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        while pipe.write(&[0; 4096]).is_ok() {}
        let mut readiness = Readiness::new(pipe).unwrap();
        let waiting = tokio::spawn(async move { poll_fn(|cx| readiness.poll_readable(cx)).await });
        tokio::task::yield_now().await;
        drop(other_end);
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap().unwrap();
    }
}
