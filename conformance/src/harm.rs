//! How bad a failure is.

use std::fmt;

use crate::Outcome;
use crate::known::without_numbers;

/// The harm that a failure does to users of the stack, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Bytes are lost, wrong or forged, and nobody is told.
    Data,
    /// A connection or the stack hangs, or a connection does not open.
    Hang,
    /// It takes longer or more packets than it has to.
    Speed,
    /// Anything else that the RFC asks.
    Manners,
}

impl Harm {
    /// All, the worst first.
    pub const ALL: [Self; 4] = [Self::Data, Self::Hang, Self::Speed, Self::Manners];
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data lost or wrong",
            Self::Hang => "hangs",
            Self::Speed => "slow",
            Self::Manners => "manners",
        })
    }
}

/// Texts of failures, without numbers. The first harm that has one of them is the failure's.
const SIGNS: [(Harm, &[&str]); 4] = [
    (
        Harm::Data,
        &[
            "bytes came of #",
            "stream ended",
            "delivered",
            "received",
            "did not arrive",
            "the server read",
            "that was never sent",
            "acknowledged than was sent",
            "an ACK of data that nobody can read",
            "a RST came",
            "the addresses",
            "the stream is from",
        ],
    ),
    (Harm::Manners, &["no RST", "no challenge ACK"]),
    (
        Harm::Speed,
        &[
            "within #ms",
            "within # ms",
            "no new byte came",
            "took",
            "packets came for",
            "segments came for",
            "its window by",
        ],
    ),
    (
        Harm::Hang,
        &[
            "in vain",
            "waits",
            "bytes came",
            "bytes were read",
            "within #s",
            "within #.#s",
            "no connection",
            "were accepted",
            "did not end",
            "panicked",
            "has ended",
            "to a peer that does not answer",
        ],
    ),
];

impl Outcome {
    /// How bad it is: what was seen tells it. `None` if it is no failure.
    pub fn harm(&self) -> Option<Harm> {
        let Self::Fail(seen) = self else { return None };
        let text = without_numbers(seen);
        // After the semicolon are packets that came in place of the expected one.
        let text = text.split(';').next().unwrap_or_default();
        let has_sign = |(_, signs): &&(Harm, &[&str])| signs.iter().any(|sign| text.contains(sign));
        Some(SIGNS.iter().find(has_sign).map_or(Harm::Manners, |(harm, _)| *harm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_tells_how_bad_it_is() {
        for (seen, harm) in [
            ("1040 bytes came of 4000, and byte 0 differs", Harm::Data),
            ("the stream ended after 0 of 4 bytes", Harm::Data),
            ("length 8 of 16: it was received", Harm::Data),
            ("a datagram of 0 bytes did not arrive", Harm::Data),
            ("it did not end within 40s", Harm::Hang),
            ("after 1200 SYNs: no SYN+ACK within 1s; nothing came", Harm::Hang),
            ("no SYN+ACK within 3.5s; nothing came", Harm::Hang),
            ("2920 of 29780 bytes came within 5s; it sent RST (seq 1, ack 1, window 0)", Harm::Hang),
            ("on the open connection: a read waited 2s in vain", Harm::Hang),
            ("the listener returned no connection", Harm::Hang),
            ("no probe within 150ms; nothing came", Harm::Speed),
            ("the missing segment did not come within 100 ms", Harm::Speed),
            ("no new byte came for 889.29ms", Harm::Speed),
            ("28000 packets came for 30000 bytes", Harm::Speed),
            ("no RST within 1s; it sent FIN+ACK (seq 1, ack 18, window 65535)", Harm::Manners),
            ("no challenge ACK within 1s; nothing came", Harm::Manners),
            ("the MSS is 1440", Harm::Manners),
        ] {
            assert_eq!(Outcome::Fail(seen.to_owned()).harm(), Some(harm), "{seen}");
        }
        assert_eq!(Outcome::Pass.harm(), None);
    }
}
