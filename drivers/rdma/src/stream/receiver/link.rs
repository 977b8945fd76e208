//! A link to a sender: queue pairs, their completions, and the sender's credits.

use super::MAX_GAP;
use super::control::{self, Connected, Fault, SENDS, Terms, rail_of};
use super::shape::Shape;
use crate::connect::PeerMonitor;
use crate::engine::ReceiveQueue;
use crate::registration::set::RailRegions;
use crate::verbs::{Payload, Service, Status, Verb, VerbsError, WorkCompletion, WorkRequest};
use crate::wait::wait_any;
use crate::wire::checksum;
use crate::wire::{Hello, Mode, Record};
use daq_core::dma::DmaBuffer;
use daq_core::frame::KeptFields;
use daq_core::log_limit::LogLimit;
use daq_core::region::Region;
use daq_core::units::counted;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of completions collected in one call.
const BATCH: usize = 32;
/// The id of requests that write the credit word.
const CREDIT: u64 = u64::MAX;
/// Interval of the checks of an idle link.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which an unchanged credit word is written again. Such a write fails if the peer has disconnected.
const CREDIT_REFRESH: Duration = Duration::from_secs(1);
/// Maximum time for a stopped queue pair to return the completions of received messages.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum time of one wait for a completion of a stopped queue pair.
const DRAIN_POLL: Duration = Duration::from_millis(1);
/// Time to wait for frames that are still in flight on an unreliable network after the sender has closed the stream.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time without data from the current sender after which another sender may replace the current sender.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);

/// The parts of a link that exist only while the link is connected.
struct Live {
    /// The queue pairs, one per rail. Declared before the memory regions, so that they are destroyed first.
    queues: Vec<ReceiveQueue>,
    monitor: Box<dyn PeerMonitor>,
    payload: Arc<RailRegions>,
    records: Arc<RailRegions>,
}

/// The state of the next frame.
pub(super) enum Step {
    /// The frame has arrived, with its record.
    Frame(CompletedFrame),
    /// The frame has not arrived yet.
    Nothing,
    /// The sender violated the protocol.
    Bad(Fault, String),
}

/// The reason why a link must end.
pub(super) struct EndReason {
    /// The fault to count; `None` if the sender has ended on purpose.
    pub(super) fault: Option<Fault>,
    pub(super) why: String,
}

/// The close message of a sender.
struct SenderClosed {
    /// The total number of frames of the stream.
    frames: u64,
    why: String,
    heard: Instant,
}

/// A frame that has arrived.
pub(super) struct CompletedFrame {
    pub(super) record: Record,
    /// Values of the fields that the frame keeps.
    pub(super) kept: KeptFields,
    /// Number of frames before this one that never arrived.
    pub(super) missing: u64,
    /// Number of slots that the missing frames would have filled.
    pub(super) skipped: u64,
    /// The part that does not match its checksum; `None` if the frame is good.
    pub(super) damage: Option<Damage>,
}

/// The part of a frame that does not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// The payload. The record is good.
    Payload,
    /// The record, so that only the frame's number is known.
    Record,
}

