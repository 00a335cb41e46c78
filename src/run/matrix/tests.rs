use std::cell::RefCell;
use std::io;
use std::time::Duration;

use clap::Parser;
use tempfile::TempDir;

use super::*;
use crate::cell::Mode;
use crate::cli::{Cli, Command};
use crate::measure::FEWEST_ROUNDS;
use crate::sample::SampleFile;

/// An executor for tests. `outcome` returns the result of a run by its number, from 0. A path check always succeeds.
struct Fake<F> {
    environment: Environment,
    outcome: F,
    runs: RefCell<Vec<Cell>>,
}

impl<F: Fn(usize) -> Result<(), RunError>> Executor for Fake<F> {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let cell = scenario.planned();
        if *scenario != scenario.path_check() {
            let mut runs = self.runs.borrow_mut();
            runs.push(cell.clone());
            (self.outcome)(runs.len() - 1)?;
        }
        let measured = Measurements { detail: None, ..Measurements::failed(Status::Ok, "") };
        Ok(Sample { cell, measured, environment: Arc::new(self.environment.clone()) })
    }

    fn prepare(&self, _scenarios: &[Scenario]) -> Result<Environment, RunError> {
        Ok(self.environment.clone())
    }
}

fn executor<F: Fn(usize) -> Result<(), RunError>>(commit: &str, outcome: F) -> Fake<F> {
    let mut environment = crate::environment();
    environment.program.commit = Some(commit.to_owned());
    Fake { environment, outcome, runs: RefCell::default() }
}

/// Two cells of loopback, in two rounds, into a file of its own.
fn plan(folder: &TempDir) -> MatrixPlan {
    let plan = planned("x matrix --layer loopback --runtime current-thread --runs 2 --seed 1 --time 0.1");
    MatrixPlan { out: Some(folder.path().join("samples.jsonl")), ..plan }
}

fn error(class: Class) -> RunError {
    platform::Error::new(class, "open", "the device", io::ErrorKind::NotFound.into()).into()
}

fn statuses(samples: &[Sample]) -> Vec<Status> {
    samples.iter().map(|sample| sample.measured.status).collect()
}

fn made<X: Executor>(plan: &MatrixPlan, this: &X, against: Option<&X>) -> (Vec<Sample>, Result<(), crate::Error>) {
    matrix(plan, &[], this, against, crate::measure::settled, &mut Progress::new(io::sink(), false))
}

/// A process that has no offload. Counts the runs that it could not begin.
#[derive(Default)]
struct Plain {
    refused: RefCell<usize>,
}

impl Executor for Plain {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        if scenario.cell.offload == Offload::On {
            *self.refused.borrow_mut() += 1;
            return Err(RunError::NoOffload);
        }
        let measured = Measurements { detail: None, ..Measurements::failed(Status::Ok, "") };
        Ok(Sample { cell: scenario.planned(), measured, environment: Arc::new(crate::environment()) })
    }
}

fn planned(words: &str) -> MatrixPlan {
    let Ok(Cli { command: Some(Command::Matrix(matrix)), .. }) = Cli::try_parse_from(words.split(' ')) else {
        unreachable!("a constant of this test");
    };
    MatrixPlan::try_from(*matrix).unwrap()
}

#[test]
fn a_process_without_offload_is_left_out_with_it_after_one_try() {
    let plan =
        planned("x matrix -n external --command true --layer path --mode rr --offload off,on --runs 3 --time 0.1");
    let this = Plain::default();
    let (samples, ended) = made(&plan, &this, None);
    assert!(ended.is_ok());
    assert_eq!(statuses(&samples), vec![Status::Ok; plan.scenarios.len() / 2 * 3]);
    assert_eq!(*this.refused.borrow(), 1);
}

/// A cell that is left out has no sample, so it would never be settled.
#[test]
fn rounds_end_when_each_cell_that_is_not_left_out_is_settled() {
    let plan = planned("x matrix -n external --command true --layer path --mode rr --offload off,on --time 0.1");
    let plan = MatrixPlan { runs: 50, until: Some(0.05), ..plan };
    let mut progress = Progress::new(io::sink(), false);
    let settled = crate::measure::settled;
    let (samples, ended): (_, Result<(), crate::Error>) =
        matrix(&plan, &[], &Plain::default(), None, settled, &mut progress);
    ended.unwrap();
    assert_eq!([samples.len(), progress.done - samples.len()], [plan.scenarios.len() / 2 * FEWEST_ROUNDS; 2]);
}

