//! One copy between two rings.

use super::StagingError;
use super::copy_engine::CopyBackend;
use super::target::{self, Target};
use crate::gpu::driver::{CudaError, Rows};
use crate::ledger::CopyLedger;
use crate::ring::{Lease, Producer, Reader, Slice};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum distance between rows of a row copy in bytes. Devices allow slightly less than 2 GiB.
const MAX_PITCH: usize = 1 << 30;

/// A copy in flight.
#[derive(Debug)]
struct InFlightCopy {
    frames: u64,
    bytes: u64,
}

/// A source ring's reader, the target ring's producer, and the copies in flight between them.
///
/// Both rings have slots of the same size. Dropping waits for the copies in flight; if they do not end, the memory of
/// both rings is leaked.
#[derive(Debug)]
pub struct RingCopy {
    reader: Reader,
    producer: Producer,
    /// The target's memory, if the CPU can write it.
    target: Option<Target>,
    ledger: CopyLedger,
    in_flight: VecDeque<InFlightCopy>,
    /// Maximum number of frames per copy.
    burst: usize,
    /// Time since which at least one copy has been in flight.
    busy: Option<Instant>,
    /// Whether the device has failed. Then later completions are not published, because earlier slots were never
    /// filled.
    failed: bool,
}

/// The action of a ring copy in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// Started a copy of the given number of bytes.
    Copy(u64),
    /// Stored and published frames.
    Stored,
}

/// The state of the copy engine when it is a ring copy's turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineState {
    /// Whether another copy can be started.
    pub(super) has_room: bool,
    /// Whether enough copies are in flight to keep the stream busy. A ring copy that owns one of them then starts only
    /// whole chunks.
    pub(super) enough: bool,
    /// Maximum size in bytes of bursts that the CPU stores if possible; 0 if the CPU stores no bursts.
    pub(super) cpu_store_threshold: usize,
}

impl RingCopy {
    /// Creates a copy from the ring of `reader` to the ring of `producer`. Each copy has at most `chunk` bytes, but at
    /// least one frame.
    ///
    /// `reader` must be guaranteed, or the producer of its ring must support backpressure.
    ///
    /// # Panics
    /// If the rings' slots differ in size.
    pub fn new(reader: Reader, producer: Producer, ledger: CopyLedger, chunk: usize) -> Self {
        let (from, to) = (reader.options(), producer.options());
        assert_eq!(
            from.stride(),
            to.stride(),
            "both rings must have slots of the same size"
        );
        // Copy at most a quarter of a small ring, so that frames can accumulate while a copy is in flight.
        let max = (from.slots.min(to.slots) / 4).max(1);
        Self {
            target: Target::of(&reader, &producer),
            burst: (chunk / from.stride()).clamp(1, max),
            in_flight: VecDeque::with_capacity(from.slots),
            reader,
            producer,
            ledger,
            busy: None,
            failed: false,
        }
    }

