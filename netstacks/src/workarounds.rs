//! The workarounds: what the adapters do in the place of a stack.
//!
//! A *workaround* changes what a stack does on the wire, or what it costs with connections. A *translation* is none: the
//! header of virtio, the state of a checksum, and cutting a super-packet. docs/workarounds.md is the same list as a table.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::StackKind;

/// When a workaround is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Always: a peer could end the stack without it, or the price of a switch is too high.
    Always,
    /// Unless it is switched off by its name: runs of some mode do not finish without it.
    Needed,
    /// Unless it is switched off.
    Chosen,
    /// The same, and only on a link that cuts super-packets.
    ChosenWithOffload,
}

/// Declares the workarounds, each by its name, its stacks, and when it is active.
macro_rules! workarounds {
    ($($(#[doc = $does:literal])+ $workaround:ident $name:literal: $($stack:ident)|+, $when:ident;)+) => {
        /// What an adapter does in the place of its stack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Workaround {
            $($(#[doc = $does])+ $workaround,)+
        }

        impl Workaround {
            /// All workarounds.
            ///
            /// ```
            /// use netstacks::{Workaround, StackKind};
            ///
            /// for workaround in Workaround::ALL.iter().filter(|workaround| workaround.stacks().contains(&StackKind::Smoltcp)) {
            ///     println!("{}: {}", workaround.name(), workaround.does());
            /// }
            /// assert!(Workaround::LateFin.is_switchable());
            /// ```
            pub const ALL: &[Self] = &[$(Self::$workaround),+];

            /// Its name on the command line and in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$workaround => $name,)+
                }
            }

            /// The stacks that have it.
            pub const fn stacks(self) -> &'static [StackKind] {
                match self {
                    $(Self::$workaround => &[$(StackKind::$stack),+],)+
                }
            }

            /// Its effect, in a sentence.
            pub fn does(self) -> &'static str {
                match self {
                    $(Self::$workaround => concat!($($does),+).trim(),)+
                }
            }

            const fn when(self) -> When {
                match self {
                    $(Self::$workaround => When::$when,)+
                }
            }
        }
    };
}