/// A program that does not start may have offload.
#[test]
fn only_a_process_that_says_that_it_has_no_offload_is_left_out() {
    let plan =
        planned("x matrix -n external --command true --layer path --mode rr --offload off,on --runs 2 --time 0.1");
    let this = executor("new", |run| if run == 0 { Ok(()) } else { Err(error(Class::Unavailable)) });
    let (samples, ended) = made(&plan, &this, None);
    ended.unwrap();
    let unavailable = vec![Status::Unavailable; 2 * plan.scenarios.len() - 1];
    assert_eq!(statuses(&samples), [vec![Status::Ok], unavailable].concat());
}

/// In a process of its own, a run has the words of its round's seed.
#[test]
fn each_round_has_its_own_seed_of_the_link() {
    struct Seeds(RefCell<Vec<(u64, Scenario)>>);
    impl Executor for Seeds {
        fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
            let again = Scenario::of_words(scenario.words.clone()).unwrap();
            self.0.borrow_mut().push((scenario.link_seed, again));
            let measured = Measurements { detail: None, ..Measurements::failed(Status::Ok, "") };
            Ok(Sample { cell: scenario.planned(), measured, environment: Arc::new(crate::environment()) })
        }
    }
    let plan =
        planned("x matrix -n external --command true -m rr --loss 1 --offload off --runs 2 --time 1 --link-seed 7");
    let this = Seeds(RefCell::default());
    made(&plan, &this, None).1.unwrap();
    let runs = this.0.take();
    assert!(runs.iter().all(|(seed, again)| *seed == again.link_seed), "{runs:?}");
    assert_eq!([runs[0].0, runs.last().unwrap().0], [7, 8]);
}

#[test]
fn a_run_that_cannot_start_is_unavailable_only_if_something_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let this = executor("new", |run| match run {
        1 => Err(error(Class::Unavailable)),
        2 => Err(error(Class::Failed)),
        3 => Err(error(Class::Invalid)),
        _ => Ok(()),
    });
    let (samples, ended) = made(&plan(&folder), &this, None);
    ended.unwrap();
    assert_eq!(statuses(&samples), [Status::Ok, Status::Unavailable, Status::NotStarted, Status::NotStarted]);
}

#[test]
fn a_run_that_was_unavailable_is_tried_again_when_the_file_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&folder);
    let once = executor("new", |run| if run == 1 { Err(error(Class::Unavailable)) } else { Ok(()) });
    let (samples, _) = made(&plan, &once, None);
    assert_eq!(statuses(&samples), [Status::Ok, Status::Unavailable, Status::Ok, Status::Ok]);
    let again = executor("new", |_| Ok(()));
    let (samples, ended) = made(&plan, &again, None);
    ended.unwrap();
    assert_eq!(*again.runs.borrow(), [samples[1].cell.clone()], "the other runs are not made again");
    assert_eq!(statuses(&samples), [Status::Ok; 4]);
    assert_eq!(SampleFile::read(&plan.out.unwrap()).unwrap().samples, samples);
}

/// An executor whose runs of one cell stall.
struct Stalling(Fake<fn(usize) -> Result<(), RunError>>, Cell);

impl Executor for Stalling {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let mut sample = self.0.execute(scenario)?;
        if sample.cell == self.1 && *scenario != scenario.path_check() {
            sample.measured.status = Status::Stalled;
        }
        Ok(sample)
    }

    fn prepare(&self, scenarios: &[Scenario]) -> Result<Environment, RunError> {
        self.0.prepare(scenarios)
    }
}

#[test]
fn a_matrix_that_gives_up_tries_a_cell_twice_also_when_it_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let plan = MatrixPlan { runs: 3, gives_up: true, ..plan(&folder) };
    let cell = plan.scenarios[0].planned();
    let this = || Stalling(executor("new", |_| Ok(())), cell.clone());
    let of_cell = |samples: &[Sample]| -> Vec<Status> {
        samples.iter().filter(|sample| sample.cell == cell).map(|sample| sample.measured.status).collect()
    };
    let first = this();
    let (samples, ended) = made(&plan, &first, None);
    ended.unwrap();
    assert_eq!(of_cell(&samples), [Status::Stalled, Status::Stalled, Status::GivenUp]);
    assert_eq!(first.0.runs.borrow().len(), 2 + 3, "the other cell goes on");
    // A run that was given up is done; the file's failures count for a longer matrix.
    let again = this();
    let (samples, ended) = made(&MatrixPlan { runs: 4, ..plan.clone() }, &again, None);
    ended.unwrap();
    assert_eq!(of_cell(&samples)[2..], [Status::GivenUp, Status::GivenUp]);
    assert_eq!(again.0.runs.borrow().len(), 1);
    let stubborn = this();
    let plan = MatrixPlan { gives_up: false, out: None, ..plan };
    assert_eq!(of_cell(&made(&plan, &stubborn, None).0), [Status::Stalled; 3]);
}

