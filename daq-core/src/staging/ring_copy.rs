//! One copy between two rings.

use super::StagingError;
use super::busy::Busy;
use super::methods::{CopyMethod, CpuStores};
use super::selection::{Run, Selection};
use crate::ledger::CopyLedger;
use crate::region::Placement;
use crate::ring::{Completion, Lease, Producer, Reader, WorkInFlight};

/// Copies the frames of one ring to another ring with slots of the same size.
///
/// A ring copy belongs to a [`CopyEngineThread`](super::CopyEngineThread), or is [inline](Self::inline): the thread that
/// needs the frames calls [`step`](Self::step).
///
/// Dropping waits for the copies in flight and closes the target. If the copies do not end, the memory of both rings is
/// leaked.
#[derive(Debug)]
pub struct RingCopy {
    reader: Reader,
    target: Target,
    /// Stores by the CPU, if it can write the target.
    stores: Option<Box<dyn CopyMethod>>,
    /// Maximum number of frames per copy.
    burst: usize,
    /// The frames, or the part of each frame, that are copied.
    selection: Selection,
    /// What happens to frames if the target is full.
    overflow: Overflow,
}

/// What a ring copy does with frames for which the target has no free slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The frames wait, and block the source ring when it is full.
    #[default]
    Wait,
    /// The oldest frames are discarded while they fill half of the source ring.
    Discard,
}

/// The target ring's producer, and the copies in flight to its slots.
#[derive(Debug)]
struct Target {
    producer: Producer,
    ledger: CopyLedger,
    in_flight: WorkInFlight<InFlightCopy>,
    busy: Busy,
}

/// A copy in flight.
#[derive(Debug)]
struct InFlightCopy {
    frames: u64,
    bytes: u64,
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

/// Returns CPU stores from the ring of `reader` to the ring of `producer`; `None` if the CPU cannot write the target or
/// cannot read the source.
fn cpu_stores(reader: &Reader, producer: &Producer) -> Option<CpuStores> {
    let is_readable = reader.region().placement() == Placement::Host;
    let mapping = producer.region().mapping().filter(|_| is_readable)?;
    Some(CpuStores::new(mapping.clone()))
}

/// Returns the number of frames of a copy with at most `chunk` bytes, at least 1.
fn burst_frames(reader: &Reader, producer: &Producer, chunk: usize) -> usize {
    let (from, to) = (reader.options(), producer.options());
    // Copy at most a quarter of a small ring, so that frames can accumulate while a copy is in flight.
    let max = (from.slots.min(to.slots) / 4).max(1);
    (chunk / from.stride().min(to.stride())).clamp(1, max)
}

impl RingCopy {
    /// Creates a copy from the ring of `reader` to the ring of `producer` for a copy engine thread. Each copy has at
    /// most `chunk` bytes, but at least one frame.
    ///
    /// `reader` must be guaranteed, or the producer of its ring must support backpressure.
    ///
    /// # Panics
    /// If the rings' slots differ in size.
    pub fn new(reader: Reader, producer: Producer, ledger: CopyLedger, chunk: usize) -> Self {
        let stores = cpu_stores(&reader, &producer).map(|stores| Box::new(stores) as _);
        Self::chunked(reader, producer, ledger, chunk, stores)
    }

    /// Creates a copy of the frames, or of the part of each frame, that `selection` contains, for a copy engine thread. Each
    /// copy has at most `chunk` bytes, but at least one frame.
    ///
    /// `reader` must be guaranteed, or the producer of its ring must support backpressure.
    ///
    /// # Panics
    /// If the rings' slots are too small for the selection.
    pub fn selecting(
        (reader, producer): (Reader, Producer),
        ledger: CopyLedger,
        chunk: usize,
        selection: Selection,
        overflow: Overflow,
    ) -> Self {
        let mut ring_copy = if selection == Selection::All {
            Self::new(reader, producer, ledger, chunk)
        } else {
            let burst = burst_frames(&reader, &producer, chunk);
            Self::create((reader, producer), ledger, burst, selection)
        };
        ring_copy.overflow = overflow;
        ring_copy
    }

    pub(super) fn chunked(
        reader: Reader,
        producer: Producer,
        ledger: CopyLedger,
        chunk: usize,
        stores: Option<Box<dyn CopyMethod>>,
    ) -> Self {
        let burst = burst_frames(&reader, &producer, chunk);
        Self::with(reader, producer, ledger, burst, stores)
    }

