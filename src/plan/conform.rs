//! The conformance cases to run, and their stacks.

use conformance::{Case, Exploration, Layer, invariants};
use netstacks::{StackCongestion, StackKind, Workaround, Workarounds};

use super::{PlanError, near};
use crate::cell::MIN_MTU_V6;
use crate::cli::{Conform, Switch};

/// The task of `conform`.
#[derive(Clone, Debug)]
pub struct ConformPlan {
    /// The stacks, in the order of the list.
    pub stacks: Vec<StackKind>,
    /// The cases, in the order of tables, or the invariants of random play.
    pub cases: Vec<Case>,
    /// The random plays, if they take the place of the cases.
    pub exploration: Option<Exploration>,
    /// Whether the link offloads; `None` if each case decides. A case without a preference runs without offload.
    pub offload: Option<bool>,
    /// What the adapters do for the stacks: each choice that was named. See [`ConformPlan::choices_of`].
    pub workarounds: Vec<Workarounds>,
    /// The other options, as they were typed.
    pub typed: Conform,
}

impl TryFrom<Conform> for ConformPlan {
    type Error = PlanError;

    fn try_from(conform: Conform) -> Result<Self, PlanError> {
        let is_any = |id: &str| id == "all" || Case::all().any(|case| case.id == id);
        if let Some(unknown) = conform.case.iter().find(|id| !is_any(id)) {
            let near = near(unknown, Case::all().map(|case| case.id));
            return Err(PlanError::new("--case", format!("there is no case {unknown:?}; {near}--list has the names")));
        }
        let exploration = conform.explore.map(|plays| Exploration { plays, seed: conform.seed });
        let is_named = |one: &Case| conform.case.iter().any(|id| id == "all" || id == one.id);
        let cases: Vec<_> = match exploration {
            Some(_) => invariants().collect(),
            None => Case::all().filter(is_named).collect(),
        };
        // Half of the plays are over IPv6.
        if conform.mtu < MIN_MTU_V6 && (exploration.is_some() || cases.iter().any(|case| case.ipv6)) {
            let reason = format!("{} bytes; IPv6 needs at least {MIN_MTU_V6}", conform.mtu);
            return Err(PlanError::new("--mtu", reason));
        }
        // A named stack that this build lacks is refused below.
        let here = || StackKind::ALL.into_iter().filter(|stack| stack.compiled_in()).collect();
        let stacks: Vec<_> = conform.netstack.as_ref().map_or_else(here, |list| list.0.clone());
        let has_link = |stack: &&StackKind| StackKind::ALL.contains(stack);
        if let Some(stack) = stacks.iter().find(|stack| !has_link(stack) && conform.layer == Some(Layer::Stack)) {
            return Err(PlanError::new("--layer", format!("{stack} has no link in memory; leave it out")));
        }
        if conform.command.is_some() != stacks.contains(&StackKind::External) {
            return Err(PlanError::new("--command", "goes with --netstack external, which needs it"));
        }
        if let Some(missing) = stacks.iter().find(|stack| has_link(stack) && !stack.compiled_in()) {
            return Err(PlanError::new("--netstack", netstacks::NotCompiledIn(*missing).to_string()));
        }
        if let Some(stack) = stacks.iter().find(|stack| conform.shards > 1 && !stack.can_shard()) {
            let reason = format!("{stack} has one instance; name others with --netstack");
            return Err(PlanError::new("--shards", reason));
        }
        let has_control = conform.stack_congestion.iter().any(|control| *control != StackCongestion::None);
        if has_control && !stacks.contains(&StackKind::Smoltcp) {
            return Err(PlanError::new(
                "--stack-congestion",
                "only the stack smoltcp has a choice; name it with --netstack",
            ));
        }
        let mut workarounds: Vec<_> = conform.workarounds.iter().flat_map(|list| list.0.clone()).collect();
        workarounds.dedup();
        let offload = conform.offload.map(|switch| switch == Switch::On);
        let plan = Self { stacks, cases, exploration, offload, workarounds, typed: conform };
        plan.check_workarounds()?;
        Ok(plan)
    }
}

