//! The thread that accepts senders, and its communication with the receiving engine.
//!
//! ```text
//!   thread:  a sender connects ─▶ PendingSender ───▶ engine: ends the current link, selects the first frame
//!            answers the sender and connects the queue pairs ◀─ Granted
//!            Ready ─────────────────────────────────▶ engine: adopts the link
//! ```
//! Each poll of the engine reads only one word, and takes the lock only if this word is set.

use super::rejections::RejectionLog;
use super::shape::{Rejection, Shape};
use crate::connect::{self, AbortHandle, Accepted, Incoming, Listener, PendingLink, Progress};
use crate::engine::RegisteredSlots;
use crate::registration::set::{CloseLinks, RailRegions, RegistrationSet};
use crate::verbs::{Nic, NicEvent, QueuePair, QueuePairOptions, Sge};
use crate::wire::{Hello, Mode, Offer};
use daq_core::log_limit::LogLimit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time of one wait for a sender.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a failed listener is opened again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time of one wait for the last message of a sender that was answered.
const PENDING_WAIT: Duration = Duration::from_millis(10);
/// Time after which a sender that was answered, but has not sent its last message, makes room for another sender.
const YIELD_AFTER: Duration = Duration::from_millis(500);
/// Maximum time to end a connection attempt whose memory must be unmapped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of outstanding send requests per queue pair. The only send requests are writes of the credit word.
pub(super) const SENDS: u32 = 4;

crate::faults! {
    /// Events that an engine counts in addition to frames.
    pub(super) enum Fault;
    /// The names of all faults, in the order of their declaration.
    pub(crate) const FAULTS;
    /// The sender no longer answers.
    Unanswered = "unanswered",
    /// The sender rejected a write of its credit word.
    RemoteAccess = "remote-access",
    /// The sender failed during a write of its credit word.
    RemoteOperation = "remote-operation",
    /// The sender had no receive posted.
    NotReady = "receiver-not-ready",
    /// A message was longer than its slot, or a local memory access was rejected.
    Local = "local",
    /// A request was flushed because its queue pair had failed.
    Flushed = "flushed",
    /// Another failure of a request.
    Other = "other",
    /// A record was invalid, or a completion had no valid record.
    BadRecord = "bad-record",
    /// A frame did not match its checksums. The frame is lost, and the connection continues.
    BadChecksum = "bad-checksum",
    /// A frame arrived without a credit.
    BeyondCredit = "beyond-credit",
    /// A connected sender disconnected.
    PeerGone = "peer-gone",
    /// A greeting did not belong to this protocol, or contained unsupported parameters.
    Foreign = "foreign",
    /// The port of a NIC went down.
    PortDown = "port-down",
    /// A completion queue was overrun.
    CompletionOverrun = "completion-overrun",
}

/// The parameters that the engine sets for the next link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Identifier of the sender's stream.
    pub(super) stream: u64,
    /// Number of the first requested frame.
    pub(super) next: u64,
    /// Number of lost frames before the first requested frame.
    pub(super) missing: u64,
    /// The slots; the first one is that of the first requested frame.
    pub(super) slots: RegisteredSlots,
    /// Number of frames that may be sent immediately.
    pub(super) credits: u64,
    /// Address at which the records are mapped.
    pub(super) records: u64,
}

/// A connected link whose sender may send.
pub(super) struct Connected {
    /// The queue pairs. Declared before the memory regions, so that they are destroyed first.
    pub(super) link: connect::Link,
    pub(super) payload: Arc<RailRegions>,
    pub(super) records: Arc<RailRegions>,
    pub(super) hello: Hello,
    pub(super) terms: Terms,
    pub(super) peer: String,
}

/// A link whose sender was answered, but has not sent its last message.
struct Answered {
    /// Declared before the memory regions, so that the queue pairs are destroyed first.
    pending: PendingLink,
    payload: Arc<RailRegions>,
    records: Arc<RailRegions>,
    hello: Hello,
    terms: Terms,
    peer: String,
    since: Instant,
}

/// The state of a sender that was answered.
enum Outcome {
    Connected(Connected),
    Pending(Answered),
}