/// A link, or the received frames of a link that has ended.
pub(super) struct Link {
    /// The connection; `None` once the link has ended.
    live: Option<Live>,
    /// Received completions of each rail that are not processed yet. Each queue has room for the completions of all
    /// receives of a queue pair.
    pending: Vec<VecDeque<WorkCompletion>>,
    shape: Shape,
    hello: Hello,
    terms: Terms,
    peer: String,
    /// The number of the next frame.
    next: u64,
    /// Number of slots that were filled or skipped.
    completed: u64,
    /// Number of missing frames that are not reported yet, and the number of slots skipped for these frames.
    gap: (u64, u64),
    /// Total number of frames that the sender may have sent. Receives are posted for the first `posted` of these
    /// frames.
    credits: u64,
    posted: u64,
    /// The value of the credit word that was written last.
    written: u64,
    /// True if a write of the credit word is in progress.
    is_writing: bool,
    /// The failure that requires the link to end.
    failure: Option<(Fault, String)>,
    /// The sender's close message.
    closed: Option<SenderClosed>,
    /// Time of the last check of the link.
    checked: Instant,
    /// Time at which data from the sender was last detected.
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
        let room = shape.receives(terms.slots.count) as usize + SENDS as usize + BATCH;
        let rails = link.rails.into_iter().enumerate();
        let queues: Vec<_> = rails
            .map(|(rail, queue_pair)| {
                let open = control::first_receives(&shape, &terms, rail);
                ReceiveQueue::new(queue_pair, open)
            })
            .collect();
        Self {
            pending: queues
                .iter()
                .map(|_| VecDeque::with_capacity(room))
                .collect(),
            live: Some(Live {
                queues,
                monitor: link.monitor,
                payload,
                records,
            }),
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

    /// Returns the number of the next expected frame, and the number of earlier missing frames that are not reported
    /// yet.
    pub(super) const fn position(&self) -> (u64, u64) {
        (self.next, self.gap.0)
    }

    /// Returns the final position. Frames that the sender announced in its close message but that never arrived count
    /// as missing.
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
                    "{}: the sender reports {tail} lost frames, which is impossible; the report is ignored{suppressed}",
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

    /// Returns true if nothing arrived from the sender for [`SILENCE_TIMEOUT`].
    pub(super) fn is_silent(&self) -> bool {
        !self.has_moved && self.heard.elapsed() >= SILENCE_TIMEOUT
    }

    /// Returns the methods by which the memory is registered.
    pub(super) fn methods(&self) -> String {
        self.live
            .as_ref()
            .map_or_else(String::new, |live| live.payload.methods())
    }

    /// Returns the reason why the link must end, if any. A sender that has closed the stream no longer answers, which
    /// is not a fault.
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
        // On an unreliable service, frames may still be in flight.
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

    /// Collects the completions of all queue pairs.
    pub(super) fn collect(&mut self) {
        for rail in 0..self.pending.len() {
            if self.pending[rail].is_empty() {
                self.collect_from(rail);
            }
        }
    }

    /// Collects the completions of one queue pair. Returns the number of collected completions, or `None` if the queue
    /// pair will return no more completions.
    fn collect_from(&mut self, rail: usize) -> Option<usize> {
        let live = self.live.as_mut()?;
        let mut batch = [WorkCompletion::default(); BATCH];
        let count = match live.queues[rail].poll(&mut batch) {
            Ok(count) => count,
            Err(error) => {
                self.fail(Fault::CompletionOverrun, error.to_string());
                return None;
            }
        };
        for work in &batch[..count] {
            if work.id != CREDIT
                && let Some(live) = &mut self.live
            {
                live.queues[rail].completed();
            }
            if work.status != Status::Success {
                let why = format!(
                    "rail {rail}: a work request failed with {}",
                    work.status.name()
                );
                self.fail(fault_of(work.status), why);
            } else if work.id == CREDIT {
                self.is_writing = false;
                // The completion of a reliable write proves that the peer's NIC has acknowledged it. An unreliable one
                // proves nothing.
                self.has_moved |= self.shape.service == Service::Rc;
            } else {
                self.has_moved = true;
                self.pending[rail].push_back(*work);
            }
        }
        Some(count)
    }

    /// Records a failure. Only the first failure is kept, because later failures are its consequences.
    fn fail(&mut self, fault: Fault, why: String) {
        self.failure.get_or_insert((fault, why));
    }

    /// Returns the next frame if it has arrived. Stores in `present` which of its packet slots arrived. `memory` contains
    /// the slots.
    pub(super) fn step(
        &mut self,
        records: &DmaBuffer,
        memory: &Region,
        present: &mut [u64],
    ) -> Step {
        loop {
            let rail = rail_of(self.next, self.shape.rails);
            let Some(work) = self.pending[rail].front().copied() else {
                return Step::Nothing;
            };
            if self.completed >= self.credits {
                let why = format!("frame {} was sent without a credit", self.next);
                return Step::Bad(Fault::BeyondCredit, why);
            }
            let at = self.terms.slots.slot(self.completed) as usize * self.shape.record();
            let verdict = if self.is_record_damaged(work, records, at) {
                Verdict::Damaged
            } else {
                self.classify(work, decode(&read(records, at)))
            };
            let (record, damage) = match verdict {
                Verdict::Is(record) => (record, self.payload_damage(&record, memory)),
                Verdict::Damaged => {
                    let number = self.next;
                    let record = Record {
                        number,
                        ..Record::default()
                    };
                    (record, Some(Damage::Record))
                }
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
                let bits = (record.packets_per_frame as usize).saturating_sub(64 * i);
                let there = bits.min(64);
                *word = match there {
                    0 => 0,
                    _ => records.read64(at + Record::HEAD + 8 * i) & (u64::MAX >> (64 - there)),
                };
            }
            let kept = kept(&record, |word| {
                records.read64(at + record.kept_offset() + 8 * word)
            });
            (self.next, self.completed) = (record.number.wrapping_add(1), self.completed + 1);
            let (missing, skipped) = std::mem::take(&mut self.gap);
            return Step::Frame(CompletedFrame {
                record,
                kept,
                missing,
                skipped,
                damage,
            });
        }
    }

    /// Returns true if the completion belongs to the next frame, whose record at `at` does not match its checksum. The
    /// immediate value of the completion has a checksum of its own.
    fn is_record_damaged(&self, work: WorkCompletion, records: &DmaBuffer, at: usize) -> bool {
        if !self.hello.has_checksums || work.immediate != Some(low(self.next)) {
            return false;
        }
        let head = read(records, at);
        let Ok(record) = Record::decode(&head) else {
            return true;
        };
        let Some(sums) = record.checksums else {
            return true;
        };
        let bytes = Record::HEAD + 8 * record.words();
        bytes > self.shape.record() || {
            let words = (Record::HEAD..bytes).step_by(8);
            let words = words.map(|offset| records.read64(at + offset));
            checksum::of_record(head, words) != sums.record
        }
    }

    /// Returns whether the payload of the next frame does not match the checksum in `record`.
    fn payload_damage(&self, record: &Record, memory: &Region) -> Option<Damage> {
        let sums = record.checksums.filter(|_| self.hello.has_checksums)?;
        let slots = &self.terms.slots;
        let offset = slots.offset_of(slots.slot(self.completed) as usize);
        let bytes = usize::try_from(record.length).unwrap_or(usize::MAX);
        let found = checksum::of_region(memory, offset, bytes);
        (found != Some(sums.payload)).then_some(Damage::Payload)
    }

    /// Skips the next frame, which never arrives. The content of the frame's slot is not changed.
    fn skip_frame(&mut self) {
        (self.next, self.completed) = (self.next.wrapping_add(1), self.completed + 1);
        self.gap = (self.gap.0 + 1, self.gap.1 + 1);
    }

    /// Removes a processed completion, which also frees a receive.
    fn take(&mut self, rail: usize) {
        self.pending[rail].pop_front();
        if self.shape.mode == Mode::Write
            && let Some(live) = &mut self.live
        {
            live.queues[rail].free();
        }
    }

    /// Decides whether a completion, and the record in the slot of the next frame, belong to the next frame.
    fn classify(&self, work: WorkCompletion, record: Result<Record, String>) -> Verdict {
        match self.shape.mode {
            Mode::Write => self.classify_write(work, record),
            Mode::Send => self.classify_send(work, record),
        }
    }

    fn classify_write(&self, work: WorkCompletion, record: Result<Record, String>) -> Verdict {
        let Some(immediate) = work.immediate else {
            return Verdict::Invalid("received a message instead of an RDMA write".to_owned());
        };
        let ahead = u64::from(immediate.wrapping_sub(low(self.next)));
        if self.shape.service != Service::Uc {
            return match record {
                _ if ahead > 0 => Verdict::Invalid(format!(
                    "the immediate value {immediate} does not belong to the next frame"
                )),
                Ok(record) => self.check(record),
                Err(why) => Verdict::Invalid(why),
            };
        }
        if ahead > 0 {
            let may_come = self.completed.saturating_add(ahead) < self.credits;
            return if may_come && ahead.is_multiple_of(self.shape.rails as u64) {
                Verdict::Lost
            } else {
                Verdict::Invalid(format!("the immediate value {immediate} is out of range"))
            };
        }
        match record {
            // The immediate data arrived with the payload in one message, so the payload is complete.
            Ok(record) if record.number == self.next && record.length == u64::from(work.bytes) => {
                self.check(record)
            }
            Ok(record) if record.number == self.next => Verdict::Invalid(format!(
                "received {} bytes, but the frame's record specifies {}",
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
                "received a message of {found} bytes, but its record specifies {completed}"
            ));
        }
        if work
            .immediate
            .is_some_and(|immediate| immediate != low(record.number))
        {
            return Verdict::Invalid(format!(
                "the record belongs to frame {}, but the immediate value belongs to another frame",
                record.number
            ));
        }
        self.check(record)
    }

    /// Checks whether a record is valid for the next frame.
    fn check(&self, record: Record) -> Verdict {
        let ahead = record.number.wrapping_sub(self.next);
        // Datagrams fill the slots in the order of arrival, so earlier ones may have been lost.
        if ahead > 0 && (self.shape.service != Service::Ud || ahead > u32::MAX.into()) {
            return Verdict::Invalid(format!(
                "the record belongs to frame {} instead of frame {}",
                record.number, self.next
            ));
        }
        let slot = self.hello.slot.min(self.terms.slots.bytes as u64);
        if record.length > slot {
            return Verdict::Invalid(format!(
                "the record specifies {} bytes, but a slot has {slot} bytes",
                record.length
            ));
        }
        let packets_per_frame = self.shape.packets_per_frame;
        if record.packets_per_frame > packets_per_frame || record.arrived > record.packets_per_frame
        {
            let (of, arrived) = (record.packets_per_frame, record.arrived);
            return Verdict::Invalid(format!(
                "the record specifies {arrived} of {of} packets, but a frame has at most {packets_per_frame}"
            ));
        }
        let fields = self.shape.kept.count;
        if record.kept_words() > usize::from(fields) {
            return Verdict::Invalid(format!(
                "the record specifies {}, but a frame has at most {fields}",
                counted(record.kept_words(), "kept field")
            ));
        }
        Verdict::Is(record)
    }

    /// Sets the total number of frames that the sender may send on this link, posts the receives for these frames, and
    /// checks the sender at regular intervals.
    pub(super) fn serve(&mut self, credits: u64, is_idle: bool) {
        self.credits = credits;
        let Some(live) = &mut self.live else {
            return;
        };
        let posted = match self.shape.mode {
            Mode::Write => live
                .queues
                .iter_mut()
                .try_for_each(ReceiveQueue::post_again),
            Mode::Send => (self.posted..credits).try_for_each(|frame| {
                let number = self.terms.next.wrapping_add(frame);
                let rail = rail_of(number, self.shape.rails);
                let keys = (&*live.payload, &*live.records);
                let (id, sges) = control::receive_of(&self.shape, &self.terms, frame, rail, keys);
                live.queues[rail].post(id, &sges)
            }),
        };
        self.posted = credits;
        if let Err(error) = posted {
            self.fail(Fault::Local, error.to_string());
            return;
        }
        // A write is unnecessary while the sender may still fill half of the slots. On an unreliable connection, lost frames
        // use credits too.
        let unused = self.written.saturating_sub(self.completed);
        let is_needed =
            self.shape.service != Service::Rc || 2 * unused <= u64::from(self.terms.slots.count);
        if credits != self.written && is_needed {
            self.write_credits();
        }
        if is_idle && self.checked.elapsed() >= CHECK_INTERVAL {
            self.check_peer();
        }
    }

    fn write_credits(&mut self) {
        // Datagram queue pairs do not support writes. Their sender is limited only by the posted receives.
        if self.is_writing || self.shape.service == Service::Ud {
            return;
        }
        let Some(live) = &mut self.live else {
            return;
        };
        let word = self.credits.to_le_bytes();
        let work = WorkRequest {
            id: CREDIT,
            verb: Verb::write(self.hello.credit_address, self.hello.credit_rkey, None),
            payload: Payload::Inline(&word),
            signaled: true,
        };
        match live.queues[0].queue_pair().post_send(&work) {
            Ok(()) => (self.written, self.is_writing) = (self.credits, true),
            Err(error) => self.fail(Fault::Local, error.to_string()),
        }
    }

    /// Checks whether the sender is still connected.
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

    /// Waits for a completion. Returns false if there is nothing to wait for.
    pub(super) fn wait(&mut self, limit: Duration) -> bool {
        let rail = rail_of(self.next, self.shape.rails);
        let Some(live) = &mut self.live else {
            return false;
        };
        if !self.pending[rail].is_empty() {
            return false;
        }
        match wait_for_rails(&mut live.queues, &self.pending, rail, limit) {
            Ok(has_waited) => has_waited,
            Err(error) => {
                self.fail(Fault::Other, error.to_string());
                false
            }
        }
    }

    /// Ends the link: no memory is written after this returns. Completions that were collected are kept.
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

    /// Collects the last completions. On a reliable connection the NIC may have just acknowledged a frame, which its
    /// sender then never sends again. Therefore each queue pair is stopped and polled until all its receives have
    /// completed.
    fn drain_completions(&mut self) {
        let is_reliable = self.shape.service == Service::Rc;
        let mut stops = vec![false; self.pending.len()];
        if let (true, Some(live)) = (is_reliable, &mut self.live) {
            for (queue, stops) in live.queues.iter_mut().zip(&mut stops) {
                match queue.queue_pair().stop() {
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
                let open = self
                    .live
                    .as_ref()
                    .map_or(0, |live| live.queues[rail].open());
                if !stops || open == 0 {
                    break;
                }
                if Instant::now() >= end {
                    static LIMIT: LogLimit = LogLimit::new();
                    LIMIT.run(|suppressed| {
                        tracing::warn!(
                            "{}: the NIC did not complete {} on rail {rail}, so the last frames that the NIC acknowledged \
                             may be lost{suppressed}",
                            self.peer,
                            counted(open, "posted receive")
                        );
                    });
                    break;
                }
                let waits = self
                    .live
                    .as_mut()
                    .map(|live| live.queues[rail].wait(DRAIN_POLL));
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
    /// The completion belongs to the next frame, with this record.
    Is(Record),
    /// The completion belongs to the next frame, whose record does not match its checksum.
    Damaged,
    /// The completion belongs to a later frame: the next frame is lost.
    Lost,
    /// The completion belongs to the next frame, but the record is lost.
    LostRecord,
    /// The sender violated the protocol.
    Invalid(String),
}

/// Waits for a completion on any rail whose completions are all processed or, if these rails cannot wait together, on
/// rail `next`. Returns false if waiting is not supported.
fn wait_for_rails(
    queues: &mut [ReceiveQueue],
    pending: &[VecDeque<WorkCompletion>],
    next: usize,
    limit: Duration,
) -> Result<bool, VerbsError> {
    // The sender may wait for acknowledgements or credits on the other rails.
    for (i, queue) in queues.iter_mut().enumerate().filter(|(i, _)| *i != next) {
        if !pending[i].is_empty() {
            queue.queue_pair().flush();
        }
    }
    let idle = queues
        .iter_mut()
        .zip(pending)
        .filter(|(_, pending)| pending.is_empty())
        .map(|(queue, _)| queue.queue_pair());
    if wait_any(idle, limit)? {
        return Ok(true);
    }
    for (_, queue) in queues.iter_mut().enumerate().filter(|(i, _)| *i != next) {
        queue.queue_pair().flush();
    }
    queues[next].wait(limit)
}

/// Returns the low half of a number.
#[expect(
    clippy::cast_possible_truncation,
    reason = "only the low half is needed"
)]
const fn low(number: u64) -> u32 {
    number as u32
}

/// Reads the head of the record at `at` word by word, because the peer may write the record at any time.
fn read(records: &DmaBuffer, at: usize) -> [u8; Record::HEAD] {
    let mut bytes = [0; Record::HEAD];
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&records.read64(at + 8 * i).to_le_bytes());
    }
    bytes
}

fn decode(head: &[u8; Record::HEAD]) -> Result<Record, String> {
    Record::decode(head).map_err(|error| error.to_string())
}

/// Returns the kept fields of `record`. `value` returns the value of a field.
fn kept(record: &Record, value: impl Fn(usize) -> u64) -> KeptFields {
    let mut kept = KeptFields::default();
    for i in 0..record.kept_words() {
        if record.kept_mask >> i & 1 == 1 {
            kept.set(i, value(i));
        }
    }
    kept
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
