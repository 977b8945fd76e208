//! One queue of a stream: posting frames, collecting what became of them.

use super::Broken;
use crate::stream::wire::{Offer, Record};
use crate::verbs::{MemoryKey, Payload, Queue, Status, Verb, Work, WorkDone};

/// The id of work that carries no frame.
const KEEP_ALIVE: u64 = u64::MAX;
/// Completions collected at once.
const BATCH: usize = 16;

/// Where a frame's payload lies.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// So many bytes from an offset on of registered memory.
    Memory(&'a MemoryKey, usize, usize),
    /// Bytes that go inline.
    Inline(&'a [u8]),
}

impl Source<'_> {
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Memory(_, _, bytes) => *bytes,
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

/// Where a frame's record lies.
#[derive(Clone, Copy)]
pub(super) enum Told<'a> {
    /// So many bytes from an offset on of registered memory.
    Memory(&'a MemoryKey, usize, usize),
    /// It goes inline.
    Inline(&'a [u8]),
}

impl Told<'_> {
    fn post(
        self,
        queue: &mut dyn Queue,
        id: u64,
        verb: Verb,
        signaled: bool,
    ) -> Result<(), Broken> {
        match self {
            Self::Inline(bytes) => post(queue, id, verb, Payload::Inline(bytes), signaled),
            Self::Memory(memory, from, bytes) => {
                let piece = [memory.piece(from, bytes)];
                post(queue, id, verb, Payload::Memory(&piece), signaled)
            }
        }
    }
}

/// One frame to be posted.
#[derive(Clone, Copy)]
pub(super) struct Parcel<'a> {
    pub(super) number: u64,
    pub(super) payload: Source<'a>,
    pub(super) record: Told<'a>,
    /// Most bytes of one write.
    pub(super) chunk: usize,
    pub(super) signaled: bool,
}

/// A connected queue and what its receiver has offered.
pub(super) struct Rail {
    queue: Box<dyn Queue>,
    pub(super) offer: Offer,
    index: u64,
    rails: u64,
    /// Frames of this rail before this one are done.
    done: u64,
    /// Whether work without a frame is under way.
    keeping: bool,
    /// Whether what was written before a message is there once that is.
    is_reliable: bool,
}

impl Rail {
    pub(super) fn new(
        queue: Box<dyn Queue>,
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
            keeping: false,
            is_reliable,
        }
    }

    /// Frames of this rail before this one are done.
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// Whether work without a frame is under way.
    pub(super) const fn is_keeping(&self) -> bool {
        self.keeping
    }

    /// Bytes of a record in the receiver's memory.
    pub(super) const fn record_bytes(&self) -> usize {
        Record::bytes(self.offer.places)
    }

    /// Posts a frame by writes into its slot: the payload, then the record with the frame's number. On an unreliable
    /// connection the record comes first, and the payload, whole, with the number: the number's message is there in full
    /// or not at all.
    pub(super) fn write(&mut self, parcel: &Parcel<'_>) -> Result<(), Broken> {
        let offer = &self.offer;
        let slot = (parcel.number - offer.next + u64::from(offer.turn)) % u64::from(offer.slots);
        let (address, key) = (offer.slot_address + slot * offer.stride, offer.slot_key);
        let number = Some(low(parcel.number));
        let into = |offset: usize, immediate| Verb::Write {
            address: address + offset as u64,
            key,
            immediate,
        };
        let record = |immediate| Verb::Write {
            address: offer.record_address + slot * Record::bytes(offer.places) as u64,
            key: offer.record_key,
            immediate,
        };
        let (queue, id, signaled) = (&mut *self.queue, parcel.number, parcel.signaled);
        if self.is_reliable {
            match parcel.payload {
                Source::Inline([]) => {}
                Source::Inline(bytes) => {
                    post(queue, id, into(0, None), Payload::Inline(bytes), false)?;
                }
                Source::Memory(memory, from, bytes) => {
                    for offset in (0..bytes).step_by(parcel.chunk) {
                        let piece = [memory.piece(from + offset, parcel.chunk.min(bytes - offset))];
                        post(
                            queue,
                            id,
                            into(offset, None),
                            Payload::Memory(&piece),
                            false,
                        )?;
                    }
                }
            }
            return parcel.record.post(queue, id, record(number), signaled);
        }
        parcel.record.post(queue, id, record(None), false)?;
        match parcel.payload {
            Source::Inline(bytes) => {
                post(queue, id, into(0, number), Payload::Inline(bytes), signaled)
            }
            Source::Memory(memory, from, bytes) => {
                let piece = [memory.piece(from, bytes)];
                post(
                    queue,
                    id,
                    into(0, number),
                    Payload::Memory(&piece),
                    signaled,
                )
            }
        }
    }

    /// Posts a frame as one message: the record, then the payload. `whole` has both where they go inline.
    pub(super) fn send(&mut self, parcel: &Parcel<'_>, whole: Option<&[u8]>) -> Result<(), Broken> {
        let (queue, id, signaled) = (&mut *self.queue, parcel.number, parcel.signaled);
        let verb = Verb::Send {
            immediate: Some(low(id)),
        };
        let mut post = |payload: Payload<'_>| post(queue, id, verb, payload, signaled);
        match (whole, parcel.record, parcel.payload) {
            (Some(bytes), ..) | (None, Told::Inline(bytes), _) => post(Payload::Inline(bytes)),
            (None, Told::Memory(memory, from, bytes), Source::Memory(ring, at, length)) => {
                let record = memory.piece(from, bytes);
                post(Payload::Memory(&[record, ring.piece(at, length)]))
            }
            (None, Told::Memory(memory, from, bytes), Source::Inline(payload)) => {
                debug_assert!(
                    payload.is_empty(),
                    "a payload beside a record lies in memory"
                );
                post(Payload::Memory(&[memory.piece(from, bytes)]))
            }
        }
    }

    /// Posts work without a payload, so that a receiver that is gone is noticed.
    pub(super) fn keep_alive(&mut self) -> Result<(), Broken> {
        self.keeping = true;
        let verb = Verb::Write {
            address: self.offer.slot_address,
            key: self.offer.slot_key,
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
    pub(super) fn poll(&mut self) -> Result<bool, Broken> {
        let mut done = [NOTHING; BATCH];
        let mut any = false;
        loop {
            let found = self.queue.poll(&mut done).map_err(Broken::Verbs)?;
            for done in &done[..found] {
                if done.status != Status::Success {
                    return Err(Broken::Work(done.status));
                }
                any = true;
                match done.id {
                    KEEP_ALIVE => self.keeping = false,
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
    pub(super) fn wait(&mut self, limit: std::time::Duration) -> Result<bool, Broken> {
        self.queue.wait(limit).map_err(Broken::Verbs)
    }
}

fn post(
    queue: &mut dyn Queue,
    id: u64,
    verb: Verb,
    payload: Payload<'_>,
    signaled: bool,
) -> Result<(), Broken> {
    let work = Work {
        id,
        verb,
        payload,
        signaled,
    };
    queue.post(&work).map_err(Broken::Verbs)
}

const NOTHING: WorkDone = WorkDone {
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
