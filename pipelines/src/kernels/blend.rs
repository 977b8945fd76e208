//! Frames that go into one output together, and what the output's record says of them.

use daq_core::frame::{Clock, Flags, FrameMeta};

/// How a frame relates to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The very next one, or the first of all.
    Next,
    /// Frames between the two are missing.
    Gap,
    /// The producer's counting has restarted.
    Epoch,
}

/// The record of an output under way.
#[derive(Debug, Default)]
pub(super) struct Blend {
    /// Epoch and number of the frame before.
    last: Option<(u32, u64)>,
    /// The record so far; `None` while nothing has gone in.
    meta: Option<FrameMeta>,
    /// Whether an epoch has begun since the last output.
    epoch: bool,
}

impl Blend {
    /// Looks at the next frame of the input, whether or not it will go in.
    pub(super) fn step(&mut self, meta: &FrameMeta) -> Step {
        let last = self.last.replace((meta.epoch, meta.sequence));
        match last {
            Some((epoch, _)) if epoch != meta.epoch => Step::Epoch,
            _ if meta.flags.contains(Flags::EPOCH) => Step::Epoch,
            Some((_, sequence)) if sequence.wrapping_add(1) != meta.sequence => Step::Gap,
            _ => Step::Next,
        }
    }

    /// The next output is the first of an epoch.
    pub(super) const fn open_epoch(&mut self) {
        self.epoch = true;
    }

    /// Adds a frame, or a part of it. `sequence` is the number that the output takes if this is its first.
    ///
    /// `delay_ns` is the time from the frame's first sample to the part's.
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

    /// Marks the output as one with a hole in it, if anything has gone in.
    pub(super) fn mark_incomplete(&mut self) {
        if let Some(blend) = &mut self.meta {
            blend.flags = blend.flags.with(Flags::INCOMPLETE);
        }
    }

    /// Whether nothing has gone in.
    pub(super) const fn is_empty(&self) -> bool {
        self.meta.is_none()
    }

    /// Forgets what has gone in.
    pub(super) const fn clear(&mut self) {
        self.meta = None;
    }

    /// The finished record; the next output begins.
    pub(super) fn finish(&mut self) -> FrameMeta {
        let mut meta = self.meta.take().unwrap_or_default();
        if std::mem::take(&mut self.epoch) {
            meta.flags = meta.flags.with(Flags::EPOCH);
        }
        meta
    }
}
