//! The number of frames in a window, and losses that a sequence number cannot show.

use super::Geometry;
use crate::units::ByteSize;

/// Minimum number of frames in a window, if the ring and the sequence number allow it.
const MIN_FRAMES: u64 = 8;
/// Number of receive batches per thread for which a window has room, because threads can be ahead of each other by
/// whole batches.
const BATCHES: u64 = 4;

/// How packets arrive at a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The window size in the configuration, in frames.
    pub declared: Option<usize>,
    /// Number of threads that fill the window, each from its own socket or queue.
    pub threads: usize,
    /// Maximum number of packets that a thread receives in one batch.
    pub batch: usize,
    /// Whether the geometry is only an upper bound, because the number of packets per frame is detected at run time.
    pub is_detected: bool,
}

/// The size of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Number of frames open at the same time.
    pub frames: usize,
    /// The reason for this size.
    pub reason: String,
    /// A warning if the window is too small for the threads that fill it.
    pub warning: Option<String>,
    /// Number of frames that would be sufficient.
    pub wanted: usize,
}

impl Arrival {
    /// Returns the size of the window for frames of `geometry` in a ring of `slots` slots.
    pub fn window(&self, geometry: &Geometry, slots: usize) -> WindowSize {
        // Several threads can be ahead of each other by many frames, if a detected frame is a single packet.
        let is_unknown = self.is_detected && self.threads > 1;
        let packets_per_frame = if is_unknown {
            1
        } else {
            u64::from(geometry.packets_per_frame)
        };
        let batches = self.threads as u64 * self.batch as u64;
        let wanted = (BATCHES * batches)
            .div_ceil(packets_per_frame)
            .max(MIN_FRAMES);
        let threads = if self.threads == 1 {
            "1 thread".to_owned()
        } else {
            format!("each of {} threads", self.threads)
        };
        let batch = self.batch;
        let if_smallest = if is_unknown {
            ", if each frame is one packet"
        } else {
            ""
        };
        let goal = format!("{BATCHES} batches of {batch} packets for {threads}{if_smallest}");
        // Readers keep at least one slot. A window larger than the minimum leaves half of the ring to them.
        let slots = slots as u64;
        let max = (slots.max(2) - 1).min(MIN_FRAMES.max(slots / 2));
        // A quarter of the number range, so that backward steps can be distinguished from forward steps.
        let countable =
            geometry.numbering.packets_to_wrap() / 4 / u128::from(geometry.packets_per_frame);
        let countable = u64::try_from(countable.max(1)).unwrap_or(u64::MAX);
        let (frames, reason) = match self.declared {
            Some(declared) if declared as u64 >= slots => (
                (slots.max(2) - 1),
                format!("reduced from {declared}, because the ring has {slots} slots"),
            ),
            Some(declared) => (declared as u64, "declared".to_owned()),
            None if wanted > max.min(countable) && countable < max => (
                countable,
                format!(
                    "limited to a quarter of the sequence number's range; {wanted} frames are needed to hold {goal}"
                ),
            ),
            None if wanted > max => (
                max,
                format!(
                    "limited by the ring's {slots} slots; {wanted} frames are needed to hold {goal}"
                ),
            ),
            None if wanted == MIN_FRAMES => (wanted, format!("the minimum, which holds {goal}")),
            None => (wanted, format!("the window holds {goal}")),
        };
        let is_small = self.threads > 1 && !is_unknown && frames * packets_per_frame < 2 * batches;
        let warning = is_small.then(|| {
            format!(
                "a window of {frames} frames holds {} packets, but {threads} needs two receive batches of {batch} packets; \
                 if a thread lags, its packets are counted as lost",
                frames * packets_per_frame,
            )
        });
        let narrow = |frames: u64| usize::try_from(frames).unwrap_or(usize::MAX);
        WindowSize {
            frames: narrow(frames),
            reason,
            warning,
            wanted: narrow(wanted),
        }
    }

