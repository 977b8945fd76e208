//! The reading side of a ring.

use super::completion::{Completion, InFlight, InFlightLeases, Use};
use super::lease::Lease;
use super::scratch::Scratch;
use super::{RingOptions, Shared, UNBOUND};
use crate::frame::FrameMeta;
use crate::leak::leak;
use crate::ledger::ReaderLedger;
use crate::notify::Wait;
use crate::region::Region;
use crate::sync::{Arc, Ordering, fence};
use std::fmt;
use std::time::{Duration, Instant};

/// Maximum time that a detaching reader waits for its leases in flight before it leaks their slots.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which a thread polls work on a device, because devices send no notifications.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Method by which a reader ensures that frames do not change while it reads them.
#[derive(Debug)]
pub(super) enum Protection {
    /// The producer waits, or refuses new frames, until frames are retired.
    Guarantee,
    /// The producer does not overwrite leased slots.
    WhileLeased,
    /// The producer never waits, so the reader copies frames and checks the copies afterwards.
    Copy(Scratch),
}

/// A reader of a ring. Dropping the reader detaches it, so that the producer no longer waits for it.
pub struct Reader {
    pub(super) shared: Arc<Shared>,
    index: usize,
    /// The next frame to lease.
    pub(super) position: u64,
    /// Frames before this one are retired.
    retired: u64,
    pub(super) protection: Protection,
    in_flight: InFlightLeases,
    /// Whether the reader has detached or leaked its slots.
    detached: bool,
    /// Number of frames leased so far.
    leased: u64,
    /// Number of frames overwritten before they were leased, as far as this reader has detected.
    overrun: u64,
    /// Whether frames with missing packets are dropped.
    drops_incomplete: bool,
    /// When the producer is notified of freed slots.
    notification: Notification,
    /// Number of the next recorded publication whose latency is to be counted.
    timed: u64,
    ledger: ReaderLedger,
}