impl Answered {
    /// Waits briefly for the sender's last message. Fails if the sender is late and another sender waits.
    fn wait(self, is_another_waiting: bool) -> Result<Outcome, String> {
        let progress = self.pending.wait(PENDING_WAIT);
        Ok(match progress.map_err(|error| error.to_string())? {
            Progress::Connected(link) => Outcome::Connected(Connected {
                link,
                payload: self.payload,
                records: self.records,
                hello: self.hello,
                terms: self.terms,
                peer: self.peer,
            }),
            Progress::Pending(_) if is_another_waiting && self.since.elapsed() >= YIELD_AFTER => {
                return Err("it has stopped answering, and another sender waits".to_owned());
            }
            Progress::Pending(pending) => Outcome::Pending(Self { pending, ..self }),
        })
    }
}

/// A sender that waits for an answer.
#[derive(Clone, Debug)]
pub(super) struct PendingSender {
    pub(super) hello: Hello,
    pub(super) peer: Arc<str>,
}

/// State of the handshake between engine and thread.
pub(super) enum Phase {
    /// The engine does not accept senders.
    Closed,
    /// Senders are accepted.
    Open,
    /// A sender has connected, and the engine must decide.
    PendingSender(PendingSender),
    /// The engine has accepted the sender and set these link parameters.
    Granted(Terms),
    /// The engine has rejected the sender for this reason.
    Denied(Rejection),
    /// The sender is being answered. From now on the sender may write the granted memory.
    Connecting,
    /// The link is established, and the engine must adopt it.
    Ready(Box<Connected>),
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// Faults for the engine to count.
    pub(super) faults: Vec<Fault>,
    /// The name of a NIC that failed.
    pub(super) lost: Option<String>,
    /// Aborts the answer to a sender that is in progress.
    abort_handle: Option<AbortHandle>,
    /// True: no sender is answered until the engine opens the receiver again.
    is_closing: bool,
    is_ending: bool,
}

impl State {
    fn abort(&mut self) {
        self.is_closing = true;
        if let Some(abort_handle) = &self.abort_handle {
            abort_handle();
        }
    }
}

/// Error: a connection attempt is still in progress.
#[derive(Debug)]
pub(super) struct Busy;

