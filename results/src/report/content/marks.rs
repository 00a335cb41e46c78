//! The mark of each subject.

use forwarders::Offload;
use netstacks::{StackKind, Workarounds};

use super::published;
use crate::cell::{Cell, Forwarder, ForwarderName};
use crate::measure::CellSummary;
use crate::report::format::{self, Stack};
use crate::report::model::{Mark, Sign};

pub(super) const KERNEL: &str = "kernel";

pub(super) fn mark(cell: &Cell) -> Mark {
    match (cell.forwarder(), cell.stack(), cell.program()) {
        (Some(Forwarder { program: ForwarderName::Rust, config }), ..) => Mark::filled(match config.offload {
            Offload::Off => Sign::Circle,
            Offload::On => Sign::Triangle,
            Offload::Whole => Sign::Square,
        }),
        (None, Some(stack), _) => mark_of((stack, cell.workarounds)),
        (None, None, Some(program)) => mark_of_program(program.as_str()),
        (Some(_), ..) | (None, None, None) => {
            cell.device.as_deref().map_or(Mark::filled(Sign::Diamond), mark_of_program)
        }
    }
}

pub(super) fn mark_of((stack, workarounds): Stack) -> Mark {
    let sign = match stack {
        StackKind::Lwip => Sign::Circle,
        StackKind::Ipstack => Sign::Triangle,
        StackKind::Smoltcp => Sign::Square,
        StackKind::TcpIp => Sign::Cross,
        StackKind::NetstackSmoltcp => Sign::Nabla,
        StackKind::LwipPublished => Sign::Left,
        StackKind::Gvisor => Sign::Right,
        StackKind::External => Sign::Bar,
        StackKind::Kernel => Sign::Diamond,
    };
    Mark { sign, is_open: workarounds != Workarounds::ALL }
}

/// The marks of the main programs with a profile of ours that are not a stack. A relative has the same shape, open.
const PROGRAMS: [(&str, Mark); 17] = [
    (KERNEL, Mark::filled(Sign::Diamond)),
    ("socks5", Mark::filled(Sign::Pillar)),
    ("tun2proxy", Mark::filled(Sign::Star)),
    ("hev-socks5-tunnel", Mark::open(Sign::Star)),
    ("xray", Mark::open(Sign::Pillar)),
    ("sing-box-gvisor", Mark::filled(Sign::Saltire)),
    ("sing-box-gvisor-direct", Mark::open(Sign::Saltire)),
    ("sing-box-system", Mark::filled(Sign::Hexagon)),
    ("sing-box-system-direct", Mark::open(Sign::Hexagon)),
    ("wireguard-go", Mark::filled(Sign::Pentagon)),
    ("wireguard-kernel", Mark::open(Sign::Pentagon)),
    ("boringtun", Mark::filled(Sign::Hourglass)),
    ("gotatun", Mark::open(Sign::Hourglass)),
    ("nebula", Mark::open(Sign::Chevron)),
    ("slirp4netns", Mark::filled(Sign::Bow)),
    ("gvisor-tap-vsock", Mark::open(Sign::Bow)),
    ("pasta", Mark::filled(Sign::Chevron)),
];

/// The mark of a program. One that is not among those has an open shape that none of those has, by its name.
pub(super) fn mark_of_program(name: &str) -> Mark {
    let of_ours = PROGRAMS.iter().find(|(program, _)| *program == name).map(|(_, mark)| *mark);
    let of_stack = || StackKind::ALL.into_iter().find(|stack| stack.name() == name);
    let of_ours = of_ours.or_else(|| Some(mark_of((of_stack()?, Workarounds::ALL))));
    let free =
        || Sign::ALL.iter().copied().map(Mark::open).filter(|mark| PROGRAMS.iter().all(|(_, other)| other != mark));
    let number = name.bytes().fold(0, |sum, byte| sum + usize::from(byte));
    let by_name = || free().cycle().nth(number % free().count().max(1));
    of_ours.or_else(by_name).unwrap_or(Mark::open(Sign::Bar))
}

/// The mark of a row, and what it means. Two programs without a mark of their own may have one.
pub(super) fn named_mark(row: &CellSummary) -> (Mark, String) {
    let cell = &row.cell;
    let kind = match (cell.forwarder(), cell.stack(), cell.program()) {
        (Some(forwarder), ..) => published::kind(forwarder).to_owned(),
        (None, Some(stack), _) => format::name_of((stack, cell.workarounds)),
        (None, None, Some(program)) => program.to_string(),
        (None, None, None) => cell.device.clone().unwrap_or_else(|| KERNEL.to_owned()),
    };
    (mark(cell), kind)
}

pub(super) fn legend(rows: &[&CellSummary]) -> Vec<(Mark, String)> {
    format::unique(rows.iter().map(|row| named_mark(row)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program;

    #[test]
    fn each_subject_has_a_mark_of_its_own() {
        let has_own = |name: &&str| {
            PROGRAMS.iter().any(|(known, _)| known == name) || StackKind::ALL.iter().any(|stack| stack.name() == *name)
        };
        let (programs, others): (Vec<_>, Vec<_>) = program::names().partition(has_own);
        let programs: Vec<_> = programs.into_iter().map(|name| (name, mark_of_program(name))).collect();
        let as_it_is = StackKind::ALL.map(|stack| (stack.name(), mark_of((stack, Workarounds::NONE))));
        for (index, (name, mark)) in programs.iter().enumerate() {
            for (other, its) in &programs[..index] {
                assert!(mark != its || name == other, "{name} and {other}");
            }
            assert!(as_it_is.iter().all(|(_, its)| its != mark), "{name}");
        }
        for other in others.into_iter().chain(["/home/me/mine.toml"]) {
            let own = mark_of_program(other);
            assert!(own.is_open && programs.iter().all(|(_, mark)| *mark != own), "{other}");
        }
    }
}
