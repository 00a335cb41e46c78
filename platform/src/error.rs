//! The error type of this crate: an operation, its object, the source error, and a cause.

use std::fmt;
use std::io;

/// The kind of a failure. It decides the exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A right, a device or a feature of the system is missing.
    Unavailable,
    /// The request is impossible.
    Invalid,
    /// It should have worked.
    Failed,
}

/// The cause of a failure, as far as the user can do something about it. The program has the text of the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "most names say it")]
pub enum Cause {
    Other(Class),
    Unsupported(Feature),
    NoOffload,
    NoQueues,
    /// NAPI, or a thread of the kernel that polls it.
    NoNapi,
    NoQdisc,
    /// `io_uring(7)`, or reads by it that do not wait.
    NoUring,
    NoDeviceNode,
    DeviceNodePermission,
    /// Linux: `/dev/net/tun` cannot be opened for another reason.
    DeviceNodeUnusable,
    DeviceNodeOfOtherDriver,
    /// Linux: the process lacks `CAP_NET_ADMIN` in its network namespace.
    NeedsNetAdmin,
    NeedsSudo,
    NeedsAdministrator,
    NoWintun,
    /// Windows: Wintun fails to make or to use an adapter.
    AdapterFailed,
    /// Windows: the library beside the program does not load.
    BadWintun,
    NoIpv6,
    /// Linux: `/proc/sys` cannot be written to.
    ReadOnlySettings,
    NoVeth,
    NoNetns,
    /// Linux: a process with rights of root may not create a network namespace, as in a container.
    NetnsForbidden,
    /// Linux: there are as many namespaces as the system allows, perhaps none.
    NamespaceLimit,
    /// Linux: the system forbids user namespaces to ordinary users.
    UserNamespaceForbidden,
    /// Linux: a process with several threads cannot enter a user namespace (`unshare(2)`).
    SeveralThreads,
    NetnsPermission,
    NotANetns,
    NoInterface,
    NameTaken,
    /// Linux: perhaps an interface of another kind has the name.
    NameOfOtherKind,
    NotATun,
    NotAUtun,
    /// Windows: devices have no file descriptors there.
    NoDescriptors,
    InterfaceDeleted,
    NoLoopback,
    ProcessLimit,
    SamplerBusy,
    EmptyProfile,
}

/// A feature that not every system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A TUN device.
    Tun,
    /// A network namespace.
    Netns,
    /// The kernel forwards packets in a separate network of the run.
    Forwarding,
    /// A forwarder between two networks.
    Forwarder,
    /// A profile of this process.
    Profile,
}

impl Cause {
    /// The class of a failure with this cause.
    pub const fn class(self) -> Class {
        match self {
            Self::Other(class) => class,
            Self::NotANetns
            | Self::NoInterface
            | Self::NameTaken
            | Self::NameOfOtherKind
            | Self::NotATun
            | Self::NotAUtun
            | Self::NoDescriptors => Class::Invalid,
            Self::AdapterFailed
            | Self::InterfaceDeleted
            | Self::NoLoopback
            | Self::ProcessLimit
            | Self::SamplerBusy
            | Self::EmptyProfile => Class::Failed,
            // A right, a device or a feature of the system.
            _ => Class::Unavailable,
        }
    }
}

impl From<Class> for Cause {
    fn from(class: Class) -> Self {
        Self::Other(class)
    }
}

/// An operation that failed: `open /dev/net/tun: permission denied`.
#[derive(Debug)]
pub struct Error {
    cause: Cause,
    operation: &'static str,
    object: String,
    source: io::Error,
}

impl Error {
    /// An error with a cause, or only with a class.
    pub fn new(cause: impl Into<Cause>, operation: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self { cause: cause.into(), operation, object: object.into(), source }
    }

    /// The error of an operation that this system does not support.
    pub fn unsupported(feature: Feature, operation: &'static str, object: impl Into<String>) -> Self {
        let source = io::Error::new(io::ErrorKind::Unsupported, "not supported on this system");
        Self::new(Cause::Unsupported(feature), operation, object, source)
    }

    /// Its cause.
    pub const fn cause(&self) -> Cause {
        self.cause
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Its class.
    pub const fn class(&self) -> Class {
        self.cause.class()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation, self.object, self.source)
    }
}

/// It has no source: the message contains the source's message.
impl std::error::Error for Error {}
