//! Input of the metadata: the recording and its frames.

use daq_core::sigmf::Datatype;

/// Properties that all frames of a recording share.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Type of a sample of one channel.
    pub datatype: Datatype,
    /// Number of interleaved channels, at least 1. Frames that are not interleaved samples over time have 1 and a
    /// `table`.
    pub channels: u32,
    /// Samples per second and channel; `None` if unknown or if frames are not samples over time.
    pub sample_rate: Option<f64>,
    /// Bytes of a whole frame.
    pub frame_bytes: u64,
    /// Number of packets per frame; 0 if frames do not consist of packets.
    pub places: u32,
    /// Bytes of the first packet's payload in the frame.
    pub first_bytes: u64,
    /// Bytes of every other packet's payload in the frame.
    pub place_bytes: u64,
    /// Whether the sizes above are maximum values that the first frame replaces.
    pub learns_sizes: bool,
    /// Name of the ring that is recorded.
    pub source: String,
    /// Free text.
    pub description: Option<String>,
    /// The recording hardware.
    pub hardware: Option<String>,
    /// Shape of frames that are not interleaved samples over time.
    pub table: Option<Table>,
}

/// Shape of a frame that SigMF cannot describe, such as spectra or planar channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Number of channels per frame.
    pub channels: u32,
    /// Points of each channel.
    pub points: u64,
    /// `interleaved` or `planar`.
    pub order: &'static str,
    /// Axis of the points.
    pub axis: serde_json::Value,
    /// Frames per second, if known.
    pub frame_rate: Option<f64>,
}

impl Recording {
    /// Nanoseconds from one frame to the next, if known.
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

/// Duration of the given number of frames in nanoseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "never negative; saturates"
)]
pub(super) fn nanoseconds(frames: u64, frame_ns: Option<f64>) -> u64 {
    (frames as f64 * frame_ns.unwrap_or(0.0)).round() as u64
}

/// Acquisition time of a frame, and the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Name of the clock.
    pub clock: &'static str,
    /// Nanoseconds of the clock.
    pub ns: u64,
    /// Whether the nanoseconds count from 1970-01-01T00:00:00Z.
    pub utc: bool,
}

/// A written frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Number of the frame in its epoch.
    pub sequence: u64,
    /// Epoch of the frame.
    pub epoch: u32,
    /// Bytes written, a multiple of one sample of all channels.
    pub bytes: u64,
    /// Acquisition time.
    pub moment: Option<Moment>,
    /// Whether the frame is not continuous with the previous one, regardless of its number.
    pub restart: bool,
    /// Whether the source detected an error in the payload.
    pub suspect: bool,
    /// Number of packets of the frame; 0 if it does not consist of packets.
    pub places: u32,
    /// Bytes of its first packet's payload; 0: as in the recording.
    pub first_bytes: u32,
    /// Bytes of every other packet's payload; 0: as in the recording.
    pub place_bytes: u32,
    /// Whether the stream began or ended inside the frame.
    pub truncated: bool,
    /// Why frames between the last one and this one are missing, if known.
    pub cause: Option<&'static str>,
}

impl Record {
    /// Whether the `count` missing packets starting at `first` are outside the stream; `begins` if those at the frame's
    /// start are.
    pub(super) fn truncates(&self, first: u32, count: u32, begins: bool) -> bool {
        let (at_start, at_end) = (first == 0, first.saturating_add(count) >= self.places);
        // A stream has at least one packet, and its first frame is the first one of an epoch.
        self.truncated && at_start != at_end && !begins && (at_end || self.restart)
    }
}
