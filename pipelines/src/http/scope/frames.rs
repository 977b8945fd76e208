//! Copies of the frames that browsers have shown, so that a browser can freeze a frame and download it.

use super::decode::Samples;
use daq_core::frame::{FrameMeta, Present};
use daq_core::layout::Layout;
use daq_core::ring::TapFrame;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum size of the copies of all rings in bytes.
const MAX_BYTES: usize = 128 << 20;
/// Maximum size of all copies of one ring in bytes.
const MAX_RING_BYTES: usize = 64 << 20;
/// Maximum number of copies that no browser shows frozen.
const MAX_RECENT: usize = 16;

/// A frame in private memory.
pub(super) struct Copied {
    pub(super) index: u64,
    pub(super) meta: FrameMeta,
    /// The bitmap of present packets.
    words: Box<[u64]>,
    bytes: Box<[u8]>,
}

impl Copied {
    pub(super) fn new(frame: &TapFrame<'_>) -> Self {
        Self {
            index: frame.index(),
            meta: *frame.meta(),
            words: frame.present().words().into(),
            bytes: frame.bytes().into(),
        }
    }

    pub(super) fn samples(&self, layout: &Layout) -> Samples<'_> {
        let present = Present::new(&self.words, self.meta.packets_per_frame);
        Samples::new(layout, &self.meta, present, &self.bytes)
    }
}

/// The newest copies of a ring, and those that browsers show frozen, the oldest first.
pub(super) struct Recent {
    copies: VecDeque<Arc<Copied>>,
    max_bytes: usize,
}

impl Recent {
    /// Creates the copies of one of `rings` rings, which share the memory.
    pub(super) fn of(rings: usize) -> Self {
        Self {
            copies: VecDeque::new(),
            max_bytes: (MAX_BYTES / rings.max(1)).min(MAX_RING_BYTES),
        }
    }

    /// Returns the maximum size of all copies of frames of `slot_bytes` bytes, of which browsers show `frozen` frozen. A copy is
    /// added before another one is dropped.
    pub(super) fn max_memory(&self, slot_bytes: usize, frozen: usize) -> usize {
        if slot_bytes > self.max_frame_bytes() {
            return self.max_bytes;
        }
        let copies = MAX_RECENT + frozen + 1;
        slot_bytes
            .saturating_mul(copies)
            .min(self.max_bytes + slot_bytes)
    }

    /// Returns the maximum size of a frame that is kept, so that a frozen frame and the newest frame are kept together.
    pub(super) const fn max_frame_bytes(&self) -> usize {
        self.max_bytes / 2
    }

    pub(super) fn find(&self, index: u64) -> Option<Arc<Copied>> {
        let mut copies = self.copies.iter();
        copies.find(|copied| copied.index == index).cloned()
    }

    /// Keeps a copy. Drops the oldest copies if there are too many: first those for which `is_frozen` returns false.
    pub(super) fn keep(&mut self, copied: Copied, is_frozen: impl Fn(u64) -> bool) {
        if self.find(copied.index).is_some() {
            return;
        }
        self.copies.push_back(Arc::new(copied));
        loop {
            let bytes: usize = self.copies.iter().map(|copied| copied.bytes.len()).sum();
            let mut others =
                (0..self.copies.len() - 1).filter(|i| !is_frozen(self.copies[*i].index));
            let oldest = others.next();
            let is_large = bytes > self.max_bytes;
            let is_long = oldest.is_some() && others.count() + 2 > MAX_RECENT;
            if !is_large && !is_long {
                return;
            }
            // Browsers can freeze more frames than fit.
            self.copies.remove(oldest.unwrap_or(0));
        }
    }

    pub(super) fn clear(&mut self) {
        self.copies.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(index: u64, bytes: usize) -> Copied {
        Copied {
            index,
            meta: FrameMeta::default(),
            words: Box::default(),
            bytes: vec![0; bytes].into(),
        }
    }

    #[test]
    fn frozen_frames_are_limited_too() {
        let mut recent = Recent::of(4);
        let half = recent.max_frame_bytes();
        for index in 0..40 {
            recent.keep(copied(index, half), |_| true);
        }
        assert_eq!(recent.copies.len(), 2);
        assert!(recent.find(39).is_some() && recent.find(38).is_some());
        let mut frozen = Recent::of(4);
        for index in 0..40 {
            frozen.keep(copied(index, half), |index| index == 3);
        }
        assert!(frozen.find(3).is_some() && frozen.find(39).is_some());
        assert_eq!(frozen.copies.len(), 2);
    }
}
