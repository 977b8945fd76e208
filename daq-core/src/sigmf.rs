//! SigMF metadata: a text file beside a recording, which describes the meaning of the recording's bytes.
//!
//! Follows the [SigMF specification](https://sigmf.org) 1.2. A recording consists of a data file that contains only
//! samples, and a JSON file with three parts: `global`, `captures` (the starts of contiguous runs of samples) and
//! `annotations`. Values for which SigMF has no field use the namespace `daq`, which is declared as an optional
//! extension. Its keys are described in `docs/src/reference/file-formats.md`.
//!
//! A sample contains one point of every channel. For example, in a recording with 2 channels of `ci16_le`,
//! `core:sample_start` 5 is byte 40.

mod read;

use crate::frame::PacketSizes;
use crate::units::parse_datetime;
pub use read::SigmfError;

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The version of the SigMF specification that written files follow.
pub const SPECIFICATION: &str = "1.2.6";

/// The namespace of daq's own keys.
pub const NAMESPACE: &str = "daq";

/// The version of daq's own keys.
pub const NAMESPACE_VERSION: &str = "1.0.0";

/// The largest integer that SigMF allows.
pub const MAX_INTEGER: u64 = i64::MAX.unsigned_abs();

/// The annotation label of filled samples.
pub const LABEL_MISSING: &str = "missing";

/// The annotation label of the first sample after missing frames.
pub const LABEL_GAP: &str = "gap";

/// The annotation label of frames with kept fields.
pub const LABEL_KEPT: &str = "kept";

/// The annotation label of frames that were computed from incomplete frames.
pub const LABEL_INCOMPLETE: &str = "incomplete";

/// The annotation label of payload that failed a check at the source.
pub const LABEL_SUSPECT: &str = "suspect";

/// The type of a real sample, or of each component of a complex sample, in a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// 16-bit signed integer.
    I16,
    /// 16-bit unsigned integer.
    U16,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl Number {
    /// All number types.
    pub const ALL: [Self; 8] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::F32,
        Self::F64,
    ];

    /// Returns the size of one number in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

/// The type of one sample of one channel, such as `ci16_le`.
///
/// ```
/// use daq_core::sigmf::Datatype;
/// let iq: Datatype = "ci16_le".parse()?;
/// assert_eq!((iq.complex, iq.bytes()), (true, 4));
/// assert_eq!(iq.to_string(), "ci16_le");
/// # Ok::<(), daq_core::sigmf::SigmfError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datatype {
    /// The type of a real sample, or of each component of a complex sample.
    pub number: Number,
    /// Whether a sample is a pair (real, imaginary).
    pub complex: bool,
    /// Whether numbers are big-endian; has no meaning for single bytes.
    pub big_endian: bool,
}

impl Datatype {
    /// Creates a little-endian type.
    pub const fn little(number: Number, complex: bool) -> Self {
        Self {
            number,
            complex,
            big_endian: false,
        }
    }

    /// Returns the size of one sample of one channel in bytes.
    pub const fn bytes(self) -> usize {
        self.number.bytes() * if self.complex { 2 } else { 1 }
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.complex { "c" } else { "r" })?;
        f.write_str(self.number.name())?;
        match (self.number.bytes(), self.big_endian) {
            (1, _) => Ok(()),
            (_, false) => f.write_str("_le"),
            (_, true) => f.write_str("_be"),
        }
    }
}

impl FromStr for Datatype {
    type Err = SigmfError;

    /// Parses a SigMF datatype. Single bytes may have an endianness suffix. Wider numbers without a suffix are
    /// little-endian.
    fn from_str(text: &str) -> Result<Self, SigmfError> {
        let unknown = || SigmfError::Value {
            field: "global.core:datatype".into(),
            value: read::shorten(text),
            wanted: "a SigMF datatype such as \"ci16_le\", \"rf32_le\" or \"cu8\"",
        };
        let (complex, rest) = match text.split_at_checked(1) {
            Some(("c", rest)) => (true, rest),
            Some(("r", rest)) => (false, rest),
            _ => return Err(unknown()),
        };
        let (name, big_endian) = match rest.split_once('_') {
            None | Some((_, "le")) => (rest.split('_').next().unwrap_or(rest), false),
            Some((name, "be")) => (name, true),
            Some(_) => return Err(unknown()),
        };
        let number = Number::ALL
            .into_iter()
            .find(|n| n.name() == name)
            .ok_or_else(unknown)?;
        Ok(Self {
            number,
            complex,
            big_endian: big_endian && number.bytes() > 1,
        })
    }
}

