//! Counters of a sensor besides the ledger, computed from frame metadata.

use super::metadata::Metadata;
use daq_core::counts;

counts! {
    /// The counters of a sensor besides its ledger.
    pub(super) struct SensorCounts {
        /// Number of frames whose metadata arrived.
        metadata,
        /// Number of frames that the sensor numbered and never sent.
        skipped,
        /// Number of frames that the sensor ended early.
        short,
        /// Number of failed register requests.
        control_errors,
        /// Number of times that a sensor was armed again.
        rearmed,
    }
}

/// Maximum number of skipped frames between two received frames; a larger difference is ignored as implausible.
const MAX_SKIPPED: u16 = 1 << 15;

/// Statistics of a sensor besides the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of frames whose metadata arrived.
    pub metadata: u64,
    /// Number of frames that the sensor numbered and never sent.
    pub skipped: u64,
    /// Number of frames that the sensor ended early: the metadata report fewer bytes than a frame has, or the end packet
    /// without metadata was too short.
    pub short: u64,
    /// The last frame whose metadata arrived: its frame number in daq and in the sensor.
    last: Option<(u64, u16)>,
}

impl Statistics {
    /// Updates the statistics with the metadata of frame `frame`, which has `bytes` bytes.
    pub(super) fn note(&mut self, frame: u64, bytes: usize, metadata: &Metadata) {
        self.metadata += 1;
        if metadata.bytes_written < bytes as u64 {
            self.short += 1;
        }
        if let Some((last, number)) = self.last
            && frame > last
        {
            // Modulo 2^16, like the sensor's counter. The sensor skipped the frames that it counted in addition to
            // those that the packet numbers show.
            #[expect(clippy::cast_possible_truncation, reason = "modulo 2^16")]
            let came = (frame - last) as u16;
            let skipped = metadata.frame.wrapping_sub(number).wrapping_sub(came);
            if skipped < MAX_SKIPPED {
                self.skipped += u64::from(skipped);
            }
        }
        if self.last.is_none_or(|(last, _)| frame > last) {
            self.last = Some((frame, metadata.frame));
        }
    }

    /// Discards the last frame, because the sensor restarted its count.
    pub(super) const fn begin(&mut self) {
        self.last = None;
    }

    /// Copies the statistics to `counters`.
    pub(super) fn store(&self, counts: &SensorCounts) {
        counts.metadata.set(self.metadata);
        counts.skipped.set(self.skipped);
        counts.short.set(self.short);
    }
}
