//! One link: queue pairs, their completions, and the credits of the sender.

use super::MAX_GAP;
use super::control::{self, Connected, Fault, SENDS, Shape, Terms, rail_of, slot_of};
use crate::connect::PeerMonitor;
use crate::registration::set::RailRegions;
use crate::stream::wire::{Hello, Mode, Record};
use crate::verbs::{Payload, QueuePair, Service, Side, Status, Verb, WorkCompletion, WorkRequest};
use daq_core::dma::DmaBuffer;
use daq_core::log_limit::LogLimit;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions that are taken from a queue at a time.
const BATCH: usize = 32;
/// The id of work that writes the word for credits.
const CREDIT: u64 = u64::MAX;
/// How often a link on which nothing moves is looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How often the word for credits is written where it stays the same: a peer that is gone does not take it.
const CREDIT_REFRESH: Duration = Duration::from_secs(1);
/// How long a card may take to say what it had received when its queue was stopped.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// How long one look for that lasts.
const DRAIN_POLL: Duration = Duration::from_millis(1);
/// How long frames that a sender has handed to an unreliable network are waited for when it has parted.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a sender may be silent before another one may take its place.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);

/// The parts of a link while its sender may send.
struct Live {
    /// One a rail; declared before the keys, so destroyed before those are dropped.
    queue_pairs: Vec<Box<dyn QueuePair>>,
    monitor: Box<dyn PeerMonitor>,
    payload: Arc<RailRegions>,
    records: Arc<RailRegions>,
}

/// What has become of the next frame.
pub(super) enum Step {
    /// It is there, with its record.
    Frame(CompletedFrame),
    /// Nothing is known of it yet.
    Nothing,
    /// What is said of it cannot be.
    Bad(Fault, String),
}

/// Why a link must end.
pub(super) struct EndReason {
    /// `None` where its sender has ended on purpose.
    pub(super) fault: Option<Fault>,
    pub(super) why: String,
}

/// What a sender that ends on purpose has said.
struct SenderClosed {
    /// How many frames of the stream there are.
    frames: u64,
    why: String,
    heard: Instant,
}

/// A frame that is there.
pub(super) struct CompletedFrame {
    pub(super) record: Record,
    /// Frames before it that never came.
    pub(super) missing: u64,
    /// Slots that those would have filled.
    pub(super) skipped: u64,
}

/// A link, or what one that has ended had finished.
pub(super) struct Link {
    /// `None` once it has ended.
    live: Option<Live>,
    /// Received completions of each rail that are not processed yet; sized for a full queue pair.
    pending: Vec<VecDeque<WorkCompletion>>,
    /// Receives that each rail has used up; of writes, which need no slot.
    used: Vec<u32>,
    /// Receives of each rail that are posted and not completed.
    open: Vec<u64>,
    shape: Shape,
    hello: Hello,
    terms: Terms,
    peer: String,
    /// The number of the next frame.
    next: u64,
    /// Slots done with.
    completed: u64,
    /// Missing frames that are not reported yet, and the number of slots skipped for them.
    gap: (u64, u64),
    /// Frames that may have been sent in all, and for which there are receives.
    credits: u64,
    posted: u64,
    /// The word for credits as it was written last; whether that is under way.
    written: u64,
    is_writing: bool,
    /// Why it is to end.
    failure: Option<(Fault, String)>,
    /// What its sender has said on parting.
    closed: Option<SenderClosed>,
    /// When it was looked at, and when something was heard of the sender.
    checked: Instant,
    heard: Instant,
    credits_refreshed: Instant,
    has_moved: bool,
}

impl Link {
    pub(super) fn new(connected: Connected, shape: Shape) -> Self {
        let Connected {
            link,
            payload,
            records,
            hello,
            terms,
            peer,
        } = connected;
        let now = Instant::now();
        let room = shape.receives(terms.slots) as usize + SENDS as usize + BATCH;
        let rails = link.rails.len();
        Self {
            live: Some(Live {
                queue_pairs: link.rails,
                monitor: link.monitor,
                payload,
                records,
            }),
            pending: (0..rails).map(|_| VecDeque::with_capacity(room)).collect(),
            used: vec![0; rails],
            open: (0..rails)
                .map(|rail| control::first_receives(&shape, &terms, rail))
                .collect(),
            shape,
            hello,
            terms,
            peer,
            next: terms.next,
            completed: 0,
            gap: (terms.missing, 0),
            credits: terms.credits,
            posted: terms.credits,
            written: terms.credits,
            is_writing: false,
            failure: None,
            closed: None,
            checked: now,
            heard: now,
            credits_refreshed: now,
            has_moved: false,
        }
    }

