//! Private copies of bursts, for readers without backpressure on the producer.

use super::Shared;
use super::frame::Frame;
use crate::frame::FrameMeta;
use crate::sync::Ordering;
use crate::sys::copy;
use std::fmt;

/// A private copy of a burst.
pub(super) struct Scratch {
    /// Maximum number of frames.
    pub(super) frames: usize,
    bytes: Box<[u8]>,
    stride: usize,
    metas: Box<[FrameMeta]>,
    bitmaps: Box<[u64]>,
    bitmap: usize,
}

impl Scratch {
    pub(super) fn new(shared: &Shared, frames: usize) -> Self {
        let stride = shared.options.stride();
        let bitmap = shared.state.slots.bitmap_len();
        Self {
            frames,
            bytes: vec![0; frames * stride].into(),
            stride,
            metas: vec![FrameMeta::default(); frames].into(),
            bitmaps: vec![0; frames * bitmap].into(),
            bitmap,
        }
    }

    /// Copies frame `index` of a ring in host memory to copy `i`. Returns false if the copy may be torn, because the
    /// producer may have written the slot meanwhile.
    pub(super) fn take(&mut self, shared: &Shared, i: usize, index: u64) -> bool {
        let target = self.take_record(shared, i, index);
        // SAFETY: the source is at most `slot_bytes` bytes of a slot inside the region that `shared` keeps alive.
        // The producer may write the slot at the same time, so it is read with volatile loads and no reference to it is
        // created.
        unsafe { copy::volatile(shared.address_of(index).cast_const(), target) };
        shared.is_intact(index)
    }

    /// Copies the record of frame `index` to copy `i`. Returns the memory of the copy for the payload.
    pub(super) fn take_record(&mut self, shared: &Shared, i: usize, index: u64) -> &mut [u8] {
        let slot = shared.slot_of(index);
        let meta = shared.state.slots.read(slot);
        let length = meta.length.min(shared.options.slot_bytes);
        self.metas[i] = FrameMeta { length, ..meta };
        for (word, source) in self.bitmaps[i * self.bitmap..][..self.bitmap]
            .iter_mut()
            .zip(shared.state.slots.bitmap(slot))
        {
            *word = source.load(Ordering::Relaxed);
        }
        &mut self.bytes[i * self.stride..][..length]
    }

    /// Returns the metadata of copy `i`.
    pub(super) fn meta(&self, i: u64) -> FrameMeta {
        usize::try_from(i)
            .ok()
            .and_then(|i| self.metas.get(i))
            .copied()
            .unwrap_or_default()
    }

    /// Returns copy `i` as a frame.
    pub(super) fn frame(&self, i: usize, slot_bytes: usize) -> Frame<'_> {
        let bytes = &self.bytes[i * self.stride..][..self.metas[i].length.min(slot_bytes)];
        let words = &self.bitmaps[i * self.bitmap..][..self.bitmap];
        Frame {
            meta: self.metas[i],
            bytes: Some(bytes),
            words,
            address: bytes.as_ptr(),
        }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch")
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}
