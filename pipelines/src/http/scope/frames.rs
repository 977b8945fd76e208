//! Copies of the frames that browsers have shown, so that a browser can freeze a frame and download it.

use super::decode::Samples;
use daq_core::frame::{FrameMeta, Present};
use daq_core::layout::Layout;
use daq_core::ring::TapFrame;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum size of all copies of a ring in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Maximum size of a frame that is kept, so that a frozen frame and the newest frame are kept together.
pub(super) const MAX_FRAME_BYTES: usize = MAX_BYTES / 2;
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
#[derive(Default)]
pub(super) struct Recent(VecDeque<Arc<Copied>>);

impl Recent {
    pub(super) fn find(&self, index: u64) -> Option<Arc<Copied>> {
        self.0.iter().find(|copied| copied.index == index).cloned()
    }

    /// Keeps a copy. Drops the oldest copies for which `is_frozen` returns false if there are too many.
    pub(super) fn keep(&mut self, copied: Copied, is_frozen: impl Fn(u64) -> bool) {
        if self.find(copied.index).is_some() {
            return;
        }
        self.0.push_back(Arc::new(copied));
        loop {
            let bytes: usize = self.0.iter().map(|copied| copied.bytes.len()).sum();
            let mut others = self
                .0
                .iter()
                .enumerate()
                .filter(|(_, copied)| !is_frozen(copied.index));
            let Some((oldest, _)) = others.next() else {
                return;
            };
            if bytes <= MAX_BYTES && others.count() < MAX_RECENT {
                return;
            }
            self.0.remove(oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
