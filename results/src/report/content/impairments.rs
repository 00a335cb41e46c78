//! Goodput under the impairments of the link: delay, loss and so on.

use std::collections::BTreeSet;

use super::charts;
use crate::cell::properties::PROPERTIES;
use crate::cell::{Cell, Impairments, Mode};
use crate::measure::CellSummary;
use crate::report::axis;
use crate::report::format;
use crate::report::model::{Block, Column, Table};
use crate::report::series::{Kind, Series};

const KEY: &str = "Median Gbps under each impairment of the link: more is better. On a page, a value has the more colour, \
    the nearer it is to the best of its column.";

pub(super) fn blocks(one: &Series) -> Vec<Block> {
    if one.kind() != Kind::Streams {
        return Vec::new();
    }
    let mut rows = one.main_rows();
    rows.retain(|row| row.cell.subject().has_link());
    let modes: BTreeSet<Mode> = rows.iter().filter_map(|row| row.cell.mode).collect();
    let tables = modes.into_iter().filter_map(|mode| {
        let rows: Vec<_> = rows.iter().copied().filter(|row| row.cell.mode == Some(mode)).collect();
        let mut table = table(&rows)?;
        table.name = format!("Goodput of {mode} of {}", one.label);
        Some([Block::Text(format!("Mode {mode}:")), Block::Table(table)])
    });
    let mut blocks: Vec<_> = tables.flatten().collect();
    if !blocks.is_empty() {
        blocks.insert(0, Block::Text(KEY.to_owned()));
    }
    blocks
}

/// The rows of a mode: a column for each setting of the link. Rows with only one setting are left out; `None` if all are.
fn table(rows: &[&CellSummary]) -> Option<Table> {
    let without = |cell: &Cell| Cell { impairments: Impairments::default(), ..cell.clone() };
    let mut places: Vec<Cell> = Vec::new();
    let mut all: BTreeSet<Impairments> = BTreeSet::new();
    for row in rows {
        let place = without(&row.cell);
        let alike = rows.iter().filter(|other| without(&other.cell) == place);
        if alike.count() > 1 {
            all.insert(row.cell.impairments);
            places.extend(Some(place).filter(|place| !places.contains(place)));
        }
    }
    let cells: Vec<_> = places.iter().collect();
    let mut table = Table::new("");
    table.push(Column::new("subject", false), cells.iter().map(|cell| charts::name(cell)));
    // The name of a subject includes its layer and its stack.
    axis::push_differing(&mut table, &cells, &["layer", "netstack"]);
    for impairments in &all {
        let column = cells.iter().map(|cell| {
            let cell = Cell { impairments: *impairments, ..(*cell).clone() };
            rows.iter().find(|row| row.cell == cell)
        });
        let column: Vec<_> = column.collect();
        let medians = column.iter().map(|row| row.and_then(|row| row.ranked()).unwrap_or_default());
        let best = medians.clone().fold(f64::MIN_POSITIVE, f64::max);
        let of_link = PROPERTIES.iter().filter(|property| property.is_impairment);
        let title = axis::phrase(&Cell { impairments: *impairments, ..cells[0].clone() }, of_link);
        let title = if title.is_empty() { "none".to_owned() } else { title };
        let head = Column {
            percent_of_best: medians.map(|median| (median / best * 100.0) as u8).collect(),
            ..Column::new(title, true)
        };
        table.push(head, column.iter().map(|row| row.map(|row| format::figure_or_failures(row))));
    }
    (!places.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::run;

    #[test]
    fn each_value_is_in_the_column_of_its_impairments() {
        let runs = [
            ("lwip --delay 5ms", 2.0),
            ("lwip", 20.0),
            ("smoltcp --delay 5ms", 0.5),
            ("smoltcp --loss 0.1", 3.0),
            ("kernel --loss 0.1", 6.0),
            ("kernel", 10.0),
            // It has no other impairments to be compared with.
            ("lwip --loss 0.1 --mtu 9000", 7.0),
        ]
        .map(|(words, gbps)| run(&format!("-m reader -n {words}"), gbps));
        let blocks = blocks(&Series::split("runs", &runs, &[])[0]);
        let [Block::Text(_), Block::Text(mode), Block::Table(table)] = &blocks[..] else { unreachable!() };
        assert_eq!(mode, "Mode reader:");
        let titles: Vec<_> = table.columns.iter().map(|column| column.title.as_str()).collect();
        assert_eq!(titles, ["subject", "none", "loss 0.1 %", "delay 5 ms"]);
        assert_eq!(
            table.rows,
            [["kernel", "10.00", "6.00", "–"], ["lwip", "20.00", "–", "2.00"], ["smoltcp", "–", "3.00", "0.50"]]
        );
        let shades: Vec<_> = table.columns.iter().map(|column| column.percent_of_best.as_slice()).collect();
        assert_eq!(shades, [&[][..], &[50, 100, 0], &[100, 0, 50], &[0, 100, 25]]);
    }
}
