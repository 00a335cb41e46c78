//! The cases, by subject.

mod congestion;
mod datagrams;
mod ends;
mod handshake;
mod hostile;
mod icmp;
mod internet;
mod loss;
mod many;
mod options;
mod sack;
mod segments;
mod windows;

use crate::Case;

/// The subjects and their cases, in the order of tables.
pub(crate) const SUBJECTS: &[(&str, &[Case])] = &[
    ("handshake", handshake::CASES),
    ("ends", ends::CASES),
    ("ends", ends::window_zero::CASES),
    ("windows", windows::CASES),
    ("windows", windows::receiver::CASES),
    ("windows", windows::sender::CASES),
    ("loss", loss::CASES),
    ("loss", sack::CASES),
    ("congestion", congestion::CASES),
    ("congestion", congestion::timer::CASES),
    ("congestion", congestion::ecn::CASES),
    ("options", options::stamps::CASES),
    ("options", options::CASES),
    ("segments", segments::CASES),
    ("segments", segments::unusual::CASES),
    ("segments", segments::forged::CASES),
    ("segments", segments::wrapped::CASES),
    ("internet", internet::CASES),
    ("internet", internet::fragments::CASES),
    ("icmp", icmp::CASES),
    ("icmp", icmp::replies::CASES),
    ("datagrams", datagrams::CASES),
    ("datagrams", datagrams::unusual::CASES),
    ("datagrams", datagrams::super_packets::CASES),
    ("many", many::CASES),
    ("hostile", hostile::syns::CASES),
    ("hostile", hostile::reuse::CASES),
    ("hostile", hostile::guesses::CASES),
    ("hostile", hostile::received::CASES),
    ("hostile", hostile::acknowledged::CASES),
    ("hostile", hostile::crowds::CASES),
    ("hostile", hostile::nonsense::CASES),
];
