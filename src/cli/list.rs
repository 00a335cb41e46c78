//! The values of comma-separated lists.

use clap::ValueEnum;

/// An item of a list: a value by its name, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// Every value.
    All,
    /// This one.
    One(T),
}

impl<T: ValueEnum + PartialEq> Choice<T> {
    /// The values that a list names, each once, in its order. `all` leaves out hidden values.
    pub fn expand(list: &[Self]) -> Vec<T> {
        let mut values: Vec<T> = Vec::new();
        let all = || T::value_variants().iter().filter(|value| !is_hidden(*value)).cloned().collect();
        for choice in list {
            let named = match choice {
                Self::All => all(),
                Self::One(value) => vec![value.clone()],
            };
            for value in named {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
        }
        values
    }
}

fn is_hidden<T: ValueEnum>(value: &T) -> bool {
    value.to_possible_value().is_none_or(|value| value.is_hide_set())
}

/// Parses an item of a list.
pub(super) fn choice<T: ValueEnum>(text: &str) -> Result<Choice<T>, String> {
    if text == "all" {
        return Ok(Choice::All);
    }
    T::from_str(text, false).map(Choice::One).map_err(|_| {
        let shown = T::value_variants().iter().filter(|value| !is_hidden(*value));
        let names: Vec<_> =
            shown.filter_map(ValueEnum::to_possible_value).map(|value| value.get_name().to_owned()).collect();
        format!("must be {} or all", names.join(", "))
    })
}

/// Every combination of a setting and a value.
pub(super) fn product<S: Clone, T: Copy>(settings: &[S], values: &[T], with: impl Fn(S, T) -> S) -> Vec<S> {
    settings.iter().flat_map(|one| values.iter().map(|value| with(one.clone(), *value))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Switch;
    use super::*;
    use crate::scenario::Mode;

    #[test]
    fn a_list_keeps_its_order_and_names_each_value_once() {
        let list = |items: &[&str]| {
            Choice::expand(
                &items.iter().map(|item| choice::<Mode>(item)).collect::<Result<Vec<_>, _>>().unwrap_or_default(),
            )
        };
        assert_eq!(list(&["writer", "reader", "writer"]), [Mode::Writer, Mode::Reader]);
        assert_eq!(list(&["all"]), [Mode::Reader, Mode::Writer, Mode::Both, Mode::Rr, Mode::Crr, Mode::Idle]);
        assert_eq!(list(&["crr", "all"])[..2], [Mode::Crr, Mode::Reader]);
    }

    #[test]
    fn an_item_that_is_no_value_is_refused_with_the_names() {
        assert_eq!(choice::<Mode>("up"), Err("must be reader, writer, both, rr, crr, idle or all".to_owned()));
        assert_eq!(choice::<Switch>("On"), Err("must be on, off or all".to_owned()));
        assert_eq!(choice::<Switch>(""), Err("must be on, off or all".to_owned()));
    }
}
