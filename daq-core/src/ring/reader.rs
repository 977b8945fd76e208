//! The reading side of a ring: readers, leases and how leases end.

use super::scratch::Scratch;
use super::{Shared, UNBOUND};
use crate::frame::{FrameMeta, Present};
use crate::ledger::ReaderLedger;
use crate::sync::{Arc, Ordering, fence};
use crate::wait::Wait;
use ringbuf::traits::{Consumer, Observer, Producer as _, Split as _};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Work on a device that a lease waits for.
pub trait Event: Send + Sync {
    /// Whether the work is done; never blocks.
    fn is_done(&self) -> bool;
}

/// When a lease's slots are free again.
#[derive(Clone)]
pub enum Completion {
    /// At once.
    Immediate,
    /// When the event is done.
    Event(std::sync::Arc<dyn Event>),
    /// When the word that a resident kernel writes has reached the value.
    Credit {
        /// The word, in memory that the kernel can write.
        word: std::sync::Arc<AtomicU64>,
        /// The value, compared with wrap-around.
        at: u64,
    },
}

impl Completion {
    /// Whether the work is done; never blocks.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Immediate => true,
            Self::Event(event) => event.is_done(),
            Self::Credit { word, at } => word.load(Ordering::Acquire).wrapping_sub(*at) < 1 << 63,
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Immediate => f.write_str("Immediate"),
            Self::Event(_) => f.write_str("Event"),
            Self::Credit { at, .. } => write!(f, "Credit({at})"),
        }
    }
}

/// A lease that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Retired {
    /// Its frames.
    pub frames: u64,
    /// Whether they stayed as they were to the end; what was made from frames that did not must be thrown away.
    pub intact: bool,
}

/// How a reader makes sure that what it reads does not change.
#[derive(Debug)]
enum Protection {
    /// The producer waits, or refuses new frames, until frames are retired.
    Guarantee,
    /// The producer leaves leased slots alone.
    WhileLeased,
    /// Nothing holds the producer: frames are copied, then checked.
    Copy(Scratch),
}

struct InFlight {
    frames: u64,
    completion: Completion,
}

/// Leases given up but not done, oldest first: both ends of one queue that never grows.
struct Waiting {
    push: ringbuf::HeapProd<InFlight>,
    pop: ringbuf::HeapCons<InFlight>,
}

/// A reader of a ring. Dropping it lets the producer go on without it.
pub struct Reader {
    shared: Arc<Shared>,
    index: usize,
    /// The next frame to lease.
    position: u64,
    /// Frames before this one are done with.
    retired: u64,
    protection: Protection,
    waiting: Waiting,
    ledger: ReaderLedger,
}

impl Reader {
    pub(super) fn new(
        shared: Arc<Shared>,
        index: usize,
        position: u64,
        guarantee: bool,
        burst: usize,
        ledger: ReaderLedger,
    ) -> Self {
        let protection = if guarantee {
            Protection::Guarantee
        } else if shared.options.holdable {
            Protection::WhileLeased
        } else {
            Protection::Copy(Scratch::new(&shared, burst.max(1)))
        };
        let (push, pop) = ringbuf::HeapRb::new(shared.options.slots).split();
        ledger.attached.set(position);
        Self {
            shared,
            index,
            position,
            retired: position,
            protection,
            waiting: Waiting { push, pop },
            ledger,
        }
    }

