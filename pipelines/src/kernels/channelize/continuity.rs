//! Decides whether the samples before a frame are known, and which flags its output has.

use super::super::blend::{Blend, Step};
use daq_core::frame::{Flags, FrameMeta};

/// What a frame continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// The frame continues the previous frame.
    Previous,
    /// The samples before the frame are not known and count as zeros.
    Zeros,
}

/// State of the sequence of frames.
pub(super) struct Continuity {
    blend: Blend,
    /// Flags of the earlier frames that the next frame's spectra depend on.
    recent: Box<[u32]>,
    /// The oldest entry of `recent`.
    oldest: usize,
    /// Number of frames that are missing before the next frame.
    missing: usize,
    /// Whether the previous frame was not processed.
    interrupted: bool,
    /// Whether an epoch began with a frame that has no output.
    epoch: bool,
}

impl Continuity {
    /// Creates the state for spectra that depend on the `history` samples before a frame of `points` samples.
    pub(super) fn new(history: usize, points: usize) -> Self {
        Self {
            blend: Blend::default(),
            recent: vec![0; history.div_ceil(points.max(1))].into(),
            oldest: 0,
            missing: 0,
            interrupted: true,
            epoch: false,
        }
    }

    /// Registers the next frame. Returns what it continues, and the metadata of its output.
    pub(super) fn accept(&mut self, meta: &FrameMeta) -> (Before, FrameMeta) {
        self.meet(meta);
        let mut before = Before::Previous;
        if std::mem::take(&mut self.interrupted) {
            before = Before::Zeros;
            self.missing = self.recent.len();
            self.recent.fill(0);
        }
        let mut flags = self
            .recent
            .iter()
            .fold(meta.flags.0, |all, flags| all | flags);
        if self.missing > 0 {
            flags |= Flags::INCOMPLETE.0;
            self.missing -= 1;
        }
        if std::mem::take(&mut self.epoch) {
            flags |= Flags::EPOCH.0;
        }
        if let Some(oldest) = self.recent.get_mut(self.oldest) {
            *oldest = meta.flags.0 & !Flags::EPOCH.0;
            self.oldest = (self.oldest + 1) % self.recent.len();
        }
        let meta = FrameMeta {
            flags: Flags(flags),
            ..*meta
        };
        (before, meta)
    }

    /// Registers a frame that is not processed.
    pub(super) fn fail(&mut self, meta: &FrameMeta) {
        self.meet(meta);
        self.epoch |= meta.flags.contains(Flags::EPOCH);
        self.interrupted = true;
    }

    fn meet(&mut self, meta: &FrameMeta) {
        if self.blend.step(meta) != Step::Next {
            self.interrupted = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(continuity: &mut Continuity, sequence: u64, flags: Flags) -> (Before, Flags) {
        let (before, meta) = continuity.accept(&FrameMeta {
            flags,
            ..FrameMeta::whole(sequence, 4)
        });
        (before, meta.flags)
    }

    #[test]
    fn outputs_have_flags_of_all_frames_they_depend_on() {
        let none = Flags::default();
        // Spectra depend on the two frames before.
        let mut state = Continuity::new(150, 100);
        assert_eq!(
            flags(&mut state, 0, none),
            (Before::Zeros, Flags::INCOMPLETE)
        );
        assert_eq!(
            flags(&mut state, 1, none),
            (Before::Previous, Flags::INCOMPLETE)
        );
        assert_eq!(
            flags(&mut state, 2, Flags::SUSPECT),
            (Before::Previous, Flags::SUSPECT)
        );
        assert_eq!(
            flags(&mut state, 3, none),
            (Before::Previous, Flags::SUSPECT)
        );
        assert_eq!(
            flags(&mut state, 4, none),
            (Before::Previous, Flags::SUSPECT)
        );
        assert_eq!(flags(&mut state, 5, none), (Before::Previous, none));
        // Frame 6 is missing.
        assert_eq!(
            flags(&mut state, 7, none),
            (Before::Zeros, Flags::INCOMPLETE)
        );
        assert_eq!(
            flags(&mut state, 8, none),
            (Before::Previous, Flags::INCOMPLETE)
        );
        assert_eq!(flags(&mut state, 9, none), (Before::Previous, none));
        // A frame that is too short begins an epoch.
        state.fail(&FrameMeta {
            flags: Flags::EPOCH,
            ..FrameMeta::whole(10, 3)
        });
        let (before, made) = flags(&mut state, 11, none);
        assert_eq!(before, Before::Zeros);
        assert_eq!(made, Flags::INCOMPLETE.with(Flags::EPOCH));
    }

    #[test]
    fn filter_without_history_needs_no_earlier_frames() {
        let mut state = Continuity::new(0, 100);
        assert_eq!(flags(&mut state, 3, Flags::default()).1, Flags::default());
    }
}
