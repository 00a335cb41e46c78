//! The properties in which cells differ, and those that they share.

use super::format::unique;
use super::model::{Column, Table};
use crate::cell::Cell;
use crate::cell::properties::{PROPERTIES, Property};
use crate::measure::CellSummary;

/// Whether all cells that have a property have the same value, or the usual one and none. A row among programs that is none needs its own name.
fn is_alike(property: &Property, cells: &[&Cell]) -> bool {
    let is_program = |cell: &&Cell| cell.program.is_some();
    let is_mixed = cells.iter().any(is_program) && !cells.iter().all(is_program);
    let tells_apart = is_mixed && matches!(property.option, "layer" | "netstack" | "program");
    let mut values = cells.iter().filter_map(|cell| property.value_or_usual(cell));
    let first = values.next();
    first.is_none() || !tells_apart && values.all(|value| Some(value) == first)
}

pub(super) fn differing(cells: &[&Cell]) -> Vec<&'static Property> {
    PROPERTIES.iter().filter(|property| !is_alike(property, cells)).collect()
}

/// Appends a column for each property in which the cells differ, but for some.
pub(super) fn push_differing(table: &mut Table, cells: &[&Cell], but_for: &[&str]) {
    for property in differing(cells).into_iter().filter(|property| !but_for.contains(&property.option)) {
        let column = Column::property(property.title, property.is_number);
        table.push(column, cells.iter().map(|cell| property.value(cell)));
    }
}

/// The properties that are equal for all cells that have them, as phrases.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) by_all: Vec<String>,
    /// Those that only some have: the kernel alone has no MTU.
    by_some: Vec<String>,
}

impl Shared {
    pub(super) fn of(cells: &[&Cell]) -> Self {
        let mut shared = Self::default();
        for property in PROPERTIES.iter().filter(|property| is_alike(property, cells)) {
            let phrases: Vec<_> = cells.iter().map(|cell| property.phrase(cell)).collect();
            // Cells with the same value may need other words: one stream, or one connection.
            let different = unique(phrases.iter().flatten().cloned());
            let is_by_all = different.len() == 1 && phrases.iter().all(Option::is_some);
            if is_by_all { &mut shared.by_all } else { &mut shared.by_some }.extend(different);
        }
        shared
    }

    pub(super) fn extend(&mut self, is_by_all: bool, words: impl IntoIterator<Item = String>) {
        if is_by_all { &mut self.by_all } else { &mut self.by_some }.extend(words);
    }

    pub(super) fn sentences(&self) -> String {
        let parts = [("In every run", &self.by_all), ("In every run that has it", &self.by_some)];
        let parts = parts.into_iter().filter(|(_, words)| !words.is_empty());
        parts.map(|(of, words)| format!("{of}: {}.", words.join(", "))).collect::<Vec<_>>().join(" ")
    }
}

pub(super) fn phrase<'a>(cell: &Cell, properties: impl IntoIterator<Item = &'a Property>) -> String {
    properties.into_iter().filter_map(|property| property.phrase(cell)).collect::<Vec<_>>().join(", ")
}

pub(super) fn cells<'a>(rows: impl IntoIterator<Item = &'a CellSummary>) -> Vec<&'a Cell> {
    rows.into_iter().map(|row| &row.cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::cell;

    #[test]
    fn a_property_that_is_set_in_some_cells_tells_them_apart() {
        let usual = "-n lwip -m rr --parallel 2";
        for name in ["rate", "queue", "client-threads", "pin", "delay", "request"] {
            let set = cell(&format!("{usual} --{name} {}", if name == "delay" { "2ms" } else { "2" }));
            let differing: Vec<_> = differing(&[&cell(usual), &set]).into_iter().map(Property::long).collect();
            assert_eq!(differing, [name]);
        }
    }

    /// gVisor's own congestion control has no name here, and smoltcp's usual one is "none".
    #[test]
    fn what_is_not_set_is_the_usual_value() {
        let [smoltcp, own, cubic] =
            ["-n smoltcp -m rr", "-n gvisor -m rr", "-n gvisor -m rr --stack-congestion cubic"].map(cell);
        let tells_apart = |cells: &[&Cell]| differing(cells).iter().any(|one| one.option == "stack_congestion");
        assert!(!tells_apart(&[&smoltcp, &own]));
        assert!(tells_apart(&[&own, &cubic]));
    }

    #[test]
    fn in_every_run_is_only_what_holds_for_all() {
        let [stack, kernel, requests] =
            ["-n lwip -m reader --offload off", "--layer loopback -m reader", "-n lwip -m rr"].map(cell);
        let words = Shared::of(&[&stack, &kernel]);
        assert!(words.by_all.contains(&"1 stream".to_owned()), "{}", words.sentences());
        assert_eq!(words.by_some[..2], ["lwip", "offload off"], "{}", words.sentences());
        assert!(Shared::of(&[&stack]).by_some.is_empty());
        let both = Shared::of(&[&stack, &requests]);
        assert!(["1 stream", "1 connection"].iter().all(|words| both.by_some.contains(&(*words).to_owned())));
    }
}
