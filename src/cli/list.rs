//! Comma-separated lists.

use clap::ValueEnum;
use netstacks::StackKind;

use super::{Netstack, Switch};

/// What a comma-separated list names: at least one value, each once, in the list's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(Vec<T>);

impl<T> List<T> {
    /// The values.
    pub fn values(&self) -> &[T] {
        &self.0
    }
}

/// How many rows the table of forwarders has.
pub const LAST_ROW: u16 = 18;

/// What stands for every value.
const ALL: &str = "all";

/// A list of names, or all of them.
pub(super) fn names<T: ValueEnum + PartialEq>(text: &str) -> Result<List<T>, String> {
    if text == ALL {
        return Ok(List(T::value_variants().to_vec()));
    }
    parse(text, |item| T::from_str(item, false).map_err(|_| format!("must be {}", possible::<T>())))
}

/// A list of stacks; all are those that this build has.
pub(super) fn stacks(text: &str) -> Result<List<Netstack>, String> {
    let mut list = names::<Netstack>(text)?;
    if text == ALL {
        list.0.retain(|stack| StackKind::from(*stack).compiled_in());
    }
    Ok(list)
}

/// Both, where this system's device offloads anything, else off alone; or a list.
pub(super) fn offloads(text: &str) -> Result<List<Switch>, String> {
    if text == ALL && !platform::offload_supported() { Ok(List(vec![Switch::Off])) } else { names(text) }
}

/// A list of MTUs.
pub(super) fn mtus(text: &str) -> Result<List<u16>, String> {
    numbers(text, 576, u16::MAX)
}

/// A list of numbers of streams.
pub(super) fn streams(text: &str) -> Result<List<u16>, String> {
    numbers(text, 1, 256)
}

/// A list of rows of the table of forwarders.
pub(super) fn rows(text: &str) -> Result<List<u16>, String> {
    numbers(text, 1, LAST_ROW)
}

/// A number of percent.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|percent| (0.0..100.0).contains(percent))
        .ok_or_else(|| "must be 0 to below 100".to_owned())
}

fn numbers(text: &str, least: u16, most: u16) -> Result<List<u16>, String> {
    let wrong = || format!("must be {least} to {most}");
    parse(text, |item| item.parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(wrong))
}

fn parse<T: PartialEq>(text: &str, item: impl Fn(&str) -> Result<T, String>) -> Result<List<T>, String> {
    let mut values = Vec::new();
    for text in text.split(',') {
        let value = item(text).map_err(|reason| format!("\"{text}\" {reason}"))?;
        if values.contains(&value) {
            return Err(format!("\"{text}\" is there twice"));
        }
        values.push(value);
    }
    Ok(List(values))
}

fn possible<T: ValueEnum>() -> String {
    let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let names: Vec<_> = values.map(|value| value.get_name().to_owned()).collect();
    format!("{}, or the list \"{ALL}\" alone", names.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::super::{Mode, Runtime};
    use super::*;

    #[test]
    fn a_list_has_its_own_order() {
        assert_eq!(names::<Mode>("writer,reader").unwrap().values(), [Mode::Writer, Mode::Reader]);
        assert_eq!(mtus("9000,576,65535").unwrap().values(), [9000, 576, 65535]);
        assert_eq!(streams("1").unwrap().values(), [1]);
    }

    #[test]
    fn all_is_every_value() {
        assert_eq!(names::<Runtime>("all").unwrap().values(), [Runtime::CurrentThread, Runtime::MultiThread]);
        let offloads = offloads("all").unwrap();
        let expected: &[_] = if platform::offload_supported() { &[Switch::On, Switch::Off] } else { &[Switch::Off] };
        assert_eq!(offloads.values(), expected);
    }

    #[test]
    fn all_stacks_are_those_of_this_build_and_a_named_one_is_kept() {
        let kinds: Vec<StackKind> = stacks("all").unwrap().values().iter().map(|stack| (*stack).into()).collect();
        let compiled_in: Vec<_> = StackKind::ALL.into_iter().filter(|kind| kind.compiled_in()).collect();
        assert_eq!(kinds, compiled_in);
        // The plan says which feature it takes.
        assert_eq!(stacks("lwip").unwrap().values(), [Netstack::Lwip]);
    }

    #[test]
    fn what_is_wrong_with_a_list_is_said_of_the_item() {
        let names = |text| names::<Mode>(text).unwrap_err();
        let possible = "must be reader, writer, or the list \"all\" alone";
        assert_eq!(names("both"), format!("\"both\" {possible}"));
        assert_eq!(names(""), format!("\"\" {possible}"));
        assert_eq!(names("reader,"), format!("\"\" {possible}"));
        assert_eq!(names("reader, writer"), format!("\" writer\" {possible}"));
        assert_eq!(names("reader,all"), format!("\"all\" {possible}"));
        assert_eq!(names("Reader"), format!("\"Reader\" {possible}"));
        assert_eq!(names("reader,writer,reader"), "\"reader\" is there twice");
        assert_eq!(
            stacks("gvisor").unwrap_err(),
            "\"gvisor\" must be lwip, ipstack, smoltcp, or the list \"all\" alone"
        );
        assert_eq!(offloads("auto").unwrap_err(), "\"auto\" must be on, off, or the list \"all\" alone");
    }

    #[test]
    fn numbers_have_limits() {
        for text in ["575", "65536", "-1", "1500.0", "all", "0x600", ""] {
            assert_eq!(mtus(text).unwrap_err(), format!("\"{text}\" must be 576 to 65535"));
        }
        for text in ["0", "257", "1 "] {
            assert_eq!(streams(text).unwrap_err(), format!("\"{text}\" must be 1 to 256"));
        }
        assert_eq!(mtus("1500,9000,01500").unwrap_err(), "\"01500\" is there twice");
    }

    #[test]
    fn a_floor_is_a_number_of_percent() {
        for (text, floor) in [("0", 0.0), ("2", 2.0), ("0.5", 0.5), ("99.9", 99.9)] {
            assert_eq!(percent(text), Ok(floor));
        }
        for text in ["-1", "100", "2%", "NaN", "inf", ""] {
            assert_eq!(percent(text).unwrap_err(), "must be 0 to below 100", "{text}");
        }
    }
}
