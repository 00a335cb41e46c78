//! The connections that a gate follows, from their SYN to their end.
//!
//! ```text
//! Held ── admitted ──► Opening ── SYN-ACK, ACK ──► Open ── RST, or FINs of both sides ──► forgotten
//! ```
//!
//! A forgotten connection no longer owns its addresses, so a forged RST costs at most one connection to the server. Its
//! number tells it from an earlier one with the same addresses that is still closing.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use platform::packet::TcpSegment;
use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::{PacketBuffer, PacketMeta};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::{FlowKey, FlowMap};

/// How long a client may wait to retransmit its SYN, beyond twice the time since its first one.
const FIRST_SILENCE: Duration = Duration::from_secs(4);

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
    /// Clients whose datagrams may be fragmented: at most [`MAX_FRAGMENTING`].
    pub(super) fragmenting: HashSet<SocketAddr, ahash::RandomState>,
    pub(super) replies: VecDeque<Vec<u8>>,
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
}

#[derive(Debug)]
enum Stage {
    /// The SYN waits for a decision, or for the stack's next batch.
    Held { syn: Vec<u8>, meta: PacketMeta },
    /// The stack has the SYN. `answer`: the sequence number of its SYN-ACK.
    Opening { answer: Option<u32> },
    /// The handshake is complete. `fins`: whether the client and the stack have sent a FIN.
    Open { fins: [bool; 2] },
}

/// What a gate does with a SYN.
pub(super) enum Verdict {
    /// The stack gets it: its connection exists.
    Pass,
    /// It waits.
    Hold,
    /// It waits, and makes a request: a new connection with this number.
    Ask { number: u64, opened: oneshot::Receiver<()> },
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
                Stage::Opening { .. } | Stage::Open { .. } => return Verdict::Pass,
            }
        }
        let (number, (sender, opened)) = (self.next_number, oneshot::channel());
        self.next_number += 1;
        let flow = Flow { number, first: sequence, asked: [now; 2], stage: held(), opened: Some(sender) };
        self.flows.insert(key, flow);
        Verdict::Ask { number, opened }
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
                // The stack decides. If it is wrong, the next SYN is a request in vain.
                Stage::Open { .. } => true,
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
            flow.stage = Stage::Open { fins: [false; 2] };
            let _unheard = flow.opened.take().map(|opened| opened.send(()));
            self.opening -= 1;
        }
        if flags & FIN != 0 {
            self.finish(key, 0);
        }
    }

    /// A segment from the stack with SYN, FIN or RST.
    pub(super) fn stack_sent(&mut self, key: FlowKey, segment: &TcpSegment<'_>) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let (flags, sequence, acknowledgement) = (segment.flags(), segment.sequence(), segment.acknowledgement());
        let next = flow.first.wrapping_add(1);
        if flags & RST != 0 {
            let is_valid = match flow.stage {
                Stage::Held { .. } => false,
                // An answer to this SYN, not to a late segment of an earlier connection.
                Stage::Opening { answer: None } => flags & ACK != 0 && acknowledgement == next,
                Stage::Opening { answer: Some(answer) } => sequence == answer.wrapping_add(1),
                Stage::Open { .. } => true,
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
        } else {
            self.finish(key, 1);
        }
    }

    /// A FIN of one side. After those of both, the addresses are free: TIME-WAIT is the matter of the stack.
    fn finish(&mut self, key: FlowKey, side: usize) {
        if let Some(flow) = self.flows.get_mut(&key)
            && let Stage::Open { fins } = &mut flow.stage
        {
            fins[side] = true;
            if *fins == [true; 2] {
                self.remove(key);
            }
        }
    }

    fn remove(&mut self, key: FlowKey) {
        let removed = self.flows.remove(&key);
        self.opening -= usize::from(removed.is_some_and(|flow| matches!(flow.stage, Stage::Opening { .. })));
    }

    pub(super) fn forget(&mut self, key: FlowKey, number: u64) {
        if self.current(key, number).is_some() {
            self.remove(key);
        }
    }

    /// Passes a held SYN to the stack with the next batch.
    pub(super) fn admit(&mut self, key: FlowKey, number: u64) {
        if self.current(key, number).is_some() {
            self.admitted.push_back((key, number));
        }
    }

    /// Fills buffers with the SYNs of admitted connections whose clients have not given up. Returns their count.
    pub(super) fn deliver(&mut self, buffers: &mut [PacketBuffer]) -> std::io::Result<usize> {
        let mut count = 0;
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
