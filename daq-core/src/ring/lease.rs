//! Leases: bursts of frames that do not change until the reader retires them.

use super::Slice;
use super::completion::Completion;
use super::frame::Frame;
use super::reader::{Protection, Reader};
use super::slot::Slots;

/// A burst of frames that a reader has leased. Dropping the lease retires it immediately.
///
/// A reader has one lease at a time, and frames do not outlive their lease:
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
    /// Number of frames that count as read when the lease is dropped. The other frames count as discarded.
    read: u64,
    /// Number of frames at the end of the burst that the reader leases again.
    returned: u64,
    completion: Completion,
}

impl<'a> Lease<'a> {
    pub(super) const fn new(reader: &'a mut Reader, count: u64) -> Self {
        Self {
            reader,
            count,
            read: count,
            returned: 0,
            completion: Completion::Immediate,
        }
    }
}

impl Lease<'_> {
    /// Returns the number of frames in the burst, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a lease is never empty")]
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Returns frame `i` of the burst.
    ///
    /// # Panics
    /// If the burst has no frame `i`.
    pub fn frame(&self, i: usize) -> Frame<'_> {
        assert!(
            i < self.len(),
            "frame {i} is outside the burst of {} frames",
            self.count
        );
        let shared = &*self.reader.shared;
        if let Protection::Copy(scratch) = &self.reader.protection {
            return scratch.frame(i, shared.options.slot_bytes);
        }
        let index = self.reader.position - self.count + i as u64;
        let slot = shared.slot_of(index);
        let meta = shared.state.slots.read(slot);
        #[cfg(loom)]
        // SAFETY: the frame is leased; loom checks that no write is concurrent.
        shared.canary[slot].with(|canary| assert_eq!(unsafe { *canary }, meta.sequence));
        let bitmap = shared.state.slots.bitmap(slot);
        // SAFETY: `AtomicU64` has the layout of `u64`. The frame is published and leased, and its slot is protected
        // from the producer, so the words do not change while the lease exists.
        let words =
            unsafe { std::slice::from_raw_parts(bitmap.as_ptr().cast::<u64>(), bitmap.len()) };
        let bytes = shared.is_host().then(|| {
            let length = meta.length.min(shared.options.slot_bytes);
            // SAFETY: `address_of` is the start of a slot of `slot_bytes` initialised bytes in the region, which
            // `shared` keeps alive. The frame is published and leased, so no one writes the slot until the lease,
            // which `self` borrows, has ended.
            unsafe { std::slice::from_raw_parts(shared.address_of(index).cast_const(), length) }
        });
        Frame {
            meta,
            bytes,
            words,
            address: shared.address_of(index),
        }
    }

    /// Returns the frames of the burst in order.
    pub fn iter(&self) -> impl Iterator<Item = Frame<'_>> {
        (0..self.len()).map(|i| self.frame(i))
    }

    /// Returns the slots of the burst, for access by a device; `None` if the lease covers private copies.
    pub fn slice(&self) -> Option<Slice> {
        let Reader {
            shared,
            position,
            protection,
            ..
        } = &*self.reader;
        (!matches!(protection, Protection::Copy(_)))
            .then(|| shared.run(position - self.count, self.len()))
    }

    /// Returns the payload length of frame `i` in bytes.
    ///
    /// # Panics
    /// If the burst has no frame `i`.
    pub fn length(&self, i: usize) -> usize {
        assert!(
            i < self.len(),
            "frame {i} is outside the burst of {} frames",
            self.count
        );
        let shared = &*self.reader.shared;
        if let Protection::Copy(scratch) = &self.reader.protection {
            return scratch.frame(i, shared.options.slot_bytes).meta().length;
        }
        let slot = shared.slot_of(self.reader.position - self.count + i as u64);
        shared
            .state
            .slots
            .length(slot)
            .min(shared.options.slot_bytes)
    }

    /// Returns the payload lengths of the frames from frame `first` on, for a lease over [slots](Self::slice). This is
    /// cheaper than one call of [`length`](Self::length) per frame.
    pub(crate) fn lengths(&self, first: usize) -> impl Iterator<Item = usize> {
        debug_assert!(!matches!(self.reader.protection, Protection::Copy(_)));
        let shared = &*self.reader.shared;
        let slots = shared.around(self.reader.position - self.count + first as u64);
        let lengths = slots.map(|slot| {
            shared
                .state
                .slots
                .length(slot)
                .min(shared.options.slot_bytes)
        });
        lengths.take(self.len() - first)
    }

    /// Copies the metadata of the first `frames` frames to slots of another ring.
    pub(super) fn copy_records(
        &self,
        frames: usize,
        to: &Slots,
        slots: impl Iterator<Item = usize>,
    ) {
        let shared = &*self.reader.shared;
        if matches!(self.reader.protection, Protection::Copy(_))
            || !to.has_shape_of(&shared.state.slots)
        {
            for (i, slot) in (0..frames).zip(slots) {
                let frame = self.frame(i);
                to.write(slot, frame.meta(), frame.present().words().iter().copied());
            }
        } else {
            let own = shared.around(self.reader.position - self.count);
            for (from, slot) in own.zip(slots).take(frames) {
                to.copy(slot, &shared.state.slots, from);
            }
        }
    }

    /// Retires the lease; its slots are freed once `completion` is done (see [`Reader::reap`]).
    ///
    /// A reader over private copies cannot lease further frames until then.
    pub fn retire(mut self, completion: Completion) {
        self.completion = completion;
    }

    /// Retires the lease and counts its frames as discarded instead of read.
    pub fn discard(self) {
        self.discard_after(0);
    }

    /// Retires the lease: the first `read` frames count as read, the others as discarded.
    pub fn discard_after(mut self, read: usize) {
        self.read = self.count.min(read as u64);
    }

    /// Returns true if the slots of frames stay protected after [`retire_first`](Self::retire_first) has returned them.
    pub const fn is_guaranteed(&self) -> bool {
        matches!(self.reader.protection, Protection::Guarantee)
    }

    /// Retires the first `read` frames. The reader's next lease starts with the remaining frames, whose slots do not
    /// change in between, and can contain newer frames.
    ///
    /// # Panics
    /// If the producer does not [wait](Self::is_guaranteed) for the reader.
    pub fn retire_first(mut self, read: usize) {
        assert!(
            self.is_guaranteed(),
            "the producer of the ring does not wait for this reader"
        );
        self.read = self.count.min(read as u64);
        self.returned = self.count - self.read;
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let completion = std::mem::replace(&mut self.completion, Completion::Immediate);
        self.reader.return_frames(self.returned);
        let count = self.count - self.returned;
        if count > 0 {
            self.reader.retire_lease(count, self.read, completion);
        }
    }
}