    /// Creates a copy by CPU stores from the ring of `reader` to the ring of `producer`, with at most `burst` frames per
    /// [step](Self::step). Returns `None` if the CPU cannot write the target or cannot read the source.
    ///
    /// Stores of a published frame may not have arrived in GPU memory yet. Therefore the thread that calls `step` must
    /// be the target's only reader, and it must execute a fence before it notifies the GPU of a frame. After that, it must
    /// call [`notify_freed`](Self::notify_freed), so that the source can use the slots of the copied frames.
    ///
    /// `reader` must be guaranteed, or the producer of its ring must support backpressure.
    ///
    /// # Panics
    /// If the rings' slots differ in size.
    pub fn inline(
        reader: Reader,
        producer: Producer,
        ledger: CopyLedger,
        burst: usize,
    ) -> Option<Self> {
        let stores = Box::new(cpu_stores(&reader, &producer)?.unfenced());
        let reader = reader.deferring_notifications();
        let burst = burst.max(1);
        Some(Self::with(reader, producer, ledger, burst, Some(stores)))
    }

    pub(super) fn with(
        reader: Reader,
        producer: Producer,
        ledger: CopyLedger,
        burst: usize,
        stores: Option<Box<dyn CopyMethod>>,
    ) -> Self {
        let mut ring_copy = Self::create((reader, producer), ledger, burst, Selection::All);
        ring_copy.stores = stores;
        ring_copy
    }

    fn create(
        (reader, producer): (Reader, Producer),
        ledger: CopyLedger,
        burst: usize,
        selection: Selection,
    ) -> Self {
        let (from, to) = (reader.options(), producer.options());
        match &selection {
            Selection::All | Selection::Turns { .. } => assert_eq!(
                from.stride(),
                to.stride(),
                "both rings must have slots of the same size"
            ),
            Selection::Tile { matrix, tile } => assert!(
                matrix.whole().bytes() <= from.slot_bytes
                    && tile.bytes() <= to.slot_bytes
                    && matrix.whole().intersection(tile).as_ref() == Some(tile),
                "the slots must contain the frame and its part"
            ),
        }
        let slots = from.slots;
        Self {
            reader,
            target: Target {
                producer,
                ledger,
                in_flight: WorkInFlight::new(slots),
                busy: Busy::default(),
            },
            stores: None,
            burst,
            selection,
            overflow: Overflow::Wait,
        }
    }

    /// Whether the CPU can store to the target.
    pub(super) const fn has_stores(&self) -> bool {
        self.stores.is_some()
    }

    /// Logs a warning if the CPU stores to a GPU on another NUMA node than the calling thread's core. Call it on the
    /// thread that copies; `remedy` names the setting for its core. Returns whether the CPU can store to a GPU.
    pub fn warn_if_remote_numa(&self, remedy: &str) -> bool {
        let device = self.stores.as_ref().and_then(|stores| stores.stored_gpu());
        if let Some(device) = device {
            super::warn_if_remote_numa(device, remedy);
        }
        device.is_some()
    }

    /// Returns the source ring's name.
    pub fn from(&self) -> &str {
        &self.reader.options().name
    }

    /// Returns the target ring's name.
    pub fn to(&self) -> &str {
        &self.target.producer.options().name
    }

    /// Whether the source is closed and all its frames have been published.
    pub fn is_finished(&self) -> bool {
        self.reader.is_finished() && self.target.in_flight.is_empty()
    }

    /// Whether a copy is in flight.
    pub fn has_in_flight(&self) -> bool {
        !self.target.in_flight.is_empty()
    }

    /// Whether the oldest copy in flight is done; false if no copy is in flight.
    pub(super) fn is_oldest_done(&self) -> bool {
        self.reader.is_oldest_done()
    }

    /// Returns the number of frames of the copy that could start now. If `enough` copies are in flight and at least one
    /// of them belongs to this ring copy, only a whole chunk starts.
    fn next(&self, enough: bool) -> usize {
        let producer = &self.target.producer;
        // Fill at most half of the target at a time, so that an unguaranteed reader finds frames to lease.
        let half = (producer.options().slots as u64 / 2).max(1);
        let room = producer
            .room()
            .min(half.saturating_sub(producer.submitted()));
        let pending = self
            .selection
            .count(self.reader.position(), self.reader.pending());
        let frames = pending.min(room);
        let frames = usize::try_from(frames)
            .unwrap_or(usize::MAX)
            .min(self.burst);
        let min = if enough && self.has_in_flight() {
            self.burst
        } else {
            1
        };
        if frames < min { 0 } else { frames }
    }

    /// Whether [`begin`](Self::begin) would start a copy or store frames.
    pub(super) fn can_begin(&self, state: EngineState) -> bool {
        self.wanted(state) > 0 || self.passes_over() || self.is_flooded()
    }

