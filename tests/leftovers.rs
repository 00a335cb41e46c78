//! Nothing of a run is left behind, however it ends: no file, device, route, rule, process, namespace or open file. A test
//! that cannot run prints SKIP with the reason.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::machine::{is_root, missing_program, no_hangup};
use crate::misbehave::Flaw;
use crate::processes::{PROGRAM, folder, living, stderr};
use crate::program::{no_device, proxy};
use crate::tunnel::{profile, tunnel, words};

/// How long what the run has closed may take to be gone.
const SOON: Duration = Duration::from_secs(5);

/// What there is in the namespaces of this process, in lines.
fn state(files: &Path) -> BTreeSet<String> {
    let mut state: BTreeSet<String> =
        fs::read_dir(files).unwrap().map(|file| format!("file {}", file.unwrap().file_name().display())).collect();
    for arguments in ["link", "-4 route show table all", "-6 route show table all", "-4 rule", "-6 rule", "netns"] {
        let output = Command::new("ip").arg("-o").args(arguments.split(' ')).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        state.extend(text.lines().map(|line| format!("ip {arguments}: {line}")));
    }
    let entries = |path: &str| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    for process in entries("/proc").filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        // What has ended waits for its parent, which is this process if there is no other.
        let Some(stat) = living(process) else { continue };
        let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        state.insert(format!("process {process}: {command}{}", stat.split(' ').nth(1).unwrap()));
        for thread in entries(&format!("/proc/{process}/task")) {
            let namespaces = entries(thread.path().join("ns").to_str().unwrap());
            state.extend(namespaces.filter_map(|file| Some(fs::read_link(file.path()).ok()?.display().to_string())));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    state.extend(mounts.lines().map(|line| format!("mount {line}")));
    state
}

/// Calls a test of this program in namespaces of its own, where nothing else happens.
fn alone(test: &str) {
    let files = folder(&test.replace("::", "-"));
    let user = if is_root() { [].as_slice() } else { &["--map-root-user"] };
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]).args(user);
    command.arg(env::current_exe().unwrap()).args(["--exact", test, "--ignored", "--nocapture"]);
    let output = command.env("TMPDIR", &files).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", stderr(&output));
}

/// Makes runs at once, each by its arguments. Then everything is as it was.
fn leave_nothing(runs: impl IntoIterator<Item = Run>) {
    let files = PathBuf::from(env::var_os("TMPDIR").unwrap());
    let before = state(&files);
    let runs: Vec<_> = runs.into_iter().map(|run| thread::spawn(move || run.make())).collect();
    for run in runs {
        run.join().unwrap();
    }
    let begin = Instant::now();
    let mut after = state(&files);
    while after != before && begin.elapsed() < SOON {
        thread::sleep(Duration::from_millis(20));
        after = state(&files);
    }
    let left: Vec<_> = after.difference(&before).collect();
    let lost: Vec<_> = before.difference(&after).collect();
    assert!(left.is_empty() && lost.is_empty(), "left: {left:#?}, lost: {lost:#?}");
}

/// In place of an exit code.
const KILLED: i32 = -1;

/// A run, and how it ends.
struct Run {
    arguments: Vec<String>,
    code: i32,
    /// It gets this signal this long after its begin.
    signal: Option<(&'static str, Duration)>,
    /// Its folder for files, if those do not count: what is killed cannot delete them.
    files: Option<PathBuf>,
}

impl Run {
    /// A run that ends with this code.
    fn ends(code: i32, arguments: &str) -> Self {
        Self {
            arguments: arguments.split_whitespace().map(ToOwned::to_owned).collect(),
            code,
            signal: None,
            files: None,
        }
    }

    fn through(mut self, command: impl Into<String>) -> Self {
        self.arguments.extend(["--program".to_owned(), command.into()]);
        self
    }

    fn gets(self, signal: &'static str, after: Duration) -> Self {
        Self { signal: Some((signal, after)), ..self }
    }

