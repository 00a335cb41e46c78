//! The numbers of the datagrams that have arrived.

use std::time::Instant;

use super::jitter::Jitter;
use super::trial::Trial;

/// How many datagrams of a trial have arrived, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) count: u64,
    pub(crate) reordered: u64,
    pub(crate) duplicated: u64,
    pub(crate) next: u64,
}

#[derive(Debug)]
pub(super) struct Arrivals {
    pub(super) trial: Trial,
    pub(super) arrived: Arrived,
    pub(super) jitter: Jitter,
    /// Which of the last numbers have come: a bit for each, in a ring.
    seen: Vec<u64>,
    pub(super) all: u64,
    /// When they were asked for, if they are counted by another process.
    pub(super) asked: Option<Instant>,
}

/// So many numbers are remembered. What comes later than that after its successors is taken for new.
const REMEMBERED: u64 = 1 << 16;

impl Arrivals {
    pub(super) fn new(asked: Option<Instant>) -> Self {
        let seen = vec![0; (REMEMBERED / 64) as usize];
        Self { trial: Trial::none(), arrived: Arrived::default(), jitter: Jitter::default(), seen, all: 0, asked }
    }

    pub(super) fn begin(&mut self, trial: Trial) {
        let Self { all, asked, .. } = *self;
        *self = Self { trial, all, ..Self::new(asked) };
    }

    fn mark(&mut self, number: u64) -> bool {
        let (word, bit) = ((number % REMEMBERED / 64) as usize, 1 << (number % 64));
        let was = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        was
    }

    /// Datagrams that were sent together are one arrival, as are those that were received together: this is the first of them.
    pub(super) fn note(&mut self, number: u64, now: Instant) {
        if self.trial.rate.is_some() {
            self.jitter.note(self.trial.next_due_at(number - number % self.trial.burst), now);
        }
    }

    pub(super) fn take(&mut self, number: u64) {
        let next = self.arrived.next;
        if number >= next {
            // The places of those that are not here yet.
            for skipped in (next..number).rev().take(REMEMBERED as usize) {
                self.seen[(skipped % REMEMBERED / 64) as usize] &= !(1 << (skipped % 64));
            }
            self.mark(number);
            self.arrived.next = number + 1;
        } else if next - number <= REMEMBERED && self.mark(number) {
            self.arrived.duplicated += 1;
            return;
        } else {
            self.arrived.reordered += 1;
        }
        self.arrived.count += 1;
        self.all += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_reordered_and_repeated_datagrams_are_told_apart() {
        for (numbers, count, reordered, duplicated) in [
            (&[0, 1, 2, 3][..], 4, 0, 0),
            (&[0, 1, 5], 3, 0, 0),
            (&[0, 2, 1, 3], 4, 1, 0),
            (&[0, 1, 1, 2, 0], 3, 0, 2),
            (&[3, 3, 1, 1], 2, 1, 2),
            // Far ahead, and back: the ring has forgotten nothing that it should know.
            (&[0, REMEMBERED + 5, 6, REMEMBERED + 5, 6], 3, 1, 2),
            (&[0, 3 * REMEMBERED, 3 * REMEMBERED - 1, 1], 4, 2, 0),
        ] {
            let mut arrivals = Arrivals::new(None);
            for number in numbers {
                arrivals.take(*number);
            }
            let next = numbers.iter().max().unwrap_or(&0) + 1;
            assert_eq!(arrivals.arrived, Arrived { count, reordered, duplicated, next }, "{numbers:?}");
        }
    }
}
