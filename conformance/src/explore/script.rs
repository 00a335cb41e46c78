//! Plays of several clients at once, whose moves the bytes of a fuzzer choose.

use std::time::Duration;

use netstacks::{StackConfig, StackCongestion, StackKind, Workarounds};
use platform::{Capabilities, MemoryLink};
use tokio::runtime::Builder;
use tokio::time::sleep;

use super::play::{Fault, Move, Opening};
use super::stage::{Pair, Stage, time_of};
use super::{Broken, Invariant, Pace, Played};
use crate::server::Start;
use crate::{AnyLink, Lab, Layer, Offer, Run, link, secs};

/// How many clients there may be, besides the new one at the end.
pub const CLIENTS: u16 = 4;

/// In tokio's time.
const PACE: Pace = Pace { retry: secs(1), bound: secs(400), freed: secs(400), user_timeout: Duration::from_mins(15) };

/// The promise of a stack, whatever the clients send. Each includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Promise {
    /// It runs on, and the application reads no wrong bytes.
    Lives,
    /// A new client is served.
    Serves,
    /// Every invariant holds for a connection whose client has done nothing wrong.
    Delivers,
}

impl Promise {
    const fn of(stack: StackKind) -> Self {
        match stack {
            StackKind::Lwip | StackKind::Smoltcp => Self::Delivers,
            // It takes its timers from the real clock, and SYNs that come together join a client to another's stream.
            StackKind::NetstackSmoltcp => Self::Lives,
            _ => Self::Serves,
        }
    }
}

/// A play of several clients.
#[derive(Clone, Debug)]
pub struct Script {
    /// The capabilities of the link.
    pub capabilities: Capabilities,
    /// How many packets wait in each direction of the link. Further ones are lost.
    pub depth: usize,
    /// The moves, each with the place of its client, and whether the next move is made at once.
    pub moves: Vec<(u16, Move, bool)>,
}

/// Plays a script on a stack of its own. Fails if the stack breaks its promise, or does not start.
pub fn perform(stack: StackKind, script: &Script) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let _entered = runtime.enter();
    let (link, other_end) = MemoryLink::pair_of(script.capabilities, script.depth);
    let config =
        StackConfig { window: 16 << 10, user_timeout: PACE.user_timeout, backlog: 4, ..StackConfig::default() };
    let start = Start { links: vec![AnyLink::new(link)], config };
    let started = stack.visit(start).map_err(|error| error.to_string())?;
    let running = started.map_err(|error| error.to_string())?;
    let (layer, workarounds, congestion) = (Layer::Stack, Workarounds::ALL, StackCongestion::None);
    let run = Run {
        stack,
        program: None,
        layer,
        shards: 1,
        offload: false,
        mtu: link::MTU,
        workarounds,
        congestion,
        trace: None,
    };
    let mut lab = Lab::new(AnyLink::new(other_end), running, &run, runtime.handle(), false);
    let played = runtime.block_on(play(script, &mut lab, Promise::of(stack)));
    let played = played.and_then(|()| Ok(lab.finish()?));
    drop(lab);
    // Some stacks have to end before their runtime does.
    runtime.block_on(sleep(secs(10)));
    played.map_err(|Broken { invariant, seen }| {
        let moves = script.moves.iter().map(|(at, one, _)| format!("\n{at}: {one}"));
        format!("{invariant:?} does not hold: {seen}{}", moves.collect::<String>())
    })
}

async fn play(script: &Script, lab: &mut Lab, promise: Promise) -> Played {
    let Some(mut stage) = Stage::new(lab, PACE) else { return Ok(()) };
    stage.joins_clients = promise == Promise::Lives;
    for (at, one, is_at_once) in &script.moves {
        stage.make(*at, one)?;
        if promise < Promise::Delivers {
            stage.blame(false);
        }
        if !is_at_once {
            stage.settle(time_of(one)).await?;
        }
    }
    stage.be_kind()?;
    if promise >= Promise::Delivers {
        for at in 0..CLIENTS {
            stage.end(at, at % 2 == 1).await?;
        }
    }
    if promise >= Promise::Serves {
        let opening = Opening { ipv6: false, isn: 0x1234_5678, offer: Offer::default(), loses_ack: false };
        stage.make(CLIENTS, &Move::Connects(opening))?;
        if promise < Promise::Delivers {
            stage.blame(false);
        }
        stage.until_open(CLIENTS).await?;
        stage.make(CLIENTS, &Move::ServerReads(u16::MAX))?;
        stage.make(CLIENTS, &Move::ServerWrites(1_000))?;
        stage.make(CLIENTS, &Move::ClientSends { len: 3_000, cut: 1_000, ends: false, fault: Fault::None })?;
        let is_served = |pair: &Pair| pair.app.read == 3_000 && pair.peer.received() == 1_000;
        let seen = "a new client is not served";
        stage.until(CLIENTS, PACE.bound, Invariant::Progress, seen, is_served).await?;
        stage.end(CLIENTS, true).await?;
    }
    Ok(())
}
