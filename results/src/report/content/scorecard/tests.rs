use conformance::Harm;

use super::*;
use crate::measure::fixture;
use crate::report::format::Stack;
use crate::report::terminal::terminal;

fn score(stack: StackKind, case: &str, outcome: Outcome) -> Score {
    with_workarounds((stack, Workarounds::ALL), case, outcome)
}

fn with_workarounds((stack, workarounds): Stack, case: &str, outcome: Outcome) -> Score {
    fixture::score(stack, workarounds, case, outcome)
}

fn fail(seen: &str, harm: Harm) -> Outcome {
    Outcome::Fail { seen: seen.to_owned(), harm }
}

fn printed(scores: &[Score]) -> String {
    let mut out = Vec::new();
    terminal(outcome(scores, true), None, &mut out).unwrap();
    String::from_utf8_lossy(&out).into_owned()
}

/// The score of a case of ipstack. The list of known failures has `half-close` and not `handshake`.
fn of_ipstack(case: &str, outcome: Outcome) -> Score {
    score(StackKind::Ipstack, case, outcome)
}

#[test]
fn each_failure_has_a_line_and_the_last_one_explains_the_exit_code() {
    let text = printed(&[
        of_ipstack("handshake", fail("the MSS is 1", Harm::Manners)),
        of_ipstack("half-close", fail("a read waited 2s in vain", Harm::Hang)),
    ]);
    let (_, failures) = text.split_once("Failures, the worst first:\n").unwrap_or_default();
    let lines: Vec<_> = failures.lines().collect();
    assert!(lines[0].starts_with("  ipstack half-close: expected by RFC 9293, 3.6, case 2: The server"), "{text}");
    assert!(lines[0].contains(" Seen: a read waited 2s in vain; known: ipstack answers"), "{text}");
    assert!(lines[1].ends_with(" Seen: the MSS is 1; NEW"), "{text}");
    assert!(!text.contains("exit code"), "standard error has the reason: {text}");
    let known = printed(&[
        of_ipstack("handshake", Outcome::Pass),
        of_ipstack("half-close", fail("a read waited 2s in vain", Harm::Hang)),
    ]);
    assert!(known.ends_with("\nEvery failure is a known one, so the exit code is 0.\n"), "{known}");
    let passed = printed(&[of_ipstack("half-close", Outcome::Pass)]);
    assert!(passed.contains("known to fail:\n  ipstack half-close; known: ipstack answers"), "{passed}");
    let all_passed = printed(&[of_ipstack("handshake", Outcome::Pass)]);
    assert!(all_passed.ends_with("No case failed, so the exit code is 0.\n"), "{all_passed}");
}

#[test]
fn what_was_left_out_has_its_reason_once() {
    let refuses = || Outcome::Unavailable { seen: "it ended with exit code 1".to_owned() };
    let text = printed(&[
        of_ipstack("handshake", refuses()),
        of_ipstack("half-close", refuses()),
        of_ipstack("blind-rst", Outcome::NotApplicable { seen: "it has no RST".to_owned() }),
    ]);
    let (_, lines) = text.split_once("Left out:\n").unwrap_or_default();
    let expected = "  ipstack, 2 cases: it ended with exit code 1\n  ipstack, 1 case: it has no RST\n";
    assert!(lines.starts_with(expected), "{text}");
    assert_eq!(text.matches("unavailable").count(), 2, "a word in the table for each: {text}");
}

#[test]
fn a_stack_is_shown_with_workarounds_and_as_it_is() {
    let of = |workarounds, case, outcome| with_workarounds((StackKind::Smoltcp, workarounds), case, outcome);
    let scores = [
        of(Workarounds::ALL, "super-packets-sent", Outcome::Pass),
        of(Workarounds::NONE, "super-packets-sent", fail("silence", Harm::Manners)),
        of(Workarounds::ALL, "ipv4-fragments", fail("silence", Harm::Manners)),
        of(Workarounds::NONE, "ipv4-fragments", fail("silence", Harm::Manners)),
    ];
    assert!(scores.iter().all(Score::is_as_known));
    let scores: Vec<_> = scores.iter().collect();
    assert_eq!(totals(&scores).rows.last().map(|row| &row[..]), Some(&["all", "1 of 2", "0 of 2"].map(Into::into)[..]));
    assert_eq!(totals(&scores).columns[2].title, "smoltcp, as published");
    assert_eq!(cases(&scores).columns[1].title, "smoltcp");
    let words: Vec<_> = cases(&scores).rows.into_iter().map(|row| row[1].clone()).collect();
    assert_eq!(words, ["worked around", "FAIL (adapter)"]);
    let mended: Vec<_> = failures(&scores, StackKind::Smoltcp).rows.into_iter().map(|row| row[4].clone()).collect();
    assert_eq!(mended, ["mss-rewrite", UNKNOWN]);
}

