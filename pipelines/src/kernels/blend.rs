//! Merges the metadata of frames that are combined into one output.

use daq_core::frame::{Clock, Flags, FrameMeta};

/// Relation of a frame to the previous frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The frame follows the previous frame in sequence, or is the first frame.
    Next,
    /// Frames between this frame and the previous one are missing.
    Gap,
    /// The producer's frame numbers have restarted.
    Epoch,
}

/// Metadata of an unfinished output.
#[derive(Debug, Default)]
pub(super) struct Blend {
    /// Epoch and number of the previous frame.
    last: Option<(u32, u64)>,
    /// Metadata merged so far; `None` if the output is empty.
    meta: Option<FrameMeta>,
    /// Whether an epoch has started since the last output.
    epoch: bool,
}

impl Blend {
    /// Determines the relation of the next input frame to the previous input frame. Call this function for every frame,
    /// also for frames that are not added to an output.
    pub(super) fn step(&mut self, meta: &FrameMeta) -> Step {
        let last = self.last.replace((meta.epoch, meta.sequence));
        match last {
            Some((epoch, _)) if epoch != meta.epoch => Step::Epoch,
            _ if meta.flags.contains(Flags::EPOCH) => Step::Epoch,
            Some((_, sequence)) if sequence.wrapping_add(1) != meta.sequence => Step::Gap,
            _ => Step::Next,
        }
    }

    /// Marks the next output as the first output of an epoch.
    pub(super) const fn open_epoch(&mut self) {
        self.epoch = true;
    }

    /// Adds a frame or a part of a frame. `sequence` becomes the output's number if this is the output's first part.
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

    /// Marks the output as incomplete if the output is not empty.
    pub(super) fn mark_incomplete(&mut self) {
        if let Some(blend) = &mut self.meta {
            blend.flags = blend.flags.with(Flags::INCOMPLETE);
        }
    }

    /// Returns whether the output is empty.
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