    /// Whether frames are ready of which none is selected.
    fn passes_over(&self) -> bool {
        let pending = self.reader.pending();
        self.selection.skips_frames()
            && pending > 0
            && self.target.in_flight.is_empty()
            && self.selection.count(self.reader.position(), pending) == 0
    }

    /// Whether frames must be discarded because the target has no free slot.
    fn is_flooded(&self) -> bool {
        let half = (self.reader.options().slots as u64 / 2).max(1);
        self.overflow == Overflow::Discard
            && self.target.producer.room() == 0
            && self.reader.held() + self.reader.pending() >= half
            && self.reader.pending() > 0
    }

    /// Whether frames of any size may be stored now. This requires that no copy is in flight, because stored frames
    /// must not overtake a copy.
    pub(super) fn may_store(&self, cpu_store_threshold: usize) -> bool {
        self.stores.is_some()
            && cpu_store_threshold > 0
            && !self.has_in_flight()
            && !self.target.in_flight.has_failed()
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

    /// Starts one copy of the ready frames with the copy engine, or stores them with the CPU. Returns `None` if no
    /// frame is ready or the target has no free slot. If enough copies are in flight and one of them belongs to this
    /// ring copy, only a whole chunk starts.
    pub(super) fn begin(
        &mut self,
        engine: &dyn CopyMethod,
        state: EngineState,
    ) -> Result<Option<Begun>, StagingError> {
        if self.passes_over() {
            // None of these frames is selected, so they count as read.
            drop(self.reader.poll(usize::MAX));
        }
        if self.is_flooded() {
            self.discard_oldest();
        }
        let may_store = self.may_store(state.cpu_store_threshold);
        let wanted = self.wanted(state);
        if wanted == 0 {
            return Ok(None);
        }
        let room = self.target.producer.reserve(wanted).remaining();
        if room == 0 {
            return Ok(None);
        }
        let run = self.selection.run(self.reader.position(), room);
        let Some(lease) = self.reader.poll(run.leased) else {
            return Ok(None);
        };
        let is_small = !state.has_room
            || may_store && lease.lengths(0).sum::<usize>() <= state.cpu_store_threshold;
        let stores = self.stores.as_deref().filter(|_| may_store && is_small);
        self.target
            .copy(lease, run, &self.selection, stores.unwrap_or(engine))
            .map(Some)
    }

    /// Discards the oldest quarter of a ring of frames.
    fn discard_oldest(&mut self) {
        let quarter = (self.reader.options().slots as u64 / 4).max(1);
        let frames = self.reader.pending().min(quarter);
        self.discard_frames(frames);
    }

    /// Passes `frames` frames. The selected ones count as discarded, the others as read.
    fn discard_frames(&mut self, frames: u64) {
        let end = self.reader.position() + frames;
        while self.reader.position() < end {
            let left = usize::try_from(end - self.reader.position()).unwrap_or(usize::MAX);
            let run = self.selection.run(self.reader.position(), 1);
            let max = if self.selection.skips_frames() {
                left.min(run.leased)
            } else {
                left
            };
            let Some(lease) = self.reader.poll(max) else {
                return;
            };
            self.target.in_flight.push_discarded(
                lease,
                run.lead,
                InFlightCopy {
                    frames: 0,
                    bytes: 0,
                },
            );
        }
    }

    /// Stores and publishes the frames that are ready, as far as the target has free slots. Returns their number. Never
    /// waits. Only for an [inline](Self::inline) copy.
    ///
    /// # Errors
    /// If the memory can no longer be used. The frames are counted as failed, and no more frames are copied.
    #[inline]
    pub fn step(&mut self) -> Result<usize, StagingError> {
        let Some(stores) = self
            .stores
            .as_deref()
            .filter(|_| !self.target.in_flight.has_failed())
        else {
            return Ok(0);
        };
        let burst = self.burst as u64;
        let pending = self.reader.pending().min(burst);
        if pending == 0 {
            return Ok(0);
        }
        let producer = &mut self.target.producer;
        let open = producer.open();
        if open < pending {
            // Claiming several slots together avoids the fence of a claim for each frame.
            let ahead = burst.min(producer.options().slots as u64 / 4);
            producer.claim(ahead.max(pending - open));
        }
        let room = producer.open().min(pending);
        let Some(lease) = self
            .reader
            .poll(usize::try_from(room).unwrap_or(usize::MAX))
        else {
            return Ok(0);
        };
        let frames = lease.len();
        let run = Selection::All.run(0, frames);
        self.target.copy(lease, run, &Selection::All, stores)?;
        Ok(frames)
    }

    /// Notifies the source of the slots that [`step`](Self::step) has freed since the last call.
    #[inline]
    pub fn notify_freed(&mut self) {
        self.reader.notify_freed();
    }

    /// Whether a [step](Self::step) would copy at least one frame.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.target.in_flight.has_failed()
            && self.reader.pending() > 0
            && self.target.producer.room() > 0
    }

