//! The thread that accepts senders, and its communication with the receiving engine.
//!
//! ```text
//!   thread:  a sender connects ─▶ PendingSender ───▶ engine: ends the current link, selects the first frame
//!            answers the sender and connects the queue pairs ◀─ Granted
//!            Ready ─────────────────────────────────▶ engine: adopts the link
//! ```
//! Each poll of the engine reads only one word, and takes the lock only if this word is set.

use crate::connect::{self, AbortHandle, Incoming, Listener};
use crate::engine::RegisteredSlots;
use crate::registration::set::{CloseLinks, RailRegions, RegistrationSet};
use crate::stream::wire::{Hello, KeptNames, Mode, Offer, Record};
use crate::verbs::{Nic, NicEvent, QueuePair, QueuePairOptions, Service, Sge, Transport};
use daq_core::log_limit::LogLimit;
use daq_core::units::counted;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time of one wait for a sender.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a failed listener is opened again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
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

/// Properties that all links of a receiver share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) mode: Mode,
    pub(super) service: Service,
    pub(super) transport: Transport,
    pub(super) rails: usize,
    /// Maximum number of packets per frame.
    pub(super) packets_per_frame: u32,
    /// Names of the fields that frames keep.
    pub(super) kept: KeptNames,
}

impl Shape {
    /// Returns the size of a record in bytes.
    pub(super) const fn record(&self) -> usize {
        Record::bytes(self.packets_per_frame, self.kept.count)
    }

    /// Returns the number of receives of each rail's queue pair.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the quotient of a u32 fits into a u32"
    )]
    pub(super) const fn receives(&self, slots: u32) -> u32 {
        (slots as usize).div_ceil(self.rails) as u32 + 1
    }

    /// Checks the greetings of a sender. Returns the reason if the sender cannot be accepted.
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
                    "the receiver has {rails} rails, but this sink has {theirs}: set {} on both hosts",
                    self.transport.rails_keys()
                ),
                receiver: format!(
                    "the sender's sink has {theirs} rails, but this source has {rails}: set {} on both hosts",
                    self.transport.rails_keys()
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
                    "the sender's rail {rail} has different stream parameters than the sender's first rail: run the same version \
                     of daq on both hosts"
                )));
            }
        }
        if first.mode != self.mode {
            let (theirs, ours) = (name(first.mode), name(self.mode));
            return Err(Rejection {
                sender: format!(
                    "the receiver has mode = \"{ours}\": set this mode in this sink, or mode = \"{theirs}\" in the receiver's source"
                ),
                receiver: format!(
                    "the sender's sink has mode = \"{theirs}\": set this mode in this source, or mode = \"{ours}\" in the sender's sink"
                ),
            });
        }
        if first.packets_per_frame > self.packets_per_frame {
            let (wanted, packets_per_frame) = (first.packets_per_frame, self.packets_per_frame);
            return Err(Rejection {
                sender: format!(
                    "frames have up to {wanted} packets, but the receiver accepts {packets_per_frame}: set `packets_per_frame = {wanted}` in the receiver's source"
                ),
                receiver: format!(
                    "the sender's frames have up to {wanted} packets, but this source accepts {packets_per_frame}: set `packets_per_frame = {wanted}` in this source"
                ),
            });
        }
        if self.kept.count > 0 && first.kept != self.kept {
            return Err(Rejection {
                sender: "the names of kept fields differ: set `keep` in the receiver's source to the names in the sender's source"
                    .to_owned(),
                receiver: format!(
                    "the names in `keep` differ from those of the sender, whose frames keep {}: set the names in the sender's source, in the same order",
                    counted(first.kept.count, "field"),
                ),
            });
        }
        Ok(first)
    }
}

/// The reason why a sender is rejected, with one text for the log of each host. The texts describe the problem and what
/// to change on which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    /// The text that is sent to the sender. `rdma_cm` can carry about 140 bytes.
    pub(super) sender: String,
    /// The text that the receiver logs.
    pub(super) receiver: String,
}

impl Rejection {
    /// Creates a rejection with the same text for both hosts.
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

    fn serve(&self, incoming: Incoming) {
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
                        "{}: cannot connect with {peer}: {why}; waiting for the next attempt{suppressed}",
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
        incoming: Incoming,
        hello: Hello,
        peer: &str,
        terms: Terms,
    ) -> Result<Connected, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of a rejection over `rdma_cm` in bytes.
    const CARRIED: usize = 148;

    #[test]
    fn rejection_names_difference_fix_and_host() {
        let shape = Shape {
            mode: Mode::Write,
            service: Service::Rc,
            transport: Transport::Rdma,
            rails: 1,
            packets_per_frame: 70,
            kept: KeptNames::of(&["feng_id".to_owned()]),
        };
        let hello = Hello {
            rails: 1,
            packets_per_frame: 1,
            kept: shape.kept,
            slot: 4096,
            ..Hello::default()
        };
        assert_eq!(shape.check(&[hello.encode()]), Ok(hello));
        let cases = [
            (
                Hello { rails: 2, ..hello },
                ["this sink has 2", "`nics`"],
                ["the sender's sink has 2", "this source has 1"],
            ),
            (
                Hello {
                    mode: Mode::Send,
                    ..hello
                },
                ["the receiver has mode = \"write\"", "in this sink"],
                ["the sender's sink has mode = \"send\"", "in this source"],
            ),
            (
                Hello {
                    kept: KeptNames::of(&["bunch_id".to_owned()]),
                    ..hello
                },
                ["kept fields differ", "in the receiver's source"],
                ["the names in `keep` differ", "frames keep 1 field"],
            ),
            (
                Hello {
                    packets_per_frame: 71,
                    ..hello
                },
                [
                    "`packets_per_frame = 71` in the receiver's source",
                    "the receiver accepts 70",
                ],
                [
                    "`packets_per_frame = 71` in this source",
                    "the sender's frames",
                ],
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