/// State shared by engine and thread.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// True if the engine must read the state.
    pub(super) attention: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                phase: Phase::Closed,
                faults: Vec::new(),
                lost: None,
                abort_handle: None,
                is_closing: false,
                is_ending: false,
            }),
            changed: Condvar::new(),
            attention: AtomicBool::new(false),
        })
    }

    /// Returns a closure that aborts a connection attempt in progress.
    pub(super) fn close_links(self: &Arc<Self>) -> CloseLinks {
        let shared = self.clone();
        Box::new(move || {
            // The engine has released its own link. A link that is being established is aborted.
            shared.close(CLOSE_TIMEOUT).map(drop).map_err(|Busy| {
                format!("a connection attempt did not end within {CLOSE_TIMEOUT:?}")
            })
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the other side.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }

    /// Wakes the other side, which then reads the state again.
    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Changes the state and notifies the engine.
    fn notify_engine<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.change(|state| {
            self.attention.store(true, Ordering::Release);
            change(state)
        })
    }

    /// Waits while `holds` returns true, at most until `end`. Returns false if `holds` still returns true at
    /// `end`.
    fn wait_while(&self, end: Option<Instant>, mut holds: impl FnMut(&mut State) -> bool) -> bool {
        let state = self.lock();
        match end {
            None => {
                drop(
                    self.changed
                        .wait_while(state, holds)
                        .unwrap_or_else(PoisonError::into_inner),
                );
                true
            }
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                let (mut state, _) = self
                    .changed
                    .wait_timeout_while(state, left, &mut holds)
                    .unwrap_or_else(PoisonError::into_inner);
                !holds(&mut state)
            }
        }
    }

    /// Starts to accept senders.
    pub(super) fn open(&self) {
        self.change(|state| {
            state.is_closing = false;
            state.phase = Phase::Open;
        });
    }

    /// Stops accepting senders. A connection attempt in progress is aborted. If a link was established nevertheless, it
    /// is returned, because its sender may have sent frames already.
    ///
    /// # Errors
    /// If the connection attempt does not end within `timeout`. A link may still be established afterwards; this link
    /// stays unused until the next call.
    pub(super) fn close(&self, timeout: Duration) -> Result<Option<Box<Connected>>, Busy> {
        self.change(|state| {
            if matches!(state.phase, Phase::Connecting) {
                state.abort();
            }
        });
        let end = Instant::now() + timeout;
        if !self.wait_while(Some(end), |state| matches!(state.phase, Phase::Connecting)) {
            return Err(Busy);
        }
        Ok(self.change(
            |state| match std::mem::replace(&mut state.phase, Phase::Closed) {
                Phase::Ready(connected) => Some(connected),
                _ => None,
            },
        ))
    }

    /// Sleeps until the engine has something to do or `limit` has passed.
    pub(super) fn sleep(&self, limit: Duration) {
        self.wait_while(Some(Instant::now() + limit), |_| {
            !self.attention.load(Ordering::Acquire)
        });
    }

    /// Makes the thread end.
    pub(super) fn end(&self) {
        self.change(|state| {
            state.is_ending = true;
            if matches!(state.phase, Phase::Connecting) {
                state.abort();
            } else {
                state.phase = Phase::Closed;
            }
        });
    }

    pub(super) fn fault(&self, fault: Fault) {
        self.notify_engine(|state| state.faults.push(fault));
    }

    /// Asks the engine whether to accept a sender, and returns the terms or the rejection.
    fn request_terms(
        &self,
        pending_sender: PendingSender,
        abort_handle: AbortHandle,
    ) -> Result<Terms, Rejection> {
        // The engine may not have adopted the previous link yet.
        self.wait_while(None, |state| matches!(state.phase, Phase::Ready(_)));
        let is_open = self.notify_engine(|state| {
            let is_open = matches!(state.phase, Phase::Open);
            if is_open {
                state.phase = Phase::PendingSender(pending_sender);
            }
            is_open
        });
        if is_open {
            self.wait_while(None, |state| matches!(state.phase, Phase::PendingSender(_)));
        }
        self.change(
            |state| match std::mem::replace(&mut state.phase, Phase::Open) {
                Phase::Granted(terms) => {
                    state.phase = Phase::Connecting;
                    state.abort_handle = Some(abort_handle);
                    Ok(terms)
                }
                Phase::Denied(why) => Err(why),
                other => {
                    state.phase = other;
                    Err(Rejection {
                        sender: "the receiver currently accepts no senders".to_owned(),
                        receiver: "this source currently accepts no senders".to_owned(),
                    })
                }
            },
        )
    }

    /// Passes a link to the engine; `None` if the connection failed.
    fn deliver(&self, connected: Option<Box<Connected>>) {
        self.notify_engine(|state| {
            // The handle keeps the connection open, so it must be released.
            state.abort_handle = None;
            state.phase = match connected {
                Some(connected) => Phase::Ready(connected),
                None if state.is_closing => Phase::Closed,
                None => Phase::Open,
            };
        });
    }
}

/// The state of the accepting thread.
pub(super) struct Control {
    pub(super) name: String,
    pub(super) shared: Arc<Shared>,
    pub(super) shape: Shape,
    pub(super) rails: Vec<Arc<dyn Nic>>,
    pub(super) listener: Listener,
    pub(super) payload: Arc<RegistrationSet>,
    pub(super) records: Arc<RegistrationSet>,
    pub(super) rejections: RejectionLog,
    pub(super) limits: Limits,
}

/// Limits on log messages that peers can cause.
#[derive(Debug, Default)]
pub(super) struct Limits {
    accept: LogLimit,
    failed: LogLimit,
    events: LogLimit,
}

