//! Checks whether a TCP/IP stack does what the RFCs ask. A [`Case`] is a script: it plays the peer of the stack, packet
//! by packet, and the application above the stack.
//!
//! A case runs over a link in memory, or between two real TUN devices whose packets the kernel forwards. It ends with
//! an [`Outcome`]: pass, fail with what was seen, or not applicable. [`known`] has the failures that are expected of
//! each stack, with their reasons.

mod cases;
mod client;
mod explore;
mod harm;
mod kernel;
pub mod known;
mod lab;
mod link;
mod packets;
mod process;
mod protocol;
mod recording;
mod server;
mod wire;

use netstacks::{StackKind, Workarounds};
use platform::Program;
use serde::{Deserialize, Serialize};

pub(crate) use self::client::{Client, Offer, Out};
pub use self::explore::{Exploration, explore, invariants};
pub use self::harm::Harm;
pub(crate) use self::lab::{LATE, Lab, SOON, Setup, patient};
pub use self::lab::{patience, run};
pub(crate) use self::link::AnyLink;
pub use self::link::{MTU, try_device};
#[doc(hidden)]
pub use self::process::read_output;
pub use self::protocol::{Device, Ready, Task};
pub use self::recording::Recording;
pub(crate) use self::server::{Served, Then};

/// A test of one behaviour of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub id: &'static str,
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
    links: Links,
    run: fn(&Setup) -> Step,
}

/// The links that a case can be run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    Any,
    Plain,
    Offloading,
}

impl Case {
    const fn new(id: &'static str, run: fn(&Setup) -> Step) -> Self {
        Self { id, title: "", rfc: "", expects: "", subject: "", links: Links::Any, ipv6: false, run }
    }

    /// Describes the case: the situation, the RFC and its section, and the expected behaviour.
    const fn about(self, title: &'static str, rfc: &'static str, expects: &'static str) -> Self {
        Self { title, rfc, expects, ..self }
    }

    /// Restricts the case to links without offload.
    const fn plain(self) -> Self {
        Self { links: Links::Plain, ..self }
    }

    /// Restricts the case to links with offload.
    const fn offloading(self) -> Self {
        Self { links: Links::Offloading, ..self }
    }

    const fn ipv6(self) -> Self {
        Self { ipv6: true, ..self }
    }

    /// All cases, in the order of tables.
    pub fn all() -> impl Iterator<Item = Self> {
        cases::SUBJECTS.iter().flat_map(|(subject, cases)| cases.iter().map(|case| Self { subject, ..*case }))
    }

    /// Returns whether the link must offload; `None` if the case runs over either kind of link.
    pub fn offload(&self) -> Option<bool> {
        match self.links {
            Links::Any => None,
            Links::Plain => Some(false),
            Links::Offloading => Some(true),
        }
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
#[serde(tag = "outcome", content = "seen", rename_all = "kebab-case")]
pub enum Outcome {
    /// The stack did what was expected.
    Pass,
    /// It did something else: what was seen.
    Fail(String),
    /// The case says nothing here, and why.
    NotApplicable(String),
    /// The stack's program did not start, and why.
    Unavailable(String),
}

/// The result of running a case.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its result.
    pub outcome: Outcome,
    /// The stack's version, if the stack started.
    pub version: Option<String>,
    /// The repairs that were active; see [`netstacks::Effective`].
    pub repairs: Vec<String>,
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
    pub repairs: Workarounds,
    /// Gets the packets of the link.
    pub trace: Option<Recording>,
}

/// The result of a step of a case. An error ends the case.
type Step<T = ()> = Result<T, Stop>;

/// Why a case ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    Fail(String),
    NotApplicable(String),
    Unavailable(String),
}

impl Stop {
    fn fail(seen: impl Into<String>) -> Self {
        Self::Fail(seen.into())
    }
}

/// Fails with the text of `seen`, unless `ok`.
fn check(ok: bool, seen: impl FnOnce() -> String) -> Step {
    if ok { Ok(()) } else { Err(Stop::Fail(seen())) }
}

/// Ends the case as not applicable with the text of `why`, unless `ok`.
fn applies(ok: bool, why: impl FnOnce() -> String) -> Step {
    if ok { Ok(()) } else { Err(Stop::NotApplicable(why())) }
}

/// Fails unless the bytes are the expected ones.
fn same(got: &[u8], expected: &[u8]) -> Step {
    check(got == expected, || {
        let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
        format!("{} bytes came of {}, and byte {at} differs", got.len(), expected.len())
    })
}

/// Returns how far the sequence number `to` is ahead of `from`.
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
