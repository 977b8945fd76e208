//! Divides frames among receivers.

use daq_core::config::Problem;
use daq_core::frame::FrameMeta;
use daq_core::layout::{Layout, Order};
use daq_core::units::counted;
use schemars::JsonSchema;
use serde::Deserialize;
use std::ops::Range;

/// How frames are divided among several receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Split {
    /// Each receiver gets whole frames, in turn.
    #[default]
    Frames,
    /// Each receiver gets consecutive channels of each frame.
    Channels,
    /// Each receiver gets a consecutive part of the bytes of each frame.
    Parts,
}

/// The share that each receiver gets of a frame, or of its turns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Share {
    /// The layout of the share.
    pub(super) layout: Layout,
    /// Number of bytes in the share.
    pub(super) bytes: usize,
    /// Number of receivers that a frame is divided among: 1 if each receiver gets whole frames.
    pub(super) shares: usize,
    /// Number of receivers that get frames in turn: 1 if frames are divided.
    pub(super) turns: usize,
    /// Whether each receiver gets all points of its channels.
    pub(super) is_continuous: bool,
    /// Number of bytes of one point of the share, if the shares are interleaved in the frame.
    interleaved: Option<usize>,
}

impl Share {
    /// Returns the share of each of `receivers` receivers in frames of `layout` with `frame_bytes` bytes, or why `split` is not
    /// possible.
    pub(super) fn new(
        split: Split,
        receivers: usize,
        layout: &Layout,
        frame_bytes: usize,
    ) -> Result<Self, Problem> {
        let mut layout = layout.clone();
        if layout.frame_bytes() != frame_bytes {
            layout.points = frame_bytes / (layout.frame_bytes() / layout.points.max(1)).max(1);
        }
        let whole = Self {
            bytes: frame_bytes,
            shares: 1,
            turns: receivers,
            is_continuous: receivers == 1,
            interleaved: None,
            layout,
        };
        if split == Split::Frames || receivers == 1 {
            return Ok(whole);
        }
        let mut layout = whole.layout;
        let channels = layout.channels as usize;
        let by_channels = split == Split::Channels || layout.order == Order::Planar && channels > 1;
        let (divided, what) = if by_channels {
            (channels, "channel")
        } else {
            (layout.points, "point")
        };
        if divided == 0
            || !divided.is_multiple_of(receivers)
            || !frame_bytes.is_multiple_of(receivers)
        {
            let message = format!(
                "{} of each frame cannot be divided equally among {}",
                counted(divided, what),
                counted(receivers, "receiver")
            );
            let help = match split {
                Split::Channels if channels == 1 => {
                    "the frames have one channel: set split = \"parts\" or \"frames\"".to_owned()
                }
                _ => format!("name a number of receivers in `to` that divides {divided}"),
            };
            return Err(Problem::at("split", message).help(help));
        }
        if by_channels {
            layout.channels = u32::try_from(divided / receivers).unwrap_or(u32::MAX);
        } else {
            layout.points = divided / receivers;
        }
        let is_interleaved = by_channels && layout.order == Order::Interleaved;
        let interleaved =
            is_interleaved.then(|| layout.sample_bits() / 8 * layout.channels as usize);
        Ok(Self {
            bytes: frame_bytes / receivers,
            shares: receivers,
            turns: 1,
            is_continuous: by_channels,
            interleaved,
            layout,
        })
    }

    /// Returns the number that the frame `meta` has for its receiver.
    pub(super) const fn number(&self, meta: &FrameMeta) -> u64 {
        meta.sequence / self.turns as u64
    }

    /// Returns whether the shares must be [gathered](Self::gather), because they are not consecutive bytes of the frame.
    pub(super) const fn is_gathered(&self) -> bool {
        self.interleaved.is_some()
    }

    /// Copies the points of each share from `frame` to consecutive bytes of `shares`, one share after the other.
    pub(super) fn gather(&self, frame: &[u8], shares: &mut [u8]) {
        let Some(bytes) = self.interleaved else {
            return;
        };
        for (share, to) in shares.chunks_exact_mut(self.bytes).enumerate() {
            let from = frame.chunks_exact(bytes).skip(share).step_by(self.shares);
            for (to, from) in to.chunks_exact_mut(bytes).zip(from) {
                to.copy_from_slice(from);
            }
        }
    }

    /// Returns the byte range of the frame that contains the bytes `range` of `share`.
    pub(super) fn in_frame(&self, share: usize, range: Range<usize>) -> Range<usize> {
        let Some(bytes) = self.interleaved else {
            return share * self.bytes + range.start..share * self.bytes + range.end;
        };
        let at = |point: usize| (point * self.shares + share) * bytes;
        let first = range.start / bytes;
        let last = range.end.saturating_sub(1) / bytes;
        at(first)..at(last) + bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::layout::{Axis, Scalar};

    fn layout(channels: u32, points: usize, order: Order) -> Layout {
        Layout {
            scalar: Scalar::Int16,
            complex: false,
            channels,
            points,
            order,
            axis: Axis::Time { rate: None },
            frame_rate: None,
            is_contiguous: true,
        }
    }

    #[test]
    fn planar_channels_are_consecutive() {
        let layout = layout(4, 10, Order::Planar);
        for split in [Split::Channels, Split::Parts] {
            let share = Share::new(split, 2, &layout, 80).unwrap();
            assert_eq!((share.bytes, share.shares, share.turns), (40, 2, 1));
            assert_eq!((share.layout.channels, share.layout.points), (2, 10));
            assert!(!share.is_gathered());
            assert_eq!(share.in_frame(1, 10..20), 50..60);
        }
    }

    #[test]
    fn interleaved_channels_are_gathered() {
        let layout = layout(4, 3, Order::Interleaved);
        let share = Share::new(Split::Channels, 2, &layout, 24).unwrap();
        assert!(share.is_gathered());
        let frame: Vec<u8> = (0..24).collect();
        let mut shares = vec![0; 24];
        share.gather(&frame, &mut shares);
        assert_eq!(shares[..12], [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]);
        assert_eq!(shares[12..], [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]);
        assert_eq!(share.in_frame(1, 0..4), 4..8);
        assert_eq!(share.in_frame(1, 3..5), 4..16);
    }

    #[test]
    fn parts_of_interleaved_frames_are_points() {
        let share = Share::new(Split::Parts, 3, &layout(4, 9, Order::Interleaved), 72).unwrap();
        assert_eq!((share.layout.channels, share.layout.points), (4, 3));
        assert_eq!((share.bytes, share.in_frame(2, 0..24)), (24, 48..72));
    }

    #[test]
    fn frames_are_sent_in_turn() {
        let share = Share::new(Split::Frames, 3, &layout(1, 10, Order::Interleaved), 20).unwrap();
        assert_eq!((share.bytes, share.shares, share.turns), (20, 1, 3));
        // The first frame was shorter than planned.
        let share = Share::new(Split::Frames, 3, &layout(1, 10, Order::Interleaved), 8).unwrap();
        assert_eq!((share.bytes, share.layout.points), (8, 4));
    }

    #[test]
    fn unequal_shares_are_refused() {
        let refused = |split, layout: &Layout| {
            let problem = Share::new(split, 3, layout, layout.frame_bytes()).unwrap_err();
            format!("{}; {}", problem.message, problem.help.unwrap())
        };
        let one = layout(1, 9, Order::Planar);
        assert!(refused(Split::Channels, &one).contains("split = \"parts\""));
        let four = layout(4, 9, Order::Planar);
        assert!(refused(Split::Channels, &four).contains("4 channels"));
        assert!(refused(Split::Parts, &four).contains("that divides 4"));
    }
}
