//! Other processes that this one starts: their orders, their output and their end.

use std::future::Future;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write, pipe};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::worker::{REPORT, START};
use crate::{Namespace, ProcessEnd, ProcessMeter};

/// Most bytes of a line, and of a whole standard output. The intervals of a run take 5 MB at most.
pub const MAX_OUTPUT: usize = 16 << 20;

/// Most bytes of standard error that are kept, from its end: the reason of a crash comes last.
const MAX_ERRORS: usize = 64 << 10;

const MAX_ORDERS: usize = 1024;

/// How long a killed process may take to end. A driver of the kernel may hold it; then it is reaped later.
const KILL_TIMEOUT: Duration = Duration::from_secs(25);

/// How long a report may take: the machine is under load.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the output is read after a kill. A child of the process may keep it open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A process that this one has started. It is killed when this value is dropped, and when the runtime ends.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    orders: Orders,
    end: watch::Receiver<Option<Arc<End>>>,
    /// When it changes, the process is asked to end. When this is dropped, the process is killed.
    alive: watch::Sender<()>,
}

/// How a process ended, and what it printed.
#[derive(Clone, Debug)]
pub struct End {
    /// How it ended.
    pub by: ProcessEnd,
    /// Its standard output up to [`MAX_OUTPUT`], unless somebody listened to it.
    pub stdout: Vec<u8>,
    /// The last part of its standard error.
    pub stderr: String,
}

impl Child {
    /// Starts a process with this standard input, and keeps its output. Call it within a runtime.
    pub fn start(command: Command, input: impl Into<Vec<u8>>) -> io::Result<Self> {
        let child = Self::spawn(command, Stdio::piped(), Stdio::piped(), None)?;
        // Never full: it is the first order.
        child.orders.send(input)?;
        child.orders.close();
        Ok(child)
    }

    /// Starts a process in the calling thread's network or in `network`. `listen` reads its standard output, on a thread
    /// of its own that ends with the output. Call it within a runtime.
    pub fn listen(
        command: Command,
        network: Option<&Namespace>,
        listen: impl FnOnce(Orders, BufReader<PipeReader>) + Send + 'static,
    ) -> io::Result<Self> {
        let (output, stdout) = pipe()?;
        let child = Self::spawn(command, stdout.into(), Stdio::piped(), network)?;
        let orders = child.orders();
        thread::Builder::new().name("listen".to_owned()).spawn(move || listen(orders, BufReader::new(output)))?;
        Ok(child)
    }

    /// The same, but the end of what it prints can be read at any time.
    pub fn watch(command: Command, network: Option<&Namespace>) -> io::Result<(Self, Printed)> {
        let (output, stdout) = pipe()?;
        let stderr = stdout.try_clone()?;
        let child = Self::spawn(command, stdout.into(), stderr.into(), network)?;
        let printed = Printed::default();
        let kept = printed.clone();
        thread::Builder::new().name("listen".to_owned()).spawn(move || kept.keep(output))?;
        Ok((child, printed))
    }

    fn spawn(mut command: Command, stdout: Stdio, stderr: Stdio, network: Option<&Namespace>) -> io::Result<Self> {
        let (stdin, input) = pipe()?;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        let mut command = process::Command::from(command);
        command.kill_on_drop(true);
        let runtime = Handle::current();
        // Dropping the command closes our copies of the pipe ends, so that we see when the child closes its own.
        let spawn = move || {
            let (mut command, _entered) = (command, runtime.enter());
            command.spawn()
        };
        let child = match network {
            Some(network) => network.run(spawn).map_err(io::Error::other)??,
            None => spawn()?,
        };
        let pid = child.id().unwrap_or_default();
        let ((alive, kill), (ended, end)) = (watch::channel(()), watch::channel(None));
        tokio::spawn(attend(child, kill, ended));
        Ok(Self { pid, orders: Orders::to(input)?, end, alive })
    }

    /// The meter of its CPU time and memory.
    pub fn meter(&self) -> ProcessMeter {
        ProcessMeter::of(self.pid)
    }

