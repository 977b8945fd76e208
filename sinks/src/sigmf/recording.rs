//! What the metadata is made from: the recording and its frames.

use daq_core::sigmf::Datatype;

/// What is the same for all frames of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Type of a sample of one channel.
    pub datatype: Datatype,
    /// Interleaved channels, at least 1. Frames that are not interleaved samples over time have 1 and a `table`.
    pub channels: u32,
    /// Samples per second and channel; `None` where unknown and where frames are not samples over time.
    pub sample_rate: Option<f64>,
    /// Bytes of a whole frame.
    pub frame_bytes: u64,
    /// Packets that make up a frame; 0 where there is no such thing.
    pub places: u32,
    /// Bytes of the first packet's payload in the frame.
    pub first_bytes: u64,
    /// Bytes of every other packet's payload in the frame.
    pub place_bytes: u64,
    /// Whether the sizes above, here the largest possible ones, are those of the first frame.
    pub learns_sizes: bool,
    /// The ring written from.
    pub source: String,
    /// Free text.
    pub description: Option<String>,
    /// The hardware recorded with.
    pub hardware: Option<String>,
    /// The shape of frames that are not interleaved samples over time.
    pub table: Option<Table>,
}

/// The shape of a frame that SigMF has no words for, such as spectra or planar channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Channels of a frame.
    pub channels: u32,
    /// Points of each channel.
    pub points: u64,
    /// `interleaved` or `planar`.
    pub order: &'static str,
    /// What the points run over.
    pub axis: serde_json::Value,
    /// Frames a second, where known.
    pub frame_rate: Option<f64>,
}

impl Recording {
    /// Nanoseconds from one frame to the next, where they are known.
    pub(super) fn frame_ns(&self) -> Option<f64> {
        let group = self.datatype.bytes() as f64 * f64::from(self.channels.max(1));
        let frame_rate = match &self.table {
            Some(table) => table.frame_rate,
            None => self
                .sample_rate
                .map(|rate| rate * group / self.frame_bytes as f64),
        };
        frame_rate
            .filter(|rate| rate.is_finite() && *rate > 0.0)
            .map(|rate| 1e9 / rate)
    }
}

/// Nanoseconds of so many frames.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "never negative; saturates"
)]
pub(super) fn nanoseconds(frames: u64, frame_ns: Option<f64>) -> u64 {
    (frames as f64 * frame_ns.unwrap_or(0.0)).round() as u64
}

/// When a frame was taken, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The clock's name.
    pub clock: &'static str,
    /// Its nanoseconds.
    pub ns: u64,
    /// Whether they count from 1970-01-01T00:00:00Z.
    pub utc: bool,
}

/// A frame that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its number in its epoch.
    pub sequence: u64,
    /// The counting its number belongs to.
    pub epoch: u32,
    /// Bytes written, a multiple of a sample of all channels.
    pub bytes: u64,
    /// When it was taken.
    pub moment: Option<Moment>,
    /// It is not continuous with the frame before, whatever the numbers say.
    pub restart: bool,
    /// A check failed at the source.
    pub suspect: bool,
    /// Its places (packets); 0 where it has none.
    pub places: u32,
    /// Bytes of its first packet's payload; 0 = as the recording says.
    pub first_bytes: u32,
    /// Bytes of every other packet's payload; 0 = as the recording says.
    pub place_bytes: u32,
    /// The stream began or ended inside it.
    pub truncated: bool,
    /// Why frames between the last one and this are missing, where that is known.
    pub cause: Option<&'static str>,
}

impl Record {
    /// Whether its `count` missing places from `first` on lie outside of the stream; `begins` if those at its start do.
    pub(super) fn truncates(&self, first: u32, count: u32, begins: bool) -> bool {
        let (at_start, at_end) = (first == 0, first.saturating_add(count) >= self.places);
        // A stream holds a place at least, and its first frame is the first of an epoch.
        self.truncated && at_start != at_end && !begins && (at_end || self.restart)
    }
}
