//! The thread that accepts senders, and its communication with the engine.
//!
//! ```text
//!   thread:  a sender dials ─▶ Asked ────────────▶ engine: ends what it has, says what it wants next
//!            answers the sender, queues connected ◀─ Granted
//!            Ready ──────────────────────────────▶ engine: takes the link
//! ```
//! The engine looks at one word a poll; it takes the lock only when that says so.

use crate::connect::{self, AbortHandle, Incoming, Listener};
use crate::registration::set::{CloseLinks, RailRegions, RegistrationSet};
use crate::stream::wire::{Hello, Mode, Offer, Record};
use crate::verbs::{Nic, NicEvent, QueuePair, QueuePairOptions, Service, VerbsError};
use daq_core::dma::DmaError;
use daq_core::log_limit::LogLimit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one look for a sender lasts.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long it is before a listener that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long a connection that is being made when its memory must go may take to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Sends that a queue holds: words for credits.
pub(super) const SENDS: u32 = 4;

/// Declares the faults with their names, which are those of metrics.
macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What an engine counts beside frames.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Fault {
            $($(#[$doc])* $variant,)*
        }

        /// The names of all faults, in their order.
        pub const FAULTS: &[&str] = &[$($name,)*];
    };
}

faults! {
    /// The sender does not answer any more.
    Unanswered = "unanswered",
    /// The sender refused where its credits were written.
    RemoteAccess = "remote-access",
    /// The sender failed while credits were written.
    RemoteOperation = "remote-operation",
    /// The sender took nothing.
    NotReady = "receiver-not-ready",
    /// A message that is longer than its slot, or memory that was refused.
    Local = "local",
    /// Work of a queue that had failed.
    Flushed = "flushed",
    /// Another failure of work.
    Other = "other",
    /// A record that cannot be, or a completion without one.
    BadRecord = "bad-record",
    /// A frame for which there was no credit.
    BeyondCredit = "beyond-credit",
    /// A sender that was there is gone.
    PeerGone = "peer-gone",
    /// A greeting of something else, or of another shape.
    Foreign = "foreign",
    /// A card's port went down.
    PortDown = "port-down",
    /// A completion queue was overrun.
    CompletionOverrun = "completion-overrun",
}

/// What the engine wants of the next link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The sender's stream.
    pub(super) stream: u64,
    /// The frame that is wanted first.
    pub(super) next: u64,
    /// Frames before it that are gone.
    pub(super) missing: u64,
    /// Its slot.
    pub(super) first_slot: u32,
    pub(super) slots: u32,
    /// Bytes of a slot.
    pub(super) slot: usize,
    /// Bytes from one slot to the next.
    pub(super) stride: usize,
    /// Frames that may be sent at once.
    pub(super) credits: u64,
    /// Where the memory of the slots is mapped.
    pub(super) memory: u64,
    /// Bytes of it before slot 0.
    pub(super) offset: usize,
    /// Where the records are mapped.
    pub(super) records: u64,
}

/// A link whose sender may send.
pub(super) struct Connected {
    /// Queues; declared before the keys, so destroyed before those are dropped.
    pub(super) link: connect::Link,
    pub(super) payload: Arc<RailRegions>,
    pub(super) records: Arc<RailRegions>,
    pub(super) hello: Hello,
    pub(super) terms: Terms,
    pub(super) peer: String,
}

/// What is the same for all links of a receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) mode: Mode,
    pub(super) service: Service,
    pub(super) rails: usize,
    /// Most places of a frame.
    pub(super) places: u32,
}

impl Shape {
    /// Bytes of a record.
    pub(super) const fn record(&self) -> usize {
        Record::bytes(self.places)
    }

    /// Receives of each rail's queue.
    #[expect(clippy::cast_possible_truncation, reason = "of a u32, divided")]
    pub(super) const fn receives(&self, slots: u32) -> u32 {
        (slots as usize).div_ceil(self.rails) as u32 + 1
    }

