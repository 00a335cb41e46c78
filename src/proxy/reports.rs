//! The errors that no message can report to a client. A line a second for each kind of error; the others are counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(1);

/// The operation, and the error's number and kind.
type Kind = (String, Option<i32>, io::ErrorKind);

/// The errors of a kind since its last line: how many, and the text of the last one.
type Unsaid = (u64, String);

#[derive(Clone, Debug)]
pub(super) struct Reports {
    report: fn(&str),
    /// The kinds that had a line within the last period.
    kinds: Arc<Mutex<HashMap<Kind, Unsaid>>>,
}

impl Reports {
    pub(super) fn new(report: fn(&str)) -> Self {
        Self { report, kinds: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Kind, Unsaid>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports an error at once, or with the next line of its kind. Must be called within a runtime.
    pub(super) fn add(&self, operation: &str, server: SocketAddr, error: &io::Error) {
        let text = format!("{operation} {server}: {error}");
        let kind = (operation.to_owned(), error.raw_os_error(), error.kind());
        match self.lock().entry(kind.clone()) {
            Entry::Occupied(mut unsaid) => {
                let (count, last) = unsaid.get_mut();
                (*count, *last) = (*count + 1, text);
                return;
            }
            Entry::Vacant(place) => drop(place.insert(Unsaid::default())),
        }
        (self.report)(&text);
        tokio::spawn(self.clone().summarize(kind));
    }

    /// Reports what was not said, until there was nothing for a period.
    async fn summarize(self, kind: Kind) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let (count, last) = {
                let mut kinds = self.lock();
                match kinds.get_mut(&kind).map(std::mem::take) {
                    Some(unsaid) if unsaid.0 > 0 => unsaid,
                    _ => return drop(kinds.remove(&kind)),
                }
            };
            let times = if count > 1 { format!(" ({count} errors like this)") } else { String::new() };
            (self.report)(&format!("{last}{times}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[tokio::test(start_paused = true)]
    async fn each_kind_has_a_line_a_second_and_the_others_are_counted() {
        let reports = Reports::new(|line| LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned()));
        let add = |number, port| {
            reports.add("connect to", ([192, 0, 2, 1], port).into(), &io::Error::from_raw_os_error(number));
        };
        let lines = || std::mem::take(&mut *LINES.lock().unwrap_or_else(PoisonError::into_inner));
        (1..=246).for_each(|port| add(24, port));
        add(23, 80);
        let first = lines();
        assert!(first.len() == 2 && first[0].starts_with("connect to 192.0.2.1:1: "), "{first:?}");
        tokio::time::sleep(PERIOD + PERIOD / 2).await;
        let later = lines();
        assert!(later.len() == 1 && later[0].starts_with("connect to 192.0.2.1:246: "), "{later:?}");
        assert!(later[0].ends_with(" (245 errors like this)"), "{later:?}");
        add(24, 1);
        assert!(lines().is_empty(), "the second is not over");
        tokio::time::sleep(3 * PERIOD).await;
        assert_eq!(lines().len(), 1);
        add(24, 1);
        assert!(lines().len() == 1 && reports.lock().len() == 1, "a new one is reported at once");
    }
}
