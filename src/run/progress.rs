//! The progress of a matrix: a bar on a terminal, a line for each run elsewhere.

use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::cell::Cell;
use crate::plan::about;
use crate::plural;
use crate::sample::Sample;

/// Shows the progress of a matrix. Errors of the writer are ignored: the samples are elsewhere.
#[derive(Debug)]
pub struct Progress<W> {
    err: W,
    /// On a terminal, once the number of runs is known.
    bar: Option<ProgressBar>,
    terminal: bool,
    /// `None` if it is not known when the matrix ends.
    total: Option<usize>,
    pub(super) done: usize,
    round: u32,
    begun: Instant,
    /// The runs that were made before it began.
    earlier: usize,
    /// Whether it has said, after the first round, how long the others take.
    corrected: bool,
}

/// A first round that is shorter says little about the others.
const SHORT: Duration = Duration::from_secs(5);

impl<W: Write> Progress<W> {
    /// Writes to `err`. `terminal` says whether that is a terminal.
    pub fn new(err: W, terminal: bool) -> Self {
        Self {
            err,
            bar: None,
            terminal,
            total: None,
            done: 0,
            round: 0,
            begun: Instant::now(),
            earlier: 0,
            corrected: false,
        }
    }

    /// After the first round: how long the others take, by its pace. A bar shows that all the time.
    fn correct(&mut self) {
        let (made, took) = (self.done - self.earlier, self.begun.elapsed());
        if let Some(total) = self.total
            && made > 0
            && took > SHORT
            && self.bar.is_none()
            && !self.corrected
        {
            self.corrected = true;
            let left = about(took * (total - self.done) as u32 / made as u32);
            self.line(&format!("at this pace it takes {left} more"));
        }
    }

    fn advance(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// A line that stays, above the bar if there is one.
    fn line(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => {
                let _unread = writeln!(self.err, "{text}");
            }
        }
    }

    /// The matrix begins. `done` of its runs were made before.
    pub(super) fn begin(&mut self, total: Option<usize>, done: usize, seed: u64) {
        (self.total, self.done, self.earlier, self.begun) = (total, done, done, Instant::now());
        let runs = match (total, done) {
            (Some(total), 0) => format!("{}; ", plural(total, "run")),
            (Some(total), done) => format!("{}, {done} of them from before; ", plural(total, "run")),
            (None, 0) => String::new(),
            (None, done) => format!("{} from before; ", plural(done, "run")),
        };
        self.line(&format!("{runs}the order's seed is {seed}"));
        if self.terminal {
            let (template, bar) = match total {
                Some(total) => ("{wide_bar} {pos} of {len}, {eta} left\n{msg}", ProgressBar::new(total as u64)),
                None => ("{spinner} {pos} runs in {elapsed}\n{msg}", ProgressBar::no_length()),
            };
            let style = ProgressStyle::with_template(template);
            let bar = bar.with_position(done as u64);
            bar.reset_eta();
            self.bar = Some(style.map_or(bar.clone(), |style| bar.with_style(style)));
        }
    }

    /// A run of a cell begins, by this program or by the other build.
    pub(super) fn run(&mut self, round: u32, cell: &Cell, against: bool) {
        if round > self.round && self.round > 0 {
            self.correct();
        }
        self.round = round;
        let program = if against { " (against)" } else { "" };
        if let Some(bar) = &self.bar {
            bar.set_message(format!("round {round}: {cell}{program}"));
        }
    }

    pub(super) fn sample(&mut self, sample: &Sample) {
        self.advance();
        let result = if sample.is_ok() {
            match (sample.requests_per_second(), sample.connections_per_mb()) {
                (Some(rate), _) => format!("{rate:.1} requests/s"),
                (None, Some(count)) => format!("{count:.1} connections/MB"),
                (None, None) if sample.measured.idle.is_some() => "memory unknown".to_owned(),
                (None, None) => format!("{:.3} Gbps", sample.gbps()),
            }
        } else {
            let detail = sample.measured.detail.as_deref().unwrap_or_default();
            format!("{}: {detail}", sample.measured.status)
        };
        let program = if sample.measured.against { " (against)" } else { "" };
        let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
        let line = format!("[{}{of}] round {}: {}{program}: {result}", self.done, self.round, sample.cell);
        // Beside a bar, failures are shown at once. Figures are in the table at the end.
        if self.bar.is_none() || !sample.is_ok() {
            self.line(&line);
        }
    }

    /// A run is left out. The first of its kind has the reason.
    pub(super) fn left_out(&mut self, reason: Option<&str>) {
        self.advance();
        if let Some(reason) = reason {
            self.line(&format!("left out: {reason}"));
        }
    }

    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_of_the_first_round_is_said_once() {
        let mut text = Vec::new();
        let mut progress = Progress::new(&mut text, false);
        progress.begin(Some(40), 0, 1);
        progress.begun = progress.begun.checked_sub(Duration::from_secs(100)).unwrap();
        let cell = Cell::parse("--layer loopback -m reader").unwrap();
        progress.run(1, &cell, false);
        progress.done = 10;
        progress.run(2, &cell, false);
        progress.run(3, &cell, false);
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "40 runs; the order's seed is 1\nat this pace it takes 5 minutes more\n"
        );
    }
}
