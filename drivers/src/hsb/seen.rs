//! What a sensor tells of its frames beside the ledger, by their metadata.

use super::metadata::Metadata;
use daq_core::ledger::Counter;

/// What is counted beside the ledger.
pub(super) const COUNTS: &[&str] = &["metadata", "skipped", "short", "control_errors", "rearmed"];

/// Where requests that failed stand in [`COUNTS`].
pub(super) const CONTROL_ERRORS: usize = 3;

/// The index in [`COUNTS`] of the number of times that a sensor was armed again.
pub(super) const REARMED: usize = 4;

/// The counters of [`COUNTS`], in their order.
pub(super) type Counters = [Counter; 5];

/// Frames that the sensor has numbered, at most, between two that came, for a gap between them to be believed.
const MAX_SKIPPED: u16 = 1 << 15;

/// What is known of a sensor beside the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames whose metadata came.
    pub metadata: u64,
    /// Frames that the sensor has numbered and never sent.
    pub skipped: u64,
    /// Frames that the sensor ended early: it says that it has written fewer bytes than a frame has, or the packet that ended
    /// one, without metadata, had too few.
    pub short: u64,
    /// The number of the last frame whose metadata came: ours and the sensor's.
    last: Option<(u64, u16)>,
}

impl Seen {
    /// Heeds the metadata of frame `frame` of `bytes` bytes.
    pub(super) fn note(&mut self, frame: u64, bytes: usize, metadata: &Metadata) {
        self.metadata += 1;
        if metadata.bytes_written < bytes as u64 {
            self.short += 1;
        }
        if let Some((last, number)) = self.last
            && frame > last
        {
            // Modulo 2^16, as the sensor counts: what it counted beyond what the packets did.
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

    /// The sensor counts anew.
    pub(super) const fn begin(&mut self) {
        self.last = None;
    }

    /// Has `counters` say the same.
    pub(super) fn tell(&self, counters: &Counters) {
        let [metadata, skipped, short, _, _] = counters;
        metadata.set(self.metadata);
        skipped.set(self.skipped);
        short.set(self.short);
    }
}
