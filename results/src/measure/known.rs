//! Rows that fail in the data of the documents, too. A matrix in which these alone fail has done its work.

use netstacks::Workarounds;

use crate::cell::{Cell, Mode};
use crate::sample::{Sample, Status};

type Rule = (&'static [&'static str], fn(&Cell) -> bool, &'static str);

/// The subjects, their work, and the words for it. docs/data has runs of each.
const KNOWN: [Rule; 6] = [
    (&["tcp_ip", "netstack-smoltcp", "gvisor"], |cell| cell.mode == Some(Mode::Crr), "with new connections"),
    (&["tcp_ip"], |cell| cell.impairments.loss_ppm > 0, "at a loss"),
    (&["ipstack", "lwip", "smoltcp"], |cell| cell.impairments.loss_ppm >= 10_000, "at 1 % loss"),
    (&["ipstack"], |cell| cell.mode == Some(Mode::Reader) && cell.workarounds == Workarounds::NONE, "as published"),
    (&["tun2proxy"], |cell| cell.max_flows.is_none() && cell.parallel.get() > 1, "with its limit of 200 connections"),
    (&["gotatun"], |cell| cell.mtu == Some(65_520), "at an MTU of 65520"),
];

/// Under which conditions a row is known to fail as this run did; `None` if its failure is news, and of a run that did not fail.
pub fn known_to_fail(sample: &Sample) -> Option<&'static str> {
    let hangs = matches!(sample.measured.status, Status::Stalled | Status::Timeout | Status::GivenUp);
    let cell = &sample.cell;
    let name = cell.program().map(|program| program.to_string()).or_else(|| Some(cell.stack()?.to_string()))?;
    let is_its = |(names, is_work, _): &&Rule| names.contains(&name.as_str()) && is_work(cell);
    KNOWN.iter().find(is_its).filter(|_| hangs).map(|(.., words)| *words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::{cell, failed, run};

    #[test]
    fn a_row_that_is_known_to_fail_is_no_news_and_its_other_failures_are() {
        let of = |words: &str, status| known_to_fail(&failed(&cell(words), status));
        assert_eq!(of("-n tcp_ip -m crr", Status::Stalled), Some("with new connections"));
        assert_eq!(of("-n lwip -m reader --loss 1 --offload off", Status::Timeout), Some("at 1 % loss"));
        assert_eq!(of("-n lwip -m reader --loss 0.1 --offload off", Status::Timeout), None);
        assert_eq!(of("-n tcp_ip -m crr", Status::DeviceLost), None);
        assert_eq!(of("-n tcp_ip -m rr", Status::Stalled), None);
        assert_eq!(known_to_fail(&run("-n tcp_ip -m crr", 1.0)), None);
    }
}
