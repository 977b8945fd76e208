//! The state of one queue pair: posted requests, completions, and the two threads of its stream.

mod threads;

use super::EmulatedNic;
use super::memory::MemorySlice;
use super::message::{Header, Preamble};
use crate::verbs::{Endpoint, NicEvent, QueuePairOptions, Service, Side, Status, WorkCompletion};
use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Maximum number of streams that wait until this side is connected; further streams are rejected.
const MAX_WAITING: usize = 8;

/// Peer number that accepts any peer of an unreliable connection, as hardware does: the first peer that knows the
/// number of this queue pair may write. That peer uses [`UNKNOWN_PSN`].
pub(super) const ANY_PEER: u32 = 0;
/// First PSN that a peer sends to a queue pair that accepts [any peer](ANY_PEER). No queue pair has this PSN.
pub(super) const UNKNOWN_PSN: u32 = 0;

/// A posted request that has not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub number: u64,
    pub id: u64,
    pub is_signaled: bool,
}

/// A request that has not been sent yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub posted: Posted,
    pub header: Header,
    pub inline: Vec<u8>,
    pub slices: Vec<MemorySlice>,
}

impl Outgoing {
    /// Returns true if the peer must have posted a receive.
    pub(super) fn needs_receive(&self) -> bool {
        match self.header {
            Header::Send { .. } => true,
            Header::Write { immediate, .. } => immediate.is_some(),
            Header::Control { .. } | Header::Refusal { .. } => false,
        }
    }
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub id: u64,
    pub slices: Vec<MemorySlice>,
}

#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the stream and the queue pair end independently of each other"
)]
pub(super) struct State {
    pub peer: Option<Endpoint>,
    pub socket: Option<Arc<TcpStream>>,
    waiting: Vec<(TcpStream, Preamble)>,
    threads: Vec<JoinHandle<()>>,
    /// True if the queue pair is being dropped.
    pub is_ending: bool,
    /// True if the stream has ended or was cut.
    pub is_cut: bool,
    pub has_failed: bool,
    /// Total number of posted requests.
    pub posted: u64,
    /// Number of requests that no longer occupy the send queue, because their completion or the completion of a later
    /// request was collected.
    pub reclaimed: u64,
    pub outgoing: VecDeque<Outgoing>,
    /// Requests that are being sent or, for RC, are not acknowledged yet.
    pub unanswered: VecDeque<Posted>,
    /// Number of the first request whose acknowledgement is ignored; set when the link is being cut.
    pub ignore_acks_from: Option<u64>,
    pub receives: VecDeque<Receive>,
    /// Number of used receives whose completions were not collected yet.
    received: u32,
    /// Total number of receives that this side has posted.
    pub receives_posted: u64,
    /// Total number of receives that the peer has posted, as last reported by the peer.
    pub peer_receives: u64,
    /// Number of the peer's receives that requests of this side have used.
    pub peer_used: u64,
    /// Number of the peer's messages that have completed.
    pub done: u64,
    /// The numbers of completed messages and of posted receives that were last reported to the peer.
    pub last_reported: (u64, u64),
    pub refusal: Option<Header>,
    completions: VecDeque<(WorkCompletion, u64)>,
    max_completions: usize,
    pub is_overrun: bool,
}

pub(super) struct Pair {
    pub nic: Arc<EmulatedNic>,
    pub number: u32,
    pub psn: u32,
    pub qkey: u32,
    pub options: QueuePairOptions,
    state: Mutex<State>,
    /// Wakes the sending thread.
    pub changed: Condvar,
    /// Signalled when a completion is added.
    pub completed: Condvar,
}