    /// Its standard input.
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// Waits for its end; `None` if the runtime ended first.
    pub fn ended(&self) -> impl Future<Output = Option<Arc<End>>> + Send + use<> {
        let mut end = self.end.clone();
        async move { end.wait_for(Option::is_some).await.ok()?.clone() }
    }

    /// How it has ended, if it has.
    pub fn has_ended(&self) -> Option<Arc<End>> {
        self.end.borrow().clone()
    }

    /// Tells a worker to begin.
    pub fn begin(&self) -> io::Result<()> {
        self.orders.send(format!("{START}\n"))
    }

    /// Closes its standard input, and kills it if it does not end within `limit`; `None` if even then it does not end.
    pub async fn stop(self, limit: Duration) -> Option<Arc<End>> {
        self.orders.close();
        match timeout(limit, self.ended()).await {
            Ok(end) => end,
            Err(_late) => self.kill().await,
        }
    }

    /// Asks it to end, as `kill` does (SIGTERM), and kills it if it does not within `limit`. Returns its end and whether it
    /// had to be killed; no end if even then it does not end. A system without such a request only closes its standard input.
    pub async fn terminate(self, limit: Duration) -> (Option<Arc<End>>, bool) {
        self.orders.close();
        if let Some(end) = self.has_ended() {
            return (Some(end), false);
        }
        let is_asked = cfg!(not(target_os = "linux")) || self.alive.send(()).is_ok();
        if is_asked && let Ok(end) = timeout(limit, self.ended()).await {
            return (end, false);
        }
        (self.kill().await, true)
    }

    /// Kills it, and waits for its end; `None` if it does not end. It may have ended before.
    pub async fn kill(self) -> Option<Arc<End>> {
        let ended = self.ended();
        drop(self.alive);
        timeout(KILL_TIMEOUT, ended).await.ok()?
    }
}

async fn attend(mut child: process::Child, kill: watch::Receiver<()>, ended: watch::Sender<Option<Arc<End>>>) {
    let stdout = read(child.stdout.take(), kill.clone(), |bytes| {
        bytes.truncate(MAX_OUTPUT);
        bytes.len() < MAX_OUTPUT
    });
    let stderr = read(child.stderr.take(), kill.clone(), |bytes| {
        keep_end(bytes);
        true
    });
    let end = async {
        let mut told = kill;
        loop {
            let told = tokio::select! {
                status = child.wait() => break status,
                told = told.changed() => told,
            };
            if told.is_err() {
                let _ended = child.start_kill();
                break child.wait().await;
            }
            child.id().map(ProcessMeter::of).into_iter().for_each(ProcessMeter::terminate);
        }
    };
    let (status, stdout, stderr) = tokio::join!(end, stdout, stderr);
    let by = status.map_or_else(|error| ProcessEnd::Crashed(error.to_string()), ProcessEnd::of);
    let stderr = end_of(&stderr);
    let _unheard = ended.send(Some(Arc::new(End { by, stdout, stderr })));
}

/// Reads a stream to its end, or until `keep` returns false, and then closes it: a writer that goes on gets an error.
async fn read(
    stream: Option<impl AsyncRead + Unpin>,
    kill: watch::Receiver<()>,
    keep: impl Fn(&mut Vec<u8>) -> bool,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Some(mut stream) = stream else { return bytes };
    let all = async { while matches!(stream.read_buf(&mut bytes).await, Ok(1..)) && keep(&mut bytes) {} };
    tokio::select! {
        () = all => {}
        () = async { closed(kill).await; sleep(LAST_WORDS).await } => {}
    }
    bytes
}

fn keep_end(output: &mut Vec<u8>) {
    if output.len() >= 2 * MAX_ERRORS {
        output.drain(..output.len() - MAX_ERRORS);
    }
}

fn end_of(output: &[u8]) -> String {
    String::from_utf8_lossy(&output[output.len().saturating_sub(MAX_ERRORS)..]).into_owned()
}

