//! The input from which the metadata is built: properties of the recording, and of each frame.

use daq_core::frame::{Clock, KeptFields, PacketSizes};
use daq_core::sigmf::Datatype;

/// Properties that all frames of a recording share.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Type of a sample of one channel.
    pub datatype: Datatype,
    /// Number of interleaved channels, at least 1. If frames are not interleaved samples over time, the number is 1 and
    /// `table` is set.
    pub channels: u32,
    /// Samples per second and channel; `None` if unknown, or if frames are not samples over time.
    pub sample_rate: Option<f64>,
    /// Number of bytes of a complete frame.
    pub frame_bytes: u64,
    /// Number of packets per frame; 0 if frames do not consist of packets.
    pub packets_per_frame: u32,
    /// Sizes of the packets.
    pub packet_sizes: PacketSizes,
    /// Whether the sizes above are only maximum values, which the first frame replaces by the actual sizes.
    pub detects_sizes: bool,
    /// Whether `frame_bytes` is only a maximum until the first frame shows the size of all frames.
    pub is_layout_maximum: bool,
    /// Name of the ring that is recorded.
    pub source: String,
    /// Free text that describes the recording.
    pub description: Option<String>,
    /// Description of the recording hardware.
    pub hardware: Option<String>,
    /// Shape of the frames, if they are not interleaved samples over time.
    pub table: Option<Table>,
    /// Names of the fields that frames keep.
    pub kept: Vec<String>,
}

/// Shape of a frame that SigMF cannot describe, such as spectra or planar channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Number of channels per frame.
    pub channels: u32,
    /// Number of points per channel.
    pub points: u64,
    /// Order of the values in a frame: `interleaved` or `planar`.
    pub order: &'static str,
    /// Description of the axis of the points.
    pub axis: serde_json::Value,
    /// Number of frames per second, if known.
    pub frame_rate: Option<f64>,
}

impl Recording {
    /// Returns the nanoseconds from one frame to the next, if known.
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

    /// Returns the number of samples of a complete frame; for frames that are not interleaved samples, the points per channel.
    pub(super) fn frame_samples(&self) -> u64 {
        let group = self.datatype.bytes() as u64 * u64::from(self.channels.max(1));
        self.table
            .as_ref()
            .map_or(self.frame_bytes / group, |table| table.points)
    }
}

/// Returns the duration of the given number of frames in nanoseconds; 0 if the duration of a frame is unknown.
pub(super) fn nanoseconds(frames: u64, frame_ns: Option<f64>) -> u64 {
    nanoseconds_of(frames as f64, frame_ns)
}

/// Returns the duration as [`nanoseconds`] does, for a number of frames that need not be whole.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is never negative, and the cast saturates"
)]
pub(super) fn nanoseconds_of(frames: f64, frame_ns: Option<f64>) -> u64 {
    (frames * frame_ns.unwrap_or(0.0)).round() as u64
}

/// Acquisition time of a frame, with its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The clock, which is not [`Clock::None`].
    pub clock: Clock,
    /// Time that the clock showed, in nanoseconds.
    pub ns: u64,
}

/// Settings of the receiver while a frame was acquired, which the frame keeps from the headers of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Centre frequency in Hz.
    pub frequency: Option<u64>,
    /// Bandwidth in Hz.
    pub bandwidth: Option<u64>,
}

impl Tuning {
    /// Name of the kept field with the centre frequency.
    const FREQUENCY: &str = "rf_frequency";
    /// Name of the kept field with the bandwidth.
    const BANDWIDTH: &str = "bandwidth";

    /// Returns the settings in the kept fields of a frame, whose names are `names`.
    pub fn of(names: &[String], kept: &KeptFields) -> Self {
        let field = |name| {
            let index = names.iter().position(|known| known == name);
            index.and_then(|index| kept.get(index))
        };
        Self {
            frequency: field(Self::FREQUENCY),
            bandwidth: field(Self::BANDWIDTH),
        }
    }
}

/// Properties of a frame that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the properties are independent"
)]
pub struct Record {
    /// Number of the frame in its epoch.
    pub sequence: u64,
    /// Epoch of the frame.
    pub epoch: u32,
    /// Number of bytes written, a multiple of one sample of all channels.
    pub bytes: u64,
    /// Number of bytes of the frame that were trimmed before and after the written ones.
    pub trimmed: (u64, u64),
    /// Time of the frame's first sample, also if that sample was trimmed; `None` if unknown.
    pub moment: Option<Moment>,
    /// Whether the frame is not continuous with the previous frame, even if the frame numbers are continuous.
    pub restart: bool,
    /// Whether the source detected an error in the payload.
    pub suspect: bool,
    /// Whether the frame does not consist of packets, and was computed from samples of which some were missing.
    pub incomplete: bool,
    /// Number of packets of the frame; 0 if the frame does not consist of packets.
    pub packets_per_frame: u32,
    /// Sizes of the packets; 0 means those of the recording.
    pub packet_sizes: PacketSizes,
    /// Whether the stream began or ended inside the frame.
    pub truncated: bool,
    /// Settings of the receiver.
    pub tuning: Tuning,
    /// Reason why frames between the previous frame and this one are missing, if known.
    pub cause: Option<&'static str>,
}

impl Record {
    /// Returns the size of the frame in bytes, with the bytes that were trimmed.
    pub(super) const fn frame_bytes(&self) -> u64 {
        self.trimmed.0 + self.bytes + self.trimmed.1
    }

    /// Returns whether the `count` missing packets starting at `first` are outside of the stream. `begins` is true if
    /// the missing packets at the start of the frame are outside of the stream.
    pub(super) fn truncates(&self, first: u32, count: u32, begins: bool) -> bool {
        let (at_start, at_end) = (
            first == 0,
            first.saturating_add(count) >= self.packets_per_frame,
        );
        // A stream has at least one packet, and its first frame starts an epoch.
        self.truncated && at_start != at_end && !begins && (at_end || self.restart)
    }
}