impl Pair {
    pub(super) fn new(
        nic: Arc<EmulatedNic>,
        (number, psn): (u32, u32),
        qkey: u32,
        options: QueuePairOptions,
    ) -> Self {
        let wanted = options.sends.saturating_add(options.receives).max(1);
        let max_completions = nic.faults.completions().unwrap_or(wanted).min(wanted);
        Self {
            nic,
            number,
            psn,
            qkey,
            options,
            state: Mutex::new(State {
                max_completions: max_completions as usize,
                ..State::default()
            }),
            changed: Condvar::new(),
            completed: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn is_reliable(&self) -> bool {
        matches!(self.options.service, Service::Rc)
    }

    /// Accepts a stream that a peer has opened to this queue pair.
    pub(super) fn deliver(self: &Arc<Self>, stream: TcpStream, preamble: Preamble) {
        let mut state = self.lock();
        if self.is_of(&state, &preamble) {
            self.start(&mut state, stream);
        } else if state.peer.is_none() && state.waiting.len() < MAX_WAITING {
            state.waiting.push((stream, preamble));
        }
    }

    fn is_of(&self, state: &State, preamble: &Preamble) -> bool {
        let takes_anyone = |peer: &Endpoint| {
            matches!(self.options.service, Service::Uc) && peer.number == ANY_PEER
        };
        let is_peer = |peer: &Endpoint| {
            if takes_anyone(peer) {
                preamble.to == (self.number, UNKNOWN_PSN)
            } else {
                (peer.number, peer.psn) == preamble.from && preamble.to == (self.number, self.psn)
            }
        };
        state.peer.as_ref().is_some_and(is_peer)
            && preamble.service == self.options.service
            && preamble.qkey == self.qkey
    }

    /// Adds a completion. `number` is the number of the request and is ignored for receives.
    pub(super) fn complete(&self, state: &mut State, done: WorkCompletion, number: u64) {
        if state.completions.len() < state.max_completions {
            state.completions.push_back((done, number));
        } else if !state.is_overrun {
            state.is_overrun = true;
            self.nic.push_event(NicEvent::CompletionOverrun);
        }
        self.completed.notify_all();
    }

    /// Completes a request successfully, with a completion if the request asked for one.
    pub(super) fn succeed(&self, state: &mut State, posted: Posted) {
        if posted.is_signaled {
            self.complete(state, sent(posted.id, Status::Success), posted.number);
        }
    }

    /// Completes a receive successfully.
    pub(super) fn complete_receive(
        &self,
        state: &mut State,
        id: u64,
        bytes: u64,
        immediate: Option<u32>,
    ) {
        state.received += 1;
        let done = WorkCompletion {
            // The message length was checked when the header was received.
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            immediate,
            ..received(id, Status::Success)
        };
        self.complete(state, done, 0);
    }

    /// Completes a receive with an error because the message does not fit into the receive.
    pub(super) fn fail_receive(&self, state: &mut State, id: u64) {
        state.received += 1;
        self.complete(state, received(id, Status::Local), 0);
    }

    /// Makes the queue pair fail. Request `number`, or else the first pending request, completes with `status`; all
    /// others are flushed.
    pub(super) fn fail(&self, state: &mut State, number: Option<u64>, status: Status) {
        if state.has_failed {
            return;
        }
        state.has_failed = true;
        let mut work: Vec<Posted> = state.unanswered.drain(..).collect();
        work.extend(state.outgoing.drain(..).map(|outgoing| outgoing.posted));
        let failed = number.or_else(|| work.first().map(|posted| posted.number));
        for posted in work {
            let status = if Some(posted.number) == failed {
                status
            } else {
                Status::Flushed
            };
            self.complete(state, sent(posted.id, status), posted.number);
        }
        self.flush_receives(state);
        self.changed.notify_all();
    }

    /// Flushes all posted receives of a failed queue pair.
    pub(super) fn flush_receives(&self, state: &mut State) {
        while let Some(receive) = state.receives.pop_front() {
            state.received += 1;
            self.complete(state, received(receive.id, Status::Flushed), 0);
        }
    }

    /// Ends the stream. The queue pair fails only if reliable requests are pending.
    pub(super) fn end_stream(&self, state: &mut State) {
        state.is_cut = true;
        if let Some(socket) = &state.socket {
            // An error is expected if the peer has shut the stream down already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        if self.is_reliable() && !(state.unanswered.is_empty() && state.outgoing.is_empty()) {
            self.fail(state, None, Status::Unanswered);
        }
        self.changed.notify_all();
    }

    pub(super) fn cut(&self) {
        self.end_stream(&mut self.lock());
    }

    pub(super) fn kill(&self) {
        self.stop(Status::Other(0));
    }

    /// Makes the queue pair fail; its first pending request completes with `status`.
    pub(super) fn stop(&self, status: Status) {
        let mut state = self.lock();
        self.fail(&mut state, None, status);
        self.end_stream(&mut state);
    }

    /// Puts back a receive that was not used.
    pub(super) fn return_receive(&self, receive: Receive) {
        let mut state = self.lock();
        state.receives.push_front(receive);
        if state.has_failed {
            self.flush_receives(&mut state);
        }
    }

    /// Returns true if another receive may be posted.
    pub(super) fn has_room(&self, state: &State) -> bool {
        state.receives.len() + (state.received as usize) < self.options.receives as usize
    }

    pub(super) fn poll(state: &mut State, done: &mut [WorkCompletion]) -> usize {
        let count = done.len().min(state.completions.len());
        for (to, (completion, number)) in done.iter_mut().zip(state.completions.drain(..count)) {
            *to = completion;
            match completion.side {
                Side::Sent => state.reclaimed = state.reclaimed.max(number + 1),
                Side::Received => state.received -= 1,
            }
        }
        count
    }

    pub(super) fn is_quiet(state: &State) -> bool {
        state.completions.is_empty() && !state.is_overrun
    }

    /// Ends the queue pair. When this function returns, the threads of the queue pair have ended and write no more
    /// memory.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_ending = true;
        state.waiting.clear();
        if let Some(socket) = &state.socket {
            // An error is expected if the stream was shut down already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        for thread in threads {
            // The panic handler has already printed the panic of a thread.
            let _ = thread.join();
        }
    }
}

pub(super) fn sent(id: u64, status: Status) -> WorkCompletion {
    WorkCompletion {
        id,
        side: Side::Sent,
        status,
        ..WorkCompletion::default()
    }
}

fn received(id: u64, status: Status) -> WorkCompletion {
    WorkCompletion {
        side: Side::Received,
        ..sent(id, status)
    }
}
