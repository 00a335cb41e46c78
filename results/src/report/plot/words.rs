//! Text that fits into a picture, which cannot ask the font for the width of a text.

use crate::report::format;

/// About the width of a character of the text, in pixels.
const CHARACTER_PX: f64 = 6.6;

pub(super) fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER_PX
}

/// A text without control characters, cut to the width that is there.
pub(super) fn fitted(text: &str, width_px: f64) -> String {
    let line = format::one_line(text);
    let room = (width_px / CHARACTER_PX).max(4.0) as usize;
    match line.char_indices().nth(room) {
        Some(_) => line.chars().take(room - 1).chain(['…']).collect(),
        None => line,
    }
}

/// A text in lines of the width that is there. Only a word that is longer than a line is cut.
pub(in crate::report) fn wrapped(text: &str, width_px: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in format::one_line(text).split(' ') {
        let word = fitted(word, width_px);
        match lines.last_mut() {
            Some(line) if width_of(line) + width_of(&word) + CHARACTER_PX <= width_px => {
                *line = format!("{line} {word}");
            }
            _ => lines.push(word),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_wrapped_at_its_words_and_loses_none() {
        let text = "In every run: congestion control cubic, 1.0 s timed.";
        let lines = wrapped(text, 20.0 * CHARACTER_PX);
        assert!(lines.len() > 2 && lines.iter().all(|line| line.chars().count() <= 20), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert_eq!(wrapped("one_word_that_is_too_long", 8.0 * CHARACTER_PX), ["one_wor…"]);
    }
}