impl Control {
    /// Accepts senders until the engine ends. Only one sender at a time is answered, but the thread never waits long for
    /// the messages of a single sender.
    pub(super) fn run(mut self) {
        let (mut answered, mut next) = (None, None);
        loop {
            self.shared.wait_while(None, |state| {
                matches!(state.phase, Phase::Closed) && !state.is_ending
            });
            if self.shared.lock().is_ending && answered.is_none() {
                return;
            }
            self.poll_nic_events();
            answered = match (answered, next.take()) {
                (Some(current), waiting) => {
                    next = waiting;
                    self.proceed(current, next.is_some())
                }
                (None, Some(incoming)) => self.serve(incoming),
                (None, None) => None,
            };
            let limit = if answered.is_some() || next.is_some() {
                Duration::ZERO
            } else {
                CHECK_INTERVAL
            };
            match self.listener.accept(&self.rails, limit) {
                Ok(Accepted::Connector(incoming)) => {
                    if let Some(previous) = next.replace(incoming) {
                        previous.refuse("the receiver is connecting with other senders");
                    }
                }
                Ok(Accepted::Mismatch { peer, why }) => {
                    self.log_rejection(&peer, &why);
                    self.shared.fault(Fault::Foreign);
                }
                Ok(Accepted::None) => {}
                Err(error) => {
                    self.limits.accept.run(|suppressed| {
                        tracing::warn!(
                            "{}: cannot accept senders: {error}; trying again{suppressed}",
                            self.name
                        );
                    });
                    let end = Instant::now() + RETRY_PAUSE;
                    self.shared.wait_while(Some(end), |state| !state.is_ending);
                }
            }
        }
    }

    fn poll_nic_events(&self) {
        for (i, nic) in self.rails.iter().enumerate() {
            if self.rails[..i]
                .iter()
                .any(|earlier| Arc::ptr_eq(earlier, nic))
            {
                continue;
            }
            while let Some(event) = nic.event() {
                self.limits.events.run(|suppressed| {
                    tracing::warn!("{}: {}: {event:?}{suppressed}", self.name, nic.name());
                });
                match event {
                    NicEvent::PortDown => self.shared.fault(Fault::PortDown),
                    NicEvent::CompletionOverrun => self.shared.fault(Fault::CompletionOverrun),
                    NicEvent::Fatal => self.shared.notify_engine(|state| {
                        state.lost = Some(nic.name().to_owned());
                    }),
                    NicEvent::PortUp | NicEvent::Other(_) => {}
                }
            }
        }
    }

    /// Answers a sender if its greeting is acceptable and the engine accepts the sender.
    fn serve(&mut self, incoming: Incoming) -> Option<Answered> {
        let peer = incoming.peer();
        let hello = match self.shape.check(incoming.greetings()) {
            Ok(hello) => hello,
            Err(why) => {
                self.log_rejection(&peer, &why.receiver);
                self.shared.fault(Fault::Foreign);
                incoming.refuse(&why.sender);
                return None;
            }
        };
        let pending_sender = PendingSender {
            hello,
            peer: peer.as_str().into(),
        };
        let terms = match self
            .shared
            .request_terms(pending_sender, incoming.abort_handle())
        {
            Ok(terms) => terms,
            Err(why) => {
                self.log_rejection(&peer, &why.receiver);
                incoming.refuse(&why.sender);
                return None;
            }
        };
        match self.answer(incoming, hello, &peer, terms) {
            Ok(answered) => self.proceed(answered, false),
            Err(why) => {
                self.fail(&peer, &why);
                None
            }
        }
    }

    /// Waits briefly for the last message of the sender. Returns the link if this message has not arrived yet.
    fn proceed(&mut self, answered: Answered, is_another_waiting: bool) -> Option<Answered> {
        let peer = answered.peer.clone();
        // If this fails, the memory regions are released before the engine may free the memory.
        match answered.wait(is_another_waiting) {
            Ok(Outcome::Pending(answered)) => return Some(answered),
            Ok(Outcome::Connected(connected)) => {
                self.rejections.forget(&peer);
                self.shared.deliver(Some(Box::new(connected)));
            }
            Err(why) => self.fail(&peer, &why),
        }
        None
    }

    /// Logs why a sender that the engine had accepted is not connected, and makes the engine accept another one.
    fn fail(&self, peer: &str, why: &str) {
        self.limits.failed.run(|suppressed| {
            tracing::warn!(
                "{}: cannot connect with {peer}: {why}; waiting for the next attempt{suppressed}",
                self.name
            );
        });
        self.shared.deliver(None);
    }