impl Serialize for Datatype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The content of a metadata file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Meta {
    /// Properties of the whole recording.
    pub global: Global,
    /// Contiguous runs of samples, in ascending order of their first sample; at least one after [`Meta::parse`].
    pub captures: Vec<Capture>,
    /// Annotations of samples, in ascending order of their first sample.
    pub annotations: Vec<Annotation>,
}

/// Properties of the whole recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Global {
    /// Type of a sample of one channel.
    #[serde(rename = "core:datatype")]
    pub datatype: Datatype,
    /// Version of the SigMF specification that the file follows.
    #[serde(rename = "core:version")]
    pub version: String,
    /// Samples per second and channel.
    #[serde(rename = "core:sample_rate", skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<f64>,
    /// Number of interleaved channels, at least 1.
    #[serde(rename = "core:num_channels")]
    pub channels: u32,
    /// Index of the file's first sample; all other indices have the same origin. daq never writes this field: the
    /// indices of its files start at 0, and `core:global_index` contains the position of a file in the stream.
    #[serde(rename = "core:offset", skip_serializing_if = "is_zero")]
    pub offset: u64,
    /// Name of the data file, if it does not have the same base name as the metadata file.
    #[serde(rename = "core:dataset", skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Number of bytes at the end of the data file that do not contain samples.
    #[serde(rename = "core:trailing_bytes", skip_serializing_if = "is_zero")]
    pub trailing_bytes: u64,
    /// The program that wrote the recording.
    #[serde(rename = "core:recorder", skip_serializing_if = "Option::is_none")]
    pub recorder: Option<String>,
    /// Free text about the recording.
    #[serde(rename = "core:description", skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The author of the recording.
    #[serde(rename = "core:author", skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The hardware used for the recording.
    #[serde(rename = "core:hw", skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
    /// Namespaces that the file uses.
    #[serde(rename = "core:extensions", skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
    /// daq's own keys; `None` in files of other programs.
    #[serde(flatten)]
    pub stream: Option<Stream>,
}

/// A declared namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Extension {
    /// Name of the namespace.
    pub name: String,
    /// Version of the namespace.
    pub version: String,
    /// Whether the recording can be read without support for the namespace.
    pub optional: bool,
}

/// The keys of the namespace `daq` in `global`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stream {
    /// Size of the data file in bytes.
    #[serde(rename = "daq:bytes")]
    pub bytes: u64,
    /// Number of frames in the data file.
    #[serde(rename = "daq:frames")]
    pub frames: u64,
    /// Size of a whole frame in bytes.
    #[serde(rename = "daq:frame_bytes")]
    pub frame_bytes: u64,
    /// Number of packets per frame; 0 if frames do not consist of packets.
    #[serde(rename = "daq:packets_per_frame")]
    pub packets_per_frame: u32,
    /// Sizes of the packets of a whole frame: the keys `daq:first_bytes`, `daq:packet_bytes` and, if frames have several
    /// parts, `daq:parts`. `None` if the file does not contain them.
    #[serde(flatten, serialize_with = "write_packet_sizes")]
    pub packet_sizes: Option<PacketSizes>,
    /// Whether frames differ in size, so that a frame of fewer bytes than `frame_bytes` can be whole; `None` if the file does
    /// not contain it.
    #[serde(rename = "daq:sizes_differ", skip_serializing_if = "Option::is_none")]
    pub sizes_differ: Option<bool>,
    /// Number of this file within a recording of several files.
    #[serde(rename = "daq:segment")]
    pub segment: u64,
    /// Number of the first file of the same run of daq, which identifies the run; `None` if the file does not contain it.
    #[serde(rename = "daq:first_segment", skip_serializing_if = "Option::is_none")]
    pub first_segment: Option<u64>,
    /// The ring that the frames were read from.
    #[serde(rename = "daq:source", skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Number of samples that never arrived and contain the fill pattern instead.
    #[serde(rename = "daq:missing_samples")]
    pub missing_samples: u64,
    /// Number of frames that never arrived and are not in the file, including frames missing directly before the file's
    /// first frame.
    #[serde(rename = "daq:missing_frames")]
    pub missing_frames: u64,
    /// Number of channels per frame, if frames do not contain interleaved samples over time.
    #[serde(rename = "daq:channels", skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Number of points per channel in a frame, if frames do not contain interleaved samples over time.
    #[serde(rename = "daq:points", skip_serializing_if = "Option::is_none")]
    pub points: Option<u64>,
    /// Order of channels and points in a frame, if frames do not contain interleaved samples over time: `interleaved`
    /// or `planar`.
    #[serde(rename = "daq:order", skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// The axis of the points of a frame, if frames do not contain interleaved samples over time.
    #[serde(rename = "daq:axis", skip_serializing_if = "Option::is_none")]
    pub axis: Option<serde_json::Value>,
    /// Number of frames per second, if frames do not contain interleaved samples over time.
    #[serde(rename = "daq:frame_rate", skip_serializing_if = "Option::is_none")]
    pub frame_rate: Option<f64>,
    /// Names of the fields that frames keep from the headers of their packets. Annotations contain the values.
    #[serde(rename = "daq:kept", skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
}

