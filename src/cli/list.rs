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