    fn log_rejection(&mut self, peer: &str, why: &str) {
        let name = &self.name;
        self.rejections.run(peer, why, |suppressed| {
            tracing::warn!("{name}: rejected connection from {peer}: {why}{suppressed}");
        });
    }

    fn answer(
        &self,
        incoming: Incoming,
        hello: Hello,
        peer: &str,
        terms: Terms,
    ) -> Result<Answered, String> {
        let registered = self
            .payload
            .acquire(terms.slots.memory)
            .and_then(|payload| {
                let records = self.records.acquire(terms.records)?;
                Ok((payload, records))
            });
        let (payload, records) = match registered {
            Ok(registered) => registered,
            Err(error) => {
                incoming.refuse(
                    "the receiver's NIC cannot register the receiver's memory: see the receiver's log",
                );
                return Err(error.to_string());
            }
        };
        let shape = &self.shape;
        let greetings: Vec<Vec<u8>> = (0..shape.rails)
            .map(|rail| offer(shape, &terms, rail, &payload, &records).encode())
            .collect();
        let receives = shape.receives(terms.slots.count);
        let options = QueuePairOptions {
            service: shape.service,
            sends: SENDS,
            receives,
            sges: 2,
            inline: 8,
            events: true,
        };
        let mut prepare = |rail: usize, queue: &mut dyn QueuePair| match shape.mode {
            Mode::Write => (0..receives).try_for_each(|id| queue.post_receive(id.into(), &[])),
            Mode::Send => (0..terms.credits)
                .filter(|frame| rail_of(terms.next.wrapping_add(*frame), shape.rails) == rail)
                .try_for_each(|frame| {
                    let (id, sges) = receive_of(shape, &terms, frame, rail, (&payload, &records));
                    queue.post_receive(id, &sges)
                }),
        };
        let pending = incoming
            .answer(&options, &greetings, &mut prepare)
            .map_err(|error| error.to_string())?;
        Ok(Answered {
            pending,
            payload,
            records,
            hello,
            terms,
            peer: peer.to_owned(),
            since: Instant::now(),
        })
    }
}

/// Returns the offer for a rail.
fn offer(
    shape: &Shape,
    terms: &Terms,
    rail: usize,
    payload: &RailRegions,
    records: &RailRegions,
) -> Offer {
    let (payload, records) = (payload.of(rail), records.of(rail));
    Offer {
        next: terms.next,
        slots: terms.slots.count,
        first_slot: terms.slots.first,
        slot: terms.slots.bytes as u64,
        stride: terms.slots.stride as u64,
        slot_address: payload.address() + terms.slots.offset as u64,
        record_address: records.address(),
        slot_rkey: payload.rkey(),
        record_rkey: records.rkey(),
        packets_per_frame: shape.packets_per_frame,
        kept: shape.kept.count,
        credits: terms.credits,
    }
}

/// Returns the rail of a frame.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the remainder of a division by a usize fits into a usize"
)]
pub(super) const fn rail_of(frame: u64, rails: usize) -> usize {
    (frame % rails as u64) as usize
}

/// Returns the number of receives that must be posted on a rail before the sender may send.
pub(super) fn first_receives(shape: &Shape, terms: &Terms, rail: usize) -> u64 {
    match shape.mode {
        Mode::Write => shape.receives(terms.slots.count).into(),
        Mode::Send => (0..terms.credits)
            .filter(|frame| rail_of(terms.next.wrapping_add(*frame), shape.rails) == rail)
            .count() as u64,
    }
}

/// Returns the receive for the `frame`-th frame of a link: the slot, and the memory of the record and of the payload.
pub(super) fn receive_of<'a>(
    shape: &Shape,
    terms: &Terms,
    frame: u64,
    rail: usize,
    (payload, records): (&'a RailRegions, &'a RailRegions),
) -> (u64, [Sge<'a>; 2]) {
    let slot = terms.slots.slot(frame);
    let record = shape.record();
    let sges = [
        records.of(rail).sge(slot as usize * record, record),
        payload
            .of(rail)
            .sge(terms.slots.offset_of(slot as usize), terms.slots.bytes),
    ];
    (slot.into(), sges)
}