    /// The next frames, at most `max`, all that are ready; `None` if there are none. Never waits.
    pub fn poll(&mut self, max: usize) -> Option<Lease<'_>> {
        if max == 0 {
            return None;
        }
        let published = self.shared.published.load(Ordering::Acquire);
        let count = match &self.protection {
            Protection::Guarantee => (published - self.position).min(max as u64),
            Protection::WhileLeased => self.protect(published, max),
            Protection::Copy(_) => self.copy(published, max),
        };
        if count == 0 {
            return None;
        }
        self.position += count;
        Some(Lease {
            count,
            reader: self,
            ended: false,
        })
    }

    /// Waits until a frame is ready, the ring is closed, or about `limit` has passed; says whether one is ready.
    pub fn wait(&self, policy: Wait, limit: Duration) -> bool {
        let ready = || {
            self.shared.published.load(Ordering::Acquire) > self.position
                || self.shared.closed.load(Ordering::Acquire) != 0
        };
        self.shared.filled.wait(policy, limit, ready);
        self.pending() > 0
    }

    /// Whether the producer is gone and every frame has been leased and retired.
    pub fn is_finished(&self) -> bool {
        // `closed` first: frames published before it was set are then visible.
        self.shared.closed.load(Ordering::Acquire) != 0
            && self.shared.published.load(Ordering::Acquire) == self.position
            && self.retired == self.position
    }

    /// Frames published and not leased yet.
    pub fn pending(&self) -> u64 {
        self.shared.published.load(Ordering::Acquire) - self.position
    }

    /// Frames leased and not yet retired.
    pub const fn held(&self) -> u64 {
        self.position - self.retired
    }

    /// Ends leases whose completion is done, oldest first, and tells each to `each`. Never blocks.
    pub fn reap(&mut self, mut each: impl FnMut(Retired)) {
        while self
            .waiting
            .pop
            .first()
            .is_some_and(|oldest| oldest.completion.is_done())
        {
            let Some(oldest) = self.waiting.pop.try_pop() else {
                break;
            };
            each(self.retire(oldest.frames));
        }
    }

    /// Skips everything published so far, counting it as discarded.
    pub fn discard_pending(&mut self) -> u64 {
        let mut discarded = 0;
        while let Some(lease) = self.poll(usize::MAX) {
            discarded += lease.len() as u64;
            lease.discard();
        }
        discarded
    }

    /// Retires the oldest `frames` held ones.
    fn retire(&mut self, frames: u64) -> Retired {
        self.release(frames);
        self.ledger.read.add(frames);
        Retired {
            frames,
            intact: true,
        }
    }

    fn release(&mut self, frames: u64) {
        self.retired += frames;
        self.publish_bound();
        self.shared.freed.ring();
    }

    /// Tells the producer what it must leave alone.
    fn publish_bound(&self) {
        let cell = &self.shared.cells[self.index];
        cell.retired.store(self.retired, Ordering::Release);
        let bound = match self.protection {
            Protection::Guarantee => self.retired,
            Protection::WhileLeased if self.retired < self.position => self.retired,
            _ => UNBOUND,
        };
        cell.bound.store(bound, Ordering::Release);
    }

    /// Skips to `position`, counting what is skipped.
    fn skip_to(&mut self, position: u64) {
        self.ledger.overrun.add(position - self.position);
        if self.retired == self.position {
            self.retired = position;
            self.shared.cells[self.index]
                .retired
                .store(position, Ordering::Release);
        }
        self.position = position;
    }

    /// Where a reader that was overrun goes on: a quarter of the ring ahead of the producer's claims.
    fn oldest_safe(&self, reserved: u64, published: u64) -> Option<u64> {
        let slots = self.shared.options.slots as u64;
        let oldest = reserved.saturating_sub(slots);
        (self.position < oldest).then(|| (oldest + slots / 4).min(published))
    }

    /// Fences off up to `max` frames from a producer that can be held back; says how many.
    fn protect(&mut self, published: u64, max: usize) -> u64 {
        loop {
            if published == self.position {
                return 0;
            }
            if self.retired == self.position {
                self.shared.cells[self.index]
                    .bound
                    .store(self.position, Ordering::Relaxed);
                // With the fence in `Producer::claim`: either its check sees this bound, or we see its claim.
                fence(Ordering::SeqCst);
            }
            let reserved = self.shared.reserved.load(Ordering::Acquire);
            match self.oldest_safe(reserved, published) {
                None => return (published - self.position).min(max as u64),
                Some(position) => {
                    // Held leases keep their bound, so the producer cannot have passed them: nothing is held.
                    self.shared.cells[self.index]
                        .bound
                        .store(UNBOUND, Ordering::Release);
                    self.shared.freed.ring();
                    self.skip_to(position);
                }
            }
        }
    }

    /// Copies up to `max` frames aside and keeps those that were not overwritten meanwhile; says how many.
    fn copy(&mut self, published: u64, max: usize) -> u64 {
        loop {
            let reserved = self.shared.reserved.load(Ordering::Acquire);
            if let Some(position) = self.oldest_safe(reserved, published) {
                self.skip_to(position);
            }
            let Protection::Copy(scratch) = &mut self.protection else {
                return 0;
            };
            let count = (published - self.position)
                .min(max as u64)
                .min(scratch.frames as u64);
            if count == 0 {
                return 0;
            }
            let mut kept = 0;
            for index in self.position..self.position + count {
                scratch.take(&self.shared, kept, index);
                // Pairs with the fence in `Producer::claim`: had the copy read a byte of the new frame, this
                // load would see the claim that came before the byte.
                fence(Ordering::Acquire);
                let reserved = self.shared.reserved.load(Ordering::Relaxed);
                if index + (self.shared.options.slots as u64) < reserved {
                    break;
                }
                kept += 1;
            }
            if kept > 0 {
                return kept as u64;
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let cell = &self.shared.cells[self.index];
        cell.bound.store(UNBOUND, Ordering::Release);
        cell.retired.store(UNBOUND, Ordering::Release);
        self.shared.freed.ring();
        let mut seats = self
            .shared
            .seats
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        seats[self.index] = None;
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("ring", &self.shared.options.name)
            .field("position", &self.position)
            .field("retired", &self.retired)
            .field("waiting", &self.waiting.pop.occupied_len())
            .finish_non_exhaustive()
    }
}

/// A burst held by a reader. Dropping it retires it at once.
///
/// A reader has one lease in hand at a time, and frames do not outlive their lease:
///
/// ```compile_fail,E0499
/// fn two(reader: &mut daq_core::ring::Reader) {
///     let first = reader.poll(1);
///     let second = reader.poll(1);
///     drop(first);
/// }
/// ```
/// ```compile_fail,E0505
/// fn late(lease: daq_core::ring::Lease<'_>) -> usize {
///     let bytes = lease.frame(0).bytes().unwrap();
///     lease.discard();
///     bytes.len()
/// }
/// ```
/// ```
/// fn in_order(lease: daq_core::ring::Lease<'_>) -> usize {
///     let length = lease.frame(0).bytes().unwrap().len();
///     lease.discard();
///     length
/// }
/// ```
#[derive(Debug)]
#[must_use = "a lease that is dropped retires its frames at once"]
pub struct Lease<'a> {
    reader: &'a mut Reader,
    count: u64,
    ended: bool,
}