    /// The greeting of a sender, if it can be received; else why not.
    pub(super) fn check(&self, greetings: &[Vec<u8>]) -> Result<Hello, Rejection> {
        let hellos = greetings
            .iter()
            .map(|greeting| {
                Hello::decode(greeting).map_err(|error| Rejection::same(error.to_string()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let rails = self.rails;
        let first = *hellos
            .first()
            .ok_or_else(|| Rejection::same("the greeting is empty".to_owned()))?;
        if usize::from(first.rails) != rails || hellos.len() != rails {
            let theirs = first.rails;
            return Err(Rejection {
                sender: format!(
                    "the receiver has {rails} rails, this sink has {theirs}: set as many cards in `nics` on both hosts"
                ),
                receiver: format!(
                    "its sink has {theirs} rails, this source has {rails}: set as many cards in `nics` on both hosts"
                ),
            });
        }
        for (rail, hello) in hellos.iter().enumerate() {
            let alike = Hello {
                rail: first.rail,
                credit_address: first.credit_address,
                credit_rkey: first.credit_rkey,
                ..*hello
            };
            if usize::from(hello.rail) != rail || alike != first {
                return Err(Rejection::same(format!(
                    "rail {rail} of the sender has other stream parameters than its first rail: run the same version of daq on \
                     both hosts"
                )));
            }
        }
        if first.mode != self.mode {
            let (theirs, ours) = (name(first.mode), name(self.mode));
            return Err(Rejection {
                sender: format!(
                    "the receiver has mode = \"{ours}\": set it in this sink, or mode = \"{theirs}\" in the receiver's source"
                ),
                receiver: format!(
                    "its sink has mode = \"{theirs}\": set it in this source, or mode = \"{ours}\" in the sender's sink"
                ),
            });
        }
        if first.places > self.places {
            let (wanted, places) = (first.places, self.places);
            return Err(Rejection {
                sender: format!(
                    "frames have up to {wanted} places, the receiver takes {places}: set `places = {wanted}` in its source rdma"
                ),
                receiver: format!(
                    "its frames have up to {wanted} places, this source takes {places}: set `places = {wanted}` in this source"
                ),
            });
        }
        Ok(first)
    }
}

/// Why a sender is rejected, for the readers of both logs: what the other host did, and what to change on which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    /// Sent to the sender. `rdma_cm` carries about 140 bytes of it.
    pub(super) sender: String,
    /// Logged by the receiver.
    pub(super) receiver: String,
}

impl Rejection {
    /// A reason that reads the same on both hosts.
    pub(super) fn same(why: String) -> Self {
        Self {
            sender: why.clone(),
            receiver: why,
        }
    }
}

const fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Write => "write",
        Mode::Send => "send",
    }
}

/// A sender that waits for an answer.
#[derive(Clone, Debug)]
pub(super) struct PendingSender {
    pub(super) hello: Hello,
    pub(super) peer: Arc<str>,
}

/// Where engine and thread are with each other.
pub(super) enum Phase {
    /// The engine accepts no sender.
    Closed,
    /// Senders may come.
    Open,
    /// One has come; the engine is to answer.
    PendingSender(PendingSender),
    /// The engine takes it on these terms.
    Granted(Terms),
    /// The engine does not take it; why.
    Denied(Rejection),
    /// It is being answered: what it is given may be written from now on.
    Connecting,
    /// It is there; the engine is to take it.
    Ready(Box<Connected>),
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// Faults for the engine to count.
    pub(super) faults: Vec<Fault>,
    /// A card that failed.
    pub(super) lost: Option<String>,
    /// Has the answer to a sender that is being answered fail.
    abort_handle: Option<AbortHandle>,
    /// No sender is answered until the engine opens again.
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

/// A sender is still being answered.
#[derive(Debug)]
pub(super) struct Busy;

/// What engine and thread share.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Something is there for the engine.
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

    /// Returns a closure that closes a connection that is being established.
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

    /// Changes the state, and wakes the other side.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }

    /// The other side is to look again.
    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Leaves something for the engine.
    fn notify_engine<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.change(|state| {
            self.attention.store(true, Ordering::Release);
            change(state)
        })
    }

    /// Waits while `holds`, at most until `end`; false if it still holds then.
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

    /// Takes senders from now on.
    pub(super) fn open(&self) {
        self.change(|state| {
            state.is_closing = false;
            state.phase = Phase::Open;
        });
    }

