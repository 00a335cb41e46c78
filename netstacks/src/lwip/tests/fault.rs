//! A failed assertion of lwIP ends lwIP in this process, so each test runs in a process of its own.

use std::io::Write as _;
use std::process::Command;

use super::*;

/// Fails an assertion of lwIP.
pub(super) fn fail() {
    // SAFETY: the caller's bench holds the lock of lwIP's only engine.
    unsafe { lwip_sys::lwip_sys_fail() };
}

const MESSAGE: &str = "lwIP: assertion failed: a test";

/// Runs an ignored test of this module in another process.
fn run_alone(name: &str) {
    let name = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    let mut command = Command::new(std::env::current_exe().unwrap());
    // lwIP's memory is lost with it.
    command.args(["--exact", &name, "--ignored"]).env("ASAN_OPTIONS", "detect_leaks=0");
    match command.output() {
        Err(error) => {
            let _closed = writeln!(io::stderr(), "SKIP {name}: this program cannot start itself: {error}");
        }
        Ok(output) => assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

#[test]
fn a_failed_assertion_ends_the_stack_and_not_the_process() {
    run_alone("alone_between_calls");
}

#[test]
fn a_failed_assertion_within_a_callback_leaves_both_calls() {
    run_alone("alone_within_a_callback");
}

#[test]
fn a_failed_assertion_ends_the_driver_and_all_streams() {
    run_alone("alone_with_a_driver");
}

/// Checks that everything fails, nothing crashes, and lwIP does not start again.
fn is_dead(mut bench: Bench, accepted: Accepted) {
    let errors = [
        bench.engine.ingress(bench.now).err(),
        bench.engine.egress(bench.now).err(),
        bench.engine.recv(accepted.flow, &mut [0; 9]).err(),
        bench.engine.send(accepted.flow, &[0; 9]).err(),
    ];
    for error in errors {
        let error = error.unwrap();
        assert!(error.to_string().starts_with(MESSAGE), "{error}");
        assert!(StackFault::is_in(&error));
    }
    assert!(bench.engine.has_failed(accepted.flow));
    bench.engine.finish(accepted.flow);
    bench.engine.reset(accepted.flow);
    bench.engine.release(accepted.flow);
    bench.engine.close_listener();
    drop(bench);
    let (link, _wire) = MemoryLink::pair(1500, 4);
    let error = Lwip::start(link, &StackConfig::default()).err().unwrap().to_string();
    assert!(error.contains(MESSAGE) && error.contains("start the program again"), "{error}");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn alone_between_calls() {
    let mut bench = Bench::new();
    let (accepted, mut next) = bench.open(&MSS_1460);
    next.len = 1000;
    bench.put(&next);
    bench.turn();
    fail();
    is_dead(bench, accepted);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn alone_within_a_callback() {
    let mut bench = Bench::new();
    let (accepted, mut next) = bench.open(&MSS_1460);
    next.len = 1000;
    bench.put(&next);
    // SAFETY: the engine's, and lwIP does not run.
    unsafe { (*bench.engine.output).link.1 = true };
    bench.engine.ingress(bench.now).unwrap();
    // The acknowledgement of the data fails in the middle of lwIP's output.
    let error = bench.engine.egress(bench.now).unwrap_err();
    assert!(error.to_string().starts_with(MESSAGE), "{error}");
    is_dead(bench, accepted);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn alone_with_a_driver() {
    use crate::peer::Client;
    use crate::{Listener as _, Started};
    use tokio::io::AsyncReadExt;

    let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let Started { mut listener, driver, datagrams: _datagrams, .. } =
            Lwip::start(link, &StackConfig::default()).unwrap();
        let driver = tokio::spawn(driver);
        let client = std::thread::spawn(|| {
            Client::connect(other_end, [10, 0, 0, 1].into(), ([10, 0, 0, 2], 80).into(), Duration::from_secs(10))
                .unwrap()
        });
        let mut stream = listener.accept().await.unwrap();
        let reader = tokio::spawn(async move { stream.read_u8().await.unwrap_err() });
        let _client = client.join().unwrap();
        // All tasks wait now, so lwIP does not run.
        tokio::time::sleep(Duration::from_millis(50)).await;
        fail();
        for error in [driver.await.unwrap().unwrap_err(), reader.await.unwrap(), listener.accept().await.err().unwrap()]
        {
            assert!(error.to_string().starts_with(MESSAGE), "{error}");
            assert!(StackFault::is_in(&error));
        }
    });
}
