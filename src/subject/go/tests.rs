//! Builds with a script in place of go, and one with the real go if there is one.

use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::SystemTime;

use tempfile::tempdir;

use super::*;

/// Does the work of `go env GOVERSION` and of `go build -o PROGRAM .`, and records the environment of each build.
const WORKING: &str = r#"#!/bin/sh
folder="${0%/*}"
[ "$1" = env ] && exec /bin/cat "$folder/version"
echo "$GOTOOLCHAIN $GOFLAGS $GOWORK $GO111MODULE $CGO_ENABLED $GOENV $GOOS/$GOARCH $GOPROXY" >>"$folder/calls"
for file in go.mod go.sum main.go; do [ -s "$file" ] || exit 1; done
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\necho %s\n' program >"$2"
/bin/chmod +x "$2"
"#;

/// A script that prints a version, but has another build.
fn versioned(rest: &str) -> String {
    format!("#!/bin/sh\n[ \"$1\" = env ] && echo go1.24 && exit\n{rest}")
}

/// A build that finds only this script, with a cache in the same folder.
fn build_with(folder: &Path, script: &str) -> Build {
    let tools = folder.join("tools");
    fs::create_dir(&tools).unwrap();
    write_script(&tools.join("go"), script);
    fs::write(tools.join("version"), "go1.24\nlinux\namd64\nproxy\n").unwrap();
    Build { of: &FORWARDER, cache: folder.join("cache"), replaced: vec![("PATH", tools.into())], limit: BUILD_TIMEOUT }
}

/// A child process writes the script. If this process had it open for writing, a child of another test could inherit
/// the descriptor, and the script could not be executed meanwhile (ETXTBSY).
fn write_script(path: &Path, script: &str) {
    let write = r#"printf %s "$2" >"$1" && chmod +x "$1""#;
    let written = Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(script).status().unwrap();
    assert!(written.success());
}

fn calls(folder: &Path) -> String {
    fs::read_to_string(folder.join("tools/calls")).unwrap()
}

/// The names in the cache.
fn cached(build: &Build) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(&build.cache).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn it_is_built_once_for_each_version_of_go() {
    let folder = tempdir().unwrap();
    let build = build_with(folder.path(), WORKING);
    let program = build.program().unwrap();
    assert_eq!(version_of(&program).as_deref(), Some("program"));
    assert_eq!(build.program().unwrap(), program);
    assert_eq!(calls(folder.path()), "local -mod=readonly off on 0 off linux/amd64 proxy\n");
    assert_eq!(cached(&build), [program.file_name().unwrap()]);
    // If it does not start, it is built again.
    fs::write(&program, "of another system").unwrap();
    assert_eq!((build.program().unwrap(), version_of(&program).as_deref()), (program.clone(), Some("program")));
    build.program().unwrap();
    assert_eq!(calls(folder.path()).lines().count(), 2);
    // Another Go builds another one.
    fs::write(folder.path().join("tools/version"), "go1.25\n").unwrap();
    assert_ne!(build.program().unwrap(), program);
    assert_eq!(calls(folder.path()).lines().count(), 3);
}

#[test]
fn a_program_that_the_user_names_is_taken_as_it_is() {
    let folder = tempdir().unwrap();
    let program = folder.path().join("program");
    write_script(&program, "#!/bin/sh\n[ \"$*\" = -version ] && echo 'go1.24, wireguard v1'");
    let [rust, go] = ["rust", "go"].map(|forwarder| {
        let words = [format!("--forwarder={forwarder}"), format!("--go-forwarder={}", program.display())];
        Scenario::of_words(words.to_vec()).unwrap()
    });
    assert_eq!(super::program(&go).unwrap(), program);
    assert_eq!(version([&rust, &go]).as_deref(), Some("go1.24, wireguard v1"));
    assert_eq!(version([&rust]), None);
    write_script(&program, "#!/bin/sh\nexit 2");
    assert_eq!(version([&go]), None);
}

#[test]
fn several_may_build_it_at_once() {
    let folder = tempdir().unwrap();
    let build = build_with(folder.path(), WORKING);
    thread::scope(|scope| {
        let builds: Vec<_> = (0..4).map(|_| scope.spawn(|| build.program().unwrap())).collect();
        for other in builds {
            assert!(other.join().unwrap().is_file());
        }
    });
    assert_eq!(cached(&build).len(), 1);
}

#[test]
fn without_go_the_error_says_which_one_to_install() {
    let folder = tempdir().unwrap();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let build = Build {
        of: &FORWARDER,
        cache: folder.path().join("cache"),
        replaced: vec![("PATH", empty.into())],
        limit: BUILD_TIMEOUT,
    };
    let error = build.program().unwrap_err();
    assert_eq!(error.class(), Class::Unavailable);
    insta::assert_snapshot!(error, @"start go: No such file or directory (os error 2); install Go 1.24 or newer, or name a finished program with --go-forwarder, or choose --forwarder rust");
    assert!(!build.cache.exists());
}

#[test]
fn a_build_that_fails_is_told_in_the_words_of_go() {
    let folder = tempdir().unwrap();
    let script = versioned(
        "echo 'go: downloading example.org/other v1.0.0' >&2
        echo 'main.go:13:2: missing go.sum entry for module providing package example.org/other; to add:' >&2
        printf '\\tgo mod download example.org/other\\n\\n' >&2
        exit 1",
    );
    let build = build_with(folder.path(), &script);
    let error = build.program().unwrap_err();
    assert_eq!(error.class(), Class::Unavailable);
    insta::assert_snapshot!(error, @"build the forwarder in Go: main.go:13:2: missing go.sum entry for module providing package example.org/other; to add: go mod download example.org/other; see that go can fetch its modules (go env GOPROXY), or name a finished program with --go-forwarder, or choose --forwarder rust");
    assert!(cached(&build).is_empty());
}

