//! The processors that threads are kept on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Processors, each once: `0,2-3`. Client threads take them from the front in turn, and workers from the back. A program has
/// those that client threads leave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Processors(Vec<u16>);

impl Processors {
    /// The largest number: Linux's `cpu_set_t` has 1,024 bits.
    const LAST: u16 = 1023;

    /// The numbers, in the order in which they were given.
    pub fn numbers(&self) -> &[u16] {
        &self.0
    }

    /// The processor of a client thread, by its place among them.
    pub fn of_client(&self, thread: usize) -> u16 {
        self.0.iter().copied().cycle().nth(thread).unwrap_or_default()
    }

    /// The processors of a program beside this many client threads: the rest, or all if there is none.
    pub fn of_program(&self, clients: usize) -> &[u16] {
        self.0.get(clients..).filter(|rest| !rest.is_empty()).unwrap_or(&self.0)
    }

    /// The processor of a worker, by its place among them.
    pub fn of_worker(&self, worker: usize) -> u16 {
        self.0.iter().copied().rev().cycle().nth(worker).unwrap_or_default()
    }
}

impl FromStr for Processors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |word: &str| {
            let number = word.parse().ok().filter(|number| *number <= Self::LAST);
            number.ok_or_else(|| format!("not processors; write numbers up to {}, such as 0,1 or 0-3", Self::LAST))
        };
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            for number in number(first)?..=number(last)? {
                if numbers.contains(&number) {
                    return Err(format!("processor {number} is there twice"));
                }
                numbers.push(number);
            }
        }
        if numbers.is_empty() { Err("a range begins with its smaller number".to_owned()) } else { Ok(Self(numbers)) }
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.chunk_by(|one, next| one + 1 == *next).map(|range| match range {
            [first, .., last] => format!("{first}-{last}"),
            one => one.iter().map(ToString::to_string).collect(),
        });
        f.write_str(&ranges.collect::<Vec<_>>().join(","))
    }
}

json_as_text!(Processors);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_written_with_its_ranges() {
        let written = |text: &str| text.parse::<Processors>().map(|processors| processors.to_string());
        for (text, expected) in [("0", "0"), ("0,1", "0-1"), ("3,0-1", "3,0-1"), ("1023", "1023"), ("4-4,2", "4,2")] {
            assert_eq!(written(text).as_deref(), Ok(expected));
        }
        for text in ["", "a", "-1", "0-", "0,,1", "1024", "0-4000000000", "65536", "3-1", "0-3,2", "1 "] {
            assert!(written(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn clients_take_them_from_the_front_workers_from_the_back_and_a_program_the_rest() {
        let processors: Processors = "5,0-1".parse().unwrap_or(Processors(Vec::new()));
        assert_eq!([0, 1, 2, 3].map(|thread| processors.of_client(thread)), [5, 0, 1, 5]);
        assert_eq!([0, 1, 2, 3].map(|worker| processors.of_worker(worker)), [1, 0, 5, 1]);
        let of_program: [&[u16]; 4] = [&[0, 1], &[1], &[5, 0, 1], &[5, 0, 1]];
        assert_eq!([1, 2, 3, 4].map(|clients| processors.of_program(clients)), of_program);
    }
}
