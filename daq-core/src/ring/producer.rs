//! The writing side of a ring.

use super::{Lease, Shared, Slice};
use crate::frame::{Clock, FrameMeta};
use crate::leak::leak;
use crate::notify::Wait;
use crate::region::Region;
use crate::ring::RingOptions;
use crate::sync::{Arc, Ordering, fence};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of bytes that are compared in one step.
const COMPARED_BYTES: usize = 256;

/// The only producer of a ring. Dropping it closes the ring: readers read the published frames and then finish.
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    /// Number of frames published to readers.
    published: u64,
    /// Frames before this one have slots that this producer may write.
    reserved: u64,
    /// The reader that limited the last claim for which not all requested slots were free.
    blocker: Option<usize>,
    high_water: u64,
    /// Number of frames refused because the ring was full.
    ring_full: u64,
    /// Number of refused frames that are not yet attributed to a reader.
    unblamed: u64,
    /// Number of open slots that are finished and not yet published.
    submitted: u64,
}

impl Producer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            published: 0,
            reserved: 0,
            blocker: None,
            high_water: 0,
            ring_full: 0,
            unblamed: 0,
            submitted: 0,
        }
    }

    /// Returns the options that the ring was created with.
    pub fn options(&self) -> &RingOptions {
        &self.shared.options
    }

    /// Returns the region that contains the ring's slots.
    pub fn region(&self) -> &std::sync::Arc<Region> {
        &self.shared.region
    }

    /// Returns the number of frames published so far.
    pub const fn published(&self) -> u64 {
        self.published
    }

    /// Returns the number of slots that are reserved and not yet published.
    pub const fn open(&self) -> u64 {
        self.reserved - self.published
    }

    /// Reserves up to `n` further slots and returns how many were reserved. Never waits.
    pub fn claim(&mut self, n: u64) -> u64 {
        let slots = self.shared.options.slots as u64;
        let (bound, blocker) = self.shared.bound();
        let limit = bound.min(self.published).saturating_add(slots);
        let wanted = self.reserved + n;
        let mut reserved = wanted.min(limit).max(self.reserved);
        if reserved > self.reserved {
            // Stored before the slots are touched, so that a reader without a guarantee can detect that the producer
            // may have overwritten what it read.
            self.shared
                .state
                .reserved
                .store(reserved, Ordering::Release);
            // Pairs with the fence in `Reader::protect` and `Ring::attach`: either this thread sees the reader's new
            // bound below, or the reader sees this claim and leaves the slots alone.
            fence(Ordering::SeqCst);
            let late = self.shared.bound().0.saturating_add(slots);
            if late < reserved {
                reserved = late.max(self.reserved);
                self.shared
                    .state
                    .reserved
                    .store(reserved, Ordering::Release);
            }
        }
        let got = reserved - self.reserved;
        self.reserved = reserved;
        if reserved < wanted {
            self.blocker = blocker;
        }
        got
    }

    /// Waits until a slot is free or about `limit` has passed; returns whether a slot is free.
    pub fn wait(&self, policy: Wait, limit: Duration) -> bool {
        self.shared
            .freed
            .wait(policy, limit, || self.is_claimable())
    }

    /// Whether a reader has detached while its device hangs. The reader's slots stay occupied permanently. If the
    /// reader was guaranteed, the whole ring is blocked.
    pub fn has_leaked_slots(&self) -> bool {
        self.shared.leaked.load(Ordering::Acquire) != 0
    }

    /// Whether at least one slot is free and not reserved yet.
    fn is_claimable(&self) -> bool {
        let slots = self.shared.options.slots as u64;
        let (bound, _) = self.shared.bound();
        bound.min(self.published).saturating_add(slots) > self.reserved
    }

    /// Returns the number of slots that [`reserve`](Self::reserve) could return now.
    pub(crate) fn room(&self) -> u64 {
        let slots = self.shared.options.slots as u64;
        let (bound, _) = self.shared.bound();
        let limit = bound.min(self.published).saturating_add(slots);
        limit.saturating_sub(self.published + self.submitted)
    }

    /// Closes the ring: readers read the published frames and then finish. No more frames may be published.
    pub fn close(&self) {
        self.shared.state.closed.store(1, Ordering::Release);
        self.shared.notify_filled();
    }

    /// Returns the number of slots that are finished but not published, because work on a device still fills them.
    pub const fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Withdraws the last `n` submitted slots, whose work has failed. They stay open.
    pub(crate) fn withdraw(&mut self, n: u64) {
        self.submitted = self.submitted.saturating_sub(n);
    }

    /// Marks the next `n` open slots as submitted: work on a device fills them, and they are described.
    pub(crate) fn submit(&mut self, n: u64) {
        debug_assert!(self.submitted + n <= self.open());
        self.submitted += n;
    }

    /// Reserves up to `n` slots for writing, limited by the number of slots that are free now.
    pub fn reserve(&mut self, n: usize) -> SlotsMut<'_> {
        let free = self.open() - self.submitted;
        if free < n as u64 {
            self.claim(n as u64 - free);
        }
        let len = usize::try_from(self.open() - self.submitted)
            .unwrap_or(usize::MAX)
            .min(n);
        let first = self.submitted;
        SlotsMut {
            producer: self,
            first,
            len,
            filled: 0,
        }
    }

    /// Counts `frames` that found no free slot and attributes them to the reader that blocked the ring.
    pub fn refuse(&mut self, frames: u64) {
        self.ring_full += frames;
        self.shared.ledger.ring_full.set(self.ring_full);
        self.unblamed += frames;
        // The lock is contended only while a reader attaches or detaches. The next call then also counts these frames.
        if let Some(index) = self.blocker
            && let Ok(readers) = self.shared.readers.try_lock()
            && let Some(Some(ledger)) = readers.get(index)
        {
            ledger.blocked.add(std::mem::take(&mut self.unblamed));
        }
    }

    /// Returns the address of the `i`-th open slot, for a device or a socket. Slot 0 is the next to be published.
    ///
    /// The memory may be written until the slot is published.
    ///
    /// # Panics
    /// If fewer than `i + 1` slots are open.
    pub fn open_slot(&self, i: u64) -> *mut u8 {
        assert!(
            i < self.open(),
            "slot {i} is outside the {} open slots",
            self.open()
        );
        self.shared.address_of(self.published + i)
    }

    /// Copies the current content of the `i`-th open slot, starting at `offset`, into `to`. A device may still be
    /// writing the slot. Returns false if the ring is not in host memory or the range is not inside the slot.
    ///
    /// # Panics
    /// If fewer than `i + 1` slots are open.
    pub fn peek(&self, i: u64, offset: usize, to: &mut [u8]) -> bool {
        let is_inside = offset
            .checked_add(to.len())
            .is_some_and(|end| end <= self.shared.options.slot_bytes);
        if !self.shared.is_host() || !is_inside {
            return false;
        }
        let from = self.open_slot(i).wrapping_add(offset);
        // SAFETY: the range is inside an open slot in host memory, and the region lives as long as the ring. No reference
        // to the memory is created. The reads are volatile because a device may write the memory.
        unsafe { crate::sys::copy::volatile(from, to) };
        true
    }

    /// Returns whether a slot of this ring, at `memory`, contains `bytes` at `offset`. The slot is open, or `published` slots were
    /// published since it was open. Returns `None` if the ring is not in host memory, or if the slot may have been reserved again.
    pub(crate) fn equals(
        &self,
        memory: *const u8,
        published: u64,
        offset: usize,
        bytes: &[u8],
    ) -> Option<bool> {
        let options = &self.shared.options;
        let is_intact = published == 0 || published + self.open() <= options.slots as u64;
        let is_inside = offset
            .checked_add(bytes.len())
            .is_some_and(|end| end <= options.slot_bytes);
        if !self.shared.is_host() || memory.is_null() || !is_intact || !is_inside {
            return None;
        }
        let mut own = [0; COMPARED_BYTES];
        let chunks = bytes.chunks(COMPARED_BYTES).zip(0..);
        Some(chunks.into_iter().all(|(chunk, i)| {
            let own = &mut own[..chunk.len()];
            let from = memory.wrapping_add(offset + i * COMPARED_BYTES);
            // SAFETY: the range is inside a slot in host memory, and the region lives as long as the ring. No reference to the
            // memory is created.
            unsafe { crate::sys::copy::volatile(from, own) };
            own == chunk
        }))
    }

    /// Fills the whole `i`-th open slot with the ring's fill pattern; returns false if the CPU cannot write the slot.
    ///
    /// # Panics
    /// If fewer than `i + 1` slots are open.
    pub fn blank(&self, i: u64) -> bool {
        self.fill(i, 0..self.shared.options.slot_bytes)
    }

    /// Fills `extent` of the `i`-th open slot with the ring's fill pattern, aligned to the start of the slot. Returns
    /// false if the CPU cannot write the slot or the extent is not inside it.
    ///
    /// # Panics
    /// If fewer than `i + 1` slots are open.
    pub fn fill(&self, i: u64, extent: Range<usize>) -> bool {
        let offset = self.open_slot(i).addr() - self.shared.region.address().as_ptr().addr();
        let Some(base) = self.shared.region.cpu_address() else {
            return false;
        };
        if extent.start > extent.end || extent.end > self.shared.options.slot_bytes {
            return false;
        }
        let pattern = self.shared.options.fill.pattern();
        let line: [u8; 64] = std::array::from_fn(|i| pattern[(extent.start + i) % pattern.len()]);
        let mut done = extent.start;
        while done < extent.end {
            let bytes = (extent.end - done).min(line.len());
            // SAFETY: the range is inside an open slot, which only this producer accesses. The CPU can write the region
            // at `base`, and the region lives as long as the ring.
            unsafe {
                crate::sys::store::copy_to(base.as_ptr().add(offset + done), line.as_ptr(), bytes);
            }
            done += bytes;
        }
        crate::sys::store::fence();
        true
    }

    /// [Leaks](crate::leak) the ring's memory, because a device that cannot be stopped may still write it.
    pub fn leak(&self) {
        leak(self.shared.clone());
    }

    /// Returns the addresses of all slots in order, for a DMA engine that cycles through them.
    pub fn addresses(&self) -> Vec<*mut u8> {
        (0..self.shared.options.slots as u64)
            .map(|slot| self.shared.address_of(slot))
            .collect()
    }

    /// Writes the metadata of the `i`-th open slot; `present` is the bitmap of the packets that arrived.
    pub fn describe(&mut self, i: u64, meta: &FrameMeta, present: impl Iterator<Item = u64>) {
        debug_assert!(i < self.open());
        debug_assert!(meta.length <= self.shared.options.slot_bytes);
        let slot = self.shared.slot_of(self.published + i);
        self.shared.state.slots.write(slot, meta, present);
        #[cfg(loom)]
        // SAFETY: only the producer writes the canary of an open slot; loom checks that this is true.
        self.shared.canary[slot].with_mut(|canary| unsafe { *canary = meta.sequence });
    }

    /// Publishes the next `n` open slots to the readers, with one release store and one notification.
    ///
    /// # Panics
    /// If fewer than `n` slots are open.
    pub fn publish(&mut self, n: u64) {
        assert!(
            n <= self.open(),
            "cannot publish {n} slots, because only {} are open",
            self.open()
        );
        if n == 0 {
            return;
        }
        self.published += n;
        self.submitted = self.submitted.saturating_sub(n);
        if self.shared.ledger.times.is_due(self.published) {
            self.record_time(n);
        }
        // Update the ledger first, so that a reader never counts a frame that the ring has not counted yet.
        self.shared.ledger.published.set(self.published);
        self.shared
            .state
            .published
            .store(self.published, Ordering::Release);
        let occupancy = self.shared.occupancy(self.published);
        if occupancy > self.high_water {
            self.high_water = occupancy;
            self.shared.ledger.high_water.set(occupancy);
        }
        self.shared.notify_filled();
    }
}

