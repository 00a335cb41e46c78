//! The impairments of a link.

use std::slice;

use platform::{Faulty, Link};

use crate::error::RunError;
use crate::plan::scenario::Scenario;

/// Cuts the path of a run, or joins it again. Called by the thread that is in the near network.
pub(crate) type Cut = Box<dyn Fn(bool) -> Result<(), RunError> + Send>;

/// The link with the impairments of a scenario, and the function that cuts it if it has an outage.
pub(crate) fn with_impairments<L: Link>(link: L, scenario: &Scenario) -> (Faulty<L>, Option<Cut>) {
    let mut link = Faulty::new(link, scenario.cell.impairments, scenario.link_seed);
    let cut = cut(slice::from_mut(&mut link), scenario);
    (link, cut)
}

/// The function that cuts these links for an outage, if the scenario has one.
pub(crate) fn cut<L: Link>(links: &mut [Faulty<L>], scenario: &Scenario) -> Option<Cut> {
    scenario.cell.impairments.outage.map(|_| {
        let switches: Vec<_> = links.iter_mut().map(Faulty::switch).collect();
        let cut: Cut = Box::new(move |is_cut| {
            for switch in &switches {
                switch.cut(is_cut);
            }
            Ok(())
        });
        cut
    })
}