#[test]
fn a_build_that_says_nothing_or_does_not_end_is_an_error_too() {
    let folder = tempdir().unwrap();
    let error = build_with(folder.path(), &versioned("exit 1")).program().unwrap_err();
    insta::assert_snapshot!(error, @"build the forwarder in Go: it failed and printed no reason; see that go can fetch its modules (go env GOPROXY), or name a finished program with --go-forwarder, or choose --forwarder rust");

    let folder = tempdir().unwrap();
    let mut build = build_with(folder.path(), &versioned("exec /bin/sleep 1000"));
    build.limit = Duration::from_millis(200);
    insta::assert_snapshot!(build.program().unwrap_err(), @"build the forwarder in Go: it took longer than 0.2 seconds; see that go can fetch its modules (go env GOPROXY), or name a finished program with --go-forwarder, or choose --forwarder rust");
}

#[test]
fn what_was_built_long_ago_goes_and_nothing_else() {
    let folder = tempdir().unwrap();
    let build = build_with(folder.path(), WORKING);
    fs::create_dir(&build.cache).unwrap();
    let date = |name: &str, age| {
        File::open(build.cache.join(name)).unwrap().set_modified(SystemTime::now() - age).unwrap();
    };
    for (name, age) in [("go-forwarder-1", MAX_AGE * 2), ("go-forwarder-2", MAX_AGE / 2), ("other", MAX_AGE * 2)] {
        fs::write(build.cache.join(name), "").unwrap();
        date(name, age);
    }
    fs::create_dir(build.cache.join("go-forwarder-killed")).unwrap();
    fs::write(build.cache.join("go-forwarder-killed/go.mod"), "").unwrap();
    date("go-forwarder-killed", MAX_AGE * 2);

    let program = build.program().unwrap();
    let mut left = vec![OsString::from("go-forwarder-2"), "other".into(), program.file_name().unwrap().into()];
    left.sort();
    assert_eq!(cached(&build), left);
}

#[test]
fn the_cache_is_where_the_user_keeps_theirs() {
    let with = |xdg: Option<&'static str>, home: Option<&'static str>| {
        FORWARDER.cache(move |name| if name == "HOME" { home } else { xdg }.map(OsString::from))
    };
    assert_eq!(with(Some("/cache"), Some("/home/user")).unwrap(), Path::new("/cache/rust-tun-perf"));
    assert_eq!(with(Some("relative"), Some("/home/user")).unwrap(), Path::new("/home/user/.cache/rust-tun-perf"));
    assert_eq!(with(None, Some("/home/user")).unwrap(), Path::new("/home/user/.cache/rust-tun-perf"));
    insta::assert_snapshot!(with(None, None).unwrap_err(), @"find a folder for programs in Go: neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them, or name a finished program with --go-forwarder, or choose --forwarder rust");
}

/// Every file that go would build is among the sources.
#[test]
fn the_sources_are_complete() {
    for (of, folder) in [(&FORWARDER, "forwarders/go"), (&GVISOR, "netstacks/gvisor")] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let needed = !name.ends_with("_test.go");
            assert_eq!(of.sources.iter().any(|(source, _)| *source == name), needed, "{name}");
        }
    }
}

/// Ends the test if there is a reason why it cannot run. The line goes to standard error directly, because the test
/// harness would hide it.
macro_rules! skip_if {
    ($reason:expr) => {
        if let Some(reason) = $reason {
            let _closed = writeln!(std::io::stderr(), "SKIP {}: {reason}", module_path!());
            return;
        }
    };
}

/// Why the real one cannot be built here: no go, a go that is too old, or no modules.
fn no_go() -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("forwarders/go");
    let mut command = Command::new("go");
    command.args(["mod", "download"]).env("GOTOOLCHAIN", "local").current_dir(folder);
    match command.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(last_words(&String::from_utf8_lossy(&output.stderr))),
        Err(error) => Some(format!("go: {error}")),
    }
}

#[test]
fn the_real_one_is_built_whatever_the_settings_of_go() {
    skip_if!(no_go());
    let folder = tempdir().unwrap();
    // `go env -w` writes to such a file.
    let settings = folder.path().join("settings");
    let unfit = "GOARCH=s390x\nGOOS=windows\nGOFLAGS=-tags=other\nGO111MODULE=off\nGOEXPERIMENT=none\nCGO_ENABLED=1\n";
    fs::write(&settings, unfit).unwrap();
    let replaced = vec![("GOENV", settings.into()), ("GOARCH", "arm64".into()), ("GOAMD64", "v9".into())];
    let build = Build { of: &FORWARDER, cache: folder.path().to_owned(), replaced, limit: BUILD_TIMEOUT };
    let program = build.program().unwrap();
    let version = version_of(&program).unwrap();
    assert!(version.starts_with(&build.installed().unwrap().version) && version.contains(", wireguard v"), "{version}");

    let refused = Command::new(&program).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    insta::assert_snapshot!(String::from_utf8(refused.stderr).unwrap(), @"error: -near, -far and -far-namespace are all needed");
}
