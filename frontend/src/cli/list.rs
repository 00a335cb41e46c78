//! The values of an option, separated by commas.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error, ValueEnum};

/// The values of an option: at least one, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(Vec<T>);

impl<T: Clone + PartialEq> List<T> {
    /// These values in their order, each once; `None` if there are none.
    pub fn new(values: impl IntoIterator<Item = T>) -> Option<Self> {
        let mut list = Vec::new();
        for value in values {
            if !list.contains(&value) {
                list.push(value);
            }
        }
        (!list.is_empty()).then_some(Self(list))
    }

    /// The values.
    pub fn values(&self) -> &[T] {
        &self.0
    }
}

/// An option that has one value at most.
pub(crate) trait One<T> {
    /// Its value; `None` if it was not given.
    fn one(&self) -> Option<T>;
}

impl<T: Clone> One<T> for Option<List<T>> {
    fn one(&self) -> Option<T> {
        self.as_ref().and_then(|list| list.0.first().cloned())
    }
}

impl<T: Clone> One<T> for Vec<List<T>> {
    fn one(&self) -> Option<T> {
        self.iter().flat_map(|list| &list.0).next().cloned()
    }
}

/// All values of an option.
pub(crate) trait Values {
    /// How many there are; `None` if the option was not given.
    fn count(&self) -> Option<usize>;

    /// Keeps only the value at this index.
    fn pick(&mut self, index: usize);
}

impl<T: Clone> Values for Option<List<T>> {
    fn count(&self) -> Option<usize> {
        self.as_ref().map(|list| list.0.len())
    }

    fn pick(&mut self, index: usize) {
        *self = nth(&*self, index);
    }
}

/// An option that may be repeated.
impl<T: Clone> Values for Vec<List<T>> {
    fn count(&self) -> Option<usize> {
        (!self.is_empty()).then(|| self.iter().map(|list| list.0.len()).sum())
    }

    fn pick(&mut self, index: usize) {
        *self = nth(&*self, index).into_iter().collect();
    }
}

/// The value at an index of several lists, as a list.
fn nth<'a, T: Clone + 'a>(lists: impl IntoIterator<Item = &'a List<T>>, index: usize) -> Option<List<T>> {
    lists.into_iter().flat_map(|list| &list.0).nth(index).map(|value| List(vec![value.clone()]))
}

/// Parses a list with this parser of an item.
pub(super) fn of<T: Clone + PartialEq>(
    item: impl Fn(&str) -> Result<T, String> + Clone,
) -> impl Fn(&str) -> Result<List<T>, String> + Clone {
    move |text| {
        let parse =
            |word: &str| item(word).map_err(|reason| if word == text { reason } else { format!("{word}: {reason}") });
        let values = text.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
        List::new(values).ok_or_else(|| "names nothing".to_owned())
    }
}

/// Parses one value, as a list of one.
pub(super) fn one<T: Clone + PartialEq>(
    item: impl Fn(&str) -> Result<T, String> + Clone,
) -> impl Fn(&str) -> Result<List<T>, String> + Clone {
    move |text| item(text).map(|value| List(vec![value]))
}

/// Parses a number of a range.
pub(super) fn number<T: FromStr + PartialOrd + Display + Clone>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Parses a list of names. `all` stands for the values that the function returns.
#[derive(Clone)]
pub(super) struct Names<T>(pub(super) fn() -> Vec<T>);

/// Names of which `all` means every one that is not hidden.
pub(super) fn names<T: ValueEnum>() -> Names<T> {
    Names(|| T::value_variants().iter().filter(|value| !is_hidden(*value)).cloned().collect())
}

fn is_hidden<T: ValueEnum>(value: &T) -> bool {
    value.to_possible_value().is_none_or(|value| value.is_hide_set())
}

impl<T: ValueEnum + PartialEq + Send + Sync + 'static> Names<T> {
    fn parse(&self, text: &str) -> Result<List<T>, String> {
        let mut values = Vec::new();
        for word in text.split(',') {
            match word {
                "all" => values.extend((self.0)()),
                name => values.push(T::from_str(name, false).map_err(|_| refusal::<T>())?),
            }
        }
        List::new(values).ok_or_else(refusal::<T>)
    }
}

fn refusal<T: ValueEnum>() -> String {
    let shown = T::value_variants().iter().filter(|value| !is_hidden(*value));
    let names: Vec<_> =
        shown.filter_map(ValueEnum::to_possible_value).map(|value| value.get_name().to_owned()).collect();
    format!("must be {} or all", names.join(", "))
}

impl<T: ValueEnum + PartialEq + Send + Sync + 'static> TypedValueParser for Names<T> {
    type Value = List<T>;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<List<T>, Error> {
        let text = value.to_string_lossy();
        self.parse(&text).map_err(|reason| {
            let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
            if let Some(arg) = arg {
                error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
            }
            error.insert(ContextKind::InvalidValue, ContextValue::String(text.into_owned()));
            let names = reason.trim_start_matches("must be ").replace(" or all", ", all");
            let names = names.split(", ").map(ToOwned::to_owned).collect();
            error.insert(ContextKind::ValidValue, ContextValue::Strings(names));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(T::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Switch;
    use super::*;
    use crate::scenario::Mode;

    #[test]
    fn a_list_keeps_its_order_and_names_each_value_once() {
        let list = |text: &str| names::<Mode>().parse(text).map(|list| list.values().to_vec()).unwrap_or_default();
        assert_eq!(list("writer,reader,writer"), [Mode::Writer, Mode::Reader]);
        assert_eq!(list("all"), [Mode::Reader, Mode::Writer, Mode::Both, Mode::Rr, Mode::Crr, Mode::Idle]);
        assert_eq!(list("crr,all")[..2], [Mode::Crr, Mode::Reader]);
    }

    #[test]
    fn an_item_that_is_no_value_is_refused_with_the_names() {
        let refused = |text: &str| names::<Mode>().parse(text).err();
        assert_eq!(refused("up").as_deref(), Some("must be reader, writer, both, rr, crr, idle or all"));
        assert_eq!(names::<Switch>().parse("On").err().as_deref(), Some("must be on, off or all"));
        assert_eq!(names::<Switch>().parse("").err().as_deref(), Some("must be on, off or all"));
        let numbers = |text: &str| of(number(576..=65_535_u16))(text);
        assert_eq!(numbers("1500,9000").ok(), List::new([1500, 9000]));
        let refused = numbers("1500,fast").err();
        assert_eq!(refused.as_deref(), Some("fast: must be a whole number from 576 to 65535"));
    }
}
