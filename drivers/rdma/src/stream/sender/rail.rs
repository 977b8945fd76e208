//! One queue of a stream: posting frames, collecting what became of them.

use super::LinkError;
use crate::stream::wire::{Offer, Record};
use crate::verbs::{MemoryRegion, Payload, QueuePair, Status, Verb, WorkCompletion, WorkRequest};

/// The id of work that carries no frame.
const KEEP_ALIVE: u64 = u64::MAX;
/// Completions collected at once.
const BATCH: usize = 16;

/// Where a frame's payload lies.
#[derive(Clone, Copy)]
pub(super) enum PayloadSource<'a> {
    /// So many bytes from an offset on of registered memory.
    Memory(&'a MemoryRegion, usize, usize),
    /// Bytes that go inline.
    Inline(&'a [u8]),
}

impl PayloadSource<'_> {
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Memory(_, _, bytes) => *bytes,
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

/// Where a frame's record lies.
#[derive(Clone, Copy)]
pub(super) enum RecordSource<'a> {
    /// So many bytes from an offset on of registered memory.
    Memory(&'a MemoryRegion, usize, usize),
    /// It goes inline.
    Inline(&'a [u8]),
}

impl RecordSource<'_> {
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

/// One frame to be posted.
#[derive(Clone, Copy)]
pub(super) struct FramePost<'a> {
    pub(super) number: u64,
    pub(super) payload: PayloadSource<'a>,
    pub(super) record: RecordSource<'a>,
    /// Most bytes of one write.
    pub(super) chunk: usize,
    pub(super) signaled: bool,
}

/// A connected queue and what its receiver has offered.
pub(super) struct Rail {
    queue: Box<dyn QueuePair>,
    pub(super) offer: Offer,
    index: u64,
    rails: u64,
    /// Frames of this rail before this one are done.
    done: u64,
    /// Whether work without a frame is under way.
    keep_alive_pending: bool,
    /// Whether what was written before a message is there once that is.
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

    /// Frames of this rail before this one are done.
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// Whether work without a frame is under way.
    pub(super) const fn is_keep_alive_pending(&self) -> bool {
        self.keep_alive_pending
    }

    /// Bytes of a record in the receiver's memory.
    pub(super) const fn record_bytes(&self) -> usize {
        Record::bytes(self.offer.places)
    }

    /// Posts a frame by writes into its slot: the payload, then the record with the frame's number. On an unreliable
    /// connection the record comes first, and the payload, whole, with the number: the number's message is there in full
    /// or not at all.
    pub(super) fn write(&mut self, frame: &FramePost<'_>) -> Result<(), LinkError> {
        let offer = &self.offer;
        let slot =
            (frame.number - offer.next + u64::from(offer.first_slot)) % u64::from(offer.slots);
        let (address, rkey) = (offer.slot_address + slot * offer.stride, offer.slot_rkey);
        let number = Some(low(frame.number));
        let into = |offset: usize, immediate| Verb::Write {
            address: address + offset as u64,
            rkey,
            immediate,
        };
        let record = |immediate| Verb::Write {
            address: offer.record_address + slot * Record::bytes(offer.places) as u64,
            rkey: offer.record_rkey,
            immediate,
        };
        let (queue, id, signaled) = (&mut *self.queue, frame.number, frame.signaled);
        if self.is_reliable {
            match frame.payload {
                PayloadSource::Inline([]) => {}
                PayloadSource::Inline(bytes) => {
                    post(queue, id, into(0, None), Payload::Inline(bytes), false)?;
                }
                PayloadSource::Memory(memory, from, bytes) => {
                    for offset in (0..bytes).step_by(frame.chunk) {
                        let sge = [memory.sge(from + offset, frame.chunk.min(bytes - offset))];
                        post(queue, id, into(offset, None), Payload::Memory(&sge), false)?;
                    }
                }
            }
            return frame.record.post(queue, id, record(number), signaled);
        }
        frame.record.post(queue, id, record(None), false)?;
        match frame.payload {
            PayloadSource::Inline(bytes) => {
                post(queue, id, into(0, number), Payload::Inline(bytes), signaled)
            }
            PayloadSource::Memory(memory, from, bytes) => {
                let sge = [memory.sge(from, bytes)];
                post(queue, id, into(0, number), Payload::Memory(&sge), signaled)
            }
        }
    }

    /// Posts a frame as one message: the record, then the payload. `whole` has both where they go inline.
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
            (Some(bytes), ..) | (None, RecordSource::Inline(bytes), _) => {
                post(Payload::Inline(bytes))
            }
            (
                None,
                RecordSource::Memory(memory, from, bytes),
                PayloadSource::Memory(ring, at, length),
            ) => {
                let record = memory.sge(from, bytes);
                post(Payload::Memory(&[record, ring.sge(at, length)]))
            }
            (None, RecordSource::Memory(memory, from, bytes), PayloadSource::Inline(payload)) => {
                debug_assert!(
                    payload.is_empty(),
                    "a payload beside a record lies in memory"
                );
                post(Payload::Memory(&[memory.sge(from, bytes)]))
            }
        }
    }

    /// Posts work without a payload, so that a receiver that is gone is noticed.
    pub(super) fn keep_alive(&mut self) -> Result<(), LinkError> {
        self.keep_alive_pending = true;
        let verb = Verb::Write {
            address: self.offer.slot_address,
            rkey: self.offer.slot_rkey,
            immediate: None,
        };
        post(
            &mut *self.queue,
            KEEP_ALIVE,
            verb,
            Payload::Inline(&[]),
            true,
        )
    }

    /// Collects what is done; whether there was any.
    pub(super) fn poll(&mut self) -> Result<bool, LinkError> {
        let mut done = [NOTHING; BATCH];
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

    /// Waits until something may be done, `limit` at most; false where it cannot.
    pub(super) fn wait(&mut self, limit: std::time::Duration) -> Result<bool, LinkError> {
        self.queue.wait(limit).map_err(LinkError::Verbs)
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

const NOTHING: WorkCompletion = WorkCompletion {
    id: 0,
    side: crate::verbs::Side::Sent,
    status: Status::Success,
    bytes: 0,
    immediate: None,
};

/// The low half of a frame's number.
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn low(number: u64) -> u32 {
    number as u32
}