impl Lease<'_> {
    /// Frames in the burst, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a lease is never empty")]
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Frame `i` of the burst.
    ///
    /// # Panics
    /// If the burst has no frame `i`.
    pub fn frame(&self, i: usize) -> Frame<'_> {
        assert!(i < self.len(), "frame {i} of a burst of {}", self.count);
        let shared = &*self.reader.shared;
        if let Protection::Copy(scratch) = &self.reader.protection {
            return scratch.frame(i, shared.options.slot_bytes);
        }
        let index = self.reader.position - self.count + i as u64;
        let slot = shared.slot_of(index);
        let meta = shared.slots.read(slot);
        #[cfg(loom)]
        // SAFETY: the frame is leased; loom checks that no write is concurrent.
        shared.canary[slot].with(|canary| assert_eq!(unsafe { *canary }, meta.sequence));
        let bitmap = shared.slots.bitmap(slot);
        // SAFETY: `AtomicU64` has the layout of `u64`. The frame is published and leased and its slot is
        // fenced off from the producer, so the words do not change while the lease lives.
        let words =
            unsafe { std::slice::from_raw_parts(bitmap.as_ptr().cast::<u64>(), bitmap.len()) };
        let bytes = shared.is_host().then(|| {
            let length = meta.length.min(shared.options.slot_bytes);
            // SAFETY: `address_of` is the start of a slot of `slot_bytes` initialised bytes in the region, which
            // `shared` keeps alive. The frame is published and leased, so nobody writes the slot until the
            // lease, which `self` borrows, has ended.
            unsafe { std::slice::from_raw_parts(shared.address_of(index).cast_const(), length) }
        });
        Frame {
            meta,
            bytes,
            words,
            address: shared.address_of(index),
        }
    }

    /// The frames of the burst in order.
    pub fn iter(&self) -> impl Iterator<Item = Frame<'_>> {
        (0..self.len()).map(|i| self.frame(i))
    }

    /// Gives the lease up; its slots are free once `completion` is done (see [`Reader::reap`]).
    pub fn retire(mut self, completion: Completion) {
        let frames = self.count;
        if matches!(completion, Completion::Immediate) && self.reader.waiting.pop.is_empty() {
            return;
        }
        self.ended = true;
        // A ring has at most `slots` frames leased, and so at most as many leases.
        let pushed = self
            .reader
            .waiting
            .push
            .try_push(InFlight { frames, completion });
        debug_assert!(
            pushed.is_ok(),
            "more leases in flight than the ring has slots"
        );
    }

    /// Retires the lease at once and counts its frames as discarded instead of read.
    pub fn discard(self) {
        self.discard_after(0);
    }

    /// Retires the lease at once: the first `read` frames as read, the others as discarded. Only for readers
    /// that have no earlier lease in flight.
    pub fn discard_after(mut self, read: usize) {
        debug_assert!(
            self.reader.waiting.pop.is_empty(),
            "earlier leases are in flight"
        );
        self.ended = true;
        let read = self.count.min(read as u64);
        self.reader.release(self.count);
        self.reader.ledger.read.add(read);
        self.reader.ledger.discarded.add(self.count - read);
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if self.reader.waiting.pop.is_empty() {
            let _ = self.reader.retire(self.count);
        } else {
            // Leases end in order: this one waits for those before it.
            let done = InFlight {
                frames: self.count,
                completion: Completion::Immediate,
            };
            let pushed = self.reader.waiting.push.try_push(done);
            debug_assert!(
                pushed.is_ok(),
                "more leases in flight than the ring has slots"
            );
        }
    }
}

/// One frame of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub(super) meta: FrameMeta,
    pub(super) bytes: Option<&'a [u8]>,
    pub(super) words: &'a [u64],
    pub(super) address: *const u8,
}

impl<'a> Frame<'a> {
    /// What is known of the frame.
    pub const fn meta(&self) -> &FrameMeta {
        &self.meta
    }

    /// The payload; `None` where the ring is not in host memory.
    pub const fn bytes(&self) -> Option<&'a [u8]> {
        self.bytes
    }

    /// Which places arrived.
    pub fn present(&self) -> Present<'a> {
        let limit = u32::try_from(self.words.len() * 64).unwrap_or(u32::MAX);
        Present::new(self.words, self.meta.places.min(limit))
    }

    /// The payload's address, for a device.
    pub const fn address(&self) -> *const u8 {
        self.address
    }
}
