//! The demands of standards that stacks meet, and the causes for which they do not.

use std::collections::{BTreeMap, BTreeSet};

use conformance::Strength;
use conformance::known::Whose;
use netstacks::StackKind;

use super::{Key, failed, key, name, stacks};
use crate::report::format::unique;
use crate::report::model::{Column, Table};
use crate::sample::{CaseResult, Score};

/// How a stack meets the demands of one strength.
pub(super) struct Met {
    /// Causes in the stack itself whose strongest demand this is.
    pub(super) causes: usize,
    /// Demands that the stack itself does not meet.
    pub(super) broken: usize,
    /// Demands that apply.
    pub(super) applied: usize,
}

impl Met {
    pub(super) fn of(scores: &[&Score], stack: Key, strength: Strength) -> Self {
        let has_result = |score: &&&Score| score.has_failed() || score.has_passed();
        let own = || scores.iter().filter(|score| key(score) == stack).filter(has_result);
        let of_stack = |score: &&&Score| score.has_failed() && score.whose() == Whose::Stack;
        let demands = |scores: &mut dyn Iterator<Item = &&Score>| {
            let alike = scores.filter(|score| strength_of(score) == Some(strength));
            alike.map(|score| demand(score)).collect::<BTreeSet<_>>().len()
        };
        let causes = strongest(own().filter(of_stack).copied()).into_values();
        Self {
            causes: causes.filter(|strongest| *strongest == strength).count(),
            broken: demands(&mut own().filter(of_stack)),
            applied: demands(&mut own()),
        }
    }
}

/// For each strength, the causes in the stack itself, and the demands that it does not meet.
pub(super) fn demands(scores: &[&Score]) -> Table {
    let mut table = Table::new("Demands");
    let rows = Strength::ALL.map(|strength| [format!("{strength}: causes"), format!("{strength}: not met")]);
    let others = [Whose::Adapter, Whose::Build];
    let rows = rows.into_iter().flatten().chain(others.map(|whose| format!("{whose}: causes")));
    table.push(Column::new("demands", false), rows);
    for stack in stacks(scores) {
        let met = Strength::ALL.map(|strength| Met::of(scores, stack, strength));
        let met = met
            .into_iter()
            .flat_map(|Met { causes, broken, applied }| [causes.to_string(), format!("{broken} of {applied}")]);
        let of = |whose| scores.iter().filter(move |score| key(score) == stack && score.whose() == whose);
        let of_others = others.map(|whose| strongest(of(whose).copied()).len().to_string());
        table.push(Column::new(name(stack), true), met.chain(of_others));
    }
    table
}

/// The causes of a stack's failures: those of the stack itself and those that break a MUST first.
pub(super) fn causes(scores: &[&Score], stack: StackKind) -> Table {
    let failed: Vec<_> = failed(scores).into_iter().filter(|score| score.netstack == stack).collect();
    let of = |name: &(Whose, &str)| {
        failed.iter().copied().filter(|score| (score.whose(), cause(score)) == *name).collect::<Vec<_>>()
    };
    let strongest = strongest(failed.iter().copied()).into_iter();
    let mut rows: Vec<_> = strongest.map(|(name, strength)| (name.0, strength, of(&name))).collect();
    rows.sort_by_key(|(whose, strength, scores)| {
        (*whose, *strength, scores.iter().filter_map(|score| score.outcome.harm()).min())
    });
    let mut table = Table::new("Causes");
    let mut push = |title, value: &dyn Fn(&[&Score]) -> String| {
        table.push(Column::new(title, false), rows.iter().map(|(.., scores)| value(scores)));
    };
    push("whose", &|scores| scores[0].whose().to_string());
    push("breaks", &|scores| {
        let mut levels = unique(scores.iter().map(|score| score.level.as_str()));
        levels.sort_by_key(|level| Strength::of(level));
        levels.join("; ")
    });
    push("cause", &|scores| cause(scores[0]).to_owned());
    push("cases", &|scores| unique(scores.iter().map(|score| score.case.as_str())).join(", "));
    push("why", &|scores| scores[0].known.clone().unwrap_or_else(|| "not known".to_owned()));
    table
}

/// The causes of failures, each with the strongest demand that it breaks.
fn strongest<'a>(scores: impl Iterator<Item = &'a Score>) -> BTreeMap<(Whose, &'a str), Strength> {
    let mut causes = BTreeMap::new();
    for score in scores.filter(|score| score.has_failed()) {
        let Some(strength) = strength_of(score) else { continue };
        let strongest = causes.entry((score.whose(), cause(score))).or_insert(strength);
        *strongest = strength.min(*strongest);
    }
    causes
}

/// The name of a cause. A failure that is not known has one of its own.
fn cause(score: &Score) -> &str {
    score.cause.as_deref().unwrap_or(&score.case)
}

/// A sentence of a standard is one demand, however many cases check it. A promise of ours is one for each case.
fn demand(score: &Score) -> &str {
    if strength_of(score) == Some(Strength::Ours) { &score.case } else { &score.level }
}

fn strength_of(score: &Score) -> Option<Strength> {
    Strength::of(&score.level)
}
