//! The keys of `kind = "vita49"`.

use super::Vita49;
use crate::packet::Format;
use crate::packet::checks::{Check, LARGEST_PACKET};
use crate::packet::streams::{StreamFrames, StreamIds};
use daq_core::config::Problem;
use daq_core::units::{ByteSize, Period};
use schemars::JsonSchema;
use serde::Deserialize;

/// Leap seconds between GPS time and UTC since 2017-01-01.
const LEAP_SECONDS: u32 = 18;

/// `kind = "vita49"`: signal data packets of VITA 49.0 and 49.2, also with the profile DIFI. Context and command packets
/// are counted as `control`. The order of packets follows from their timestamps if `rate` of `samples` is set, otherwise
/// from their 4-bit packet count.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vita49Config {
    /// Number of payload bytes in each packet, without header and trailer.
    pub payload: ByteSize,
    /// Stream identifier of the packets, such as `0x2a`, or several: `[0x2a, 0x2b]`. The streams are the parts of a frame, in this
    /// order, so each is a channel with `order = "planar"`. Packets of other streams are rejected. By default the stream of the first
    /// packet.
    pub stream_id: Option<StreamIds>,
    /// Number of packets of each stream in a frame; needs `rate` of `samples`. With several streams, the default is the number with
    /// which a frame has up to 1 MiB. With one stream, a frame contains as many packets as fit into a slot.
    pub packets: Option<u32>,
    /// Maximum difference between a timestamp and the time that follows from `rate`, such as `"10 ns"`; by default half a
    /// sample for timestamps in picoseconds, and none for timestamps in samples. Must be shorter than half a packet. A
    /// packet with another timestamp is rejected, unless several packets in a row are consistent with each other.
    pub tolerance: Option<Period>,
    /// Number of leap seconds between GPS time and UTC, for packets with GPS timestamps.
    #[serde(default = "leap_seconds")]
    pub leap_seconds: u32,
    /// Values of context packets of the first stream that frames keep, in Hz, such as `["rf_frequency", "sample_rate"]`. A frame keeps the value that
    /// is valid when its first packet arrives; before the first context packet, it keeps none.
    #[serde(default)]
    pub keep: Vec<KeptValue>,
}

/// A value of context packets that frames can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptValue {
    /// The bandwidth.
    Bandwidth,
    /// The intermediate frequency.
    IfFrequency,
    /// The radio frequency.
    RfFrequency,
    /// The sample rate.
    SampleRate,
}

impl KeptValue {
    /// Returns the name of the field that frames keep, and the bit of the context packets' indicator word.
    pub(super) const fn field(self) -> (&'static str, u32) {
        match self {
            Self::Bandwidth => ("bandwidth", 29),
            Self::IfFrequency => ("if_frequency", 28),
            Self::RfFrequency => ("rf_frequency", 27),
            Self::SampleRate => ("sample_rate", 21),
        }
    }
}

const fn leap_seconds() -> u32 {
    LEAP_SECONDS
}

impl Vita49Config {
    /// Returns the format, or every problem of the configuration.
    pub fn build(&self) -> Result<Format, Vec<Problem>> {
        let mut check = Check::default();
        let payload = check.size("payload", self.payload, 1, LARGEST_PACKET);
        check.must(self.leap_seconds <= 1000, "leap_seconds", || {
            let message = format!("{} leap seconds are too many", self.leap_seconds);
            (
                message,
                format!("GPS time is {LEAP_SECONDS} s ahead of UTC since 2017"),
            )
        });
        for (i, value) in self.keep.iter().enumerate() {
            check.must(
                !self.keep[..i].contains(value),
                &format!("keep.{i}"),
                || {
                    let (name, _) = value.field();
                    (
                        format!("`{name}` is listed twice"),
                        "remove one of them".to_owned(),
                    )
                },
            );
        }
        let ids = self.stream_id.as_ref().map_or(&[][..], |ids| &ids.0);
        if let Some(ids) = &self.stream_id {
            ids.check("stream_id", u32::MAX, &mut check);
        }
        let grouped = StreamFrames::new(ids.len(), self.packets, &mut check);
        let vita49 = Vita49::new(payload, ids.into(), self.tolerance, self.leap_seconds)
            .keeping(self.keep.clone())
            .grouped(grouped);
        check.end(Format::Vita49(vita49))
    }
}
