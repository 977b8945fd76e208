//! Merges the metadata of frames that go into the same output.

use daq_core::frame::{Clock, Flags, FrameMeta};

/// Relation of a frame to the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next frame in sequence, or the first frame.
    Next,
    /// Frames between the two are missing.
    Gap,
    /// The producer's frame numbers have restarted.
    Epoch,
}

/// Metadata of an unfinished output.
#[derive(Debug, Default)]
pub(super) struct Blend {
    /// Epoch and number of the previous frame.
    last: Option<(u32, u64)>,
    /// Metadata so far; `None` if the output is empty.
    meta: Option<FrameMeta>,
    /// Whether an epoch has started since the last output.
    epoch: bool,
}

impl Blend {
    /// Checks the next input frame, even if it will not be added.
    pub(super) fn step(&mut self, meta: &FrameMeta) -> Step {
        let last = self.last.replace((meta.epoch, meta.sequence));
        match last {
            Some((epoch, _)) if epoch != meta.epoch => Step::Epoch,
            _ if meta.flags.contains(Flags::EPOCH) => Step::Epoch,
            Some((_, sequence)) if sequence.wrapping_add(1) != meta.sequence => Step::Gap,
            _ => Step::Next,
        }
    }

    /// Makes the next output the first one of an epoch.
    pub(super) const fn open_epoch(&mut self) {
        self.epoch = true;
    }

    /// Adds a frame, or a part of it. `sequence` becomes the output's number if this is its first part.
    ///
    /// `delay_ns` is the time from the frame's first sample to the part's first sample.
    pub(super) fn add(&mut self, meta: &FrameMeta, sequence: u64, delay_ns: u64) {
        let flags = meta.flags.0 & !Flags::EPOCH.0;
        if let Some(blend) = &mut self.meta {
            blend.flags.0 |= flags;
            return;
        }
        let mut timestamp = meta.timestamp;
        if timestamp.clock != Clock::None {
            timestamp.ns = timestamp.ns.wrapping_add(delay_ns);
        }
        self.meta = Some(FrameMeta {
            sequence,
            flags: Flags(flags),
            timestamp,
            ..*meta
        });
    }

    /// Marks the output as incomplete, if it is not empty.
    pub(super) fn mark_incomplete(&mut self) {
        if let Some(blend) = &mut self.meta {
            blend.flags = blend.flags.with(Flags::INCOMPLETE);
        }
    }

    /// Whether the output is empty.
    pub(super) const fn is_empty(&self) -> bool {
        self.meta.is_none()
    }

    /// Discards the unfinished output.
    pub(super) const fn clear(&mut self) {
        self.meta = None;
    }

    /// Returns the finished metadata and starts the next output.
    pub(super) fn finish(&mut self) -> FrameMeta {
        let mut meta = self.meta.take().unwrap_or_default();
        if std::mem::take(&mut self.epoch) {
            meta.flags = meta.flags.with(Flags::EPOCH);
        }
        meta
    }
}
