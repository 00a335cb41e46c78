//! A headless browser, controlled by its developer tools protocol.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

/// How long the browser may take to answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running browser with one page. It ends when it is dropped.
pub(crate) struct Browser {
    process: Child,
    _profile: TempDir,
    socket: WebSocket<TcpStream>,
    session: Option<String>,
    last: u64,
    /// Events that arrived while a call waited for its result.
    events: Vec<Value>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ended = self.process.kill().and_then(|()| self.process.wait());
    }
}

impl Browser {
    pub(crate) fn start(program: &Path) -> Self {
        let profile = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut process = Command::new(program)
            // The sandbox does not work for root, and a container has only a small /dev/shm.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--remote-debugging-port=0", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines
            .find_map(|line| line.unwrap().strip_prefix("DevTools listening on ").map(ToOwned::to_owned))
            .unwrap_or_else(|| panic!("{} ended before it listened", program.display()));
        // Reads further messages, or the browser would block on a full pipe.
        std::thread::spawn(move || lines.count());
        let host = address.strip_prefix("ws://").unwrap().split('/').next().unwrap();
        let stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(&address, stream).unwrap();
        let mut browser = Self { process, _profile: profile, socket, session: None, last: 0, events: Vec::new() };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let session = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", &session)["sessionId"].as_str().map(ToOwned::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Calls a method, and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.socket.send(Message::text(message.to_string())).unwrap();
        loop {
            let answer = self.receive();
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn receive(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.socket.read().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }

    /// Opens a page, and returns all events until it is loaded and drawn.
    pub(crate) fn open(&mut self, address: &str) -> Vec<Value> {
        self.events.clear();
        self.call("Page.navigate", &json!({"url": address}));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.receive();
            self.events.push(event);
        }
        // Late requests, for example for the icon of the tab, come within two frames.
        let drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))";
        assert_eq!(self.evaluate(drawn), 1);
        std::mem::take(&mut self.events)
    }

    /// Returns the value of an expression in the page. Waits for a promise.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", &parameters);
        assert!(result.get("exceptionDetails").is_none(), "{result}");
        result["result"]["value"].clone()
    }

    /// Writes a screenshot of the whole page.
    pub(crate) fn picture(&mut self, path: &Path) {
        let parameters = json!({"format": "png", "captureBeyondViewport": true});
        let picture = self.call("Page.captureScreenshot", &parameters);
        std::fs::write(path, STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()).unwrap();
    }
}
