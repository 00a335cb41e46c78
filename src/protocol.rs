//! The protocol between a process and the child processes that it starts: `rust-tun-perf child`.
//!
//! The parent writes one line of JSON to the child's standard input, a [`Message`], and the child does its [`Task`]:
//!
//! | task | the child |
//! |---|---|
//! | hello | prints a [`Greeting`] as one line of JSON |
//! | carry | carries packets for a run of the parent |
//!
//! A child that carries is then a [`Worker`](platform::Worker). So are the forwarder in Go, which takes its task as
//! arguments, and a stack in a process of its own, which takes another task ([`conformance::Task`]).

use std::path::PathBuf;

use forwarders::ForwardConfig;
use platform::{PROTOCOL, line};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::RunError;
use crate::sample::Environment;

/// The argument that makes this program a child process.
pub(crate) const CHILD: &str = "child";

/// A task with the version of the protocol that it is written in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// [`PROTOCOL`] of the parent.
    pub(crate) protocol: u32,
    pub(crate) task: Task,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Task {
    /// Describe this program. A child does it in every version of the protocol.
    Hello,
    Carry(Carry),
}

/// The report of a stack's process: how much its server has received and sent so far, in bytes of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct StackReport {
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Carry {
    pub(crate) config: ForwardConfig,
    /// The name of the device in the child's own network.
    pub(crate) near: String,
    /// The name of the device in the far network.
    pub(crate) far: String,
    /// The namespace of the far network, as a file of `/proc/PID/ns`.
    pub(crate) far_namespace: PathBuf,
    /// The file for a flame graph, and its title.
    pub(crate) profile: Option<(PathBuf, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// [`PROTOCOL`] of the child.
    pub(crate) protocol: u32,
    /// The child's machine and program.
    pub(crate) environment: Environment,
}

impl Message {
    /// The line, with a line feed, that gives a child this task.
    pub(crate) fn line(task: Task) -> String {
        line(&Self { protocol: PROTOCOL, task })
    }

    pub(crate) fn parse(line: &str) -> Result<Self, RunError> {
        match serde_json::from_str(line) {
            // Any version.
            Ok(hello @ Self { task: Task::Hello, .. }) => Ok(hello),
            _ => parse(line, "the parent process"),
        }
    }
}

/// Reads a line of another program, which must have this version.
pub(crate) fn parse<T: DeserializeOwned>(line: &str, program: &str) -> Result<T, RunError> {
    let program = program.to_owned();
    let value = serde_json::from_str::<Value>(line).unwrap_or_default();
    match value.get("protocol").and_then(Value::as_u64).and_then(|version| u32::try_from(version).ok()) {
        Some(PROTOCOL) => serde_json::from_value(value).map_err(|_| RunError::NoProtocol { program }),
        Some(theirs) => Err(RunError::OtherProtocol { program, theirs }),
        None => Err(RunError::NoProtocol { program }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carry() -> Task {
        let config = crate::cell::Cell::parse("--forwarder rust").unwrap().forwarder().map(|one| one.config);
        let [near, far] = ["a", "b"].map(ToOwned::to_owned);
        Task::Carry(Carry { config: config.unwrap(), near, far, far_namespace: "/proc/1/ns/net".into(), profile: None })
    }

    #[test]
    fn a_task_is_read_as_it_was_written() {
        for task in [Task::Hello, carry()] {
            let line = Message::line(task.clone());
            assert!(line.ends_with("}\n"), "{line}");
            assert_eq!(Message::parse(&line).unwrap(), Message { protocol: PROTOCOL, task });
        }
    }

    #[test]
    fn a_task_of_another_version_is_refused_with_both_versions() {
        let ours = format!("\"protocol\":{PROTOCOL}");
        let error = Message::parse(&Message::line(carry()).replace(&ours, "\"protocol\":77")).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains("version 77") && text.contains(&format!("version {PROTOCOL}")), "{text}");
    }

    #[test]
    fn a_line_of_another_program_is_refused() {
        for line in
            ["", "hello", "[]", "{\"protocol\":1}", "{\"task\":\"hello\"}", "{\"protocol\":1,\"task\":\"dance\"}"]
        {
            let error = Message::parse(line).unwrap_err();
            assert!(matches!(error, RunError::NoProtocol { .. }), "{line}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn every_version_of_the_protocol_has_a_greeting() {
        assert_eq!(Message::parse("{\"protocol\":7,\"task\":\"hello\"}").unwrap().task, Task::Hello);
        let greeting = Greeting { protocol: PROTOCOL, environment: crate::environment() };
        let line = serde_json::to_string(&greeting).unwrap();
        assert_eq!(parse::<Greeting>(&line, "x").unwrap(), greeting);
        let other = line.replace(&format!("\"protocol\":{PROTOCOL}"), "\"protocol\":77");
        let text = parse::<Greeting>(&other, "/opt/x").unwrap_err().to_string();
        assert!(text.contains("/opt/x") && text.contains("version 77"), "{text}");
        let text = parse::<Greeting>("44.6 Gbps", "/opt/x").unwrap_err().to_string();
        assert!(text.contains("/opt/x does not speak"), "{text}");
    }
}