impl ConformPlan {
    /// The layer at which the cases of a stack run.
    pub fn layer_of(&self, stack: StackKind) -> Layer {
        self.typed.layer.unwrap_or(if StackKind::ALL.contains(&stack) { Layer::Stack } else { Layer::Path })
    }

    /// The workarounds and the congestion control with which a stack runs, one choice after another.
    pub fn choices_of(&self, stack: StackKind) -> Vec<(Workarounds, StackCongestion)> {
        let controls = match self.typed.stack_congestion.as_slice() {
            named if stack == StackKind::Smoltcp => named,
            _ => &[StackCongestion::None],
        };
        let with_each = |workarounds| controls.iter().map(move |control| (workarounds, *control));
        self.workarounds_of(stack).into_iter().flat_map(with_each).collect()
    }

    /// A stack that has no workarounds to switch off runs once. A report for its maintainers is about the stack as it is.
    fn workarounds_of(&self, stack: StackKind) -> Vec<Workarounds> {
        match self.workarounds.as_slice() {
            [] if self.typed.issue.is_some() && Workaround::of(stack).next().is_some() => vec![Workarounds::NONE],
            [] => vec![Workarounds::ALL],
            [first, ..] if Workaround::of(stack).next().is_none() => vec![*first],
            named => named.to_vec(),
        }
    }

    /// How many results there will be.
    pub fn results(&self) -> usize {
        self.stacks.iter().map(|stack| self.choices_of(*stack).len() * self.cases.len()).sum()
    }

