//! Checks whether a TCP/IP stack does what the RFCs ask. A [`Case`] is a script: it plays the peer of the stack, packet
//! by packet, and the application above the stack.
//!
//! A case runs over a link in memory, or between two real TUN devices whose packets the kernel forwards. It ends with
//! an [`Outcome`]: pass, fail with what was seen, or not applicable. [`known`] has the failures that are expected of
//! each stack, with their reasons.

/// Fails with this text of what was seen. The name of a [`Harm`] may be before it; without one, it is that of bad manners.
macro_rules! fail {
    ($harm:ident, $($seen:tt)+) => {
        Err($crate::Stop::Fail { seen: format!($($seen)+), harm: $crate::Harm::$harm })
    };
    ($($seen:tt)+) => { fail!(Manners, $($seen)+) };
}

/// Fails like `fail!`, unless the condition holds.
macro_rules! check {
    ($holds:expr, $($failure:tt)+) => { if $holds { Ok(()) } else { fail!($($failure)+) } };
}

/// Ends the case as not applicable with this text of why, unless the condition holds.
macro_rules! applies {
    ($holds:expr, $($why:tt)+) => {
        if $holds { Ok(()) } else { Err($crate::Stop::NotApplicable(format!($($why)+))) }
    };
}

mod cases;
mod client;
mod explore;
mod harm;
mod kernel;
pub mod known;
mod lab;
mod level;
mod link;
pub mod manners;
mod packets;
mod prelude;
mod process;
mod protocol;
mod recording;
mod server;
mod wire;

use std::time::Duration;

use netstacks::{StackConfig, StackCongestion, StackKind, Workarounds};
use platform::Program;
use serde::{Deserialize, Serialize};

pub(crate) use self::client::{Client, Offer, Out};
pub use self::explore::{Exploration, explore, invariants};
#[doc(hidden)]
pub mod fuzzing {
    //! For the fuzz targets alone.
    pub use crate::client::Offer;
    pub use crate::explore::{CLIENTS, Fault, Forged, Move, Opening, Script, perform_script};
    pub use crate::process::read_output;
}
pub use self::harm::Harm;
pub(crate) use self::lab::{LATE, Lab, SOON, patient};
pub use self::lab::{patience, run};
pub use self::level::Strength;
pub(crate) use self::link::AnyLink;
pub use self::link::{MTU, try_device};
pub use self::protocol::{Device, Ready, Task};
pub use self::recording::Recording;

/// A test of one behaviour of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub id: &'static str,
    /// The demand that it checks; see [`Strength`]. Cases of one demand have the same text.
    pub level: &'static str,
    /// The situation, in a few words.
    pub title: &'static str,
    /// The RFC and its section.
    pub rfc: &'static str,
    /// What the stack is expected to do.
    pub expects: &'static str,
    /// The subject under which tables list it.
    pub subject: &'static str,
    /// Whether it is over IPv6.
    pub ipv6: bool,
    /// Whether the link must offload; `None` if the case runs over either kind of link.
    pub offload: Option<bool>,
    /// The same case over IPv6: its name, level, title and RFC.
    twin: Option<[&'static str; 4]>,
    configure: fn(&mut StackConfig),
    run: fn(&mut Lab) -> Step,
}

impl Case {
    const fn new(id: &'static str, level: &'static str, rfc: &'static str, run: fn(&mut Lab) -> Step) -> Self {
        Self {
            id,
            level,
            title: "",
            rfc,
            expects: "",
            subject: "",
            ipv6: false,
            offload: None,
            twin: None,
            configure: |_| (),
            run,
        }
    }

