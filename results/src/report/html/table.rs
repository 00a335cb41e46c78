//! A table of a page: the columns for which a window of 1,280 pixels has room, and the rest, which a reader may ask for.

use askama::Template;

use crate::report::format::UNKNOWN;
use crate::report::model::{Column, Table};

/// The room for a table on a page in such a window, and about the size of a character and of the space around a text, in pixels.
const ROOM_PX: usize = 1050;
const CHARACTER_PX: usize = 8;
const AROUND_PX: usize = 24;

/// Words that are longer, in characters, are wrapped, in a column of about this width.
const LONG: usize = 28;

#[derive(Template)]
#[template(path = "table.html")]
pub(super) struct View<'a> {
    table: &'a Table,
    columns: Vec<Shown<'a>>,
    first: usize,
}

struct Shown<'a> {
    column: &'a Column,
    place: usize,
    class: String,
}

impl<'a> View<'a> {
    pub(super) fn of(table: &'a Table) -> Self {
        let has_value =
            |place: &usize| *place == 0 || table.rows.iter().any(|row| !matches!(row[*place].as_str(), UNKNOWN | ""));
        let places: Vec<_> = (0..table.columns.len()).filter(has_value).collect();
        let extra = extra(table, &places);
        let columns = places.iter().map(|place| {
            let column = &table.columns[*place];
            let classes = [
                ("n", column.is_number),
                ("w", is_long(table, *place)),
                ("x", extra.contains(place)),
                ("p", column.is_property && *place > 0),
            ];
            let names: Vec<_> = classes.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
            Shown { column, place: *place, class: names.join(" ") }
        });
        Self { table, columns: columns.collect(), first: places.len() - extra.len() }
    }

    /// The properties of a row, which a narrow window has under its name in place of their columns: the figure is then next.
    fn properties(&self, row: &[String]) -> String {
        let known = |shown: &&Shown| shown.column.is_property && row[shown.place] != UNKNOWN;
        let words = |shown: &Shown| format!("{} {}", shown.column.title, row[shown.place]);
        self.columns.iter().skip(1).filter(known).map(words).collect::<Vec<_>>().join(", ")
    }
}

impl Shown<'_> {
    /// A value, and what is beside it in brackets, which begins a new line if there is no room.
    fn parts(&self, value: &str) -> (String, Option<String>) {
        let text = breakable(value, self.column);
        match text.split_once(" (").filter(|_| self.column.is_number) {
            Some((value, beside)) => (value.to_owned(), Some(format!("({beside}"))),
            None => (text, None),
        }
    }
}

/// The places of the columns for which there is no room, those that are needed least.
fn extra(table: &Table, places: &[usize]) -> Vec<usize> {
    let mut order: Vec<_> = places.to_vec();
    order.sort_by_key(|place| table.columns[*place].need);
    let mut used = 0;
    order.retain(|place| {
        let width = width_of(table, *place);
        let has_room = *place == 0 || used + width <= ROOM_PX;
        used += if has_room { width } else { 0 };
        !has_room
    });
    order
}

fn width_of(table: &Table, place: usize) -> usize {
    let column = &table.columns[place];
    let longest = |text: &str| text.split(' ').map(|part| part.chars().count()).max().unwrap_or_default();
    let values = table.rows.iter().map(|row| longest(&breakable(&row[place], column))).max().unwrap_or_default();
    let values = if is_long(table, place) { values.max(LONG) } else { values };
    AROUND_PX + CHARACTER_PX * longest(&column.title).max(values)
}

fn is_long(table: &Table, place: usize) -> bool {
    !table.columns[place].is_number && table.rows.iter().any(|row| row[place].chars().count() > LONG)
}

/// A text with spaces only where a line may end: around an interval, after a comma, and in a long text.
fn breakable(text: &str, column: &Column) -> String {
    if !column.is_number && text.chars().count() > LONG {
        return text.to_owned();
    }
    let joined = text.replace(' ', "\u{a0}");
    joined.replace("\u{a0}(", " (").replace(",\u{a0}", ", ").replace("\u{a0}to\u{a0}", " to\u{a0}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Need;

    fn table(columns: &[(&str, Need, &str)]) -> Table {
        let mut table = Table::new("figures");
        for (title, need, value) in columns {
            table.push(Column::new(*title, true).if_room(*need), [(*value).to_owned()]);
        }
        table
    }

    #[test]
    fn a_column_without_values_is_left_out_and_one_without_room_is_behind_a_choice() {
        let (long, need) = ("1".repeat(100), [Need::Always, Need::Extra, Need::Wanted, Need::Always]);
        let [first, extra, wanted, empty] = need;
        let table = table(&[("a", first, "1"), ("b", extra, &long), ("c", wanted, &long), ("d", empty, UNKNOWN)]);
        let view = View::of(&table);
        let classes: Vec<_> = view.columns.iter().map(|shown| (&*shown.column.title, &*shown.class)).collect();
        assert_eq!((classes, view.first), (vec![("a", "n"), ("b", "n x"), ("c", "n")], 2));
        assert!(view.render().is_ok_and(|html| html.contains("all 3 columns")));
    }

    #[test]
    fn a_narrow_window_has_the_properties_under_the_name_of_a_row() {
        let mut table = table(&[("stack", Need::Always, "lwip"), ("MTU", Need::Always, "9000")]);
        table.columns.iter_mut().for_each(|column| column.is_property = true);
        let html = View::of(&table).render().unwrap();
        assert!(html.contains("lwip<span class=\"narrow\">MTU 9000</span></td><td class=\"n p\">9000</td>"), "{html}");
    }

    #[test]
    fn a_line_of_a_figure_ends_before_its_interval_or_in_it() {
        let column = Column::new("", true);
        assert_eq!(breakable("12 Gbps (9 to 15)", &column), "12\u{a0}Gbps (9 to\u{a0}15)");
        assert_eq!(
            breakable("2 of 6 timeout, 1 of 6 died", &column),
            "2\u{a0}of\u{a0}6\u{a0}timeout, 1\u{a0}of\u{a0}6\u{a0}died"
        );
    }
}
