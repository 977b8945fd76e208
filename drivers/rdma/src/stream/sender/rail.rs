//! One queue pair of a stream: posts frames and collects their completions.

use super::LinkError;
use crate::verbs::{MemoryRegion, Payload, QueuePair, Status, Verb, WorkCompletion, WorkRequest};
use crate::wait::wait_any;
use crate::wire::{Offer, Record};
use std::time::Duration;

/// The id of keep-alive requests, which carry no frame.
const KEEP_ALIVE: u64 = u64::MAX;
/// Maximum number of completions collected in one call.
const BATCH: usize = 16;

/// The location of a frame's payload or record.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Registered memory: the region, the offset and the number of bytes.
    Memory(&'a MemoryRegion, usize, usize),
    /// Bytes that are sent inline.
    Inline(&'a [u8]),
}

impl Source<'_> {
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Memory(_, _, bytes) => *bytes,
            Self::Inline(bytes) => bytes.len(),
        }
    }

    fn post(
        self,
        queue: &mut dyn QueuePair,
        id: u64,
        verb: Verb,
        signaled: bool,
    ) -> Result<(), LinkError> {
        match self {
            Self::Inline(bytes) => post(queue, id, verb, Payload::Inline(bytes), signaled),
            Self::Memory(memory, from, bytes) => {
                let sge = [memory.sge(from, bytes)];
                post(queue, id, verb, Payload::Memory(&sge), signaled)
            }
        }
    }
}

/// A frame to post on a queue pair, with the locations of its payload and record.
#[derive(Clone, Copy)]
pub(super) struct FramePost<'a> {
    pub(super) number: u64,
    pub(super) payload: Source<'a>,
    pub(super) record: Source<'a>,
    /// Maximum size of one write in bytes.
    pub(super) chunk: usize,
    pub(super) signaled: bool,
}

/// A connected queue pair and the receiver's offer.
pub(super) struct Rail {
    queue: Box<dyn QueuePair>,
    pub(super) offer: Offer,
    index: u64,
    rails: u64,
    /// All frames of this rail with a number below this one are done.
    done: u64,
    /// True if a keep-alive request is in flight.
    keep_alive_pending: bool,
    /// True if a received message implies that all earlier writes have arrived.
    is_reliable: bool,
}

impl Rail {
    pub(super) fn new(
        queue: Box<dyn QueuePair>,
        offer: Offer,
        (index, rails): (usize, usize),
        is_reliable: bool,
    ) -> Self {
        let (index, rails) = (index as u64, rails as u64);
        let ahead = (index + rails - offer.next % rails) % rails;
        Self {
            queue,
            offer,
            index,
            rails,
            done: offer.next + ahead,
            keep_alive_pending: false,
            is_reliable,
        }
    }

    /// Returns the limit below which all frames of this rail are done.
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// Returns true if a keep-alive request is in flight.
    pub(super) const fn is_keep_alive_pending(&self) -> bool {
        self.keep_alive_pending
    }

    /// Returns the size of a record in the receiver's memory in bytes.
    pub(super) const fn record_bytes(&self) -> usize {
        Record::bytes(self.offer.packets_per_frame, self.offer.kept)
    }

    /// Returns the bitmap of the kept fields that the receiver stores.
    pub(super) const fn kept_mask(&self) -> u8 {
        !(u8::MAX.unbounded_shl(self.offer.kept as u32))
    }

    /// Posts a frame as writes into its slot: first the payload, then the record with the frame number as immediate
    /// data. On an unreliable connection the order is reversed: first the record, then the payload in a single write
    /// with the frame number. This last message arrives completely or not at all.
    pub(super) fn write(&mut self, frame: &FramePost<'_>) -> Result<(), LinkError> {
        let offer = &self.offer;
        let slot =
            (frame.number - offer.next + u64::from(offer.first_slot)) % u64::from(offer.slots);
        let (address, rkey) = (offer.slot_address + slot * offer.stride, offer.slot_rkey);
        let number = Some(low(frame.number));
        let into = |offset: usize, immediate| Verb::write(address + offset as u64, rkey, immediate);
        let record = |immediate| {
            Verb::write(
                offer.record_address
                    + slot * Record::bytes(offer.packets_per_frame, offer.kept) as u64,
                offer.record_rkey,
                immediate,
            )
        };
        let (queue, id, signaled) = (&mut *self.queue, frame.number, frame.signaled);
        if self.is_reliable {
            match frame.payload {
                Source::Inline([]) => {}
                Source::Inline(bytes) => {
                    post(queue, id, into(0, None), Payload::Inline(bytes), false)?;
                }
                Source::Memory(memory, from, bytes) => {
                    for offset in (0..bytes).step_by(frame.chunk) {
                        let sge = [memory.sge(from + offset, frame.chunk.min(bytes - offset))];
                        post(queue, id, into(offset, None), Payload::Memory(&sge), false)?;
                    }
                }
            }
            return frame.record.post(queue, id, record(number), signaled);
        }
        frame.record.post(queue, id, record(None), false)?;
        frame.payload.post(queue, id, into(0, number), signaled)
    }

