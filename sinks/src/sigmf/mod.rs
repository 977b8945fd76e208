//! The SigMF metadata of a segment, gathered frame by frame while its data is written.
//!
//! - A new capture begins wherever samples are not continuous: at lost frames, at a new epoch, after a frame that is
//!   shorter than the others. `core:global_index` keeps counting through lost frames, so the places of all samples in the
//!   stream are known.
//! - Filled samples are annotated `missing`, spans that touch become one. Lost frames are annotated `missing` with
//!   `core:sample_count` 0 where they would have been, and counted in `daq:missing_frames`.
//! - Where the stream began or ended inside a frame, the places before its first and behind its last packet were never
//!   sent: they are filled, and so annotated `missing`, but with `daq:cause` [`CAUSE_TRUNCATED`], and they count in no
//!   total of what is missing. Where both ends of the first frame of an epoch are empty, its flags do not tell whether the
//!   later one was sent, and it is taken as lost.
//! - Frames that are not interleaved samples over time have no `core:sample_rate`, which would be that of numbers in a
//!   file. Their shape is in `daq:channels`, `daq:points`, `daq:order` and `daq:axis`, and how many of them there are a
//!   second, where that is known, in the global key `daq:frame_rate`.
//! - The time of a capture is that of its first frame that has one, less the duration of the frames before it. Where that
//!   duration is not known, another capture begins at that frame.
//! - `core:datetime` is written only for clocks that tell UTC; the clock and its own nanoseconds always.
//!
//! Memory is fixed: beyond [`MAX_CAPTURES`] and [`MAX_ANNOTATIONS`] spans are counted and one annotation `unlisted` at
//! the end says how many there are, where they begin and how much they cover. The totals in `global` stay exact.

mod builder;
mod recording;

pub use builder::{CAUSE_TRUNCATED, LABEL_UNLISTED, MAX_ANNOTATIONS, MAX_CAPTURES, MetaBuilder};
pub use recording::{Moment, Record, Recording, Table};
