//! The results of requests, datagrams, idle connections and programs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use platform::Switches;
use serde::{Deserialize, Serialize};

use super::latency::Latency;
use crate::is_default;
use crate::program::{Role, Upstream};
use crate::units::nanoseconds;

/// The requests of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestFacts {
    pub answered: u64,
    /// How many failed, by reason. A run in which any failed has failed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// From when each request of the window was due to the last byte of its response.
    pub latency: Latency,
    /// The connects to a silent address beside them, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blackholes: Option<BlackHoleFacts>,
}

/// Connects to an address that stays silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlackHoleFacts {
    /// How many were open at the end of the timed window: in their handshake, or connected to the subject.
    pub open: u64,
    /// How many ended in the timed window, by a refusal or a time-out of the subject. Each is tried again.
    pub ended: u64,
}

/// A program that was run as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramFacts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Where it sends its connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Upstream>,
    pub version: Option<String>,
    /// The version that its profile was tried with, if this is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested: Option<String>,
    /// The SHA-256 of its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// From its start to the first answer through it, in seconds.
    pub start_seconds: f64,
    pub device: Option<AdoptedFacts>,
    /// Its processes when they were ready, without a load.
    pub at_rest: ProcessFacts,
    /// The share of one processor that they took then.
    pub rest_cpu_share: Option<f64>,
    /// Its processes at the end of the timed window.
    pub under_load: ProcessFacts,
    /// Its processes after all connections were closed.
    pub afterwards: ProcessFacts,
    /// What they did without a load.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unloaded: UnloadedFacts,
    /// CPU time of the far end of a tunnel, or of a proxy's own server, in the timed window, in seconds.
    pub far_seconds: Option<f64>,
    /// The processes of that end at the end of the timed window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<ProcessFacts>,
    /// The same processes without a load, when the program was ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far_at_rest: Option<ProcessFacts>,
    /// The share of one processor that they took then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far_rest_cpu_share: Option<f64>,
    /// Whether it had to be killed, because it did not end when it was asked to.
    pub was_killed: bool,
    pub left_behind: u64,
}

/// What the subject's processes did before the load, and after all connections were closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnloadedFacts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Unloaded>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Unloaded>,
}

/// What processes did in a time without a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unloaded {
    #[serde(rename = "time_ns", with = "nanoseconds")]
    pub time: Duration,
    pub cpu_ns: Option<u64>,
    /// Of threads that had not ended.
    pub switches: Option<Switches>,
}

impl Unloaded {
    /// What they did in this time.
    pub fn of(time: Duration, cpu: Option<Duration>, switches: Option<Switches>) -> Self {
        Self { time, cpu_ns: cpu.and_then(|cpu| u64::try_from(cpu.as_nanos()).ok()), switches }
    }

    /// A number in its time, a second.
    fn per_second(self, number: f64) -> Option<f64> {
        (!self.time.is_zero()).then(|| number / self.time.as_secs_f64())
    }

    /// The share of one processor that they took.
    pub fn cpu_share(self) -> Option<f64> {
        self.per_second(self.cpu_ns? as f64 / 1e9)
    }

    /// The same in percent.
    pub fn cpu_percent(self) -> Option<f64> {
        Some(self.cpu_share()? * 100.0)
    }

    /// How often a thread was woken up, a second.
    pub fn wakeups(self) -> Option<f64> {
        self.per_second(self.switches?.waits as f64)
    }

    /// Context switches of both kinds, a second.
    pub fn all_switches(self) -> Option<f64> {
        self.per_second(self.switches?.all() as f64)
    }
}

/// The device of a program as the program made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedFacts {
    pub mtu: u32,
    pub is_up: bool,
    pub address: Option<IpAddr>,
    /// Whether its packets have a virtio header, without which nothing can be offloaded.
    pub vnet_header: Option<bool>,
    pub queues: Option<u32>,
}

/// The processes of a program at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    pub processes: u64,
    /// Their memory; pages that processes share are divided among them (PSS).
    pub pss_bytes: Option<u64>,
    pub threads: u64,
    pub open_files: Option<u64>,
    /// The context switches of their threads since these started.
    #[serde(flatten)]
    pub switches: Switches,
}

