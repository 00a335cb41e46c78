//! The cases of manners to run, and their programs.

use clap::Parser;
use conformance::manners::Manner;

use super::scenario::Scenario;
use super::{PlanError, near, of_parser};
use crate::cli::{self, Cli, Conform};
use crate::program::{Role, THIS, Upstream};

/// The task of `conform --program`.
#[derive(Clone, Debug)]
pub struct MannersPlan {
    /// A run of each program, over IPv4 and over IPv6.
    pub programs: Vec<[Scenario; 2]>,
    /// The cases, in the order of tables.
    pub cases: Vec<Manner>,
    /// The other options, as they were typed.
    pub typed: Conform,
}

impl TryFrom<Conform> for MannersPlan {
    type Error = PlanError;

    fn try_from(conform: Conform) -> Result<Self, PlanError> {
        let is_named = |case: &Manner, id: &String| id == "all" || id == case.id;
        if let Some(unknown) = conform.case.iter().find(|id| !Manner::all().any(|case| is_named(&case, id))) {
            let near = near(unknown, Manner::all().map(|case| case.id));
            let reason = format!("there is no case {unknown:?} of programs; {near}--list has the names");
            return Err(PlanError::new("--case", reason));
        }
        let cases = Manner::all().filter(|case| conform.case.iter().any(|id| is_named(case, id))).collect();
        let names = conform.program.iter().flat_map(|text| cli::values("program", text));
        let of = |name: String| Ok([scenario(&name, None)?, scenario(&name, Some("--ipv6"))?]);
        let mut programs = names.map(of).collect::<Result<Vec<[Scenario; 2]>, PlanError>>()?;
        // Of all, without the client that speaks SOCKS5 itself.
        programs.retain(|[one, _]| !is_client(one));
        if programs.is_empty() {
            return Err(PlanError::new("--program", "socks5 is the client itself, and no program"));
        }
        Ok(Self { programs, cases, typed: conform })
    }
}

/// A run of a program as its authors ship it.
fn scenario(program: &str, ipv6: Option<&str>) -> Result<Scenario, PlanError> {
    let words = [THIS, "--mode", "rr", "--program", program].into_iter().chain(ipv6);
    Scenario::try_from(Cli::try_parse_from(words).map_err(|error| of_parser(&error))?.run)
}

fn is_client(scenario: &Scenario) -> bool {
    let profile = scenario.cell.program.as_ref().and_then(|program| program.profile());
    profile.is_some_and(|profile| profile.role == Role::Route && profile.upstream() == Some(Upstream::Socks5))
}

impl MannersPlan {
    /// How many results there will be.
    pub fn results(&self) -> usize {
        self.programs.len() * self.cases.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::plan::Plan;

    fn plan(arguments: &str) -> Result<MannersPlan, String> {
        let words = format!("rust-tun-perf conform {arguments}");
        let cli = Cli::try_parse_from(words.split_whitespace()).map_err(|error| error.to_string())?;
        match Plan::try_from(cli) {
            Ok(Plan::Manners(plan)) => Ok(plan),
            Ok(_) => Err("another plan".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn cases_are_run_on_each_program_over_both_versions() {
        let one = plan("--program kernel,tun2proxy --case idle-ipv6,half-close-client").unwrap();
        assert_eq!(one.cases.iter().map(|case| case.id).collect::<Vec<_>>(), ["half-close-client", "idle-ipv6"]);
        assert_eq!((one.programs.len(), one.results()), (2, 4));
        assert!(one.programs.iter().all(|[old, new]| !old.ipv6() && new.ipv6()));
        assert_eq!(plan("--program kernel").unwrap().cases.len(), Manner::all().count());
    }

    #[test]
    fn options_of_stacks_are_refused_beside_a_program() {
        for (options, reason) in [
            ("--program kernel --netstack smoltcp", "cannot be used with"),
            ("--program kernel --mtu 1500", "cannot be used with"),
            ("--program kernel --explore 3", "cannot be used with"),
            ("--program kernel --workarounds none", "cannot be used with"),
            ("--program kernel --pcap x --case idle", "cannot be used with"),
            ("--program kernel --case half-close", "there is no case"),
            ("--program socks5", "no program"),
            ("--program nonesuch", "no program has this name"),
        ] {
            let refused = plan(options).unwrap_err();
            assert!(refused.contains(reason), "{options}: {refused}");
        }
    }
}