async fn closed(mut channel: watch::Receiver<()>) {
    while channel.changed().await.is_ok() {}
}

/// The end of what a process has printed so far on both its outputs.
#[derive(Clone, Debug, Default)]
pub struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    /// Its last bytes, up to 64 KiB.
    pub fn text(&self) -> String {
        end_of(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep(&self, mut output: impl Read) {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = output.read(&mut bytes) {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&bytes[..len]);
            keep_end(&mut kept);
        }
    }
}

/// The standard input of a process, for any thread: another thread writes to it, because a write may block.
#[derive(Clone, Debug)]
pub struct Orders(Arc<Mutex<Option<SyncSender<Vec<u8>>>>>);

impl Orders {
    /// The writer's thread ends with the process, or when the orders are closed. It is not joined.
    fn to(mut input: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, orders) = sync_channel::<Vec<u8>>(MAX_ORDERS);
        let write = move || orders.into_iter().try_for_each(|order| input.write_all(&order));
        thread::Builder::new().name("orders".to_owned()).spawn(write)?;
        Ok(Self(Arc::new(Mutex::new(Some(sender)))))
    }

    /// Sends an order, with its line feed. Waits if too many orders wait for the process.
    pub fn send(&self, order: impl Into<Vec<u8>>) -> io::Result<()> {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = sender.and_then(|sender| sender.send(order.into()).ok());
        sent.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Closes the standard input, once it has been written.
    pub fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The orders to a process and its answers, line by line, from any thread.
#[derive(Debug)]
pub struct Conversation {
    orders: Orders,
    /// `None` after an answer was late: it would be taken for the answer to the next order.
    answers: Mutex<Option<Receiver<String>>>,
}

impl Conversation {
    pub(super) fn new(orders: Orders, answers: Receiver<String>) -> Self {
        Self { orders, answers: Mutex::new(Some(answers)) }
    }

    /// Sends an order, with its line feed. Errors are ignored: [`Child::ended`] notices the end of the process.
    pub fn send(&self, order: &str) {
        let _unheard = self.orders.send(order);
    }

    /// The report so far; `None` if it is late.
    pub fn report<R: DeserializeOwned>(&self) -> Option<R> {
        let answer = self.ask(&format!("{REPORT}\n"), REPORT_TIMEOUT)?;
        serde_json::from_str(&answer).ok()
    }

    /// Sends an order and waits for its answer; `None` if it is late. After that nothing waits for an answer again.
    pub fn ask(&self, order: &str, within: Duration) -> Option<String> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(order);
        let answer = answers.as_ref()?.recv_timeout(within).ok();
        if answer.is_none() {
            *answers = None;
        }
        answer
    }
}

