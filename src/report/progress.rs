//! The progress of a matrix: a bar on a terminal, a line for each run elsewhere.

use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};

use crate::run::Observer;
use crate::sample::Sample;
use crate::scenario::Cell;

/// Shows the progress of a matrix. Errors of the writer are ignored: the samples are elsewhere.
#[derive(Debug)]
pub struct Progress<W> {
    err: W,
    /// On a terminal, once the number of runs is known.
    bar: Option<ProgressBar>,
    terminal: bool,
    total: usize,
    done: usize,
    round: u32,
}

impl<W: Write> Progress<W> {
    /// Writes to `err`. `terminal` says whether that is a terminal.
    pub fn new(err: W, terminal: bool) -> Self {
        Self { err, bar: None, terminal, total: 0, done: 0, round: 0 }
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
}

impl<W: Write> Observer for Progress<W> {
    fn begin(&mut self, total: usize, done: usize, seed: u64) {
        (self.total, self.done) = (total, done);
        let continued = if done == 0 { String::new() } else { format!(", {done} of them from before") };
        self.line(&format!("{total} runs{continued}; the order's seed is {seed}"));
        if self.terminal {
            let style = ProgressStyle::with_template("{wide_bar} {pos} of {len}, {eta} left\n{msg}");
            let bar = ProgressBar::new(total as u64).with_position(done as u64);
            bar.reset_eta();
            self.bar = Some(style.map_or(bar.clone(), |style| bar.with_style(style)));
        }
    }

    fn run(&mut self, round: u32, cell: &Cell, against: bool) {
        self.round = round;
        let program = if against { " (against)" } else { "" };
        if let Some(bar) = &self.bar {
            bar.set_message(format!("round {round}: {cell}{program}"));
        }
    }

    fn sample(&mut self, sample: &Sample) {
        self.done += 1;
        let result = if sample.is_ok() {
            match (sample.requests_per_second(), sample.connections_per_mb()) {
                (Some(rate), _) => format!("{rate:.1} requests/s"),
                (None, Some(count)) => format!("{count:.1} connections/MB"),
                (None, None) if sample.measured.idle.is_some() => "memory unknown".to_owned(),
                (None, None) => format!("{:.3} Gbit/s", sample.gbps()),
            }
        } else {
            let detail = sample.measured.detail.as_deref().unwrap_or_default();
            format!("{}: {detail}", sample.measured.status)
        };
        let program = if sample.measured.against { " (against)" } else { "" };
        let line =
            format!("[{} of {}] round {}: {}{program}: {result}", self.done, self.total, self.round, sample.cell);
        match &self.bar {
            Some(bar) => {
                bar.inc(1);
                // Failures are shown at once. Figures are in the table at the end.
                if !sample.is_ok() {
                    bar.println(line);
                }
            }
            None => self.line(&line),
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