/// The start of a contiguous run of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Capture {
    /// Index of the run's first sample.
    #[serde(rename = "core:sample_start")]
    pub sample_start: u64,
    /// Index of the run's first sample in the stream that the recording is a part of.
    #[serde(rename = "core:global_index", skip_serializing_if = "Option::is_none")]
    pub global_index: Option<u64>,
    /// Time of the run's first sample as RFC 3339 in UTC; see [`Capture::time_ns`].
    #[serde(rename = "core:datetime", skip_serializing_if = "Option::is_none")]
    pub datetime: Option<String>,
    /// Centre frequency in Hz.
    #[serde(rename = "core:frequency", skip_serializing_if = "Option::is_none")]
    pub frequency: Option<f64>,
    /// Bandwidth of the receiver in Hz.
    #[serde(rename = "daq:bandwidth", skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
    /// Number of bytes before the first sample that do not contain samples.
    #[serde(rename = "core:header_bytes", skip_serializing_if = "is_zero")]
    pub header_bytes: u64,
    /// Sequence number of the first frame.
    #[serde(rename = "daq:sequence", skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// The epoch of the sequence number.
    #[serde(rename = "daq:epoch", skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// The clock that the time was read from.
    #[serde(rename = "daq:clock", skip_serializing_if = "Option::is_none")]
    pub clock: Option<String>,
    /// Time of the clock in nanoseconds.
    #[serde(rename = "daq:time_ns", skip_serializing_if = "Option::is_none")]
    pub clock_ns: Option<u64>,
    /// Times of the last frames of the capture as differences to `daq:time_ns` in nanoseconds; `None` for a frame without a
    /// time. The times of the frames before them follow from `daq:time_ns` and the rate.
    #[serde(rename = "daq:times_ns", skip_serializing_if = "Vec::is_empty")]
    pub times_ns: Vec<Option<i64>>,
    /// Number of frames in the capture.
    #[serde(rename = "daq:frames", skip_serializing_if = "Option::is_none")]
    pub frames: Option<u64>,
    /// Number of frames missing directly before the capture.
    #[serde(rename = "daq:missing_frames", skip_serializing_if = "is_zero")]
    pub missing_frames: u64,
}

impl Capture {
    /// Returns the time of the capture in nanoseconds since 1970-01-01T00:00:00Z, if it has a UTC time.
    pub fn time_ns(&self) -> Option<u64> {
        self.datetime.as_deref().and_then(parse_datetime)
    }
}

/// An annotation of a range of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Annotation {
    /// Index of the first annotated sample.
    #[serde(rename = "core:sample_start")]
    pub sample_start: u64,
    /// Number of annotated samples; `None` means up to the end of the capture.
    #[serde(rename = "core:sample_count", skip_serializing_if = "Option::is_none")]
    pub sample_count: Option<u64>,
    /// A short label.
    #[serde(rename = "core:label", skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// A comment for users.
    #[serde(rename = "core:comment", skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The cause of missing samples.
    #[serde(rename = "daq:cause", skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Number of frames missing before the first annotated sample.
    #[serde(rename = "daq:missing_frames", skip_serializing_if = "is_zero")]
    pub missing_frames: u64,
    /// The missing packets as pairs of the first byte in the data file and the number of bytes, if packets do not end where
    /// samples end. Without them, all bytes of the annotated samples are missing.
    #[serde(rename = "daq:missing_bytes", skip_serializing_if = "Vec::is_empty")]
    pub missing_bytes: Vec<[u64; 2]>,
    /// Number of separate spans that this annotation was merged from; not written if it is 1.
    #[serde(rename = "daq:merged", skip_serializing_if = "is_zero")]
    pub merged: u64,
    /// Values from the headers of the packets, which each frame of the annotated samples has.
    #[serde(rename = "daq:kept", skip_serializing_if = "BTreeMap::is_empty")]
    pub kept: BTreeMap<String, u64>,
}

