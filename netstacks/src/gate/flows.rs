//! The connections that a gate follows, from their SYN to their end.
//!
//! ```text
//! Held ── admitted ──► Opening ── SYN-ACK, ACK ──► Open ── RST of the stack, or FINs of both sides ──► forgotten
//! ```
//!
//! A forgotten connection no longer owns its addresses. Its number tells it from an earlier one with the same addresses that
//! is still closing. The gate does not know which RST the stack accepts: after one, the next SYN makes a new connection, and a
//! FIN of the client shows that the RST was forged.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use platform::packet::TcpSegment;
use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::{PacketBuffer, PacketMeta};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::reply;
use crate::{FlowKey, FlowMap};

/// How long a client may wait to retransmit its SYN, beyond twice the time since its first one.
const FIRST_SILENCE: Duration = Duration::from_secs(4);

/// Most connections that wait for the FIN of their stack after their reset, if it never sends one.
const MAX_ABORTED: usize = 1 << 16;

/// Beyond that all are forgotten. Each comes back with its next long datagram.
const MAX_FRAGMENTING: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct State {
    flows: FlowMap<Flow>,
    next_number: u64,
    /// Connections whose SYNs are on their way to the stack.
    pub(super) admitted: VecDeque<(FlowKey, u64)>,
    /// How many connections are in the stage [`Stage::Opening`].
    pub(super) opening: usize,
    /// Connections that were reset by the proxy, the oldest first. Some of them have ended.
    aborted: VecDeque<(FlowKey, u64)>,
    /// Clients whose datagrams may be fragmented: at most [`MAX_FRAGMENTING`].
    pub(super) fragmenting: HashSet<SocketAddr, ahash::RandomState>,
    pub(super) replies: VecDeque<Vec<u8>>,
    /// RSTs for the stack, in the names of clients.
    pub(super) resets: VecDeque<Vec<u8>>,
    pub(super) reader: Option<Waker>,
}

#[derive(Debug)]
struct Flow {
    number: u64,
    first: u32,
    /// When the first and the last SYN with this number arrived.
    asked: [Instant; 2],
    stage: Stage,
    /// Reports that the handshake is complete. It is dropped if the client gives up before.
    opened: Option<oneshot::Sender<()>>,
    /// Whether the client has sent a RST.
    is_reset: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Stage {
    /// The SYN waits for a decision, or for the stack's next batch.
    Held { syn: Vec<u8>, meta: PacketMeta },
    /// The stack has the SYN. `answer`: the sequence number of its SYN-ACK.
    Opening { answer: Option<u32> },
    /// The handshake is complete.
    Open(Ends),
}

#[derive(Debug, Default)]
struct Ends {
    /// Whether the client has sent a FIN.
    client: bool,
    /// The number behind the stack's FIN.
    stack: Option<u32>,
    /// Whether the proxy has reset the connection.
    aborted: bool,
}

/// What a gate does with a SYN.
pub(super) enum Verdict {
    /// The stack gets it: its connection exists.
    Pass,
    /// It waits.
    Hold,
    /// It waits, and makes a request: a new connection with this number.
    Ask { number: u64, opened: oneshot::Receiver<()>, is_reset: Arc<AtomicBool> },
}

impl State {
    fn current(&mut self, key: FlowKey, number: u64) -> Option<&mut Flow> {
        self.flows.get_mut(&key).filter(|flow| flow.number == number)
    }

    /// Remembers whether a client lets routers fragment its datagrams. Returns how many do.
    pub(super) fn note_fragmentation(&mut self, peer: SocketAddr, allowed: bool) -> usize {
        if !allowed {
            self.fragmenting.remove(&peer);
        } else if !self.fragmenting.contains(&peer) {
            if self.fragmenting.len() >= MAX_FRAGMENTING {
                self.fragmenting.clear();
            }
            self.fragmenting.insert(peer);
        }
        self.fragmenting.len()
    }

