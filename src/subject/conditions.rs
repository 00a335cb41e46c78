//! The conditions of a link.

use std::slice;

use platform::{FaultPlan, Faults, Faulty, Link, PathMtu, Which};

use crate::error::RunError;
use crate::plan::scenario::Scenario;

/// Cuts the path of a run, or joins it again. Called by the thread that is in the near network.
pub(crate) type Cut = Box<dyn Fn(bool) -> Result<(), RunError> + Send>;

/// How many later packets overtake a packet: as many as TCP takes for a sign of loss (RFC 5681, 3.2).
const OVERTAKEN_BY: usize = 3;

/// The conditions of a scenario, for both directions.
pub(crate) fn plan(scenario: &Scenario) -> FaultPlan {
    let link = scenario.cell.impairments;
    let which = |ppm| if ppm == 0 { Which::None } else { Which::PerMillion(ppm) };
    let faults = Faults {
        lose: which(link.loss_ppm),
        duplicate: which(link.duplicate_ppm),
        reorder: which(link.reorder_ppm),
        reorder_by: if link.reorder_ppm == 0 { 0 } else { OVERTAKEN_BY },
        corrupt: which(link.corrupt_ppm),
        delay: link.delay,
        jitter: link.jitter,
        rate: link.rate_limit.map(Into::into),
        path_mtu: link.path_mtu.map(|len| PathMtu { len: len.get(), tells: !link.no_icmp }),
    };
    FaultPlan { seed: scenario.link_seed, rx: faults, tx: faults, ..FaultPlan::default() }
}

/// The link with the conditions of a scenario, and the function that cuts it if it has an outage.
pub(crate) fn with_conditions<L: Link>(link: L, scenario: &Scenario) -> (Faulty<L>, Option<Cut>) {
    let mut link = Faulty::new(link, plan(scenario));
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