impl Producer {
    /// Records when the next `n` frames, which are counted as published, are published.
    #[cold]
    fn record_time(&self, n: u64) {
        let (shared, first) = (&self.shared, self.published - n);
        let (ledger, slots) = (&shared.ledger, shared.options.slots as u64);
        ledger.times.record(first, self.published, slots);
        let arrival = shared.state.slots.read(shared.slot_of(first)).timestamp;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        if matches!(arrival.clock, Clock::Host | Clock::Kernel)
            && let Some(latency) = now
                .ok()
                .and_then(|now| now.checked_sub(Duration::from_nanos(arrival.ns)))
        {
            let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            ledger.latency.add(ns);
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.close();
    }
}

/// Reserved slots that are filled one after the other. Slots that are not published stay reserved for the next call.
///
/// While this value exists nothing else can publish its slots, and borrowed slot bytes cannot outlive it:
///
/// ```compile_fail,E0499
/// fn behind_the_back(producer: &mut daq_core::ring::Producer) {
///     let slots = producer.reserve(1);
///     producer.publish(1);
///     slots.publish();
/// }
/// ```
/// ```compile_fail,E0505
/// fn late(producer: &mut daq_core::ring::Producer) {
///     let mut slots = producer.reserve(1);
///     let bytes = slots.bytes_mut().unwrap();
///     slots.publish();
///     bytes[0] = 1;
/// }
/// ```
#[derive(Debug)]
pub struct SlotsMut<'a> {
    producer: &'a mut Producer,
    /// The index of the first slot among the producer's open slots.
    first: u64,
    len: usize,
    filled: usize,
}

