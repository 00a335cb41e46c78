//! Compares the assertions of the compiled lwIP with those that `ASSERTIONS.md` lists. An upgrade of lwIP, or another
//! option, that adds one fails this test until somebody has found out whether packets reach it. A second test looks at how
//! Microsoft's compiler would swap bytes.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// How often each text occurs in each file.
type Assertions = BTreeMap<(String, String), usize>;

/// Files of this project that include one of lwIP's.
const OURS: [&str; 5] = ["c/tcp.c", "c/tcp_in.c", "c/tcp_out.c", "c/udp.c", "c/ip4.c"];

/// `LWIP_PLATFORM_ASSERT` after the preprocessor.
const FAILED: &str = "lwip_sys_assertion_failed((\"";

/// Adds the assertions of a C file that come from lwIP's `core`. The caller passes the preprocessor's output.
fn scan(preprocessed: &str, found: &mut Assertions) {
    let mut file = None;
    for line in preprocessed.lines() {
        if let Some(marker) = line.strip_prefix("# ") {
            let path = marker.split('"').nth(1).unwrap_or_default();
            file = path.rfind("/core/").map(|at| path[at + 1..].to_owned());
        }
        let Some(file) = &file else { continue };
        for rest in line.split(FAILED).skip(1) {
            let text = rest.split("\"), ").next().unwrap();
            *found.entry((file.clone(), text.to_owned())).or_default() += 1;
        }
    }
}

fn compiled() -> Option<Assertions> {
    let sources = Path::new(env!("LWIP_SYS_SOURCES"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = env!("LWIP_SYS_FILES").split(' ').map(|file| sources.join(file));
    let mut found = Assertions::new();
    for file in files.chain(OURS.iter().map(|file| here.join(file))) {
        scan(&preprocessed(&["-I".as_ref(), sources, &file])?, &mut found);
    }
    Some(found)
}

/// The output of the preprocessor; `None` without one.
fn preprocessed(arguments: &[&Path]) -> Option<String> {
    let (sources, here) = (Path::new(env!("LWIP_SYS_SOURCES")), Path::new(env!("CARGO_MANIFEST_DIR")));
    let mut command = Command::new("cc");
    command.arg("-E").arg("-I").arg(here.join("c")).arg("-I").arg(sources.join("include"));
    let output = command.args(arguments).output().ok()?;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The items of `ASSERTIONS.md`: a file, and texts with their numbers.
fn listed() -> Assertions {
    let mut listed = Assertions::new();
    let joined = include_str!("../ASSERTIONS.md").replace("\n  ", " ");
    for item in joined.lines().filter_map(|line| line.strip_prefix("- `core/")) {
        // Behind ` - ` is prose.
        let item = item.split(" - ").next().unwrap();
        let (file, texts) = item.split_once("`: `").unwrap();
        for text in texts.split(", `") {
            let (text, count) = text.rsplit_once('`').unwrap();
            let count = count.strip_prefix(" ×").map_or(1, |count| count.trim().parse().unwrap());
            *listed.entry((format!("core/{file}"), text.to_owned())).or_default() += count;
        }
    }
    listed
}

#[test]
fn every_assertion_of_lwip_is_reviewed() {
    let Some(compiled) = compiled() else {
        println!("SKIP: there is no cc, which preprocesses lwIP");
        return;
    };
    let listed = listed();
    let missing = |from: &Assertions, to: &Assertions| -> Vec<_> {
        from.iter()
            .filter(|(key, count)| to.get(*key) != Some(*count))
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    };
    assert_eq!(missing(&compiled, &listed), [], "compiled, and not in ASSERTIONS.md as often");
    assert_eq!(missing(&listed, &compiled), [], "in ASSERTIONS.md, and not compiled as often");
    println!("{} assertions", compiled.values().sum::<usize>());
}

/// Without the macros lwIP would call a function for each field of a header.
#[test]
fn bytes_are_swapped_by_an_intrinsic_of_each_compiler() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("swapped.c");
    std::fs::write(&file, "#include \"lwip/def.h\"\nswapped: lwip_htons(1) lwip_htonl(2)\n").unwrap();
    let microsofts = ["-U__GNUC__", "-D_MSC_VER=1940"].map(Path::new);
    for (options, intrinsics) in [
        (&[][..], ["__builtin_bswap16(", "__builtin_bswap32("]),
        (&microsofts, ["_byteswap_ushort(", "_byteswap_ulong("]),
    ] {
        let Some(text) = preprocessed(&[options, &[&file]].concat()) else {
            return println!("SKIP: there is no cc, which preprocesses lwIP");
        };
        let swapped = text.lines().find(|line| line.starts_with("swapped:")).unwrap();
        assert!(intrinsics.iter().all(|name| swapped.contains(name)), "{swapped}");
    }
}