/// Reads the next line of another process, with its line feed, or its first [`MAX_OUTPUT`] bytes; `None` at the end.
pub fn read_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let len = reader.take(MAX_OUTPUT as u64).read_line(&mut line)?;
    Ok((len > 0).then_some(line))
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::Worker;

    const SOON: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// A process must not take the memory of its parent by output without end.
    #[tokio::test]
    async fn the_output_of_a_process_has_a_limit() {
        let script = "head -c 17000000 /dev/zero; head -c 300000 /dev/zero >&2; printf 'the reason' >&2";
        let end = Child::start(shell(script), "").unwrap().ended().await.unwrap();
        assert_eq!(end.stdout.len(), MAX_OUTPUT);
        assert_eq!((end.stderr.len(), end.stderr.ends_with("the reason")), (MAX_ERRORS, true));
        let end = Child::start(shell("exec yes"), "").unwrap().ended().await.unwrap();
        assert_eq!((end.stdout.len(), end.by == ProcessEnd::Exited(0)), (MAX_OUTPUT, false));
    }

    #[test]
    fn a_line_has_a_limit() {
        let line = |blanks: usize| read_line(&mut [&*vec![b' '; blanks], b"x\n"].concat().as_slice()).unwrap().unwrap();
        assert!(line(MAX_OUTPUT - 2).ends_with("x\n"));
        assert_eq!(line(MAX_OUTPUT).len(), MAX_OUTPUT);
        assert_eq!(read_line(&mut [].as_slice()).unwrap(), None);
    }

    #[tokio::test]
    async fn orders_are_answered_until_an_answer_is_late() {
        let script = "while read -r order; do [ $order = quiet ] || echo $order; done; echo the end >&2; exit 3";
        let (mut worker, conversation) = Worker::converse(shell(script), None, "task\n").unwrap();
        assert_eq!(worker.first_line(SOON).await.as_deref(), Some("task\n"));
        assert_eq!(conversation.ask("one\n", SOON).as_deref(), Some("one\n"));
        assert_eq!(conversation.ask("quiet\n", Duration::from_millis(10)), None);
        assert_eq!(conversation.ask("three\n", SOON), None, "it could be the answer to the order before");
        let end = worker.into_process().stop(SOON).await.unwrap();
        assert_eq!((&end.by, end.stderr.as_str()), (&ProcessEnd::Exited(3), "the end\n"));
        assert_eq!(conversation.orders.send("four\n").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    /// Its last words are kept, although another process keeps its standard error open.
    #[tokio::test]
    async fn a_process_that_does_not_stop_is_killed() {
        let begun = Instant::now();
        let script = "sleep 60 & echo words >&2; while :; do sleep 60; done";
        let child = Child::listen(shell(script), None, |_, _| ()).unwrap();
        let end = child.stop(Duration::from_millis(300)).await.unwrap();
        assert_eq!((&end.by, end.stderr.as_str()), (&ProcessEnd::Crashed("SIGKILL".to_owned()), "words\n"));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    /// A script that says that it is up.
    async fn up(script: &str) -> Child {
        let mut worker = Worker::listen(shell(script), None, "", |_, _| ()).unwrap();
        assert_eq!(worker.first_line(SOON).await.as_deref(), Some("up\n"));
        worker.into_process()
    }

    #[tokio::test]
    async fn a_process_is_asked_to_end_before_it_is_killed() {
        // A sleep of the shell itself would delay its trap.
        let obeys = "trap 'echo bye >&2; exit 7' TERM; echo up; while :; do read -r line || sleep 0.01; done";
        let (end, was_killed) = up(obeys).await.terminate(SOON).await;
        let end = end.unwrap();
        assert_eq!((&end.by, end.stderr.as_str(), was_killed), (&ProcessEnd::Exited(7), "bye\n", false));
        let child = Child::listen(shell("exit 5"), None, |_, _| ()).unwrap();
        child.ended().await.unwrap();
        let (end, was_killed) = child.terminate(SOON).await;
        assert_eq!((&end.unwrap().by, was_killed), (&ProcessEnd::Exited(5), false), "it had ended before");
        let ignores = "trap '' TERM; echo up; while :; do sleep 0.01; done";
        let (end, was_killed) = up(ignores).await.terminate(Duration::from_millis(100)).await;
        assert_eq!((&end.unwrap().by, was_killed), (&ProcessEnd::Crashed("SIGKILL".to_owned()), true));
    }

    #[tokio::test]
    async fn both_outputs_of_a_process_are_read_while_it_runs() {
        let script = "head -c 100000 /dev/zero; echo out; echo err >&2; exec sleep 60";
        let (child, printed) = Child::watch(shell(script), None).unwrap();
        let begun = Instant::now();
        while !printed.text().ends_with("out\nerr\n") && begun.elapsed() < SOON {
            sleep(Duration::from_millis(5)).await;
        }
        let text = printed.text();
        assert_eq!((text.len(), text.ends_with("out\nerr\n")), (MAX_ERRORS, true));
        drop(child);
    }

    #[tokio::test]
    async fn a_process_ends_with_its_value() {
        let child = Child::start(shell("exec sleep 60"), "").unwrap();
        let ended = child.ended();
        drop(child);
        assert_eq!(ended.await.unwrap().by, ProcessEnd::Crashed("SIGKILL".to_owned()));
    }
}