#[test]
fn the_kernel_is_the_last_column_and_judges_the_cases() {
    let scores = [
        score(StackKind::Kernel, "half-close", Outcome::Pass),
        score(StackKind::Kernel, "fin-lost", fail("silence", Harm::Manners)),
        score(StackKind::Gvisor, "half-close", fail("silence", Harm::Manners)),
        score(StackKind::Gvisor, "fin-lost", Outcome::Pass),
    ];
    let scores: Vec<_> = scores.iter().collect();
    let titles: Vec<_> = totals(&scores).columns.into_iter().map(|column| column.title).collect();
    assert_eq!(titles, ["subject", "gvisor", "kernel"]);
    assert_eq!(totals(&scores).rows[2], ["passed by the kernel", "0 of 1", "1 of 1"]);
    assert_eq!(cases(&scores).rows[0][..3], ["half-close", "FAIL", "pass"]);
    for (stack, case, judgement) in [(StackKind::Kernel, "fin-lost", "FAIL"), (StackKind::Gvisor, "half-close", "pass")]
    {
        let rows = failures(&scores, stack).rows;
        assert_eq!((rows.len(), rows[0][2].as_str()), (1, case));
        assert_eq!(rows[0].last().map(String::as_str), Some(judgement));
    }
    assert_eq!(totals(&scores[2..]).rows.len(), 2, "without the kernel there is no judge");
}

#[test]
fn a_case_that_all_pass_is_a_name_and_one_that_continues_it_is_told_whole() {
    let handshake = |case, outcome| score(StackKind::Gvisor, case, outcome);
    let scores = [handshake("handshake", Outcome::Pass), handshake("handshake-ipv6", fail("silence", Harm::Hang))];
    let blocks = listed(&scores.iter().collect::<Vec<_>>());
    let [Block::Table(table), Block::List(_, lines)] = blocks.as_slice() else { panic!("a table and a list") };
    let told = "A connection opens and carries bytes both ways. The same over IPv6";
    assert_eq!((table.rows.len(), table.rows[0].last().map(String::as_str)), (1, Some(told)));
    assert_eq!(lines, &["MUST RFC 9293, 3.5: handshake"]);
}

#[test]
fn files_stand_side_by_side() {
    let file = |folder: &str, outcome| SampleFile {
        path: format!("{folder}/scores.jsonl").into(),
        heads: Vec::new(),
        samples: Vec::new(),
        scores: vec![of_ipstack("handshake", outcome)],
        manners: Vec::new(),
    };
    let document = document(&[file("a", Outcome::Pass), file("b", fail("silence", Harm::Manners))]);
    let names: Vec<_> = document.benchmarks.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["scores (1): ipstack conformance", "scores (2): ipstack conformance"]);
    let all = [file("a", Outcome::Pass), file("b", fail("silence", Harm::Manners))];
    let of_files: Vec<_> = all.iter().map(|file| (None, file.scores.iter().collect())).collect();
    let notes: Vec<_> = groups(&of_files)[0].bars.iter().map(|bar| bar.note.clone()).collect();
    assert_eq!(notes, ["1 of 1", "0 of 1"]);
}

/// One sentence is one demand, and one fault one cause, however many cases find it.
#[test]
fn demands_and_causes_are_counted_once() {
    let failing =
        ["rst-with-unread-data", "data-after-close", "many-drops-with-unread-data", "rst-by-the-stack", "udp-senders"];
    let failing = failing.map(|case| of_ipstack(case, fail("silence", Harm::Manners)));
    let mut scores: Vec<_> = failing.into_iter().chain([of_ipstack("rst-in-handshake", Outcome::Pass)]).collect();
    scores.push(of_ipstack("handshake", fail("silence", Harm::Hang)));
    let scores: Vec<_> = scores.iter().collect();
    let demands: Vec<_> = demands(&scores).rows.into_iter().map(|row| row.join(": ")).collect();
    let expected = [
        "MUST: causes: 2",
        "MUST: not met: 2 of 3",
        "SHOULD: causes: 0",
        "SHOULD: not met: 1 of 1",
        "MAY: causes: 0",
        "MAY: not met: 0 of 0",
        "ours: causes: 0",
        "ours: not met: 0 of 1",
        "adapter: causes: 1",
        "build: causes: 0",
    ];
    assert_eq!(demands, expected);
    let rows: Vec<_> = causes(&scores, StackKind::Ipstack).rows.into_iter().map(|row| row[..4].join(" | ")).collect();
    let expected = [
        "stack | MUST RFC 9293, 3.5 | handshake | handshake",
        "stack | MUST RFC 9293, 3.9.1.6; SHLD-3 | no-reset | rst-with-unread-data, data-after-close, many-drops-with-unread-data, rst-by-the-stack",
        "adapter | ours | flow-limit | udp-senders",
    ];
    assert_eq!(rows, expected, "a failure that is not known is a cause of its own");
    let one_block = score(StackKind::Smoltcp, "sack-latest-first", fail("one block", Harm::Manners));
    assert!(one_block.level.starts_with("SHOULD"), "its first block is the right one: {}", one_block.level);
}
