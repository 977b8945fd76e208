//! The keys that all sources of packets share.

use daq_core::config::Problem;
use daq_core::layout::Samples;
use daq_core::reorder::CLOSE_AFTER;
use daq_core::units::Span;
use schemars::JsonSchema;
use serde::Deserialize;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The allowed values of `close_after`.
const CLOSE_AFTER_RANGE: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_hours(1);

/// How packets form frames: a group of keys of each source of packets.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PacketKeys {
    /// Number of frames open at the same time, at least 1. This number limits how far packets may arrive out of order, and how
    /// long a frame with a gap stays open. The default is large enough for several receive batches of each thread, at least 8,
    /// and limited by the number of slots of the ring; `daq plan` prints the number and the reason. The default of a source
    /// `hsb` is 2. If SPEAD sizes are detected automatically, the default is computed for the maximum number of packets in a
    /// slot: set `window` if `late` grows. A frame with missing packets is published when a packet of a frame `window` frames
    /// later arrives, after `close_after` without new packets, or when the source ends. The newest frame waits for a later packet or
    /// the end of the source.
    pub window: Option<usize>,
    /// Maximum number of packets missing in a row, beyond twice the window. A larger gap, or a step back, is not counted as
    /// loss but starts a new epoch.
    pub max_gap: Option<u64>,
    /// Number of packets in a row that must have consistent sequence numbers before daq accepts a jump of more than twice the
    /// window. Until then, daq buffers the packets; if their numbers are not consistent, it rejects them. At least 1.
    #[serde(default = "default_resync_after")]
    pub resync_after: u32,
    /// Time without new packets after which frames with missing packets are published, 1 ms to 1 h. Sources whose senders pause
    /// for longer in the middle of a frame need a longer time. It is also the pause after which the same numbers can be a restart.
    #[serde(default = "default_close_after")]
    pub close_after: Span,
    /// Type and layout of the payload samples; by default real int8 with one channel.
    pub samples: Option<Samples>,
}

/// Default value of `max_gap`, except for sensor bridges.
pub(crate) const fn default_max_gap() -> u64 {
    1 << 16
}

/// Default value of `resync_after`.
pub(crate) const fn default_resync_after() -> u32 {
    4
}

/// Default value of `close_after`.
pub(crate) const fn default_close_after() -> Span {
    Span(CLOSE_AFTER)
}

impl PacketKeys {
    /// Returns the maximum number of packets missing in a row.
    pub(crate) fn max_gap(&self) -> u64 {
        self.max_gap.unwrap_or(default_max_gap())
    }

    /// Returns the type and layout of the samples.
    pub(crate) fn samples(&self) -> Samples {
        self.samples.clone().unwrap_or_default()
    }

    /// Returns a note for `daq plan` if the type of the samples is not declared.
    pub(crate) fn note(&self) -> Option<String> {
        let is_assumed = self.samples.is_none();
        is_assumed.then(|| "the sample type is not declared, so int8 is assumed".to_owned())
    }

    /// Returns every problem of the keys.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        if self.window == Some(0) {
            found.push(
                Problem::at("window", "`window` must be at least 1 frame").help("set at least 1"),
            );
        }
        if self.resync_after == 0 {
            found.push(
                Problem::at("resync_after", "`resync_after` must be at least 1 packet")
                    .help("set at least 1"),
            );
        }
        if !CLOSE_AFTER_RANGE.contains(&self.close_after.0) {
            let problem = Problem::at("close_after", "`close_after` must be 1 ms to 1 h");
            found.push(problem.help("set a time like \"100 ms\", which is the default"));
        }
        found
    }
}