impl SlotsMut<'_> {
    /// Returns the number of slots not yet finished.
    pub const fn remaining(&self) -> usize {
        self.len - self.filled
    }

    /// Returns the maximum number of packets per frame of the ring.
    pub fn packets_per_frame(&self) -> u32 {
        self.producer.options().packets_per_frame
    }

    /// Returns the number of slots finished.
    pub const fn filled(&self) -> usize {
        self.filled
    }

    /// Returns the bytes of the current slot; `None` if all slots are finished or the ring is not in host memory.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.filled == self.len || !self.producer.shared.is_host() {
            return None;
        }
        let address = self.producer.open_slot(self.first + self.filled as u64);
        // SAFETY: the slot is reserved and not published. Only a reader that may be overrun can read it. Such a reader
        // copies with volatile reads and discards frames that changed. `self` mutably borrows the only producer, so no
        // other reference to the slot exists. No device has the address of a ring that is filled in this way.
        Some(unsafe {
            std::slice::from_raw_parts_mut(address, self.producer.shared.options.slot_bytes)
        })
    }

    /// Returns the slots not yet finished, for access by a device.
    pub fn slice(&self) -> Slice {
        let first = self.producer.published + self.first + self.filled as u64;
        self.producer.shared.run(first, self.remaining())
    }

    /// Copies the metadata of the first `frames` frames of `burst` to the next slots and advances past them.
    ///
    /// # Panics
    /// If fewer than `frames` slots or frames are left.
    pub(crate) fn finish_as(&mut self, burst: &Lease<'_>, frames: usize) {
        assert!(
            frames <= self.remaining() && frames <= burst.len(),
            "more frames were finished than slots were reserved"
        );
        let shared = &self.producer.shared;
        let first = self.producer.published + self.first + self.filled as u64;
        burst.copy_records(frames, &shared.state.slots, shared.around(first));
        self.filled += frames;
    }

    /// Writes the metadata of the current slot and advances to the next.
    ///
    /// # Panics
    /// If all slots are finished already.
    pub fn finish(&mut self, meta: FrameMeta) {
        self.finish_with(meta, &[]);
    }

    /// Writes the metadata of the current slot and the bitmap of the packets that arrived, and advances to the next
    /// slot.
    ///
    /// # Panics
    /// If all slots are finished already.
    pub fn finish_with(&mut self, meta: FrameMeta, present: &[u64]) {
        assert!(
            self.filled < self.len,
            "more frames were finished than slots were reserved"
        );
        self.producer.describe(
            self.first + self.filled as u64,
            &meta,
            present.iter().copied(),
        );
        self.filled += 1;
    }

    /// Publishes the finished slots and those submitted before; returns the number of finished slots.
    pub fn publish(self) -> usize {
        self.producer.publish(self.first + self.filled as u64);
        self.filled
    }

    /// Marks the finished slots as submitted and returns their number. Publish them with [`Producer::publish`] after
    /// the work that fills them is done.
    pub fn submit(self) -> usize {
        self.producer.submitted += self.filled as u64;
        self.filled
    }
}