    const fn about(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    const fn expects(self, expects: &'static str) -> Self {
        Self { expects, ..self }
    }

    const fn plain(self) -> Self {
        Self { offload: Some(false), ..self }
    }

    const fn offloading(self) -> Self {
        Self { offload: Some(true), ..self }
    }

    const fn ipv6(self) -> Self {
        Self { ipv6: true, ..self }
    }

    const fn with(self, configure: fn(&mut StackConfig)) -> Self {
        Self { configure, ..self }
    }

    const fn over_ipv6(self, id: &'static str, level: &'static str, title: &'static str, rfc: &'static str) -> Self {
        Self { twin: Some([id, level, title, rfc]), ..self }
    }

    /// Finds a case or an invariant of random play.
    pub fn find(id: &str) -> Option<Self> {
        Self::all().chain(invariants()).find(|case| case.id == id)
    }

    /// All cases, in the order of tables.
    pub fn all() -> impl Iterator<Item = Self> {
        let cases = cases::SUBJECTS.iter().flat_map(|(subject, cases)| cases.iter().map(move |case| (subject, *case)));
        cases.flat_map(|(subject, case)| {
            let case = Self { subject, ..case };
            let twin = case.twin.map(|[id, level, title, rfc]| Self { id, level, title, rfc, ipv6: true, ..case });
            [Some(case), twin].into_iter().flatten()
        })
    }
}

/// Where a case is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The stack alone, over a link in memory
    #[default]
    Stack,
    /// The stack behind a TUN device; the kernel forwards between it and the device of the client, or is the stack
    Path,
}

impl Layer {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::Path => "path",
        }
    }
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// The stack did what was expected.
    Pass,
    /// It did something else.
    Fail {
        /// What was seen.
        seen: String,
        /// How bad it is. Files of older versions have none.
        #[serde(default)]
        harm: Harm,
    },
    /// The case says nothing here.
    NotApplicable {
        /// Why.
        seen: String,
    },
    /// The stack's program did not start.
    Unavailable {
        /// Why.
        seen: String,
    },
}

impl Outcome {
    /// How bad a failure is.
    pub const fn harm(&self) -> Option<Harm> {
        match self {
            Self::Fail { harm, .. } => Some(*harm),
            _ => None,
        }
    }
}

/// The result of running a case.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its result.
    pub outcome: Outcome,
    /// The stack's version, if the stack started.
    pub version: Option<String>,
    /// The workarounds that were active; see [`netstacks::Effective`].
    pub workarounds: Vec<String>,
}

/// How to run a case.
#[derive(Clone, Debug)]
pub struct Run {
    /// The stack.
    pub stack: StackKind,
    /// The stack's program, if the stack runs in another process.
    pub program: Option<Program>,
    /// The link. A stack in another process and the kernel need [`Layer::Path`].
    pub layer: Layer,
    /// Instances of a stack in this process. All packets come over the link of the first, which passes on those of the others.
    /// On [`Layer::Path`] each has a queue of the device.
    pub shards: u16,
    /// Whether the link takes super-packets and partial checksums.
    pub offload: bool,
    /// The largest packet of the link, in bytes: 1280 or more for a case over IPv6.
    pub mtu: u16,
    /// What the adapter does in the stack's place.
    pub workarounds: Workarounds,
    /// Congestion control of smoltcp.
    pub congestion: StackCongestion,
    /// Gets the packets of the link.
    pub trace: Option<Recording>,
}

/// The result of a step of a case. An error ends the case.
type Step<T = ()> = Result<T, Stop>;

#[derive(Debug)]
pub(crate) enum Stop {
    Fail { seen: String, harm: Harm },
    NotApplicable(String),
    Unavailable(String),
}

impl Stop {
    fn with(self, harm: Harm) -> Self {
        match self {
            Self::Fail { seen, .. } => Self::Fail { seen, harm },
            other => other,
        }
    }

    /// The stack does not start, waits for ever, or has ended.
    fn hang(seen: impl Into<String>) -> Self {
        Self::Fail { seen: seen.into(), harm: Harm::Hang }
    }
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn same(got: &[u8], expected: &[u8]) -> Step {
    let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
    check!(got == expected, Data, "{} bytes came of {}, and byte {at} differs", got.len(), expected.len())
}

fn named<T>(step: Step<T>, name: impl FnOnce() -> String) -> Step<T> {
    step.map_err(|stop| match stop {
        Stop::Fail { seen, harm } => Stop::Fail { seen: format!("{}: {seen}", name()), harm },
        other => other,
    })
}

fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}

/// Returns pseudo-random bytes, so that a shift, loss or repetition is always found.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}