/// The datagrams of a run: those of the payload, or requests and their responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramFacts {
    pub sent: u64,
    /// How many of them arrived, or were answered in time; each counts once.
    pub arrived: u64,
    /// Datagrams that arrived after one that was sent later (RFC 4737, 3.3).
    pub reordered: u64,
    /// Datagrams, or responses, that arrived again.
    pub duplicated: u64,
    /// The interarrival jitter of bulk datagrams (RFC 3550, 6.4.1), its mean in the timed window. None without a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ns: Option<u64>,
    /// The highest rate that a search found, in datagrams a second. None if the sender is slower than the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_per_second: Option<u64>,
}

impl DatagramFacts {
    /// How many were sent and did not arrive.
    pub const fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.arrived)
    }

    /// The share of the sent datagrams that were lost; `None` if none were sent.
    pub fn lost_share(&self) -> Option<f64> {
        (self.sent > 0).then(|| self.lost() as f64 / self.sent as f64)
    }
}

/// The packets of a device that a run has written to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureFacts {
    pub packets: u64,
    /// Those that came too fast to be written.
    pub lost: u64,
    /// Whether the file was full before the end.
    pub is_full: bool,
}

/// The size of a page where a file does not say it.
const USUAL_PAGE: u64 = 4096;

/// The memory of connections or flows, in bytes: the resident set of the subject's process, and the kernel's memory of its sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleFacts {
    /// How many connections there were; of flows of datagrams, how many were answered.
    pub connections: u64,
    /// With the first of them alone.
    pub rss_before_bytes: Option<u64>,
    /// With all of them, after a byte or a datagram each way.
    pub rss_open_bytes: Option<u64>,
    /// The memory at each of [`IdleFacts::MOMENTS`] of the timed window, and at its end. Older files have none.
    #[serde(default)]
    pub rest: Vec<RestFacts>,
    /// A while after all were closed.
    pub rss_closed_bytes: Option<u64>,
    /// How long after: a flow of datagrams has no end, and lives until the time-out of the subject.
    #[serde(rename = "release_ns", with = "nanoseconds")]
    pub release: Duration,
    /// The unit of all of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<u64>,
    /// How often threads of the subject's process slept in the timed window, including the client's threads.
    pub wakeups: Option<u64>,
    /// What this process, or a stack's process, did before the first connection was opened, and after all were closed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unloaded: UnloadedFacts,
}

/// The memory after a time of rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestFacts {
    #[serde(rename = "after_ns", with = "nanoseconds")]
    pub after: Duration,
    pub rss_bytes: Option<u64>,
    /// What the kernel takes for the sockets of the subject, without those for the first connection. `None` if it does not say it.
    pub kernel_bytes: Option<u64>,
}

impl IdleFacts {
    /// When the memory is read: timers and collectors give some of it back later.
    pub const MOMENTS: [Duration; 3] = [Duration::from_secs(1), Self::COMPARED, Duration::from_secs(30)];

    /// The moment at which cells are compared.
    pub const COMPARED: Duration = Duration::from_secs(5);

    /// Memory of each connection after this rest, without the first one. If all together took less than a page, it is below this.
    pub fn bytes_per_connection(&self, rest: Duration) -> Option<f64> {
        let others = self.connections.checked_sub(1).filter(|others| *others > 0)?;
        let taken = if self.is_below(rest)? { self.page_bytes.unwrap_or(USUAL_PAGE) } else { self.taken(rest)? };
        Some(taken as f64 / others as f64)
    }

    /// Whether the resident set did not grow, so that the memory of a connection is only known to be below a figure.
    pub fn is_below(&self, rest: Duration) -> Option<bool> {
        Some(self.taken(rest)? == 0)
    }

    /// The share of the process's part of this memory that was released after all connections were closed.
    pub fn released_share(&self) -> Option<f64> {
        let (idle, before) = (self.rest.last()?.rss_bytes?, self.rss_before_bytes?);
        let taken = idle.checked_sub(before).filter(|taken| *taken > 0)?;
        let released = idle.saturating_sub(self.rss_closed_bytes?);
        Some((released as f64 / taken as f64).min(1.0))
    }

    /// Whether the subject has sockets of which nothing is known.
    pub fn lacks_kernel_memory(&self) -> bool {
        self.rest.iter().any(|rest| rest.kernel_bytes.is_none())
    }

    /// Of all connections but the first.
    fn taken(&self, rest: Duration) -> Option<u64> {
        let RestFacts { rss_bytes, kernel_bytes, .. } = self.rest.iter().find(|one| one.after == rest)?;
        Some((*rss_bytes)?.saturating_sub(self.rss_before_bytes?).saturating_add((*kernel_bytes)?))
    }
}
