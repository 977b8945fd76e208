//! One queue pair: what was posted, what is done, and the streams' two threads that move it.

use super::EmulatedNic;
use super::memory::MemorySlice;
use super::message::{Header, Preamble};
use super::{receiving, sending};
use crate::verbs::{Endpoint, NicEvent, QueuePairOptions, Service, Side, Status, WorkCompletion};
use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Maximum number of streams accepted before this side is connected; more are rejected.
const MAX_WAITING: usize = 8;

/// Peer number that accepts any peer: the first peer that knows the number of this queue pair may write by an
/// unreliable connection, as with hardware. That peer uses [`UNKNOWN_PSN`].
pub(super) const ANY_PEER: u32 = 0;
/// The number of no queue's first packet: for a peer whose queue takes [anyone](ANY_PEER).
pub(super) const UNKNOWN_PSN: u32 = 0;

/// A posted request that has not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub number: u64,
    pub id: u64,
    pub is_signaled: bool,
}

/// A request that was not sent yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub posted: Posted,
    pub header: Header,
    pub inline: Vec<u8>,
    pub slices: Vec<MemorySlice>,
}

impl Outgoing {
    /// Whether the peer must have posted a receive.
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
    reason = "a stream can be over and the queue go on, or the other way round"
)]
pub(super) struct State {
    pub peer: Option<Endpoint>,
    pub socket: Option<Arc<TcpStream>>,
    waiting: Vec<(TcpStream, Preamble)>,
    threads: Vec<JoinHandle<()>>,
    /// The queue is being dropped.
    pub is_ending: bool,
    /// The stream is at its end, or was cut.
    pub is_cut: bool,
    pub has_failed: bool,
    /// Work that was posted in all, and how much of it was handed back.
    pub posted: u64,
    pub reclaimed: u64,
    pub outgoing: VecDeque<Outgoing>,
    /// Being sent, or not acknowledged (RC).
    pub unanswered: VecDeque<Posted>,
    /// The link is being cut: from this work on no acknowledgement is heard.
    pub ignore_acks_from: Option<u64>,
    pub receives: VecDeque<Receive>,
    /// Receives whose completion was not collected yet, beside those posted.
    received: u32,
    /// Receives posted in all by this side and, as far as known, by the peer; how many the latter work has used.
    pub receives_posted: u64,
    pub peer_receives: u64,
    pub peer_used: u64,
    /// Messages of the peer that are done.
    pub done: u64,
    /// The numbers of finished messages and posted receives that were last reported to the peer.
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

    /// Takes a stream that a peer has opened to this queue.
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

    /// Goes with `peer`: by `stream` if this side has opened one, else by one that the peer opens.
    pub(super) fn start_with(self: &Arc<Self>, peer: Endpoint, stream: Option<TcpStream>) {
        let mut state = self.lock();
        state.peer = Some(peer);
        let waiting = std::mem::take(&mut state.waiting);
        let theirs = || {
            let mut ours = waiting.into_iter();
            ours.find(|(_, preamble)| self.is_of(&state, preamble))
        };
        if let Some(stream) = stream.or_else(|| theirs().map(|(stream, _)| stream)) {
            self.start(&mut state, stream);
        }
        let pair = Arc::clone(self);
        self.spawn(&mut state, "send", move || sending::run(&pair));
    }

    fn start(self: &Arc<Self>, state: &mut State, stream: TcpStream) {
        if state.socket.is_some() || state.is_ending || state.has_failed {
            return;
        }
        let prepared = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true));
        if prepared.is_err() {
            return;
        }
        let stream = Arc::new(stream);
        state.socket = Some(Arc::clone(&stream));
        let pair = Arc::clone(self);
        self.spawn(state, "receive", move || receiving::run(&pair, &stream));
        self.changed.notify_all();
    }

    /// A thread of this queue; where there is none to be had, the queue fails.
    fn spawn(&self, state: &mut State, what: &str, run: impl FnOnce() + Send + 'static) {
        let name = format!("{}-{what}", self.nic.name);
        match std::thread::Builder::new().name(name).spawn(run) {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                tracing::warn!(target: "rdma", "cannot start a thread for a queue pair of an emulated NIC: {error}");
                self.fail(state, None, Status::Unanswered);
            }
        }
    }

    /// Adds a completion. `number` is that of work, and of no meaning for receives.
    pub(super) fn complete(&self, state: &mut State, done: WorkCompletion, number: u64) {
        if state.completions.len() < state.max_completions {
            state.completions.push_back((done, number));
        } else if !state.is_overrun {
            state.is_overrun = true;
            self.nic.push_event(NicEvent::CompletionOverrun);
        }
        self.completed.notify_all();
    }

    /// Work is done.
    pub(super) fn succeed(&self, state: &mut State, posted: Posted) {
        if posted.is_signaled {
            self.complete(state, sent(posted.id, Status::Success), posted.number);
        }
    }

    /// A receive is used up.
    pub(super) fn complete_receive(
        &self,
        state: &mut State,
        id: u64,
        bytes: u64,
        immediate: Option<u32>,
    ) {
        state.received += 1;
        let done = WorkCompletion {
            id,
            side: Side::Received,
            status: Status::Success,
            // The length of a message was looked at when its header came.
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            immediate,
        };
        self.complete(state, done, 0);
    }

    /// A receive is used up by a message that does not fit.
    pub(super) fn fail_receive(&self, state: &mut State, id: u64) {
        state.received += 1;
        let mut done = sent(id, Status::Local);
        done.side = Side::Received;
        self.complete(state, done, 0);
    }

    /// The queue fails: work `number`, or the first that is not done, with `status`, all other work is flushed.
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

    /// Ends all posted receives of a queue that has failed.
    pub(super) fn flush_receives(&self, state: &mut State) {
        while let Some(receive) = state.receives.pop_front() {
            state.received += 1;
            let mut done = sent(receive.id, Status::Flushed);
            done.side = Side::Received;
            self.complete(state, done, 0);
        }
    }

    /// The stream is over. Only work that wants an answer notices.
    pub(super) fn end_stream(&self, state: &mut State) {
        state.is_cut = true;
        if let Some(socket) = &state.socket {
            // It may have been shut down by the peer already.
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

    /// The queue fails, its first work that is not done with `status`.
    pub(super) fn stop(&self, status: Status) {
        let mut state = self.lock();
        self.fail(&mut state, None, status);
        self.end_stream(&mut state);
    }

    /// A receive was not used up after all.
    pub(super) fn return_receive(&self, receive: Receive) {
        let mut state = self.lock();
        state.receives.push_front(receive);
        if state.has_failed {
            self.flush_receives(&mut state);
        }
    }

    /// Whether there is room for another receive.
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

    /// Ends it: when this returns nothing is written for it any more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_ending = true;
        state.waiting.clear();
        if let Some(socket) = &state.socket {
            // It may have been shut down already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        for thread in threads {
            // A panic of a thread was printed by it.
            let _ = thread.join();
        }
    }
}

pub(super) fn sent(id: u64, status: Status) -> WorkCompletion {
    WorkCompletion {
        id,
        side: Side::Sent,
        status,
        bytes: 0,
        immediate: None,
    }
}