    /// Describes losses that the sequence number of `geometry` cannot show, if a whole window of frames can be lost at
    /// once.
    pub(crate) fn invisible_loss(&self, geometry: &Geometry) -> Option<String> {
        let packets = geometry.numbering.packets_to_wrap();
        let packets_per_frame = u128::from(geometry.packets_per_frame);
        let window = match self.declared {
            Some(frames) => frames as u128,
            None => self.window(&unlimited(geometry), usize::MAX).frames as u128,
        };
        if packets / 2 > window * packets_per_frame {
            return None;
        }
        let bytes = packets * geometry.frame_bytes as u128 / packets_per_frame;
        let size = ByteSize(u64::try_from(bytes).unwrap_or(u64::MAX)).rounded();
        Some(format!(
            "the sequence number repeats every {packets} packets, so a loss of {packets} packets in a row (about {size}), or of a \
             multiple of this number, cannot be detected, and a loss of {} or more packets looks like late or repeated packets",
            (packets / 2).max(1),
        ))
    }
}

/// Returns `geometry` with a sequence number that never repeats.
const fn unlimited(geometry: &Geometry) -> Geometry {
    Geometry {
        numbering: super::Numbering {
            width: 64,
            step: 1,
            ..geometry.numbering
        },
        ..*geometry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reorder::Numbering;

    fn arrival(threads: usize) -> Arrival {
        Arrival {
            declared: None,
            threads,
            batch: 64,
            is_detected: false,
        }
    }

    #[test]
    fn default_window_holds_several_batches_per_thread() {
        let heaps = Geometry::new(1, 4096);
        for (threads, packets_per_frame, slots, frames) in [
            (1, 128, 64, 8),
            (1, 1, 4096, 256),
            (8, 1, 8192, 2048),
            (8, 1, 64, 32),
            (8, 128, 64, 16),
            (1, 1, 4, 3),
            (8, 1, 2, 1),
            (8, 1, 1, 1),
        ] {
            let size = arrival(threads).window(
                &Geometry {
                    packets_per_frame,
                    ..heaps
                },
                slots,
            );
            assert_eq!(size.frames, frames, "{size:?}");
            let is_small = threads > 1 && frames * (packets_per_frame as usize) < 2 * 64 * threads;
            assert_eq!(size.warning.is_some(), is_small, "{size:?}");
        }
    }

    #[test]
    fn detected_frames_of_several_threads_cause_no_warning() {
        let planned = Geometry::new(4096, 256);
        for (threads, slots, frames) in [(1, 64, 8), (2, 64, 32), (2, 4096, 512)] {
            let detected = Arrival {
                is_detected: true,
                ..arrival(threads)
            };
            let size = detected.window(&planned, slots);
            assert_eq!((size.frames, &size.warning), (frames, &None), "{size:?}");
            let is_noted = size.reason.ends_with("if each frame is one packet");
            assert_eq!(is_noted, threads > 1, "{size:?}");
        }
    }

    #[test]
    fn small_declared_window_is_kept_with_warning() {
        let declared = Arrival {
            declared: Some(8),
            ..arrival(8)
        };
        let size = declared.window(&Geometry::new(1, 4096), 8192);
        assert_eq!((size.frames, size.wanted), (8, 2048));
        assert!(size.warning.unwrap().contains("8 frames holds 8 packets"));
        let one = Arrival {
            threads: 1,
            ..declared
        };
        assert_eq!(one.window(&Geometry::new(1, 4096), 8192).warning, None);
        assert_eq!(declared.window(&Geometry::new(1, 4096), 4).frames, 3);
    }

    #[test]
    fn short_counter_limits_window_with_warning() {
        for (width, step, packets, frames) in [
            (4, 1, Some("16 packets in a row (about 128 KiB)"), 4),
            (7, 1, Some("128 packets in a row"), 32),
            (12, 16, Some("256 packets in a row"), 64),
            (16, 1, None, 256),
            (64, 1, None, 256),
        ] {
            let geometry = Geometry {
                numbering: Numbering {
                    width,
                    step,
                    packets_per_unit: 1,
                },
                ..Geometry::new(1, 8192)
            };
            let loss = arrival(1).invisible_loss(&geometry);
            assert_eq!(loss.is_some(), packets.is_some(), "{width}: {loss:?}");
            if let Some(packets) = packets {
                assert!(loss.as_ref().unwrap().contains(packets), "{loss:?}");
            }
            let size = arrival(1).window(&geometry, 4096);
            assert_eq!(size.frames, frames, "{width}: {size:?}");
        }
    }
}
