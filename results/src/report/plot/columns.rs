//! Columns of bars side by side, or under each other where there is no room: a table as a picture.

use std::error::Error;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::bars::signed;
use super::{Area, FAINT, Picture, TEXT, Width, fitted, signs, text_style, wrapped};
use crate::grouped_digits;
use crate::report::format::UNKNOWN;
use crate::report::model::{ARROW, ColumnOfBars, Columns, Mark};

/// The width of the names, and the heights of a column's title and of a row with its text.
const NAMES: i32 = 150;
const TITLE: i32 = 40;
const LINE: i32 = 16;
const ABOVE: i32 = 4;
const ROW: i32 = 36;
const TEXT_HEIGHT: i32 = 18;
const BAR: i32 = 12;
const BETWEEN: i32 = 14;

pub(super) fn columns(all: &Columns, width: Width) -> io::Result<Picture> {
    let height = TITLE + ROW * signed(all.rows.len());
    // On a telephone each column has the names again.
    let (across, lines) = match width {
        Width::Wide => (signed(all.columns.len().max(1)), 1),
        Width::Narrow => (1, signed(all.columns.len())),
    };
    let each = (width.px().cast_signed() - NAMES) / across;
    Picture::draw(width.px(), (height * lines).cast_unsigned(), |area| {
        for (index, column) in all.columns.iter().enumerate() {
            let (place, line) = (signed(index) % across, signed(index) / across);
            let (left, top) = (NAMES + each * place, height * line);
            if place == 0 {
                names(area, &all.rows, top)?;
            }
            let bold = text_style(&TEXT, HPos::Left, VPos::Top);
            let bold = TextStyle { font: bold.font.style(FontStyle::Bold), ..bold };
            for (index, line) in wrapped(column.title, f64::from(each - 2 * BETWEEN)).into_iter().enumerate() {
                area.draw(&Text::new(line, (left, top + ABOVE + LINE * signed(index)), bold.clone()))?;
            }
            let marks: Vec<_> = all.rows.iter().map(|(_, mark)| *mark).collect();
            bars(area, column, &marks, (left, top + TITLE), each - BETWEEN)?;
        }
        Ok(())
    })
}

fn names(area: &Area<'_>, rows: &[(String, Mark)], top: i32) -> Result<(), Box<dyn Error>> {
    for (index, (name, mark)) in rows.iter().enumerate() {
        let middle = top + TITLE + ROW * signed(index) + TEXT_HEIGHT / 2 + BAR / 2;
        signs::shape(area, (10, middle), *mark)?;
        let style = text_style(&TEXT, HPos::Left, VPos::Center);
        area.draw(&Text::new(fitted(name, f64::from(NAMES - 24)), (24, middle), style))?;
    }
    Ok(())
}

fn bars(
    area: &Area<'_>,
    column: &ColumnOfBars,
    marks: &[Mark],
    (left, top): (i32, i32),
    room: i32,
) -> Result<(), Box<dyn Error>> {
    let longest = column.bars.iter().flat_map(|(before, own)| [*before, *own]).flatten().fold(0.0, f64::max);
    let end = |value: f64| left + (value / longest * f64::from(room)).max(1.0) as i32;
    for (index, ((published, own), mark)) in column.bars.iter().zip(marks).enumerate() {
        let (upper, ink) = (top + ROW * signed(index), mark.ink().light);
        let write = |value: &f64| grouped_digits(*value, column.decimals);
        let text = own.as_ref().map_or(UNKNOWN.to_owned(), write);
        let text = published.as_ref().map_or(text.clone(), |before| format!("{} {ARROW} {text}", write(before)));
        let style = text_style(if own.is_some() { &TEXT } else { &FAINT }, HPos::Left, VPos::Top);
        area.draw(&Text::new(text, (left, upper), style))?;
        let (first, last) = (upper + TEXT_HEIGHT, upper + TEXT_HEIGHT + BAR);
        if let Some(own) = own {
            area.draw(&Rectangle::new([(left, first), (end(*own), last)], ink.mix(0.35).filled()))?;
        }
        if let Some(published) = published {
            area.draw(&Rectangle::new([(left, first + 3), (end(*published), last - 3)], ink.filled()))?;
        }
    }
    Ok(())
}