/// When a reader notifies the producer of freed slots.
#[derive(Debug)]
enum Notification {
    /// When they are freed.
    Immediate,
    /// When [`Reader::notify_freed`] is called.
    Deferred {
        /// Whether slots were freed since the last notification.
        due: bool,
    },
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
        } else if shared.options.supports_backpressure {
            Protection::WhileLeased
        } else {
            Protection::Copy(Scratch::new(&shared, burst.max(1)))
        };
        // At most `slots` frames of a ring are leased, so the number of leases is also at most `slots`.
        let in_flight = InFlightLeases::new(shared.options.slots);
        ledger.attached.set(position);
        if guarantee {
            ledger.leased.set(ReaderLedger::UNLIMITED);
        }
        Self {
            timed: shared.ledger.times.recorded(),
            shared,
            index,
            position,
            retired: position,
            protection,
            in_flight,
            detached: false,
            leased: 0,
            overrun: 0,
            drops_incomplete: false,
            notification: Notification::Immediate,
            ledger,
        }
    }

    /// With `drops`, frames with missing packets are dropped instead of leased, and count as `dropped_incomplete`.
    #[must_use]
    pub fn dropping_incomplete(mut self, drops: bool) -> Self {
        self.drops_incomplete = drops;
        self
    }

    /// Defers notifications of freed slots until [`notify_freed`](Self::notify_freed), because the fence of a notification
    /// waits for the CPU's stores to a GPU.
    #[must_use]
    pub(crate) fn deferring_notifications(mut self) -> Self {
        self.notification = Notification::Deferred { due: false };
        self
    }

    /// Notifies the producer if slots were freed without notification.
    #[inline]
    pub(crate) fn notify_freed(&mut self) {
        if let Notification::Deferred { due } = &mut self.notification
            && std::mem::take(due)
        {
            self.shared.notify_freed();
        }
    }

    /// Returns the number of the next frame to lease, counted from the creation of the ring. The number increases when
    /// frames are leased, dropped or overrun.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Leases all frames that are ready, at most `max`. Returns `None` if no frame is ready. Never waits.
    pub fn poll(&mut self, max: usize) -> Option<Lease<'_>> {
        if max == 0 {
            return None;
        }
        let count = loop {
            let published = self.shared.state.published.load(Ordering::Acquire);
            let count = match &self.protection {
                Protection::Guarantee => (published - self.position).min(max as u64),
                Protection::WhileLeased => self.protect(published, max),
                // The reader has only one private copy, which work in flight still reads.
                Protection::Copy(_) if !self.in_flight.is_empty() => 0,
                Protection::Copy(_) => self.copy(published, max),
            };
            if count == 0 {
                self.lease(0);
                return None;
            }
            if !self.drops_incomplete {
                break count;
            }
            let whole = self.run(count, false);
            if whole > 0 {
                break whole;
            }
            self.drop_incomplete(self.run(count, true));
        };
        self.lease(count);
        self.position += count;
        Some(Lease::new(self, count))
    }

    /// Counts `frames` more frames as leased, and clears the announcement of further frames.
    #[inline]
    fn lease(&mut self, frames: u64) {
        self.leased += frames;
        if !matches!(self.protection, Protection::Guarantee) {
            self.ledger.leased.set(self.leased);
        }
    }

    /// Returns the length of the leading run of frames that are incomplete (with `incomplete`) or complete, among the
    /// next `count` frames. These frames must be protected.
    fn run(&self, count: u64, incomplete: bool) -> u64 {
        let metas = (0..count).map(|i| match &self.protection {
            Protection::Copy(scratch) => scratch.meta(i),
            _ => self
                .shared
                .state
                .slots
                .read(self.shared.slot_of(self.position + i)),
        });
        metas
            .take_while(|meta| meta.is_incomplete() == incomplete)
            .count() as u64
    }

    /// Skips `frames` frames without leasing them.
    fn drop_incomplete(&mut self, frames: u64) {
        self.lease(frames);
        self.position += frames;
        if self.in_flight.is_empty() {
            self.end(frames, Use::Incomplete);
        } else {
            self.in_flight.push(InFlight {
                frames,
                used: Use::Incomplete,
                completion: Completion::Immediate,
            });
        }
    }

    /// Waits until a frame can be leased, the oldest lease in flight is done, the ring is closed and no lease is in
    /// flight, or about `limit` has passed. Returns whether a frame can be leased.
    pub fn wait(&self, policy: Wait, limit: Duration) -> bool {
        let is_busy = !self.in_flight.is_empty() && matches!(self.protection, Protection::Copy(_));
        let is_ready =
            || !is_busy && self.shared.state.published.load(Ordering::Acquire) > self.position;
        if self.in_flight.is_empty() {
            let is_over = || self.shared.state.closed.load(Ordering::Acquire) != 0;
            let ready = || is_ready() || is_over();
            self.shared.filled.wait(policy, limit, ready);
        } else {
            let ready = || is_ready() || self.in_flight.is_oldest_done();
            self.shared
                .filled
                .wait_polling(policy, POLL_INTERVAL, limit, ready);
        }
        is_ready()
    }

    /// Waits until the oldest lease in flight is done or about `limit` has passed; returns whether the lease is done.
    /// Returns false immediately if no lease is in flight.
    pub fn wait_in_flight(&self, policy: Wait, limit: Duration) -> bool {
        let done = || self.in_flight.is_oldest_done();
        !self.in_flight.is_empty()
            && self
                .shared
                .filled
                .wait_polling(policy, POLL_INTERVAL, limit, done)
    }

    /// Whether the producer has closed the ring and every frame has been leased and retired.
    pub fn is_finished(&self) -> bool {
        // `closed` is read first, so that all frames published before it was set are visible.
        self.shared.state.closed.load(Ordering::Acquire) != 0
            && self.shared.state.published.load(Ordering::Acquire) == self.position
            && self.retired == self.position
    }

    /// Returns the number of frames published and not leased yet.
    pub fn pending(&self) -> u64 {
        self.shared.state.published.load(Ordering::Acquire) - self.position
    }

    /// Returns the epoch and the number of the `i`-th frame that is ready; `None` if fewer frames are ready.
    ///
    /// The reader must be guaranteed, so that no frame is overwritten before it is leased.
    pub(crate) fn number(&self, i: u64) -> Option<(u32, u64)> {
        debug_assert!(matches!(self.protection, Protection::Guarantee));
        let slot = self.shared.slot_of(self.position + i);
        (i < self.pending()).then(|| self.shared.state.slots.number(slot))
    }

    /// Returns the metadata of the `i`-th frame that is ready; `None` if fewer frames are ready.
    ///
    /// The reader must be guaranteed, so that no frame is overwritten before it is leased.
    pub(crate) fn meta(&self, i: u64) -> Option<FrameMeta> {
        debug_assert!(matches!(self.protection, Protection::Guarantee));
        let slot = self.shared.slot_of(self.position + i);
        (i < self.pending()).then(|| self.shared.state.slots.read(slot))
    }

    /// Returns the words of the `present` bitmap of the `i`-th frame that is ready, for a guaranteed reader.
    pub(crate) fn present_words(&self, i: u64) -> impl Iterator<Item = u64> {
        debug_assert!(i < self.pending());
        let slot = self.shared.slot_of(self.position + i);
        let words = self.shared.state.slots.bitmap(slot).iter();
        words.map(|word| word.load(Ordering::Relaxed))
    }

    /// Whether the producer has closed the ring. More frames may be ready.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.state.closed.load(Ordering::Acquire) != 0
    }

    /// Returns the number of frames leased and not yet retired.
    pub const fn held(&self) -> u64 {
        self.position - self.retired
    }

    /// Retires leases whose completion is done, oldest first, and passes the number of frames of each to `each`.
    /// Never blocks.
    pub fn reap(&mut self, mut each: impl FnMut(u64)) {
        while let Some(lease) = self.in_flight.pop_done() {
            self.end(lease.frames, lease.used);
            if lease.used != Use::Incomplete {
                each(lease.frames);
            }
        }
    }

    /// Retires leases as [`reap`](Self::reap) does, but passes the completion of each lease to `each` before the slots
    /// are freed.
    pub(crate) fn reap_each(&mut self, mut each: impl FnMut(&Completion)) {
        while let Some(lease) = self.in_flight.pop_done() {
            if lease.used != Use::Incomplete {
                each(&lease.completion);
            }
            self.end(lease.frames, lease.used);
        }
    }

    /// Whether the oldest lease in flight is done; false if no lease is in flight.
    pub fn is_oldest_done(&self) -> bool {
        self.in_flight.is_oldest_done()
    }

    /// Returns the region that contains the ring's slots.
    pub(crate) fn region(&self) -> &std::sync::Arc<Region> {
        &self.shared.region
    }

    /// Returns the options that the ring was created with.
    pub fn options(&self) -> &RingOptions {
        &self.shared.options
    }

    /// Whether a retired lease is not completed and reaped yet.
    pub fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Skips all frames published so far and counts them as discarded. Returns their number.
    pub fn discard_pending(&mut self) -> u64 {
        let mut discarded = 0;
        // The end is read once, because the producer may be faster than this loop.
        let end = self.shared.state.published.load(Ordering::Acquire);
        while self.position < end
            && let Some(lease) = self.poll(usize::MAX)
        {
            discarded += lease.len() as u64;
            lease.discard();
        }
        discarded
    }

    /// Returns the last `frames` frames of the newest lease, so that they are leased again.
    pub(super) const fn return_frames(&mut self, frames: u64) {
        self.leased -= frames;
        self.position -= frames;
    }

    /// Retires the newest lease, which has `frames` frames. The first `read` frames count as read.
    pub(super) fn retire_lease(&mut self, frames: u64, read: u64, completion: Completion) {
        // Leases complete in order.
        let used = Use::Leased { read };
        if matches!(completion, Completion::Immediate) && self.in_flight.is_empty() {
            self.end(frames, used);
        } else {
            self.in_flight.push(InFlight {
                frames,
                used,
                completion,
            });
        }
    }

    /// Completes the oldest lease and frees its slots.
    fn end(&mut self, frames: u64, used: Use) {
        let first = self.retired;
        self.retired += frames;
        self.publish_bound();
        match &mut self.notification {
            Notification::Immediate => self.shared.notify_freed(),
            Notification::Deferred { due } => *due = true,
        }
        match used {
            Use::Leased { read } => {
                let (times, latency) = (&self.shared.ledger.times, &self.ledger.latency);
                times.pass(&mut self.timed, first + read, Some(latency));
                self.ledger.read.add(read);
                if frames > read {
                    // Frames that were not read have no latency.
                    times.pass(&mut self.timed, self.retired, None);
                    self.ledger.discarded.add(frames - read);
                }
            }
            Use::Incomplete => {
                let times = &self.shared.ledger.times;
                times.pass(&mut self.timed, self.retired, None);
                self.ledger.dropped_incomplete.add(frames);
            }
        }
    }

    /// Publishes the bound that the producer must not pass.
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

    /// Announces that up to `count` frames are about to be leased, so that no snapshot counts them as overwritten.
    fn announce(&self, count: u64) {
        self.ledger.leased.set(self.leased + count);
        fence(Ordering::SeqCst);
    }

    /// Skips to `position` and counts the skipped frames as overrun.
    fn skip_to(&mut self, position: u64) {
        debug_assert_eq!(self.retired, self.position, "frames are held");
        self.overrun += position - self.position;
        // Use `raise` instead of `set`, because a snapshot may already have counted frames that were overwritten before
        // this reader detected it.
        self.ledger.overrun.raise(self.overrun);
        let times = &self.shared.ledger.times;
        times.pass(&mut self.timed, position, None);
        self.position = position;
        self.retired = position;
        self.shared.cells[self.index]
            .retired
            .store(position, Ordering::Release);
    }

    /// Returns the position where an overrun reader continues: a quarter of the ring after the oldest frame whose
    /// slot the producer has not claimed again. Returns `None` if the reader is not overrun.
    fn oldest_safe(&self, reserved: u64, published: u64) -> Option<u64> {
        let slots = self.shared.options.slots as u64;
        let oldest = reserved.saturating_sub(slots);
        (self.position < oldest).then(|| (oldest + slots / 4).min(published))
    }

    /// Protects up to `max` frames from a producer that supports backpressure; returns the number of protected frames.
    fn protect(&mut self, published: u64, max: usize) -> u64 {
        loop {
            if published == self.position {
                return 0;
            }
            if self.retired < self.position {
                // The bound of the leases in flight already protects all newer frames. `reserved` must not be compared,
                // because a claim first announces more frames than it keeps after it has seen the bound.
                return (published - self.position).min(max as u64);
            }
            self.shared.cells[self.index]
                .bound
                .store(self.position, Ordering::Relaxed);
            // Pairs with the fence in `Producer::claim`: either the claim's second check sees this bound, or this
            // thread sees the claim.
            self.announce((published - self.position).min(max as u64));
            let reserved = self.shared.state.reserved.load(Ordering::Acquire);
            match self.oldest_safe(reserved, published) {
                None => return (published - self.position).min(max as u64),
                Some(position) => {
                    self.shared.cells[self.index]
                        .bound
                        .store(UNBOUND, Ordering::Release);
                    self.shared.notify_freed();
                    self.skip_to(position);
                }
            }
        }
    }

    /// Copies up to `max` frames and keeps the copies of frames that were not overwritten meanwhile. Returns the number
    /// of kept copies.
    fn copy(&mut self, published: u64, max: usize) -> u64 {
        loop {
            let available = (published - self.position).min(max as u64);
            if available == 0 {
                return 0;
            }
            self.announce(available);
            let reserved = self.shared.state.reserved.load(Ordering::Acquire);
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
                if !scratch.take(&self.shared, kept, index) {
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

impl Reader {
    /// Detaches the reader, as dropping it does. Returns false if a device still uses the reader's slots. In this case,
    /// the caller must also leak all memory that the device writes. Returns true if the reader was already detached.
    pub fn detach(&mut self) -> bool {
        let detached = self.detach_within(DETACH_TIMEOUT);
        if !detached {
            tracing::error!(
                "ring {}: a device still reads {} frames after {DETACH_TIMEOUT:?}; the ring's memory is leaked until the process exits",
                self.shared.options.name,
                self.held()
            );
        }
        detached
    }

    /// Detaches immediately. If leases are in flight, [leaks](crate::leak) the memory that a device may still use and
    /// returns false; the caller must also leak all memory that the device writes.
    pub fn leak(&mut self) -> bool {
        self.detach_within(Duration::ZERO)
    }

    /// Waits up to `limit` for the leases in flight, then detaches so that the producer no longer waits for this
    /// reader. Returns whether all leases completed.
    ///
    /// A device that has not finished within `limit` may access its memory at any later time. Therefore its slots stay
    /// leased permanently. The slots, their private copy and the words that the device writes are leaked.
    pub(super) fn detach_within(&mut self, limit: Duration) -> bool {
        if std::mem::replace(&mut self.detached, true) {
            return true;
        }
        // From here on, frames that this reader has not leased may be overwritten.
        self.ledger.leased.set(self.leased);
        let start = Instant::now();
        while self.has_in_flight() {
            let rest = limit.saturating_sub(start.elapsed());
            if !self.wait_in_flight(Wait::Adaptive, rest) && rest.is_zero() {
                leak(self.shared.clone());
                leak(std::mem::replace(
                    &mut self.protection,
                    Protection::Guarantee,
                ));
                leak(std::mem::replace(
                    &mut self.in_flight,
                    InFlightLeases::new(1),
                ));
                self.shared.leaked.store(1, Ordering::Release);
                self.shared.notify_freed();
                return false;
            }
            self.reap(|_| {});
        }
        let cell = &self.shared.cells[self.index];
        cell.bound.store(UNBOUND, Ordering::Release);
        cell.retired.store(UNBOUND, Ordering::Release);
        self.shared.notify_freed();
        let mut readers = self
            .shared
            .readers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        readers[self.index] = None;
        true
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.detach();
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("ring", &self.shared.options.name)
            .field("position", &self.position)
            .field("retired", &self.retired)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