    pub(super) const fn stream(&self) -> u64 {
        self.terms.stream
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns the next expected frame and the number of missing frames before it that are not reported yet.
    pub(super) const fn position(&self) -> (u64, u64) {
        (self.next, self.gap.0)
    }

    /// Returns the final position: frames that the sender announced when it closed but that never arrived count as missing.
    pub(super) fn last(&self) -> (u64, u64) {
        let sent = self
            .closed
            .as_ref()
            .map_or(self.next, |closed| closed.frames);
        let tail = sent.saturating_sub(self.next);
        if tail > MAX_GAP {
            static LIMIT: LogLimit = LogLimit::new();
            LIMIT.run(|suppressed| {
                tracing::warn!(
                    "{}: the sender reports {tail} lost frames, which is impossible; ignored{suppressed}",
                    self.peer
                );
            });
            return self.position();
        }
        (self.next + tail, self.gap.0 + tail)
    }

    pub(super) const fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Whether nothing was heard of the sender for long.
    pub(super) fn is_silent(&self) -> bool {
        !self.has_moved && self.heard.elapsed() >= SILENCE_TIMEOUT
    }

    /// In which ways its memory is registered.
    pub(super) fn methods(&self) -> String {
        self.live
            .as_ref()
            .map_or_else(String::new, |live| live.payload.methods())
    }

    /// Why it is to end, if it is. A sender that has parted answers nothing any more, which is no fault.
    pub(super) fn failure(&mut self) -> Option<EndReason> {
        let (fault, why) = self.failure.take()?;
        let may_be_parting = !matches!(
            fault,
            Fault::Local | Fault::BadRecord | Fault::BeyondCredit | Fault::CompletionOverrun
        );
        if self.closed.is_none()
            && let Some(live) = self.live.as_mut().filter(|_| may_be_parting)
            && let Some(disconnect) = live.monitor.poll_disconnect()
        {
            self.closed = disconnect.final_frames.map(|frames| SenderClosed {
                frames,
                why: disconnect.why,
                heard: Instant::now(),
            });
        }
        let Some(closed) = self.closed.as_ref().filter(|_| may_be_parting) else {
            return Some(EndReason {
                fault: Some(fault),
                why,
            });
        };
        // What is not acknowledged may still be on its way.
        let is_complete = self.shape.service == Service::Rc || self.next >= closed.frames;
        if !is_complete && closed.heard.elapsed() < IN_FLIGHT_TIMEOUT {
            self.failure = Some((fault, why));
            return None;
        }
        Some(EndReason {
            fault: None,
            why: closed.why.clone(),
        })
    }

    /// Takes what its queues have finished.
    pub(super) fn collect(&mut self) {
        for rail in 0..self.pending.len() {
            if self.pending[rail].is_empty() {
                self.collect_from(rail);
            }
        }
    }

    /// The same of one queue; how many there were, `None` where there will be no more.
    fn collect_from(&mut self, rail: usize) -> Option<usize> {
        let live = self.live.as_mut()?;
        let mut batch = [WorkCompletion {
            id: 0,
            side: Side::Received,
            status: Status::Success,
            bytes: 0,
            immediate: None,
        }; BATCH];
        let count = match live.queue_pairs[rail].poll(&mut batch) {
            Ok(count) => count,
            Err(error) => {
                self.fail(Fault::CompletionOverrun, error.to_string());
                return None;
            }
        };
        for work in &batch[..count] {
            if work.id != CREDIT {
                self.open[rail] = self.open[rail].saturating_sub(1);
            }
            if work.status != Status::Success {
                let why = format!("rail {rail}: its work ended with {}", work.status.name());
                self.fail(fault_of(work.status), why);
            } else if work.id == CREDIT {
                self.is_writing = false;
                // The peer's card has taken it; of an unreliable one nothing is known.
                self.has_moved |= self.shape.service == Service::Rc;
            } else {
                self.has_moved = true;
                self.pending[rail].push_back(*work);
            }
        }
        Some(count)
    }

    /// Records a failure; only the first one is kept, because it is the cause.
    fn fail(&mut self, fault: Fault, why: String) {
        self.failure.get_or_insert((fault, why));
    }

    /// The next frame, if it is there; `present` takes which of its places are.
    pub(super) fn step(&mut self, records: &DmaBuffer, present: &mut [u64]) -> Step {
        loop {
            let rail = rail_of(self.next, self.shape.rails);
            let Some(work) = self.pending[rail].front().copied() else {
                return Step::Nothing;
            };
            if self.completed >= self.credits {
                let why = format!("frame {} was sent without a credit", self.next);
                return Step::Bad(Fault::BeyondCredit, why);
            }
            let at = slot_of(&self.terms, self.completed) * self.shape.record();
            let record = match self.classify(work, read(records, at)) {
                Verdict::Is(record) => record,
                Verdict::Lost => {
                    self.skip_frame();
                    continue;
                }
                Verdict::LostRecord => {
                    self.take(rail);
                    self.skip_frame();
                    continue;
                }
                Verdict::Invalid(why) => {
                    let why = format!("frame {}: {why}", self.next);
                    return Step::Bad(Fault::BadRecord, why);
                }
            };
            self.take(rail);
            if self.shape.service == Service::Ud {
                self.gap.0 += record.number - self.next;
            }
            for (i, word) in present.iter_mut().enumerate() {
                let bits = (record.places as usize).saturating_sub(64 * i);
                let there = bits.min(64);
                *word = match there {
                    0 => 0,
                    _ => records.read64(at + Record::HEAD + 8 * i) & (u64::MAX >> (64 - there)),
                };
            }
            (self.next, self.completed) = (record.number.wrapping_add(1), self.completed + 1);
            let (missing, skipped) = std::mem::take(&mut self.gap);
            return Step::Frame(CompletedFrame {
                record,
                missing,
                skipped,
            });
        }
    }

    /// The next frame never comes: its slot stays as it is.
    fn skip_frame(&mut self) {
        (self.next, self.completed) = (self.next.wrapping_add(1), self.completed + 1);
        self.gap = (self.gap.0 + 1, self.gap.1 + 1);
    }

    /// A completion is done with, and with it a receive.
    fn take(&mut self, rail: usize) {
        self.pending[rail].pop_front();
        if self.shape.mode == Mode::Write {
            self.used[rail] += 1;
        }
    }

    /// Whether a completion, and what lies where the next frame's record belongs, are of the next frame.
    fn classify(&self, work: WorkCompletion, record: Result<Record, String>) -> Verdict {
        match self.shape.mode {
            Mode::Write => self.classify_write(work, record),
            Mode::Send => self.classify_send(work, record),
        }
    }

    fn classify_write(&self, work: WorkCompletion, record: Result<Record, String>) -> Verdict {
        let Some(immediate) = work.immediate else {
            return Verdict::Invalid("received a message instead of a write".to_owned());
        };
        let ahead = u64::from(immediate.wrapping_sub(low(self.next)));
        if self.shape.service != Service::Uc {
            return match record {
                _ if ahead > 0 => Verdict::Invalid(format!("the immediate is {immediate}")),
                Ok(record) => self.check(record),
                Err(why) => Verdict::Invalid(why),
            };
        }
        if ahead > 0 {
            let may_come = self.completed.saturating_add(ahead) < self.credits;
            return if may_come && ahead.is_multiple_of(self.shape.rails as u64) {
                Verdict::Lost
            } else {
                Verdict::Invalid(format!("the immediate {immediate} is out of range"))
            };
        }
        match record {
            // The immediate came with the payload, which so is there in full.
            Ok(record) if record.number == self.next && record.length == u64::from(work.bytes) => {
                self.check(record)
            }
            Ok(record) if record.number == self.next => Verdict::Invalid(format!(
                "received {} bytes, its record says {}",
                work.bytes, record.length
            )),
            Ok(_) | Err(_) => Verdict::LostRecord,
        }
    }

    fn classify_send(&self, work: WorkCompletion, record: Result<Record, String>) -> Verdict {
        let record = match record {
            Ok(record) => record,
            Err(why) => return Verdict::Invalid(why),
        };
        let completed = record.length.saturating_add(self.shape.record() as u64);
        if u64::from(work.bytes) != completed {
            let found = work.bytes;
            return Verdict::Invalid(format!(
                "received a message of {found} bytes, its record says {completed}"
            ));
        }
        if work
            .immediate
            .is_some_and(|immediate| immediate != low(record.number))
        {
            return Verdict::Invalid(format!("its record belongs to frame {}", record.number));
        }
        self.check(record)
    }

    /// Whether a record can be that of the next frame.
    fn check(&self, record: Record) -> Verdict {
        let ahead = record.number.wrapping_sub(self.next);
        // Of datagrams, which fill slots as they come, some may be lost.
        if ahead > 0 && (self.shape.service != Service::Ud || ahead > u32::MAX.into()) {
            return Verdict::Invalid(format!("its record belongs to frame {}", record.number));
        }
        let slot = self.hello.slot.min(self.terms.slot as u64);
        if record.length > slot {
            return Verdict::Invalid(format!("{} bytes do not fit {slot}", record.length));
        }
        let places = self.shape.places;
        if record.places > places || record.arrived > record.places {
            let (of, arrived) = (record.places, record.arrived);
            return Verdict::Invalid(format!(
                "{arrived} of {of} places, where {places} are the most"
            ));
        }
        Verdict::Is(record)
    }

    /// Lets the sender send so many frames in all since the link began, posts receives for them, and looks now and then
    /// whether it is still there.
    pub(super) fn serve(&mut self, credits: u64, is_idle: bool) {
        self.credits = credits;
        let Some(live) = &mut self.live else {
            return;
        };
        let posted = match self.shape.mode {
            Mode::Write => self
                .used
                .iter_mut()
                .enumerate()
                .try_for_each(|(rail, used)| {
                    (0..std::mem::take(used)).try_for_each(|_| {
                        self.open[rail] += 1;
                        live.queue_pairs[rail].post_receive(0, &[])
                    })
                }),
            Mode::Send => (self.posted..credits).try_for_each(|frame| {
                let number = self.terms.next.wrapping_add(frame);
                let rail = rail_of(number, self.shape.rails);
                let keys = (&*live.payload, &*live.records);
                let queue = &mut *live.queue_pairs[rail];
                self.open[rail] += 1;
                control::post(queue, &self.shape, &self.terms, frame, rail, keys)
            }),
        };
        self.posted = credits;
        if let Err(error) = posted {
            self.fail(Fault::Local, error.to_string());
            return;
        }
        if credits != self.written {
            self.write_credits();
        }
        if is_idle && self.checked.elapsed() >= CHECK_INTERVAL {
            self.check_peer();
        }
    }

    fn write_credits(&mut self) {
        // Datagrams carry no writes: their sender goes by nothing but the receives.
        if self.is_writing || self.shape.service == Service::Ud {
            return;
        }
        let Some(live) = &mut self.live else {
            return;
        };
        let word = self.credits.to_le_bytes();
        let work = WorkRequest {
            id: CREDIT,
            verb: Verb::Write {
                address: self.hello.credit_address,
                rkey: self.hello.credit_rkey,
                immediate: None,
            },
            payload: Payload::Inline(&word),
            signaled: true,
        };
        match live.queue_pairs[0].post_send(&work) {
            Ok(()) => (self.written, self.is_writing) = (self.credits, true),
            Err(error) => self.fail(Fault::Local, error.to_string()),
        }
    }

    /// Looks whether the sender is still there.
    fn check_peer(&mut self) {
        let now = Instant::now();
        self.checked = now;
        if std::mem::take(&mut self.has_moved) {
            self.heard = now;
        }
        if now.duration_since(self.credits_refreshed) >= CREDIT_REFRESH {
            self.credits_refreshed = now;
            self.write_credits();
        }
        let disconnect = self
            .live
            .as_mut()
            .and_then(|live| live.monitor.poll_disconnect());
        if let Some(disconnect) = disconnect {
            self.fail(Fault::PeerGone, disconnect.why);
        }
    }

    /// Waits for the rail of the next frame; false where there is nothing to wait for.
    pub(super) fn wait(&mut self, limit: Duration) -> bool {
        let rail = rail_of(self.next, self.shape.rails);
        let Some(live) = &mut self.live else {
            return false;
        };
        if !self.pending[rail].is_empty() {
            return false;
        }
        match live.queue_pairs[rail].wait(limit) {
            Ok(has_waited) => has_waited,
            Err(error) => {
                self.fail(Fault::Other, error.to_string());
                false
            }
        }
    }

    /// Ends it: nothing is written any more when this returns. What its queues had finished stays.
    pub(super) fn end(&mut self, is_on_purpose: bool) {
        self.drain_completions();
        let Some(mut live) = self.live.take() else {
            return;
        };
        self.failure = None;
        if is_on_purpose {
            live.monitor.close(self.next);
        }
    }

    /// Takes the last that its queues have to say. A reliable connection's card may have acknowledged a frame just now,
    /// which its sender then never sends again: so each queue is stopped, and heard until all its receives are back.
    fn drain_completions(&mut self) {
        let is_reliable = self.shape.service == Service::Rc;
        let mut stops = vec![false; self.pending.len()];
        if let (true, Some(live)) = (is_reliable, &mut self.live) {
            for (queue, stops) in live.queue_pairs.iter_mut().zip(&mut stops) {
                match queue.stop() {
                    Ok(()) => *stops = true,
                    Err(error) => tracing::debug!("{}: {error}", self.peer),
                }
            }
        }
        let end = Instant::now() + DRAIN_TIMEOUT;
        for (rail, stops) in stops.into_iter().enumerate() {
            while let Some(count) = self.collect_from(rail) {
                if count > 0 {
                    continue;
                }
                if !stops || self.open[rail] == 0 {
                    break;
                }
                if Instant::now() >= end {
                    static LIMIT: LogLimit = LogLimit::new();
                    LIMIT.run(|suppressed| {
                        tracing::warn!(
                            "{}: the card did not complete {} receives of rail {rail}: the last frames that it \
                             acknowledged may be lost{suppressed}",
                            self.peer,
                            self.open[rail]
                        );
                    });
                    break;
                }
                let waits = self
                    .live
                    .as_mut()
                    .map(|live| live.queue_pairs[rail].wait(DRAIN_POLL));
                if !matches!(waits, Some(Ok(true))) {
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Drops completions of frames that were not delivered.
    pub(super) fn discard_completions(&mut self) {
        self.pending.iter_mut().for_each(VecDeque::clear);
    }
}

/// The meaning of a completion for the next frame.
enum Verdict {
    /// It is that frame's, with this record.
    Is(Record),
    /// It is a later one's: the frame itself is lost.
    Lost,
    /// It is that frame's, but its record is lost.
    LostRecord,
    /// No sender that keeps to the protocol brings this about.
    Invalid(String),
}

/// The low half of a number.
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn low(number: u64) -> u32 {
    number as u32
}

/// The record at `at`, read word by word, for the peer may write it at any time.
fn read(records: &DmaBuffer, at: usize) -> Result<Record, String> {
    let mut bytes = [0; Record::HEAD];
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&records.read64(at + 8 * i).to_le_bytes());
    }
    Record::decode(&bytes).map_err(|error| error.to_string())
}

const fn fault_of(status: Status) -> Fault {
    match status {
        Status::Unanswered => Fault::Unanswered,
        Status::NotReady => Fault::NotReady,
        Status::RemoteAccess => Fault::RemoteAccess,
        Status::Local => Fault::Local,
        Status::RemoteOperation => Fault::RemoteOperation,
        Status::Flushed => Fault::Flushed,
        Status::Success | Status::Other(_) => Fault::Other,
    }
}