    pub(super) fn syn(&mut self, key: FlowKey, sequence: u32, buffer: &PacketBuffer) -> Verdict {
        let now = Instant::now();
        let held = || Stage::Held { syn: buffer.packet().to_vec(), meta: buffer.meta() };
        if let Some(flow) = self.flows.get_mut(&key) {
            match flow.stage {
                Stage::Held { .. } => {
                    if flow.first != sequence {
                        // The client has begun anew. It wants the same server, so the request stays.
                        (flow.first, flow.asked[0], flow.stage) = (sequence, now, held());
                    }
                    flow.asked[1] = now;
                    return Verdict::Hold;
                }
                // The same after the request was admitted: that handshake fails, and there is another.
                Stage::Opening { .. } if flow.first != sequence => self.remove(key),
                Stage::Open(_) if flow.is_reset.load(Ordering::Relaxed) => self.remove(key),
                Stage::Opening { .. } | Stage::Open(_) => return Verdict::Pass,
            }
        }
        let (number, (sender, opened)) = (self.next_number, oneshot::channel());
        self.next_number += 1;
        let is_reset = Arc::new(AtomicBool::new(false));
        let flow = Flow {
            number,
            first: sequence,
            asked: [now; 2],
            stage: held(),
            opened: Some(sender),
            is_reset: Arc::clone(&is_reset),
        };
        self.flows.insert(key, flow);
        Verdict::Ask { number, opened, is_reset }
    }

    pub(super) fn client_sent(&mut self, key: FlowKey, segment: &TcpSegment<'_>) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let (flags, sequence) = (segment.flags(), segment.sequence());
        let next = flow.first.wrapping_add(1);
        if flags & RST != 0 {
            let is_valid = match flow.stage {
                // A client without an answer knows only its own number.
                Stage::Held { .. } => sequence == next || sequence == flow.first,
                // RFC 5961, 3.2.
                Stage::Opening { .. } => sequence == next,
                // The stack decides, and the gate follows the connection on.
                Stage::Open(_) => {
                    flow.is_reset.store(true, Ordering::Release);
                    return;
                }
            };
            if is_valid {
                self.remove(key);
            }
            return;
        }
        if let Stage::Opening { answer: Some(answer) } = flow.stage
            && flags & ACK != 0
            && segment.acknowledgement() == answer.wrapping_add(1)
        {
            flow.stage = Stage::Open(Ends::default());
            let _unheard = flow.opened.take().map(|opened| opened.send(()));
            self.opening -= 1;
        }
        if flags & FIN != 0 {
            flow.is_reset.store(false, Ordering::Release);
            self.finish(key, |ends| ends.client = true);
        }
    }

    /// A segment from the stack with SYN, FIN or RST, and `len` bytes of payload. Returns whether it may be sent.
    pub(super) fn stack_sent(&mut self, key: FlowKey, segment: &TcpSegment<'_>, len: usize) -> bool {
        let Some(flow) = self.flows.get_mut(&key) else { return true };
        let (flags, sequence, acknowledgement) = (segment.flags(), segment.sequence(), segment.acknowledgement());
        let next = flow.first.wrapping_add(1);
        if flags & RST != 0 {
            let is_valid = match flow.stage {
                Stage::Held { .. } => false,
                // An answer to this SYN, not to a late segment of an earlier connection.
                Stage::Opening { answer: None } => flags & ACK != 0 && acknowledgement == next,
                Stage::Opening { answer: Some(answer) } => sequence == answer.wrapping_add(1),
                Stage::Open(_) => true,
            };
            if is_valid {
                self.remove(key);
            }
        } else if flags & SYN != 0 {
            if let Stage::Opening { answer } = &mut flow.stage
                && acknowledgement == next
            {
                *answer = Some(sequence);
            }
        } else if let Stage::Open(Ends { aborted: true, .. }) = flow.stage {
            // The stack closes. Its payload is lost, as all that was unsent at the reset.
            self.remove(key);
            self.replies.extend(reply::reset(key.local, key.peer, sequence));
            self.resets.extend(reply::reset(key.peer, key.local, acknowledgement));
            return false;
        } else {
            self.finish(key, |ends| ends.stack = Some(sequence.wrapping_add(len as u32 + 1)));
        }
        true
    }