    fn make(self) {
        let mut command = Command::new(PROGRAM);
        command.envs(self.files.map(|files| ("TMPDIR", files)));
        command.args(&self.arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        if let Some((signal, after)) = self.signal {
            thread::sleep(after);
            assert!(Command::new("kill").arg(signal).arg(child.id().to_string()).status().unwrap().success());
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code().unwrap_or(KILLED), self.code, "{:?}: {}", self.arguments, stderr(&output));
    }
}

const MATRIX: &str = "matrix --layer loopback -m reader --runtime current-thread --runs 9 --time 40";

fn shell(script: &str) -> String {
    format!("sh -c '{}'", script.replace("PROXY", &proxy("left")))
}

#[test]
#[ignore = "is called in namespaces of its own"]
fn failures() {
    leave_nothing([
        Run::ends(0, "-m rr --time 0.2").through(shell("exec PROXY")),
        Run::ends(0, "-m crr --time 0.2 --protocol udp --program smoltcp-socks5"),
        Run::ends(0, "-m rr --time 0.2").through(shell("setsid PROXY & sleep 60 & sleep 0.2")),
        Run::ends(0, "-m rr --time 0.2").through(shell("trap : TERM; PROXY & while :; do sleep 0.05; done")),
        Run::ends(1, "-m rr --time 3").through(shell("PROXY & sleep 1.5; kill -KILL $!; exit 9")),
        Run::ends(1, "-m rr --time 0.2 --timeout 2").through(Flaw::Swallows.command("left")),
        Run::ends(1, "-m rr --time 0.2").through("true {tun}"),
        Run::ends(1, "-m rr --time 0.2")
            .through(shell("ip tuntap add mode tun name other; sleep 60 & sleep 60 # {tun}")),
        Run::ends(1, "-m rr --time 0.2").through(shell("ip tuntap add mode tun name {tun}; sleep 60")),
        Run::ends(2, "-m rr --tun-name to-far").through(shell("exec PROXY")),
        Run::ends(3, "-m rr").through("/no/such {tun}"),
        Run::ends(3, "-m rr --netns host").through(shell("exec PROXY")),
    ]);
}

#[test]
#[ignore = "is called in namespaces of its own"]
fn interrupts() {
    let deaf = "trap : TERM; (trap : TERM; sleep 60) & PROXY & while :; do sleep 0.05; done";
    let late = Duration::from_secs(3);
    leave_nothing([
        Run::ends(130, "-m rr --time 30 --timeout 60").through(shell("exec PROXY")).gets("-INT", late),
        Run::ends(130, "-m rr --time 30 --timeout 60").through(shell(deaf)).gets("-HUP", late),
        Run::ends(130, "-m rr")
            .through(shell("trap : TERM; sleep 60 & while :; do sleep 0.05; done # {tun}"))
            .gets("-TERM", late),
        Run::ends(130, "forward --time 30").gets("-INT", late),
        Run::ends(KILLED, "forward --time 30").gets("-KILL", late),
        // Each of these runs has a process of its own, which gets no signal.
        Run::ends(130, MATRIX).gets("-INT", late),
        Run::ends(KILLED, MATRIX).gets("-KILL", late),
    ]);
}

#[test]
#[ignore = "is called in namespaces of its own"]
fn tunnels() {
    let [folder, apart] = ["leftovers-tunnels", "leftovers-killed"].map(folder);
    let near = words(&tunnel("left", 60.0));
    let profile = |name: &str, lines: &str| {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        profile(&folder, lines)
    };
    let far = |script: &str| words(&format!("sh -c '{}'", script.replace("TUNNEL", &tunnel("left", 60.0))));
    let [deaf, dies] =
        ["trap : TERM; sleep 60 & TUNNEL & while :; do sleep 0.05; done", "sleep 1; exit 9 # {tun}"].map(far);
    let late = Duration::from_secs(3);
    leave_nothing([
        Run::ends(0, "-m rr --time 0.2 --delay 1ms").through(profile("whole", &format!("command = {near}"))),
        Run::ends(0, "-m rr --time 0.2").through(profile("deaf", &format!("command = {near}\nfar_command = {deaf}"))),
        Run::ends(1, "-m rr").through(profile("dies", &format!("command = {near}\nfar_command = {dies}"))),
        Run::ends(130, "-m rr")
            .through(profile("waits", &format!("command = {near}\nsetup = [[\"sleep\", \"60\"]]")))
            .gets("-INT", late),
        Run::ends(3, "-m rr").through(profile("lacks", &format!("command = {near}\nsetup = [[\"/no/such\"]]"))),
    ]);
    let proxies = |name: &str, lines: String| {
        let path = folder.join(format!("{name}.toml"));
        let near = words(&proxy("left"));
        fs::write(&path, format!("name = {name:?}\nrole = \"proxy\"\ncommand = {near}\n{lines}\n")).unwrap();
        path.display().to_string()
    };
    let [deaf, dies] = ["trap : TERM; sleep 60 & while :; do sleep 0.05; done", "sleep 1; exit 9"]
        .map(|script| format!("far_command = [\"sh\", \"-c\", {script:?}]"));
    let prepare = |script: &str| format!("{deaf}\nprepare = [[\"sh\", \"-c\", {script:?}]]");
    leave_nothing([
        Run::ends(0, "-m rr --time 0.2").through(proxies("deaf-server", prepare("echo key >{shared}/key"))),
        Run::ends(1, "-m rr --time 3").through(proxies("dying-server", dies)),
        Run::ends(1, "-m rr").through(proxies("no-key", prepare("sleep 60 & exit 4"))),
        Run::ends(130, "-m rr").through(proxies("slow-key", prepare("sleep 60"))).gets("-INT", late),
    ]);
    if missing_program(&["wireguard", "wg"]).is_none() {
        let peers = |code, time: &str| {
            Run::ends(code, &format!("-m rr --time {time} --peers 3 --parallel 3")).through("wireguard-go")
        };
        let killed = |after| Run { files: Some(apart.clone()), ..peers(KILLED, "30").gets("-KILL", after) };
        let begun = Duration::from_millis(100);
        leave_nothing([peers(0, "0.2"), peers(130, "30").gets("-INT", late), killed(begun), killed(late)]);
    }
    if missing_program(&["slirp4netns", "nsenter"]).is_none() {
        let attached = "nsenter --net={netns} sleep 60 & exec slirp4netns -c --netns-type=path {netns} {tun}";
        leave_nothing([Run::ends(0, "-m rr --time 0.2").through(shell(attached))]);
    }
}

#[test]
#[ignore = "is called in namespaces of its own"]
fn in_the_hosts_network() {
    let own = "--tun-name tuned --tun-addr 10.12.12.9 --tun-dest 10.12.12.10 --offload off --qdisc noqueue";
    // Only root may set all that the thread needs.
    let napi = if is_root() { "--napi threaded" } else { "--napi on" };
    let tuned = Run::ends(0, &format!("-m reader -n smoltcp --bytes 1MB --netns host {own} {napi}"));
    leave_nothing([
        Run::ends(0, "-m reader -n smoltcp --bytes 1MB --netns host"),
        Run::ends(2, "-m reader -n smoltcp --bytes 1MB --netns host --tun-name lo"),
        tuned,
        Run::ends(130, "-m reader -n smoltcp --time 30 --timeout 60 --netns host --tun-name utun9 --tun-addr 10.11.11.9 --tun-dest 10.11.11.10").gets("-INT", Duration::from_secs(2)),
    ]);
}

#[test]
fn a_failed_run_leaves_nothing() {
    skip_if!(no_device().or_else(|| missing_program(&["ip"])));
    alone("leftovers::failures");
}

#[test]
fn a_tunnel_leaves_nothing() {
    skip_if!(no_device().or_else(|| missing_program(&["ip", "kill"])));
    alone("leftovers::tunnels");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    skip_if!(no_device().or_else(|| missing_program(&["ip", "kill"])).or_else(no_hangup));
    alone("leftovers::interrupts");
}

#[test]
fn a_run_in_the_hosts_network_leaves_nothing() {
    skip_if!(no_device().or_else(|| missing_program(&["ip", "kill"])));
    alone("leftovers::in_the_hosts_network");
}
