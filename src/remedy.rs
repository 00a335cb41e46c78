//! Errors of the system, each with a remedy: an option or a command that helps the user.

use std::borrow::Cow;
use std::fmt;

use platform::doctor::Check;
use platform::{Cause, Class, Error, Feature};

/// An error of the system, and its remedy: `open /dev/net/tun: permission denied; run as root or …`.
#[derive(Debug)]
pub struct SystemError {
    error: Error,
    remedy: Option<Cow<'static, str>>,
}

impl SystemError {
    /// The class of the failure.
    pub const fn class(&self) -> Class {
        self.error.class()
    }
}

/// Adds the remedy for its cause.
impl From<Error> for SystemError {
    fn from(error: Error) -> Self {
        let remedy = remedy(error.cause()).map(Cow::Borrowed);
        Self { error, remedy }
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for SystemError {}

/// Gives an error a specific remedy.
pub trait WithRemedy {
    /// The error with this remedy.
    fn remedy(self, remedy: impl Into<Cow<'static, str>>) -> SystemError;
}

impl WithRemedy for Error {
    fn remedy(self, remedy: impl Into<Cow<'static, str>>) -> SystemError {
        SystemError { error: self, remedy: Some(remedy.into()) }
    }
}

/// The remedy for a cause; `None` if there is none.
pub fn remedy(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::Other(_) => return None,
        Cause::Unsupported(feature) => of_feature(feature),
        Cause::NoOffload => "leave --offload at auto, which uses offload only where the device has it",
        Cause::NoQueues => {
            "leave out --queues: then one shard reads the queue, and passes on the packets of the others"
        }
        Cause::NoDeviceNode => {
            "load the module (modprobe tun), or in a container pass the device on (docker run --device /dev/net/tun)"
        }
        Cause::DeviceNodePermission => "allow it as root with chmod 666 /dev/net/tun, or run as root",
        Cause::DeviceNodeUnusable => "check that the tun module is loaded",
        Cause::DeviceNodeOfOtherDriver => {
            "/dev/net/tun is no TUN device; make it as root with mknod /dev/net/tun c 10 200"
        }
        Cause::NeedsNetAdmin => "run as root, or inside the user namespace that owns the network namespace",
        Cause::NeedsSudo => "run with sudo",
        Cause::NeedsAdministrator => "run as administrator",
        Cause::NoWintun => {
            "the program puts its copy of wintun.dll there: let the folder be writable, or put the one for your architecture \
             (https://www.wintun.net) beside the program"
        }
        Cause::BadWintun => "if it lies beside the program, remove it: the program has one of its own",
        Cause::AdapterFailed => {
            "run again; if it fails each time, restart Windows, which removes adapters that are left over"
        }
        Cause::NoIpv6 => {
            "set the sysctls net.ipv6.conf.all.disable_ipv6, net.ipv6.conf.default.disable_ipv6 and \
             net.ipv6.conf.lo.disable_ipv6 to 0 (a kernel with ipv6.disable=1 has none of them), or leave out --ipv6"
        }
        Cause::NoNapi
        | Cause::NoQdisc
        | Cause::NoUring
        | Cause::ReadOnlySettings
        | Cause::NoVeth
        | Cause::NoNetns
        | Cause::NetnsForbidden
        | Cause::NamespaceLimit
        | Cause::UserNamespaceForbidden
        | Cause::SeveralThreads
        | Cause::NetnsPermission
        | Cause::NotANetns => return of_networks(cause),
        Cause::NoInterface => "name one that exists with --interface",
        Cause::NameTaken => "the name is taken; choose another one (--tun-name; forward: --near-name, --far-name)",
        Cause::NameOfOtherKind => {
            "an interface of another kind may have the name; choose another one (--tun-name; forward: --near-name, \
             --far-name)"
        }
        Cause::NotATun => "--tun-fd needs an open TUN device without packet information (IFF_TUN | IFF_NO_PI)",
        Cause::NotAUtun => "--tun-fd needs the open control socket of a utun interface",
        Cause::NoDescriptors => "--tun-fd is for Unix; use --tun-name",
        Cause::InterfaceDeleted => "the interface was deleted",
        Cause::NoLoopback => "check that ip link lists it",
        Cause::ProcessLimit => "raise the limit on processes (ulimit -u), or lower --workers",
        Cause::SamplerBusy => "check that no other profile is being taken",
        Cause::EmptyProfile => {
            "check that the profiled time was long enough for a sample, and that the file can be written"
        }
    })
}

/// The same, for a feature that the system lacks.
const fn of_feature(feature: Feature) -> &'static str {
    match feature {
        Feature::Tun => "run on Linux, macOS or Windows",
        Feature::Netns => "only Linux has network namespaces; use --netns host",
        Feature::Forwarding => "only Linux has networks of the run's own; leave out --layer device",
        Feature::Forwarder => "only Linux has networks to put them in",
        Feature::Profile => "profiles need Linux or macOS; leave out --profile",
    }
}

/// The same, for the networks of a run, and for what only Linux's devices have.
fn of_networks(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::NoNapi => {
            "leave out --napi: it takes a device that this program opens and Linux 4.15, threaded also Linux 5.12 and root of the \
             system, in a container with a sysfs that is whole (docker run --privileged)"
        }
        Cause::NoQdisc => "load its module as root (modprobe sch_NAME), or leave out --qdisc",
        Cause::NoUring => {
            "choose another --io: it takes a kernel with io_uring whose TUN has reads that do not wait, and a system that allows it \
             (sysctl kernel.io_uring_disabled=0; containers forbid it by seccomp)"
        }
        Cause::ReadOnlySettings => {
            "a container may have /proc/sys read-only: make it writable (docker run --privileged); only --layer device, \
             --program, forward and conform --layer path need that"
        }
        Cause::NoVeth => "load the module (modprobe veth)",
        Cause::NoNetns => "check that the kernel has CONFIG_NET_NS",
        Cause::NetnsForbidden => {
            "allow it to create network namespaces, which takes CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN)"
        }
        Cause::NamespaceLimit => {
            "raise the limits of namespaces: sysctl user.max_net_namespaces=10000 user.max_user_namespaces=10000"
        }
        Cause::UserNamespaceForbidden => {
            "this system forbids it to ordinary users: run as root, or allow it with sysctl \
             user.max_user_namespaces=10000, kernel.unprivileged_userns_clone=1 (Debian) or \
             kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)"
        }
        Cause::SeveralThreads => "enter the namespace before other threads start, or run as root",
        Cause::NetnsPermission => "run as root, or as the user who owns the namespace",
        Cause::NotANetns => "name a file such as /proc/PID/ns/net",
        _ => return None,
    })
}

/// Why a run that could also be in the host's network gets none of its own.
pub(crate) fn or_host(error: Error) -> SystemError {
    let has_other = matches!(error.cause(), Cause::NoNetns | Cause::NetnsForbidden | Cause::NamespaceLimit);
    match remedy(error.cause()).filter(|_| has_other) {
        Some(remedy) => error.remedy(format!("{remedy}, or use --netns host, which takes only CAP_NET_ADMIN")),
        None => error.into(),
    }
}

/// A check with the remedy for its cause.
pub fn advised(check: Check) -> Check {
    match check.cause.and_then(remedy) {
        Some(remedy) => check.remedy(remedy),
        None => check,
    }
}