    /// A FIN of one side. After those of both, the addresses are free: TIME-WAIT is the matter of the stack.
    fn finish(&mut self, key: FlowKey, note: impl FnOnce(&mut Ends)) {
        if let Some(flow) = self.flows.get_mut(&key)
            && let Stage::Open(ends) = &mut flow.stage
        {
            note(ends);
            if ends.client && ends.stack.is_some() {
                self.remove(key);
            }
        }
    }

    /// Makes a RST of the stack's FIN. If the FIN was sent before, the RST follows it: the stack sends no further one.
    pub(super) fn abort(&mut self, key: FlowKey, number: u64) {
        let Some(flow) = self.current(key, number) else { return };
        let is_reset = flow.is_reset.load(Ordering::Relaxed);
        let Stage::Open(ends) = &mut flow.stage else { return };
        ends.aborted = true;
        if let Some(end) = ends.stack {
            self.remove(key);
            self.replies.extend(reply::reset(key.local, key.peer, end));
            return;
        }
        // A stack that has accepted the client's RST sends no FIN.
        if is_reset {
            return self.remove(key);
        }
        self.aborted.push_back((key, number));
        if self.aborted.len() > MAX_ABORTED
            && let Some((key, number)) = self.aborted.pop_front()
            && self.current(key, number).is_some()
        {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: FlowKey) {
        let removed = self.flows.remove(&key);
        self.opening -= usize::from(removed.is_some_and(|flow| matches!(flow.stage, Stage::Opening { .. })));
    }

    pub(super) fn forget(&mut self, key: FlowKey, number: u64) {
        if self.current(key, number).is_some_and(|flow| !matches!(flow.stage, Stage::Open(Ends { aborted: true, .. })))
        {
            self.remove(key);
        }
    }

    /// Passes a held SYN to the stack with the next batch.
    pub(super) fn admit(&mut self, key: FlowKey, number: u64) {
        if self.current(key, number).is_some() {
            self.admitted.push_back((key, number));
        }
    }

    /// Fills buffers with RSTs, and the SYNs of admitted connections whose clients have not given up. Returns their count.
    pub(super) fn deliver(&mut self, buffers: &mut [PacketBuffer]) -> std::io::Result<usize> {
        let mut count = 0;
        while let Some(buffer) = buffers.get_mut(count)
            && let Some(packet) = self.resets.pop_front()
        {
            buffer.storage_mut()[..packet.len()].copy_from_slice(&packet);
            buffer.filled(packet.len(), PacketMeta::default())?;
            count += 1;
        }
        while let Some(buffer) = buffers.get_mut(count)
            && let Some((key, number)) = self.admitted.pop_front()
        {
            if let Some(flow) = self.current(key, number)
                && let Stage::Held { syn, meta } = &flow.stage
            {
                buffer.storage_mut()[..syn.len()].copy_from_slice(syn);
                buffer.filled(syn.len(), *meta)?;
                flow.stage = Stage::Opening { answer: None };
                self.opening += 1;
                count += 1;
            }
        }
        Ok(count)
    }

    pub(super) fn first(&mut self, key: FlowKey, number: u64) -> Option<u32> {
        self.current(key, number).map(|flow| flow.first)
    }

    /// Until when the client must have retransmitted its SYN.
    pub(super) fn silent_until(&mut self, key: FlowKey, number: u64) -> Option<Instant> {
        let [first, last] = self.current(key, number)?.asked;
        Some(last + 2 * (last - first) + FIRST_SILENCE)
    }

    /// Whether the stack has not answered the SYN of a connection.
    pub(super) fn is_unanswered(&mut self, key: FlowKey, number: u64) -> bool {
        self.current(key, number)
            .is_some_and(|flow| matches!(flow.stage, Stage::Held { .. } | Stage::Opening { answer: None }))
    }
}