    /// Publishes the copies that are done and returns their number. Never waits.
    ///
    /// # Errors
    /// If the device has failed. The frames in flight are counted as failed.
    pub(super) fn reap(&mut self) -> Result<usize, StagingError> {
        let target = &mut self.target;
        let (producer, ledger) = (&mut target.producer, &target.ledger);
        let mut copies = 0;
        let (ended, failure) = target.in_flight.reap(&mut self.reader, |done, failed| {
            if done.frames == 0 {
                return;
            }
            copies += 1;
            if failed {
                ledger.failed.add(done.frames);
                return;
            }
            producer.publish(done.frames);
            ledger.frames.add(done.frames);
            ledger.count_copy(done.bytes);
        });
        if ended > 0 {
            target.busy.ended(&target.ledger, target.in_flight.len());
        }
        if target.producer.has_leaked_slots() && target.in_flight.is_empty() {
            // No slot of the target will become free, so pending frames are discarded and counted.
            self.discard();
        }
        failure.map_or(Ok(copies), |error| Err(error.into()))
    }

    /// Discards pending frames and counts them as discarded; returns whether the copy is finished. Call this after a
    /// failure, or if the target has no reader any more.
    pub fn discard(&mut self) -> bool {
        let pending = self.reader.pending();
        self.discard_frames(pending);
        self.is_finished()
    }

    /// Closes the target ring, to which no more frames are copied. Its readers read the published frames and then finish.
    pub(super) fn close_target(&mut self) {
        self.target.producer.close();
    }

    /// [Leaks](crate::leak) the memory of both rings, because the copies in flight will not end.
    pub(super) fn leak(mut self) {
        if !self.reader.leak() {
            self.target.producer.leak();
        }
    }
}

impl Drop for RingCopy {
    fn drop(&mut self) {
        if !self.reader.detach() {
            self.target.producer.leak();
        }
    }
}

impl Target {
    /// Copies the frames of `lease` with `method` to the first open slots, none of which may be finished already.
    /// Publishes the frames if the copy has already ended.
    ///
    /// # Errors
    /// If the memory can no longer be used or the device has failed. The frames are counted as failed, at the latest
    /// when the lease ends.
    #[inline]
    fn copy(
        &mut self,
        lease: Lease<'_>,
        run: Run,
        selection: &Selection,
        method: &dyn CopyMethod,
    ) -> Result<Begun, StagingError> {
        let frames = run.selected as u64;
        self.ledger.started.add(frames);
        let mut slots = self.producer.reserve(run.selected);
        // SAFETY:
        // - The frames stay leased and the slots stay reserved until the event recorded below is done, because only
        //   then the lease ends and the slots are published. After a failure, the lease ends after an event that
        //   follows the started part.
        // - Both rings live as long as this ring copy, which waits for its copies or leaks the memory of both rings.
        let copied = unsafe { selection.copy(method, &lease, run, slots.slice()) };
        let copied = copied.and_then(|bytes| {
            selection.finish(&mut slots, &lease, run);
            method.record_event().map(|done| (bytes, done))
        });
        match copied {
            // Copies are published in order.
            Ok((bytes, Completion::Immediate)) if self.in_flight.is_empty() => {
                slots.publish();
                drop(lease);
                self.ledger.frames.add(frames);
                self.ledger.stored.add(frames);
                self.ledger.count_copy(bytes);
                Ok(Begun::Stored)
            }
            Ok((bytes, done)) => {
                slots.submit();
                let copy = InFlightCopy { frames, bytes };
                self.in_flight.push(lease, done, copy);
                self.busy.started(&self.ledger, self.in_flight.len());
                Ok(Begun::Copy(bytes))
            }
            Err(error) => {
                self.in_flight.fail();
                match method.record_event() {
                    Ok(Completion::Immediate) => self.ledger.failed.add(frames),
                    // A part of the copy may already be in flight, so the lease must end after this part.
                    Ok(done) => {
                        let copy = InFlightCopy { frames, bytes: 0 };
                        self.in_flight.push(lease, done, copy);
                    }
                    Err(_) => {
                        method.settle();
                        self.ledger.failed.add(frames);
                    }
                }
                Err(error)
            }
        }
    }
}