    /// Takes no sender any more. One that is just being answered is broken off; a link that came about nevertheless comes
    /// back, for its sender may have sent already.
    ///
    /// # Errors
    /// If it takes longer than the timeout. A link may still be created; it stays unused until the next call.
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

    /// Sleeps until there is something for the engine, or `limit` has passed.
    pub(super) fn sleep(&self, limit: Duration) {
        self.wait_while(Some(Instant::now() + limit), |_| {
            !self.attention.load(Ordering::Acquire)
        });
    }

    /// The thread is to end.
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

    /// Asks the engine whether it takes a sender.
    fn request_terms(
        &self,
        pending_sender: PendingSender,
        abort_handle: AbortHandle,
    ) -> Result<Terms, Rejection> {
        // The previous link may not have been taken yet.
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
                        sender: "the receiver is not ready for a sender now".to_owned(),
                        receiver: "this source is not ready for a sender now".to_owned(),
                    })
                }
            },
        )
    }

    /// Passes a link to the engine; `None` if the connection failed.
    fn deliver(&self, connected: Option<Box<Connected>>) {
        self.notify_engine(|state| {
            // It keeps the connection open.
            state.abort_handle = None;
            state.phase = match connected {
                Some(connected) => Phase::Ready(connected),
                None if state.is_closing => Phase::Closed,
                None => Phase::Open,
            };
        });
    }
}

/// The thread's own part.
pub(super) struct Control {
    pub(super) name: String,
    pub(super) shared: Arc<Shared>,
    pub(super) shape: Shape,
    pub(super) rails: Vec<Arc<dyn Nic>>,
    pub(super) listener: Box<dyn Listener>,
    pub(super) payload: Arc<RegistrationSet>,
    pub(super) records: Arc<RegistrationSet>,
    pub(super) limits: Limits,
}

/// Limits on log messages that peers can cause.
#[derive(Debug, Default)]
pub(super) struct Limits {
    accept: LogLimit,
    rejected: LogLimit,
    failed: LogLimit,
    events: LogLimit,
}

impl Control {
    pub(super) fn run(mut self) {
        loop {
            self.shared.wait_while(None, |state| {
                matches!(state.phase, Phase::Closed) && !state.is_ending
            });
            if self.shared.lock().is_ending {
                return;
            }
            self.poll_nic_events();
            match self.listener.accept(&self.rails, CHECK_INTERVAL) {
                Ok(Some(incoming)) => self.serve(incoming),
                Ok(None) => {}
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

    fn serve(&self, incoming: Box<dyn Incoming>) {
        let peer = incoming.peer();
        let hello = match self.shape.check(incoming.greetings()) {
            Ok(hello) => hello,
            Err(why) => {
                self.log_rejection(&peer, &why.receiver);
                self.shared.fault(Fault::Foreign);
                return incoming.refuse(&why.sender);
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
                return incoming.refuse(&why.sender);
            }
        };
        let connected = self
            .connect(incoming, hello, &peer, terms)
            .inspect_err(|why| {
                self.limits.failed.run(|suppressed| {
                    tracing::warn!(
                        "{}: cannot connect with {peer}: {why}; waiting for it again{suppressed}",
                        self.name
                    );
                });
            });
        self.shared.deliver(connected.ok().map(Box::new));
    }

    fn log_rejection(&self, peer: &str, why: &str) {
        self.limits.rejected.run(|suppressed| {
            tracing::warn!(
                "{}: rejected connection from {peer}: {why}{suppressed}",
                self.name
            );
        });
    }

    fn connect(
        &self,
        incoming: Box<dyn Incoming>,
        hello: Hello,
        peer: &str,
        terms: Terms,
    ) -> Result<Connected, String> {
        let failed_registration = |error: DmaError| error.to_string();
        let payload = match self
            .payload
            .acquire(terms.memory)
            .map_err(failed_registration)
        {
            Ok(keys) => keys,
            Err(why) => {
                incoming.refuse(
                    "the receiver's card cannot register its memory: see the receiver's log",
                );
                return Err(why);
            }
        };
        let records = match self
            .records
            .acquire(terms.records)
            .map_err(failed_registration)
        {
            Ok(keys) => keys,
            Err(why) => {
                incoming.refuse(
                    "the receiver's card cannot register its memory: see the receiver's log",
                );
                return Err(why);
            }
        };
        let shape = &self.shape;
        let greetings: Vec<Vec<u8>> = (0..shape.rails)
            .map(|rail| offer(shape, &terms, rail, &payload, &records).encode())
            .collect();
        let receives = shape.receives(terms.slots);
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
                    post(queue, shape, &terms, frame, rail, (&payload, &records))
                }),
        };
        let link = incoming
            .accept(&options, &greetings, &mut prepare)
            .map_err(|error| error.to_string())?;
        Ok(Connected {
            link,
            payload,
            records,
            hello,
            terms,
            peer: peer.to_owned(),
        })
    }
}