workarounds! {
    /// A task makes the turns of its stack itself if it has the only busy connection: a byte passes through no other task.
    TaskTurns "task-turns": Lwip | Smoltcp, Chosen;
    /// A duplicate acknowledgement with SACK blocks counts, although its window has changed.
    DuplicateAckWindow "duplicate-ack-window": Lwip | Smoltcp, Chosen;
    /// Several losses in a window, and a lost retransmission, are recovered without a timeout.
    PartialAck "partial-ack": Lwip | Smoltcp, Chosen;
    /// The loss of the last segments in flight, or of their only acknowledgement, is recovered without a timeout.
    TailLossProbe "tail-loss-probe": Lwip | Smoltcp, Chosen;
    /// A RST, a SYN and an acknowledgement that only an attacker or a restarted peer sends get a challenge ACK, or are
    /// dropped.
    ChallengeAck "challenge-ack": Lwip | Smoltcp, Chosen;
    /// Nagle's algorithm is off.
    NoNagle "no-nagle": Lwip | Smoltcp | Gvisor, Chosen;
    /// Connections are bounded: 65,536 in all, 4,096 half-open ones or as many as the backlog, and 64 in TIME-WAIT.
    BoundedConnections "bounded-connections": Lwip | Smoltcp, Always;
    /// Segments as large as a super-packet come from a larger MSS in the peer's SYN.
    MssRewrite "mss-rewrite": Smoltcp | TcpIp | NetstackSmoltcp, ChosenWithOffload;

    /// Segments are several MSS long, and the congestion window begins with two of these.
    LargeSegments "large-segments": Lwip, ChosenWithOffload;
    /// Data is acknowledged, and sent when the window opens, once for a batch of packets.
    OneAckABatch "one-ack-a-batch": Lwip, Chosen;
    /// A connection that waits for nothing has no timer.
    QuietTimers "quiet-timers": Lwip, Chosen;
    /// A pointer to the last segment in flight, instead of a walk through all of them for each that is sent.
    TailPointer "tail-pointer": Lwip, Chosen;
    /// The first timeout is 1 s instead of 3 s, and the shortest 0.3 s instead of 1.5 s.
    ShortTimeout "short-timeout": Lwip, Chosen;
    /// A SYN may reopen a connection in TIME-WAIT.
    TimeWaitSyn "time-wait-syn": Lwip, Chosen;
    /// A silent peer is probed, and its connection ends after the user timeout.
    UserTimeout "user-timeout": Lwip, Chosen;
    /// A map finds the connection of a packet, instead of a walk through all connections. It is compiled in.
    HashLookup "hash-lookup": Lwip, Always;
    /// One listener has all addresses and ports.
    ListensEverywhere "listens-everywhere": Lwip, Always;
    /// Segments out of order stay within the window, and cost a bounded number of steps. A peer could end lwIP without it.
    BoundedReordering "bounded-reordering": Lwip, Always;
    /// New bytes are never appended to a segment that waits for its retransmission: the peer would get wrong bytes.
    SeparateRetransmissions "separate-retransmissions": Lwip, Always;
    /// The MSS of a peer counts as 48 bytes at least. A smaller one could end lwIP.
    LeastMss "least-mss": Lwip, Always;
    /// Small received pieces are joined, because each would hold a buffer.
    JoinedPieces "joined-pieces": Lwip, Always;
    /// Initial sequence numbers are hashes (RFC 6528), not a counter. It is an option of lwIP, and compiled in.
    HashedNumbers "hashed-numbers": Lwip, Always;
    /// A closed connection delivers its unsent bytes, however long that takes.
    PatientClose "patient-close": Lwip, Always;

    /// A half-open connection has no socket, and so takes no buffers.
    SynQueue "syn-queue": Smoltcp, Chosen;
    /// An acknowledgement does not wait for 10 ms.
    NoAckDelay "no-ack-delay": Smoltcp, Chosen;
    /// After the peer's FIN, our FIN waits until all bytes are acknowledged. In LAST-ACK smoltcp ignores an ACK that only opens
    /// the window.
    LateFin "late-fin": Smoltcp, Chosen;
    /// Dropping a stream with unread bytes sends a RST.
    ResetUnread "reset-unread": Smoltcp, Chosen;
    /// A large write is cut to whole segments, so there are no small ones in between.
    WholeSegments "whole-segments": Smoltcp, Chosen;
    /// Closed sockets that have carried few bytes are used again.
    SpareSockets "spare-sockets": Smoltcp, Chosen;
    /// Each connection has its own set of sockets, because smoltcp offers each packet to all sockets of a set. For smoltcp
    /// with one set, measure netstack-smoltcp.
    OwnSocketSet "own-socket-set": Smoltcp, Always;
    /// Buffers are mapped memory, which takes no pages before it is used, and none after a second without bytes.
    MappedRings "mapped-rings": Smoltcp, Always;
    /// A closed connection is reset if its peer makes no progress for a minute.
    OrphanTimeout "orphan-timeout": Smoltcp, Always;

    /// ipstack gets no more bytes of a write than fit into a segment. It copies all of them for each.
    ShortWrites "short-writes": Ipstack, Chosen;
    /// ipstack has an MTU of a quarter of its window, so it sends super-packets.
    LargeMtu "large-mtu": Ipstack, ChosenWithOffload;

    /// A task does the handshakes. The crate does them only while the program waits in `accept`.
    AcceptsInATask "accepts-in-a-task": TcpIp, Always;

    /// A `shutdown` returns when the FIN is queued. Otherwise it waits until both sides have closed and TIME-WAIT is over.
    DoesNotWaitForClose "does-not-wait-for-close": NetstackSmoltcp, Needed;

    /// Segments that arrive are joined before gVisor sees them.
    JoinsArrivals "joins-arrivals": Gvisor, ChosenWithOffload;
    /// Segments that leave wait in a queue, so that the device's package has some to join.
    JoinsDepartures "joins-departures": Gvisor, ChosenWithOffload;

    /// Connections are accepted between packets: the crate's queue of connections has no lock.
    AcceptsBetweenPackets "accepts-between-packets": LwipPublished, Always;
    /// A packet is dropped if lwIP has no memory for it. Otherwise the task that passes packets in stops for ever.
    DropsWithoutMemory "drops-without-memory": LwipPublished, Always;
    /// The end of a stream is kept: a read that gets data and the FIN behind it reports only the data.
    KeepsEnd "keeps-end": LwipPublished, Always;
    /// Connections and timers end with the stack. The next stack in the process would inherit them.
    EndsConnections "ends-connections": LwipPublished, Always;
}