/// The position of a capture's samples in the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the capture in [`Meta::captures`].
    pub capture: usize,
    /// Offset of the first sample in the data file in bytes.
    pub byte_start: u64,
    /// Size of the samples in bytes, a multiple of [`Meta::group_bytes`].
    pub bytes: u64,
}

impl Meta {
    /// Returns the size of one sample of all channels in bytes.
    pub fn group_bytes(&self) -> u64 {
        self.global.datatype.bytes() as u64 * u64::from(self.global.channels)
    }

    /// Returns the path of the data file that belongs to the metadata file `meta`.
    pub fn data_path(&self, meta: &Path) -> PathBuf {
        match &self.global.dataset {
            Some(name) => meta.with_file_name(name),
            None => meta.with_extension("sigmf-data"),
        }
    }

    /// Returns the positions of the captures' samples in a data file of `data_bytes` bytes, in order. Captures that
    /// start after the end of the file are left out. The last capture ends at the end of the data. Incomplete samples
    /// at the end of a capture are left out.
    pub fn spans(&self, data_bytes: u64) -> Vec<Span> {
        let group = u128::from(self.group_bytes());
        let end = u128::from(data_bytes.saturating_sub(self.global.trailing_bytes));
        let mut spans = Vec::with_capacity(self.captures.len());
        let mut headers = 0_u128;
        for (i, capture) in self.captures.iter().enumerate() {
            headers += u128::from(capture.header_bytes);
            let byte = |sample: u64| {
                u128::from(sample.saturating_sub(self.global.offset)) * group + headers
            };
            let start = byte(capture.sample_start).min(end);
            let stop = self
                .captures
                .get(i + 1)
                .map_or(end, |next| byte(next.sample_start).min(end));
            let bytes = stop.saturating_sub(start) / group * group;
            let fits = u64::try_from(start).ok().zip(u64::try_from(bytes).ok());
            if let Some((byte_start, bytes)) = fits.filter(|&(_, bytes)| bytes > 0) {
                spans.push(Span {
                    capture: i,
                    byte_start,
                    bytes,
                });
            }
        }
        spans
    }

    /// Returns the ranges of filled samples as `(first, count)`, counted from the start of the data file. A range is
    /// known only if the file marks it with an annotation of label [`LABEL_MISSING`].
    pub fn missing(&self) -> impl Iterator<Item = (u64, u64)> {
        self.annotations
            .iter()
            .filter(|a| a.label.as_deref() == Some(LABEL_MISSING))
            .filter_map(|a| {
                let count = a.sample_count.filter(|&count| count > 0)?;
                Some((a.sample_start.saturating_sub(self.global.offset), count))
            })
    }

    /// Returns the text of the metadata file.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // Cannot fail: all keys are strings, all types can be serialised, and writing to memory does not fail.
        let _ = serde_json::to_writer_pretty(&mut text, self);
        text.push(b'\n');
        text
    }
}

/// Writes the keys of packet sizes.
// serde requires this signature.
#[allow(clippy::ref_option)]
fn write_packet_sizes<S: Serializer>(
    sizes: &Option<PacketSizes>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Keys {
        #[serde(rename = "daq:first_bytes")]
        first: u32,
        #[serde(rename = "daq:packet_bytes")]
        rest: u32,
        #[serde(rename = "daq:parts", skip_serializing_if = "Option::is_none")]
        parts: Option<u32>,
    }
    let keys = sizes.map(|sizes| Keys {
        first: sizes.first,
        rest: sizes.rest,
        parts: Some(sizes.parts).filter(|parts| *parts > 1),
    });
    keys.serialize(serializer)
}

// serde requires this signature.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests;
