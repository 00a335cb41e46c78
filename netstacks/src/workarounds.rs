//! The workarounds: what an adapter does in the place of its stack, because a figure would be worse by a tenth or more.
//! docs/workarounds.md says what each is worth.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::StackKind;

/// Declares the workarounds, each by its name, its stacks, and whether it is active only on a link that cuts super-packets.
macro_rules! workarounds {
    ($($(#[doc = $does:literal])+ $workaround:ident $name:literal: $($stack:ident)|+, only_with_offload: $offload:literal;)+) => {
        /// A workaround of an adapter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Workaround {
            $($(#[doc = $does])+ $workaround,)+
        }

        impl Workaround {
            /// All workarounds.
            pub const ALL: &[Self] = &[$(Self::$workaround),+];

            const fn row(self) -> (&'static str, &'static [StackKind], &'static str, bool) {
                match self {
                    $(Self::$workaround => ($name, &[$(StackKind::$stack),+], concat!($($does),+), $offload),)+
                }
            }
        }
    };
}

workarounds! {
    /// A task makes the turns of its stack itself if it has the only busy connection: a byte passes through no other task.
    TaskTurns "task-turns": Lwip | Smoltcp, only_with_offload: false;
    /// Several losses in a window, and a lost retransmission, are recovered without a timeout.
    PartialAck "partial-ack": Lwip | Smoltcp, only_with_offload: false;
    /// The loss of the last segments in flight, or of their only acknowledgement, is recovered without a timeout.
    TailLossProbe "tail-loss-probe": Lwip | Smoltcp, only_with_offload: false;
    /// Segments are several MSS long, and the congestion window begins with two of these.
    LargeSegments "large-segments": Lwip, only_with_offload: true;
    /// Data is acknowledged, and sent when the window opens, once for a batch of packets.
    OneAckABatch "one-ack-a-batch": Lwip, only_with_offload: false;
    /// Closed sockets that have carried few bytes are used again.
    SpareSockets "spare-sockets": Smoltcp, only_with_offload: false;
    /// Segments as large as a super-packet come from a larger MSS in the peer's SYN.
    MssRewrite "mss-rewrite": Smoltcp | TcpIp | NetstackSmoltcp, only_with_offload: true;
    /// ipstack gets no more bytes of a write than fit into a segment. It copies all of them for each.
    ShortWrites "short-writes": Ipstack, only_with_offload: false;
    /// ipstack has an MTU of a quarter of its window, so it sends super-packets.
    LargeMtu "large-mtu": Ipstack, only_with_offload: true;
    /// Segments that arrive are joined before gVisor sees them.
    JoinsArrivals "joins-arrivals": Gvisor, only_with_offload: true;
    /// Segments that leave wait in a queue, so that the device's package has some to join.
    JoinsDepartures "joins-departures": Gvisor, only_with_offload: true;
}

impl Workaround {
    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The stacks that have it.
    pub const fn stacks(self) -> &'static [StackKind] {
        self.row().1
    }

    /// Its effect, in a sentence.
    pub fn does(self) -> &'static str {
        self.row().2.trim()
    }

    /// The workarounds of a stack.
    pub fn of(stack: StackKind) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |workaround| workaround.stacks().contains(&stack))
    }

    const fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// Which workarounds are on: `all`, `none`, only some (`NAME,NAME`), or all but some (`-NAME,-NAME`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Workarounds {
    /// Whether those that are named are on, and the others off; else it is the other way round. Tables begin with all.
    only: bool,
    named: u16,
}

impl Workarounds {
    /// All workarounds.
    pub const ALL: Self = Self { only: false, named: 0 };
    /// None.
    pub const NONE: Self = Self { only: true, named: 0 };

    /// Whether a workaround is on.
    #[inline]
    pub const fn has(self, workaround: Workaround) -> bool {
        self.names(workaround) == self.only
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
        let is_active = |workaround: &Workaround| self.has(*workaround) && (cuts || !workaround.row().3);
        Workaround::of(stack).filter(is_active).map(|workaround| workaround.name().into()).collect()
    }

    /// Checks that a stack has the workarounds that are named.
    pub fn check(self, stack: StackKind) -> Result<(), String> {
        let Some(wrong) = self.named().find(|workaround| !workaround.stacks().contains(&stack)) else { return Ok(()) };
        let own: Vec<_> = Workaround::of(stack).map(Workaround::name).collect();
        let own = if own.is_empty() { "none".to_owned() } else { own.join(", ") };
        Err(format!("{stack} has no workaround {}; it has {own}", wrong.name()))
    }
}

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
            let unknown = || format!("there is no workaround {name:?}; docs/workarounds.md has the names");
            workarounds.named |= workaround.ok_or_else(unknown)?.bit();
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
    use super::*;

    /// One bit each.
    const _: () = assert!(Workaround::ALL.len() <= u16::BITS as usize);

    #[test]
    fn a_value_is_written_as_it_is_read() {
        let some = ["task-turns", "-task-turns", "task-turns,mss-rewrite", "-task-turns,-mss-rewrite"];
        for text in ["all", "none"].into_iter().chain(some) {
            assert_eq!(text.parse::<Workarounds>().unwrap().to_string(), text);
        }
        assert_eq!(
            "large-mtu,task-turns,large-mtu".parse::<Workarounds>().unwrap().to_string(),
            "task-turns,large-mtu"
        );
        for text in ["", "large-mtu,", "large-mtu,-task-turns", "all,large-mtu", "none,all", "-all", "large"] {
            assert!(text.parse::<Workarounds>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stack_names_its_own_workarounds() {
        let active = |text: &str, cuts| text.parse::<Workarounds>().unwrap().active(StackKind::Smoltcp, cuts);
        assert!(active("all", true).contains(&"mss-rewrite".into()));
        assert!(!active("all", false).contains(&"mss-rewrite".into()));
        assert_eq!(active("none", true), Vec::<String>::new());
        assert_eq!(active("spare-sockets,large-mtu", true), ["spare-sockets"]);
        assert_eq!(active("-spare-sockets", true).len() + 1, active("all", true).len());
        let refused = "large-mtu".parse::<Workarounds>().unwrap().check(StackKind::TcpIp);
        assert_eq!(refused.unwrap_err(), "tcp_ip has no workaround large-mtu; it has mss-rewrite");
        assert_eq!(Workarounds::NONE.check(StackKind::External), Ok(()));
        assert!(Workaround::of(StackKind::Kernel).next().is_none());
    }

    #[test]
    fn the_document_has_every_workaround() {
        let document = include_str!("../../docs/workarounds.md");
        for workaround in Workaround::ALL {
            let stacks: Vec<_> = workaround.stacks().iter().map(|stack| stack.name()).collect();
            let row = format!("| `{}` | {} | {} |", workaround.name(), stacks.join(", "), workaround.does());
            assert!(document.contains(&row), "docs/workarounds.md lacks {row}");
        }
    }
}