    fn check_workarounds(&self) -> Result<(), PlanError> {
        let refused = |reason: String| PlanError::new("--workarounds", reason);
        for stack in &self.stacks {
            if self.typed.issue.is_some() && self.choices_of(*stack).len() > 1 {
                return Err(refused("has one value with --issue: a case has one report".to_owned()));
            }
            for workarounds in
                self.workarounds_of(*stack).into_iter().filter(|workarounds| *workarounds != Workarounds::ALL)
            {
                if *stack == StackKind::External {
                    return Err(refused(format!("{stack} has no adapter of this program")));
                }
                workarounds.check(*stack).map_err(refused)?;
            }
        }
        if self.typed.pcap.is_some() && self.results() != 1 {
            let reason = "needs one stack, one case and one value of --workarounds: --netstack NAME --case NAME";
            return Err(PlanError::new("--pcap", reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn plan(arguments: &str) -> Result<ConformPlan, String> {
        let words = format!("rust-tun-perf conform {arguments}");
        let cli = Cli::try_parse_from(words.split_whitespace()).map_err(|error| error.to_string())?;
        let Some(Command::Conform(conform)) = cli.command else { return Err("another command".to_owned()) };
        ConformPlan::try_from(conform).map_err(|error| error.to_string())
    }

    #[test]
    fn cases_keep_the_order_of_tables_and_unknown_ones_are_refused() {
        let ids = |arguments| plan(arguments).map(|plan| plan.cases.iter().map(|case| case.id).collect::<Vec<_>>());
        assert_eq!(ids("--case half-close,handshake"), Ok(vec!["handshake", "half-close"]));
        assert_eq!(ids("").map(|ids| ids.len()), Ok(Case::all().count()));
        let unknown = ids("--case handshakes").err();
        let near = "--case: there is no case \"handshakes\"; did you mean handshake? --list has the names";
        assert_eq!(unknown.as_deref(), Some(near));
        assert!(ids("--case xyz").unwrap_err().ends_with("\"xyz\"; --list has the names"));
    }

    #[test]
    fn the_kernel_is_run_behind_a_device_if_it_is_named() {
        let named = plan("--netstack all,kernel").unwrap();
        assert_eq!(named.stacks.last(), Some(&StackKind::Kernel));
        assert_eq!(named.layer_of(StackKind::Kernel), Layer::Path);
        assert!(!plan("").unwrap().stacks.contains(&StackKind::Kernel));
        assert!(plan("--netstack kernel --layer stack").unwrap_err().starts_with("--layer: kernel has no link"));
    }

    #[test]
    fn an_mtu_is_one_that_the_cases_can_have() {
        for (arguments, is_refused) in [
            ("--mtu 1280", false),
            ("--mtu 65535", false),
            ("--mtu 1279", true),
            ("--mtu 1279 --explore 1", true),
            ("--mtu 1279 --case handshake", false),
            ("--mtu 575 --case handshake", true),
            ("--mtu 65536 --case handshake", true),
        ] {
            assert_eq!(plan(arguments).is_err(), is_refused, "{arguments}");
        }
    }

    #[test]
    fn a_stack_runs_once_for_each_choice_of_workarounds_that_changes_it() {
        let of = |arguments: &str, stack| plan(arguments).map(|plan| plan.workarounds_of(stack));
        let both = "--netstack smoltcp,kernel --workarounds all,none";
        assert_eq!(of(both, StackKind::Smoltcp), Ok(vec![Workarounds::ALL, Workarounds::NONE]));
        assert_eq!(of(both, StackKind::Kernel), Ok(vec![Workarounds::ALL]));
        assert_eq!(plan(both).unwrap().results(), 3 * Case::all().count());
        let controlled = plan(&format!("{both} --stack-congestion none,cubic")).unwrap();
        assert_eq!(controlled.results(), 5 * Case::all().count(), "smoltcp has a choice");
        assert!(plan("--netstack kernel --stack-congestion cubic").is_err());
        assert_eq!(of("--netstack kernel --workarounds none", StackKind::Kernel), Ok(vec![Workarounds::NONE]));
        let named =
            of("--netstack smoltcp --workarounds=-spare-sockets,-task-turns --workarounds all", StackKind::Smoltcp)
                .unwrap();
        assert_eq!(named, ["-spare-sockets,-task-turns".parse().unwrap(), Workarounds::ALL]);
        let issue = "--netstack smoltcp,kernel --issue x";
        assert_eq!(of(issue, StackKind::Smoltcp), Ok(vec![Workarounds::NONE]), "as it is published");
        assert_eq!(of(issue, StackKind::Kernel), Ok(vec![Workarounds::ALL]));
        assert!(plan(&format!("{issue} --workarounds all,none")).is_err(), "one report a case");
        assert!(plan("--netstack lwip --workarounds spare-sockets").is_err(), "lwip does not have it");
    }

    #[test]
    fn plays_take_the_place_of_the_cases() {
        let explored = plan("--explore 20 --seed 7").unwrap();
        assert_eq!(explored.exploration, Some(Exploration { plays: 20, seed: 7 }));
        assert_eq!(explored.cases.len(), invariants().count());
        assert_eq!(plan("").unwrap().exploration, None);
        assert!(plan("--explore 20 --case handshake").is_err(), "plays have no cases");
        assert!(plan("--seed 7").is_err(), "cases have no seed");
    }

    #[cfg(all(feature = "lwip", feature = "smoltcp"))]
    #[test]
    fn a_trace_is_of_one_case_of_one_stack() {
        for (arguments, is_refused) in [
            ("--pcap x", true),
            ("--pcap x --case handshake", true),
            ("--pcap x --case handshake --netstack lwip,smoltcp", true),
            ("--pcap x --case handshake --netstack lwip", false),
            ("--pcap x --case handshake --netstack lwip --workarounds all,none", true),
            ("--issue x", false),
            ("--issue x --out y", true),
        ] {
            assert_eq!(plan(arguments).is_err(), is_refused, "{arguments}");
        }
    }
}