/// What a rail is offered.
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
        slots: terms.slots,
        first_slot: terms.first_slot,
        slot: terms.slot as u64,
        stride: terms.stride as u64,
        slot_address: payload.address() + terms.offset as u64,
        record_address: records.address(),
        slot_rkey: payload.rkey(),
        record_rkey: records.rkey(),
        places: shape.places,
        credits: terms.credits,
    }
}

/// The rail of a frame.
#[expect(clippy::cast_possible_truncation, reason = "a remainder of a usize")]
pub(super) const fn rail_of(frame: u64, rails: usize) -> usize {
    (frame % rails as u64) as usize
}

/// The slot of the `frame`-th frame of a link.
#[expect(clippy::cast_possible_truncation, reason = "a remainder of a u32")]
pub(super) const fn slot_of(terms: &Terms, frame: u64) -> usize {
    ((terms.first_slot as u64 + frame % terms.slots as u64) % terms.slots as u64) as usize
}

/// Receives that a rail has before the sender may send.
pub(super) fn first_receives(shape: &Shape, terms: &Terms, rail: usize) -> u64 {
    match shape.mode {
        Mode::Write => shape.receives(terms.slots).into(),
        Mode::Send => (0..terms.credits)
            .filter(|frame| rail_of(terms.next.wrapping_add(*frame), shape.rails) == rail)
            .count() as u64,
    }
}

/// Posts the receive for the `frame`-th frame of a link.
pub(super) fn post(
    queue: &mut dyn QueuePair,
    shape: &Shape,
    terms: &Terms,
    frame: u64,
    rail: usize,
    (payload, records): (&RailRegions, &RailRegions),
) -> Result<(), VerbsError> {
    let slot = slot_of(terms, frame);
    let record = records.of(rail).sge(slot * shape.record(), shape.record());
    let bytes = payload
        .of(rail)
        .sge(terms.offset + slot * terms.stride, terms.slot);
    queue.post_receive(slot as u64, &[record, bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a rejection that `rdma_cm` carries.
    const CARRIED: usize = 148;

    #[test]
    fn rejection_names_difference_fix_and_host() {
        let shape = Shape {
            mode: Mode::Write,
            service: Service::Rc,
            rails: 1,
            places: 70,
        };
        let hello = Hello {
            mode: Mode::Write,
            rail: 0,
            rails: 1,
            places: 1,
            stream: 1,
            first: 0,
            slot: 4096,
            credit_address: 0,
            credit_rkey: 0,
        };
        assert_eq!(shape.check(&[hello.encode()]), Ok(hello));
        let cases = [
            (
                Hello { rails: 2, ..hello },
                ["this sink has 2", "`nics`"],
                ["its sink has 2", "this source has 1"],
            ),
            (
                Hello {
                    mode: Mode::Send,
                    ..hello
                },
                ["the receiver has mode = \"write\"", "in this sink"],
                ["its sink has mode = \"send\"", "in this source"],
            ),
            (
                Hello {
                    places: 71,
                    ..hello
                },
                ["`places = 71` in its source", "the receiver takes 70"],
                ["`places = 71` in this source", "its frames"],
            ),
        ];
        for (hello, sender, receiver) in cases {
            let rejection = shape.check(&[hello.encode()]).unwrap_err();
            let contains_all =
                |text: &str, parts: [&str; 2]| parts.iter().all(|part| text.contains(part));
            assert!(contains_all(&rejection.sender, sender), "{rejection:?}");
            assert!(contains_all(&rejection.receiver, receiver), "{rejection:?}");
            assert!(rejection.sender.len() <= CARRIED, "{rejection:?}");
        }
    }
}
