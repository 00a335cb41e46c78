//! Threads that are kept on processors.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::processes::{PROGRAM, run, stderr};
use crate::program::{marked, no_device, proxy};

/// Ends a process with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = (self.0.kill(), self.0.wait());
    }
}

/// For each thread of a process, its name and the processors that it may use, and how many such threads there are.
fn threads(process: u32) -> BTreeMap<(String, String), usize> {
    let mut threads = BTreeMap::new();
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    for status in entries.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok()) {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        *threads.entry((field("Name:"), field("Cpus_allowed_list:"))).or_default() += 1;
    }
    threads
}

/// Waits until a thread of this name may use these processors alone.
fn is_kept(process: u32, name: &str, processors: &str) -> bool {
    let end = Instant::now() + Duration::from_mins(1);
    while Instant::now() < end {
        let threads = threads(process);
        if threads.keys().any(|(thread, allowed)| thread.starts_with(name) && allowed == processors) {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn clients_and_workers_are_kept_on_their_processors() {
    let there = platform::processors().unwrap();
    skip_if!((there.len() < 2).then_some("there is only one processor"));
    let (one, other) = (there[0], there[1]);
    for (subject, worker) in [
        ("--layer loopback --client-threads 2 --worker-threads 1", "tokio-rt-worker"),
        ("--layer loopback --client-threads 2 --current-thread", "rust-tun-perf"),
    ] {
        let arguments = format!("-m rr --parallel 2 --time 100 --timeout 200 {subject} --pin {other},{one}");
        let mut command = Command::new(PROGRAM);
        command.args(arguments.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Ended(command.spawn().unwrap());
        let process = child.0.id();
        // The last of the list is the first worker's.
        for (name, processor) in [("client-0", other), ("client-1", one), (worker, one)] {
            assert!(is_kept(process, name, &processor.to_string()), "{name}: {:?}", threads(process));
        }
        let has_workers = threads(process).keys().any(|(thread, _)| thread.starts_with("tokio-rt-worker"));
        assert_eq!(has_workers, worker == "tokio-rt-worker", "{:?}", threads(process));
    }
}

/// A program has the processors that client threads leave, and what it starts has them, too.
#[test]
fn a_program_and_its_children_are_kept_on_the_rest() {
    let there = platform::processors().unwrap();
    skip_if!((there.len() < 2).then_some("there is only one processor"));
    skip_if!(no_device());
    let (one, other) = (there[0], there[1]);
    for (processors, of_program) in [(format!("{other},{one}"), one), (other.to_string(), other)] {
        let marker = format!("pinned-{of_program}");
        let script = format!("sleep 1000 & {}; wait", proxy(&marker));
        let arguments = format!("-m rr --parallel 2 --time 100 --timeout 200 --pin {processors}");
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments.split_whitespace())
            .args(["--program", &format!("env MARKER={marker} sh -c '{script}'")]);
        let child = Ended(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        assert!(is_kept(child.0.id(), "client-0", &other.to_string()), "{:?}", threads(child.0.id()));
        // The shell, its child that waits, and our proxy.
        let tree = marked(&marker);
        assert!(tree.len() >= 3, "{tree:?}");
        for process in tree {
            let threads = threads(process);
            let is_kept = threads.keys().all(|(_, allowed)| *allowed == of_program.to_string());
            assert!(is_kept, "{process}: {threads:?}");
        }
        // Killed, it could not end what the program has started.
        assert!(Command::new("kill").arg(child.0.id().to_string()).status().unwrap().success());
        let end = Instant::now() + Duration::from_mins(1);
        while !marked(&marker).is_empty() && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(marked(&marker), Vec::<u32>::new());
    }
}

/// A run of the current-thread runtime keeps its main thread on a processor, and still sees the others.
#[test]
fn a_kept_thread_knows_of_the_other_processors() {
    let there = platform::processors().unwrap();
    let output = run(&format!("-m rr --layer loopback --time 0.1 --current-thread --json --pin {}", there[0]));
    let sample: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sample["environment"]["cpus"], there.len(), "{sample}");
}

#[test]
fn a_processor_that_is_not_there_is_refused_by_its_number() {
    let refused = run("-m rr --layer loopback --pin 1023");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--pin: there is no processor 1023"), "{}", stderr(&refused));
}
