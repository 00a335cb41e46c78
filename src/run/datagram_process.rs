//! The server's side of datagrams in a process of its own: the run gives it orders, and brings its counts back.
//!
//! ```text
//! writer   "report" ──► counts of the last trial of which a datagram has arrived
//!
//! reader   {"trial": …} ──► it sends
//!          "report" ──► whether it knows the client, and how many datagrams it has sent
//! ```
//!
//! The client leads the trials, as for any server; see `load::datagram`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use platform::Conversation;
use serde::Deserialize;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::load::datagram::{Flows, ProcessCounts, Trial};
use crate::load::stream::Direction;
use crate::sample::Status;

/// How often the counts are asked for during a trial at least. Each answer costs the process CPU time.
const DURING: Duration = Duration::from_millis(100);

/// How often they are asked for when the client waits for them.
const AFTER: Duration = Duration::from_millis(1);

/// The order to send, at a rate in datagrams a second; `null` for as many as are taken.
fn order(trial: &Trial) -> String {
    let Trial { number, time, rate, .. } = *trial;
    format!("{}\n", json!({ "trial": { "number": number, "seconds": time.as_secs_f64(), "rate": rate } }))
}

#[derive(Deserialize)]
pub(crate) struct Report {
    pub(crate) datagrams: ProcessCounts,
}

/// Passes trials to the process of this name, and its counts to the flows. Ends only with a failure.
pub(crate) async fn follow(
    name: &'static str,
    control: Arc<Conversation>,
    flows: Arc<Flows>,
    interval: Option<Duration>,
) -> Result<(), Failure> {
    let during = interval.map_or(DURING, |interval| interval.min(DURING));
    let mut trials = flows.trials();
    loop {
        let rest = trials.borrow().end().saturating_duration_since(Instant::now());
        let has_begun = timeout(rest.clamp(AFTER, during), trials.changed()).await.is_ok();
        if has_begun && flows.direction() == Direction::ToClient {
            control.send(&order(&trials.borrow()));
        }
        let (asked, of_process) = (Instant::now(), Arc::clone(&control));
        let report = spawn_blocking(move || of_process.report()).await.ok().flatten();
        let Some(Report { datagrams }) = report else {
            let detail = format!("the {name} did not report its datagrams");
            return Err(Failure { status: Status::Stalled, detail });
        };
        flows.set_counts(&datagrams, asked);
    }
}