impl Workaround {
    /// Whether it can be switched off.
    pub const fn is_switchable(self) -> bool {
        !matches!(self.when(), When::Always)
    }

    const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// Which workarounds are on: all, none, only some, or all but some.
///
/// ```
/// use netstacks::{Workaround, Workarounds};
///
/// let some: Workarounds = "late-fin,mss-rewrite".parse()?;
/// assert!(some.has(Workaround::LateFin) && !some.has(Workaround::SynQueue));
/// let others: Workarounds = "-late-fin".parse()?;
/// assert!(!others.has(Workaround::LateFin) && others.has(Workaround::SynQueue));
/// // This one cannot be switched off.
/// assert!(Workarounds::NONE.has(Workaround::OwnSocketSet));
/// # Ok::<_, String>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Workarounds {
    /// Whether those that are named are on, and the others off; else it is the other way round. Tables begin with all.
    only: bool,
    named: u64,
}

impl Workarounds {
    /// All workarounds.
    pub const ALL: Self = Self { only: false, named: 0 };
    /// None but those that are needed, or cannot be switched off.
    pub const NONE: Self = Self { only: true, named: 0 };

    /// All workarounds but this one.
    pub const fn all_but(workaround: Workaround) -> Self {
        Self { only: false, named: workaround.bit() }
    }

    /// Whether a workaround is on.
    #[inline]
    pub const fn has(self, workaround: Workaround) -> bool {
        match workaround.when() {
            When::Always => true,
            When::Needed => self.only || !self.names(workaround),
            When::Chosen | When::ChosenWithOffload => self.names(workaround) == self.only,
        }
    }

    const fn names(self, workaround: Workaround) -> bool {
        self.named & workaround.bit() != 0
    }

    /// The workarounds that are named, to be on or off.
    pub fn named(self) -> impl Iterator<Item = Workaround> {
        Workaround::ALL.iter().copied().filter(move |workaround| self.names(*workaround))
    }

    /// The names of the active workarounds of a stack, on a link that cuts super-packets or does not.
    pub fn active(self, stack: StackKind, cuts: bool) -> Vec<Cow<'static, str>> {
        let is_active =
            |workaround: &&Workaround| self.has(**workaround) && (cuts || workaround.when() != When::ChosenWithOffload);
        of(stack).filter(is_active).map(|workaround| workaround.name().into()).collect()
    }

    /// The workarounds of a stack that can be switched off.
    pub fn switchable(stack: StackKind) -> impl Iterator<Item = Workaround> {
        of(stack).copied().filter(|workaround| workaround.is_switchable())
    }

    /// Checks that a stack has the workarounds that are named.
    ///
    /// # Errors
    ///
    /// Names a workaround that the stack does not have, and those that it has.
    pub fn check(self, stack: StackKind) -> Result<(), String> {
        let is_wrong = |workaround: &&Workaround| self.names(**workaround) && !workaround.stacks().contains(&stack);
        let Some(wrong) = Workaround::ALL.iter().find(is_wrong) else { return Ok(()) };
        let own: Vec<_> = Self::switchable(stack).map(Workaround::name).collect();
        let own = if own.is_empty() { "none that can be switched off".to_owned() } else { own.join(", ") };
        Err(format!("{stack} has no workaround {}; it has {own}", wrong.name()))
    }
}

/// Whether a stack has workarounds that `none` switches off. For a stack without them, `all` and `none` are the same run.
pub fn has_switchable(stack: StackKind) -> bool {
    Workarounds::ALL.active(stack, true) != Workarounds::NONE.active(stack, true)
}

/// The workarounds of a stack.
fn of(stack: StackKind) -> impl Iterator<Item = &'static Workaround> {
    Workaround::ALL.iter().filter(move |workaround| workaround.stacks().contains(&stack))
}