    /// Posts a frame as one message: the record, then the payload. `whole` contains record and payload if both are sent
    /// inline.
    pub(super) fn send(
        &mut self,
        frame: &FramePost<'_>,
        whole: Option<&[u8]>,
    ) -> Result<(), LinkError> {
        let (queue, id, signaled) = (&mut *self.queue, frame.number, frame.signaled);
        let verb = Verb::Send {
            immediate: Some(low(id)),
        };
        let mut post = |payload: Payload<'_>| post(queue, id, verb, payload, signaled);
        match (whole, frame.record, frame.payload) {
            (Some(bytes), ..) | (None, Source::Inline(bytes), _) => post(Payload::Inline(bytes)),
            (None, Source::Memory(memory, from, bytes), Source::Memory(ring, at, length)) => {
                let record = memory.sge(from, bytes);
                post(Payload::Memory(&[record, ring.sge(at, length)]))
            }
            (None, Source::Memory(memory, from, bytes), Source::Inline(payload)) => {
                debug_assert!(
                    payload.is_empty(),
                    "an inline payload of a record in memory must be empty"
                );
                post(Payload::Memory(&[memory.sge(from, bytes)]))
            }
        }
    }

    /// Posts a write without a payload, which fails if the receiver has disconnected.
    pub(super) fn keep_alive(&mut self) -> Result<(), LinkError> {
        self.keep_alive_pending = true;
        let verb = Verb::write(self.offer.slot_address, self.offer.slot_rkey, None);
        post(
            &mut *self.queue,
            KEEP_ALIVE,
            verb,
            Payload::Inline(&[]),
            true,
        )
    }

    /// Collects completions. Returns true if at least one completion was collected.
    pub(super) fn poll(&mut self) -> Result<bool, LinkError> {
        let mut done = [WorkCompletion::default(); BATCH];
        let mut any = false;
        loop {
            let found = self.queue.poll(&mut done).map_err(LinkError::Verbs)?;
            for done in &done[..found] {
                if done.status != Status::Success {
                    return Err(LinkError::Completion(done.status));
                }
                any = true;
                match done.id {
                    KEEP_ALIVE => self.keep_alive_pending = false,
                    number if number % self.rails == self.index && number >= self.done => {
                        self.done = number + self.rails;
                    }
                    _ => {}
                }
            }
            if found < BATCH {
                return Ok(any);
            }
        }
    }

    /// Returns true if sleeping is better than polling, see [`QueuePair::is_blocked`].
    pub(super) fn is_blocked(&self) -> bool {
        self.queue.is_blocked()
    }

    /// Makes the receiver acknowledge every `frames` frames of this rail at once, if it delays acknowledgements.
    pub(super) fn set_acknowledgement_interval(&mut self, frames: u64) {
        // A frame consists of a payload and a record.
        self.queue.set_acknowledgement_interval(2 * frames);
    }
}

/// Waits at most `limit` for an event of any rail or, if the rails cannot wait together and `is_under_way` is true, for a
/// completion of the oldest frame. Returns false if waiting is not supported.
pub(super) fn wait(
    rails: &mut [Rail],
    is_under_way: bool,
    limit: Duration,
) -> Result<bool, LinkError> {
    let queues = rails.iter_mut().map(|rail| &mut *rail.queue);
    if wait_any(queues, limit).map_err(LinkError::Verbs)? {
        return Ok(true);
    }
    match rails.iter_mut().min_by_key(|rail| rail.done()) {
        Some(rail) if is_under_way => rail.queue.wait(limit).map_err(LinkError::Verbs),
        _ => Ok(false),
    }
}

fn post(
    queue: &mut dyn QueuePair,
    id: u64,
    verb: Verb,
    payload: Payload<'_>,
    signaled: bool,
) -> Result<(), LinkError> {
    let work = WorkRequest {
        id,
        verb,
        payload,
        signaled,
    };
    queue.post_send(&work).map_err(LinkError::Verbs)
}

/// Returns the low half of a frame number.
#[expect(
    clippy::cast_possible_truncation,
    reason = "only the low half is needed"
)]
const fn low(number: u64) -> u32 {
    number as u32
}