#[test]
fn another_build_runs_every_cell_in_the_same_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&folder);
    let outcome = |_| Ok(());
    let [this, against] = ["new", "old"].map(|commit| executor(commit, outcome));
    let (samples, ended) = made(&plan, &this, Some(&against));
    ended.unwrap();
    for round in [1, 2] {
        for against in [false, true] {
            let of_both = |sample: &&Sample| sample.measured.round == Some(round) && sample.measured.against == against;
            let cells: HashSet<Cell> = samples.iter().filter(of_both).map(|sample| sample.cell.clone()).collect();
            assert_eq!(cells.len(), 2, "round {round}, against: {against}");
        }
    }
    let commit = |sample: &Sample| sample.environment.program.commit.clone().unwrap();
    assert!(samples.iter().all(|sample| commit(sample) == if sample.measured.against { "old" } else { "new" }));
    assert_eq!(SampleFile::read(plan.out.as_ref().unwrap()).unwrap().samples, samples);
    // Nothing is left to do.
    let (_, ended) = made(&plan, &this, Some(&against));
    ended.unwrap();
    assert_eq!(this.runs.borrow().len() + against.runs.borrow().len(), 8);
}

#[test]
fn a_file_is_continued_with_the_same_other_build_only() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |file: &str, against: Option<&str>| {
        let plan = MatrixPlan { out: Some(folder.path().join(file)), ..plan(&folder) };
        let outcome = |_| Ok(());
        let against = against.map(|commit| executor(commit, outcome));
        let (samples, ended) = made(&plan, &executor("new", outcome), against.as_ref());
        assert_eq!(samples.is_empty(), ended.is_err());
        ended.err().map(|error| error.to_string().split_once(": ").unwrap().1.to_owned())
    };
    assert_eq!([refusal("two", Some("old")), refusal("two", Some("old"))], [None, None]);
    for (file, against, reason) in [
        ("two", Some("older"), "is against another build: commit was old and is older; choose another file"),
        ("two", None, "has runs of another build, old, too; add --against, or choose another file"),
    ] {
        assert_eq!(refusal(file, against).as_deref(), Some(reason));
    }
    assert_eq!(refusal("one", None), None);
    let reason = "has no runs of the other build, old; leave out --against, or choose another file";
    assert_eq!(refusal("one", Some("old")).as_deref(), Some(reason));
}

/// Ten rounds suffice for runs of which each has the same figure, and one for a matrix whose time is over.
#[test]
fn rounds_end_when_each_cell_is_settled_or_the_time_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let until = MatrixPlan { runs: 100, until: Some(0.05), at_most: Some(Duration::from_mins(10)), ..plan(&folder) };
    let this = executor("new", |_| Ok(()));
    let (samples, ended) = made(&until, &this, None);
    ended.unwrap();
    assert_eq!(samples.len(), 2 * FEWEST_ROUNDS);
    // There is nothing to continue.
    let again = executor("new", |_| Ok(()));
    let (samples, _) = made(&until, &again, None);
    assert_eq!((samples.len(), again.runs.borrow().len()), (2 * FEWEST_ROUNDS, 0));

    let other = tempfile::tempdir().unwrap();
    let limited = MatrixPlan { runs: 5, at_most: Some(Duration::from_nanos(1)), ..plan(&other) };
    let (samples, ended) = made(&limited, &executor("new", |_| Ok(())), None);
    ended.unwrap();
    assert_eq!(samples.len(), 2, "the first round is always made");
}

#[test]
fn a_settled_cell_is_not_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let plan = MatrixPlan { runs: 5, until: Some(0.05), at_most: Some(Duration::from_mins(10)), ..plan(&folder) };
    // The reader, after three runs.
    let settled: Settled = |samples, _| {
        let readers = || samples.iter().map(|sample| &sample.cell).filter(|cell| cell.mode == Some(Mode::Reader));
        if readers().count() < 3 { HashSet::new() } else { readers().cloned().collect() }
    };
    let this = executor("new", |_| Ok(()));
    let (samples, ended): (_, Result<(), crate::Error>) =
        matrix(&plan, &[], &this, None, settled, &mut Progress::new(io::sink(), false));
    ended.unwrap();
    let of = |mode| samples.iter().filter(|sample| sample.cell.mode == Some(mode)).count();
    assert_eq!([Mode::Reader, Mode::Writer].map(of), [3, 5]);
}
