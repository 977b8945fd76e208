//! SigMF metadata of a segment, which is collected frame by frame while the data is written.
//!
//! - A new capture begins where samples are not continuous: at lost frames, at a new epoch, and after a frame that is
//!   shorter than the others. `core:global_index` also counts lost frames, so it is the position of a sample in the
//!   stream.
//! - Filled samples are annotated as `missing`; adjacent spans are merged. Lost frames are counted in `daq:missing_frames` of an
//!   annotation `gap` of the sample after them.
//! - An annotation covers whole samples. If packets do not end where samples end, `daq:missing_bytes` of the annotation contains
//!   the exact bytes of the missing packets.
//! - If the stream began or ended inside a frame, the packets before its first or after its last packet were never
//!   sent. They are filled and annotated as `missing` with `daq:cause` [`CAUSE_TRUNCATED`]. They do not count in the
//!   totals of missing data. If packets are missing at both ends of an epoch's first frame, its flags do not show
//!   whether the packets at its end were sent, so these packets count as lost.
//! - With [`MetaBuilder::inside`], these samples are not written. The first sample of the stream then begins a capture whose
//!   frame number is that of the whole frame, and whose `core:global_index` and time are those of the sample.
//! - Frames that are not interleaved samples over time have no `core:sample_rate`, because SigMF would interpret it as
//!   the rate of the numbers in the file. Their shape is in `daq:channels`, `daq:points`, `daq:order` and `daq:axis`.
//!   If known, the number of frames per second is in the global key `daq:frame_rate`.
//! - A new capture also begins at a step in time: where the time of a frame differs by more than a sample from the time that
//!   follows from the capture's start and the rate, or by more than 10 ms if the time was read when a packet arrived. All other
//!   differences, and all times of frames without a rate, are listed in `daq:times_ns` of the capture.
//! - A new capture also begins where the frequency or the bandwidth of the receiver changes, if the frames keep the fields
//!   `rf_frequency` or `bandwidth`. Captures contain them as `core:frequency` and `daq:bandwidth`: SigMF has no key for the
//!   bandwidth of a capture, except in an extension that requires further keys.
//! - The time of a capture is the time of its first frame with a time, minus the duration of the frames before it. If
//!   that duration is unknown, another capture begins at the frame with the time.
//! - `core:datetime` is written only for UTC clocks. The name of the clock and its nanoseconds are always written.
//!
//! Memory use is fixed. Entries beyond [`MAX_CAPTURES`] and [`MAX_ANNOTATIONS`] are only counted. One annotation
//! `unlisted` at the end contains their number, start and extent. The totals in `global` remain exact.

mod builder;
mod kept;
mod ranges;
mod recording;
mod times;
mod trim;

pub use builder::{CAUSE_TRUNCATED, LABEL_UNLISTED, MAX_ANNOTATIONS, MAX_CAPTURES, MetaBuilder};
pub use recording::{Moment, Record, Recording, Table, Tuning};
