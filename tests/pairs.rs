//! Chooses combinations of options so that every pair of values of two options occurs. That takes far fewer runs than
//! all combinations.
//!
//! Most faults need one value or two values together, not three (D. R. Kuhn, R. N. Kacker, Y. Lei: Practical
//! Combinatorial Testing, NIST SP 800-142).

use std::collections::HashSet;

/// One value of each axis.
pub(crate) type Row<const N: usize> = [&'static str; N];

/// Returns rows that together contain every pair of values of two axes.
pub(crate) fn pairwise<const N: usize>(axes: [&[&'static str]; N]) -> Vec<Row<N>> {
    covering(&product(axes))
}

/// Returns every combination of the axes' values.
pub(crate) fn product<const N: usize>(axes: [&[&'static str]; N]) -> Vec<Row<N>> {
    axes.iter().enumerate().fold(vec![[""; N]], |rows, (axis, values)| {
        let with = |row: &Row<N>, value| {
            let mut row = *row;
            row[axis] = value;
            row
        };
        rows.iter().flat_map(|row| values.iter().map(|value| with(row, value)).collect::<Vec<_>>()).collect()
    })
}

/// Chooses rows that together contain every pair of `rows`. It always takes the row with the most missing pairs, and
/// the first of equal ones.
pub(crate) fn covering<const N: usize>(rows: &[Row<N>]) -> Vec<Row<N>> {
    let mut missing: HashSet<_> = rows.iter().flat_map(pairs_of).collect();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let gain = |row: &&Row<N>| pairs_of(row).filter(|pair| missing.contains(pair)).count();
        let best = *rows.iter().rev().max_by_key(gain).unwrap();
        for pair in pairs_of(&best) {
            missing.remove(&pair);
        }
        chosen.push(best);
    }
    chosen
}

/// Two axes and their values.
type Pair = [(usize, &'static str); 2];

fn pairs_of<const N: usize>(row: &Row<N>) -> impl Iterator<Item = Pair> {
    let values = row.iter().copied().enumerate();
    values.clone().flat_map(move |first| values.clone().skip(first.0 + 1).map(move |second| [first, second]))
}

#[test]
fn every_pair_of_values_is_in_a_row() {
    let axes: [&[&str]; 4] = [&["a", "b", "c"], &["a", "b"], &["a", "b", "c", "d"], &["a", "b"]];
    let rows = pairwise(axes);
    assert!(rows.len() < 3 * 2 * 4 * 2 / 2, "{rows:?}");
    for first in 0..axes.len() {
        for second in first + 1..axes.len() {
            for one in axes[first] {
                for other in axes[second] {
                    let together = |row: &&Row<4>| row[first] == *one && row[second] == *other;
                    assert!(rows.iter().any(|row| together(&row)), "{first}: {one}, {second}: {other}: {rows:?}");
                }
            }
        }
    }
}
