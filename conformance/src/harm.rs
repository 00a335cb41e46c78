//! How bad a failure is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The harm that a failure does to users of the stack, the worst first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Harm {
    /// Bytes are lost, wrong or forged, and nobody is told.
    Data,
    /// A connection or the stack hangs, or a connection does not open.
    Hang,
    /// It takes longer or more packets than it has to.
    Speed,
    /// Anything else that the RFC asks.
    #[default]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    #[test]
    fn a_failure_of_an_older_file_has_bad_manners() {
        let read = |line: &str| serde_json::from_str::<Outcome>(line).unwrap();
        let seen = "silence".to_owned();
        assert_eq!(read(r#"{"outcome":"fail","seen":"silence"}"#), Outcome::Fail { seen, harm: Harm::Manners });
        let hang = r#"{"outcome":"fail","seen":"silence","harm":"hang"}"#;
        assert_eq!(read(hang).harm(), Some(Harm::Hang));
        assert_eq!(serde_json::to_string(&read(hang)).unwrap(), hang);
    }
}