/// `all`, `none`, `NAME,NAME` for these alone, or `-NAME,-NAME` for all others.
impl fmt::Display for Workarounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.named == 0 {
            return f.pad(if self.only { "none" } else { "all" });
        }
        let sign = if self.only { "" } else { "-" };
        let words = self.named().map(|workaround| sign.to_owned() + workaround.name());
        f.pad(&words.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Workarounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let only = !text.starts_with('-');
        let mut workarounds = Self { only, named: 0 };
        for word in text.split(',') {
            let name = if only { Some(word) } else { word.strip_prefix('-') };
            let Some(name) = name.filter(|name| !matches!(*name, "all" | "none") && !name.starts_with('-')) else {
                return Err("write all, none, the names of workarounds, or -NAME for all but these".to_owned());
            };
            let workaround = Workaround::ALL.iter().find(|workaround| workaround.name() == name);
            let workaround = workaround
                .ok_or_else(|| format!("there is no workaround {name:?}; docs/workarounds.md has the names"))?;
            if !workaround.is_switchable() {
                return Err(format!("{name} cannot be switched off; docs/workarounds.md says why"));
            }
            workarounds.named |= workaround.bit();
        }
        Ok(workarounds)
    }
}

impl TryFrom<String> for Workarounds {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Workarounds> for String {
    fn from(workarounds: Workarounds) -> Self {
        workarounds.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    /// One bit each.
    const _: () = assert!(Workaround::ALL.len() <= u64::BITS as usize);

    #[test]
    fn a_value_is_written_as_it_is_read() {
        for text in ["all", "none", "late-fin", "-late-fin", "mss-rewrite,late-fin", "-mss-rewrite,-late-fin"] {
            assert_eq!(text.parse::<Workarounds>().unwrap().to_string(), text);
        }
        assert_eq!("late-fin,mss-rewrite,late-fin".parse::<Workarounds>().unwrap().to_string(), "mss-rewrite,late-fin");
        for text in ["", "late-fin,", "late-fin,-no-nagle", "all,late-fin", "none,all", "-all", "late", "hash-lookup"] {
            assert!(text.parse::<Workarounds>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stack_names_its_own_repairs() {
        let active = |text: &str, cuts| text.parse::<Workarounds>().unwrap().active(StackKind::Smoltcp, cuts);
        assert!(active("all", true).contains(&"mss-rewrite".into()));
        assert!(!active("all", false).contains(&"mss-rewrite".into()));
        let own = ["bounded-connections", "own-socket-set", "mapped-rings", "orphan-timeout"];
        assert_eq!(active("none", true), own);
        assert_eq!(active("late-fin", true)[1..], ["late-fin", "own-socket-set", "mapped-rings", "orphan-timeout"]);
        let waits = |text: &str| !text.parse::<Workarounds>().unwrap().has(Workaround::DoesNotWaitForClose);
        assert!(!waits("none") && !waits("late-fin") && !waits("-late-fin") && waits("-does-not-wait-for-close"));
        assert_eq!(active("-late-fin", true).len() + 1, active("all", true).len());
        let refused = "quiet-timers".parse::<Workarounds>().unwrap().check(StackKind::TcpIp);
        assert_eq!(refused.unwrap_err(), "tcp_ip has no workaround quiet-timers; it has mss-rewrite");
        assert_eq!(Workarounds::NONE.check(StackKind::External), Ok(()));
    }

    #[test]
    fn some_stacks_have_no_repairs_to_switch_off() {
        for (stack, has_some) in [(StackKind::TcpIp, true), (StackKind::Kernel, false), (StackKind::External, false)] {
            assert_eq!(has_switchable(stack), has_some, "{stack}");
        }
    }

    /// docs/workarounds.md has the table of this file.
    #[test]
    fn the_document_has_every_repair() {
        let row = |workaround: &Workaround| {
            let stacks: Vec<_> = workaround.stacks().iter().map(|stack| stack.name()).collect();
            let off = match workaround.when() {
                When::Always => "no",
                When::Needed => "by its name",
                When::Chosen => "yes",
                When::ChosenWithOffload => "yes; only with offload",
            };
            format!("| `{}` | {} | {} | {off} |", workaround.name(), stacks.join(", "), workaround.does())
        };
        let table = Workaround::ALL.iter().map(row).collect::<Vec<_>>().join("\n");
        assert!(include_str!("../../docs/workarounds.md").contains(&table), "docs/workarounds.md lacks:\n{table}");
    }
}