    #[cfg(test)]
    pub(super) fn storing_to(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Returns the target's memory, if the CPU can write it.
    pub(super) const fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// Returns the source ring's name.
    pub fn from(&self) -> &str {
        &self.reader.options().name
    }

    /// Returns the target ring's name.
    pub fn to(&self) -> &str {
        &self.producer.options().name
    }

    /// Whether the source is closed and all its frames have been published.
    pub fn is_finished(&self) -> bool {
        self.reader.is_finished() && self.in_flight.is_empty()
    }

    /// Whether a copy is in flight.
    pub fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether the oldest copy in flight is done; false if no copy is in flight.
    pub(super) fn is_oldest_done(&self) -> bool {
        self.reader.is_oldest_done()
    }

    /// Returns the number of frames of the copy that could start now. If `enough` copies are in flight and at least one
    /// of them belongs to this ring copy, only a whole chunk starts.
    fn next(&self, enough: bool) -> usize {
        // Fill at most half of the target at a time, so that an unguaranteed reader finds frames to lease.
        let half = (self.producer.options().slots as u64 / 2).max(1);
        let room = self.producer.room();
        let room = room.min(half.saturating_sub(self.producer.submitted()));
        let frames = self.reader.pending().min(room);
        let frames = usize::try_from(frames)
            .unwrap_or(usize::MAX)
            .min(self.burst);
        let min = if enough && !self.in_flight.is_empty() {
            self.burst
        } else {
            1
        };
        if frames < min { 0 } else { frames }
    }

    /// Whether [`begin`](Self::begin) would start a copy or store frames.
    pub(super) fn is_ready(&self, state: EngineState) -> bool {
        self.wanted(state) > 0
    }

    /// Whether frames of any size may be stored now. This requires that no copy is in flight, because stored frames
    /// must not overtake a copy.
    pub(super) fn may_store(&self, cpu_store_threshold: usize) -> bool {
        self.target.is_some()
            && cpu_store_threshold > 0
            && self.in_flight.is_empty()
            && !self.failed
    }

    /// Returns the number of frames of the copy that could start now. If no copy can start, returns the number of
    /// frames that the CPU may store instead, even if they have the maximum length.
    fn wanted(&self, state: EngineState) -> usize {
        if state.has_room {
            return self.next(state.enough);
        }
        if !self.may_store(state.cpu_store_threshold) {
            return 0;
        }
        let frames = self.next(false);
        let bytes = frames.saturating_mul(self.reader.options().stride());
        if bytes <= state.cpu_store_threshold {
            frames
        } else {
            0
        }
    }

    /// Whether the source has ended, so that this copy must be polled.
    pub(super) fn is_over(&self) -> bool {
        self.reader.is_finished()
    }

    /// Starts one copy of the ready frames, or stores them with the CPU. Returns `None` if no frame is ready or the
    /// target has no free slot. If enough copies are in flight and one of them belongs to this ring copy, only a whole
    /// chunk starts.
    pub(super) fn begin(
        &mut self,
        backend: &mut dyn CopyBackend,
        state: EngineState,
    ) -> Result<Option<Begun>, StagingError> {
        let may_store = self.may_store(state.cpu_store_threshold);
        let wanted = self.wanted(state);
        if wanted == 0 {
            return Ok(None);
        }
        let room = self.producer.reserve(wanted).remaining();
        let Some(lease) = self.reader.poll(room) else {
            return Ok(None);
        };
        let frames = lease.len();
        if let Some(target) = self.target.as_ref().filter(|_| may_store)
            && (!state.has_room || lease.lengths().sum::<usize>() <= state.cpu_store_threshold)
        {
            let stored = target::store(target, lease, &mut self.producer, &self.ledger, true);
            self.failed = stored.is_err();
            return Ok(stored.map(|()| Some(Begun::Stored))?);
        }
        let mut slots = self.producer.reserve(frames);
        let Some(from) = lease.slice() else {
            unreachable!("the reader of a RingCopy leases slots of the ring, not copies of them");
        };
        self.ledger.started.add(frames as u64);
        let copied = copy(&lease, from, slots.slice(), backend).and_then(|bytes| {
            slots.finish_as(&lease, frames);
            backend.record_event().map(|done| (bytes, done))
        });
        match copied {
            Ok((bytes, done)) => {
                slots.submit();
                lease.retire(done);
                self.in_flight.push_back(InFlightCopy {
                    frames: frames as u64,
                    bytes,
                });
                self.ledger.in_flight.set(self.in_flight.len() as u64);
                self.busy.get_or_insert_with(Instant::now);
                Ok(Some(Begun::Copy(bytes)))
            }
            Err(error) => {
                self.failed = true;
                // A part of the copy may already be in flight, so the lease must end after this part.
                if let Ok(done) = backend.record_event() {
                    lease.retire(done);
                    self.in_flight.push_back(InFlightCopy {
                        frames: frames as u64,
                        bytes: 0,
                    });
                } else {
                    backend.settle();
                    self.ledger.failed.add(frames as u64);
                }
                Err(error.into())
            }
        }
    }

    /// Publishes the copies that are done and returns their number. Never waits.
    ///
    /// # Errors
    /// If the device has failed. The frames in flight are counted as failed.
    pub(super) fn reap(&mut self) -> Result<usize, CudaError> {
        let Self {
            reader,
            producer,
            ledger,
            in_flight,
            busy,
            failed,
            ..
        } = self;
        let (mut failure, mut ended) = (None, 0);
        reader.reap_each(|completion| {
            let Some(done) = in_flight.pop_front() else {
                return;
            };
            ended += 1;
            failure = failure.take().or_else(|| completion.failure());
            *failed |= failure.is_some();
            if *failed {
                ledger.failed.add(done.frames);
                return;
            }
            producer.publish(done.frames);
            ledger.frames.add(done.frames);
            ledger.count_copy(done.bytes);
        });
        if ended > 0 {
            ledger.in_flight.set(in_flight.len() as u64);
            let now = Instant::now();
            if let Some(since) = *busy {
                ledger.busy_ns.add(nanoseconds(now - since));
                *busy = (!in_flight.is_empty()).then_some(now);
            }
        }
        if self.producer.has_leaked_slots() && self.in_flight.is_empty() {
            // No slot of the target will become free, so pending frames are discarded and counted.
            self.discard();
        }
        failure.map_or(Ok(ended), Err)
    }

    /// Discards pending frames after a failure and counts them.
    pub(super) fn discard(&mut self) {
        self.reader.discard_pending();
    }

    /// Leaks the memory of both rings, because the copies in flight will not end.
    pub(super) fn leak(mut self) {
        if !self.reader.detach_within(Duration::ZERO) {
            self.producer.leak_memory();
        }
    }
}

impl Drop for RingCopy {
    fn drop(&mut self) {
        if !self.reader.detach() {
            self.producer.leak_memory();
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Starts copies of the frames of `lease` into the first slots of `to`; returns the number of bytes.
///
/// Frames that are contiguous in both rings are copied together. If the frames fill most of their slots, one contiguous
/// copy is used. If a large part of the slots is empty, only the filled rows are copied.
fn copy(
    lease: &Lease<'_>,
    from: Slice,
    to: Slice,
    backend: &mut dyn CopyBackend,
) -> Result<u64, CudaError> {
    let (mut done, mut total) = (0, 0);
    while done < lease.len() {
        let (source, target) = (from.after(done), to.after(done));
        let count = source.contiguous().min(target.contiguous());
        let longest = (done..done + count)
            .map(|i| lease.length(i))
            .max()
            .unwrap_or(0);
        let last = lease.length(done + count - 1);
        let stretch = (count - 1) * from.stride + last;
        let rows = Rows {
            count,
            bytes: longest,
            pitch: from.stride,
        };
        // SAFETY:
        // - The source's frames stay leased and the target's slots stay reserved until the copy has ended, because
        //   `begin` records an event after this call and retires the lease and publishes the slots only when the event
        //   is done.
        // - Both rings live as long as this ring copy, which waits for its copies or leaks the memory of both rings.
        // - All ranges are inside the slots, because a frame is not longer than its slot.
        unsafe {
            if longest == 0 {
                // The frames have no payload, so there is nothing to copy.
            } else if count > 1 && longest * count < stretch / 4 * 3 && from.stride <= MAX_PITCH {
                backend.copy_rows(target.address(0), source.address(0), rows)?;
                total += (longest * count) as u64;
            } else {
                backend.copy(target.address(0), source.address(0), stretch)?;
                total += stretch as u64;
            }
        }
        done += count;
    }
    Ok(total)
}
