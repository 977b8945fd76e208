//! SigMF metadata of a segment, collected frame by frame while the data is written.
//!
//! - A new capture begins where samples are not continuous: at lost frames, at a new epoch, and after a frame that is
//!   shorter than the others. `core:global_index` also counts lost frames, so it gives the position of all samples in the
//!   stream.
//! - Filled samples are annotated `missing`; adjacent spans are merged. Lost frames are annotated `missing` with
//!   `core:sample_count` 0 at their position, and counted in `daq:missing_frames`.
//! - If the stream began or ended inside a frame, the packets before its first and after its last packet were never
//!   sent. They are filled and annotated `missing` with `daq:cause` [`CAUSE_TRUNCATED`], and they do not count in the
//!   totals of missing data. If both ends of an epoch's first frame are empty, its flags do not show whether the packets
//!   at its end were sent, and they count as lost.
//! - Frames that are not interleaved samples over time have no `core:sample_rate`, because it would be the rate of
//!   numbers in the file. Their shape is in `daq:channels`, `daq:points`, `daq:order` and `daq:axis`, and the number of
//!   frames per second, if known, in the global key `daq:frame_rate`.
//! - The time of a capture is that of its first frame with a time, minus the duration of the frames before it. If that
//!   duration is unknown, another capture begins at that frame.
//! - `core:datetime` is written only for UTC clocks; the clock's name and its nanoseconds are always written.
//!
//! Memory use is fixed: entries beyond [`MAX_CAPTURES`] and [`MAX_ANNOTATIONS`] are only counted, and one annotation
//! `unlisted` at the end contains their number, start and extent. The totals in `global` stay exact.

mod builder;
mod recording;

pub use builder::{CAUSE_TRUNCATED, LABEL_UNLISTED, MAX_ANNOTATIONS, MAX_CAPTURES, MetaBuilder};
pub use recording::{Moment, Record, Recording, Table};
