//! The end of a run with `--frames`: enough frames, or no more packets.

use daq_core::ledger::{Missing, Report, SourceReport};
use daq_core::plan::{Plan, PlannedSource};
use daq_core::units::{Span, counted};
use daq_pipelines::runtime::Pipeline;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The request to stop when a ring has published a number of frames.
#[derive(Clone, Debug)]
pub(super) struct Finite {
    /// Name of the ring.
    pub(super) ring: String,
    /// Number of frames.
    pub(super) frames: u64,
    /// Time after the last packet after which no more packets are expected.
    pub(super) idle: Span,
}

impl Finite {
    /// Returns whether the run must stop. If packets are missing, logs how many, and counts them as lost at the end.
    pub(super) fn has_ended(&self, plan: &Plan, pipeline: &Pipeline) -> bool {
        let published = pipeline.published(&self.ring).unwrap_or(0);
        if published >= self.frames {
            return true;
        }
        let report = pipeline.report();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        if !is_idle(&report, now.unwrap_or_default(), self.idle.0) {
            return false;
        }
        let source = plan.source_of(&self.ring);
        let missing = source.and_then(|source| {
            let counts = report.sources.get(&source.name)?;
            let missing = self.missing(source, counts, published)?;
            pipeline.add_missing(&source.name, missing);
            let unit = counts.unit().trim_end_matches('s');
            Some(match missing {
                Missing::Packets(packets) => format!("; {} never arrived", counted(packets, unit)),
                Missing::PartsUpTo(_) => String::new(),
            })
        });
        tracing::warn!(
            "stopping: no packet for {} after {} of {} in ring {}{}; `--idle` sets this time",
            self.idle,
            published,
            counted(self.frames, "frame"),
            self.ring,
            missing.unwrap_or_default()
        );
        true
    }

    /// Returns the packets of the requested frames that `counts` does not expect, because no later packet arrived; `None`
    /// if the number of packets per frame is detected at run time.
    fn missing(
        &self,
        source: &PlannedSource,
        counts: &SourceReport,
        published: u64,
    ) -> Option<Missing> {
        if source.detected_from.is_some() {
            return None;
        }
        let packets = match counts.unit() {
            "frames" => 1,
            _ => u64::from(source.geometry.packets_per_frame),
        };
        if !source.parts.is_empty() {
            let each = packets / source.parts.len() as u64;
            return Some(Missing::PartsUpTo(self.frames * each));
        }
        let left = self.frames.saturating_sub(published);
        Some(Missing::Packets(missing_of(counts.pending, packets, left)))
    }
}

/// Returns the number of packets that are missing in the last `frames` frames of `packets` packets, of which `pending`
/// packet slots are expected.
fn missing_of(pending: u64, packets: u64, frames: u64) -> u64 {
    let packets = packets.max(1);
    let begun = pending.div_ceil(packets);
    frames.max(begun) * packets - pending
}

/// Returns whether packets have arrived, but none for `idle`, and all frames were processed. `now` is the time since 1970.
fn is_idle(report: &Report, now: Duration, idle: Duration) -> bool {
    let last = report
        .sources
        .values()
        .filter_map(|source| source.last_packet_ns);
    let Some(last) = last.max().map(Duration::from_nanos) else {
        return false;
    };
    // A source that waits for slow readers sends nothing, but has not ended.
    let is_drained = report.readers.values().all(|reader| reader.pending == 0);
    is_drained && now.saturating_sub(last) >= idle
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::ledger::ReaderReport;

    #[test]
    fn missing_packets_complete_the_last_frames() {
        // 7 of 8 packets of the last frame.
        assert_eq!(missing_of(7, 8, 1), 1);
        assert_eq!(missing_of(8, 8, 1), 0);
        // The last frame, or the last two frames, never arrived.
        assert_eq!(missing_of(0, 8, 1), 8);
        assert_eq!(missing_of(3, 8, 2), 13);
        // More frames are open than were requested.
        assert_eq!(missing_of(9, 8, 1), 7);
        assert_eq!(missing_of(0, 1, 2), 2);
    }

    #[test]
    fn run_is_idle_after_the_last_packet_and_frame() {
        let (second, idle) = (Duration::from_secs(1), Duration::from_secs(5));
        let source = |last_packet_ns| SourceReport {
            last_packet_ns,
            ..SourceReport::default()
        };
        let report = |last, pending| Report {
            sources: [("adc".to_owned(), source(last))].into(),
            readers: [(
                "disk".to_owned(),
                ReaderReport {
                    pending,
                    ..ReaderReport::default()
                },
            )]
            .into(),
            ..Report::default()
        };
        let last = Some(100_000_000_000);
        assert!(is_idle(&report(last, 0), 105 * second, idle));
        assert!(!is_idle(&report(last, 0), 104 * second, idle));
        assert!(!is_idle(&report(last, 1), 200 * second, idle));
        assert!(!is_idle(&report(None, 0), 200 * second, idle));
    }
}
