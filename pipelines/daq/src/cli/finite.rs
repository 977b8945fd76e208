//! The end of a run with `--frames`: enough frames, or no more packets.

use daq_core::ledger::{Missing, Report, SourceReport};
use daq_core::plan::{Plan, PlannedSource};
use daq_core::units::{Span, counted};
use daq_pipelines::runtime::Pipeline;
use std::collections::BTreeSet;
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
        let upstream = Upstream::of(plan, &self.ring);
        if !upstream.is_idle(&report, now.unwrap_or_default(), self.idle.0) {
            return false;
        }
        let source = plan.source_of(&self.ring);
        let missing = source.and_then(|source| {
            let counts = report.sources.get(&source.name)?;
            let missing = self.missing(source, counts, published)?;
            pipeline.add_missing(&source.name, missing);
            let unit = counts.unit().trim_end_matches('s');
            let packets = match missing {
                Missing::Packets { packets, .. } => packets,
                Missing::PartsUpTo(each) => missing_of_parts(counts, each)?,
            };
            Some(format!("; {} never arrived", counted(packets, unit)))
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
            return Some(Missing::PartsUpTo(self.frames.saturating_mul(each)));
        }
        let left = self.frames.saturating_sub(published);
        let unexpected = self
            .frames
            .saturating_mul(packets)
            .saturating_sub(counts.expected);
        let missing = missing_of(counts.pending, packets, left);
        Some(Missing::Packets {
            packets: missing.min(unexpected),
            expected: counts.expected,
        })
    }
}

/// Returns the number of packets that are missing of parts of `each` packets; `None` if the run has joined a stream, or if the
/// sender has restarted.
fn missing_of_parts(counts: &SourceReport, each: u64) -> Option<u64> {
    if counts.epochs != 1 || counts.before_start > 0 {
        return None;
    }
    let parts = counts.parts.values();
    let closed: u64 = parts.map(|part| each.saturating_sub(part.expected)).sum();
    // Parts do not expect packets of open frames yet.
    Some(closed.saturating_sub(counts.pending))
}

/// Returns the number of packets that are missing in the last `frames` frames of `packets` packets, of which `pending`
/// packet slots are expected.
fn missing_of(pending: u64, packets: u64, frames: u64) -> u64 {
    let packets = packets.max(1);
    let begun = pending.div_ceil(packets);
    frames.max(begun).saturating_mul(packets) - pending
}

/// What the frames of a ring are received, copied or computed from.
#[derive(Debug, Default)]
struct Upstream<'a> {
    rings: BTreeSet<&'a str>,
    /// The readers of these rings.
    readers: BTreeSet<&'a str>,
    sources: BTreeSet<&'a str>,
}

impl<'a> Upstream<'a> {
    fn of(plan: &'a Plan, ring: &'a str) -> Self {
        let mut found = Self::default();
        let mut open = vec![ring];
        while let Some(ring) = open.pop().filter(|ring| found.rings.insert(ring)) {
            let copies = plan.copies.iter().filter(|copy| copy.to == ring);
            open.extend(copies.map(|copy| copy.from.as_str()));
            let kernels = plan.kernels.iter().filter(|kernel| kernel.output == ring);
            open.extend(kernels.map(|kernel| kernel.input.as_str()));
            let gathers = plan.gathers.iter().filter(|gather| gather.to == ring);
            open.extend(gathers.flat_map(|gather| gather.from.iter().map(String::as_str)));
        }
        let is_upstream = |ring: &String| found.rings.contains(ring.as_str());
        let sources = plan.sources.iter().filter(|it| is_upstream(&it.ring));
        found.sources = sources.map(|source| source.name.as_str()).collect();
        let sinks = plan.sinks.iter().filter(|it| is_upstream(&it.input));
        let kernels = plan.kernels.iter().filter(|it| is_upstream(&it.input));
        let copies = plan.copies.iter().filter(|it| is_upstream(&it.from));
        let gathers = plan
            .gathers
            .iter()
            .filter(|it| it.from.iter().any(is_upstream));
        found.readers = (sinks.map(|sink| sink.name.as_str()))
            .chain(kernels.map(|kernel| kernel.name.as_str()))
            .chain(copies.map(|copy| copy.name.as_str()))
            .chain(gathers.flat_map(|gather| gather.readers.iter().map(String::as_str)))
            .collect();
        found
    }

    /// Returns whether packets have arrived, but none for `idle`, and all frames were processed. `now` is the time since 1970.
    fn is_idle(&self, report: &Report, now: Duration, idle: Duration) -> bool {
        let sources = self
            .sources
            .iter()
            .filter_map(|name| report.sources.get(*name));
        let last = sources.filter_map(|source| source.last_packet_ns);
        let Some(last) = last.max().map(Duration::from_nanos) else {
            return false;
        };
        // A source that waits for slow readers sends nothing, but has not ended.
        let mut readers = self
            .readers
            .iter()
            .filter_map(|name| report.readers.get(*name));
        readers.all(|reader| reader.pending == 0) && now.saturating_sub(last) >= idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::config::{Diagnostics, Document};
    use daq_core::ledger::{PartReport, ReaderReport};
    use daq_core::plan::{Config, PlanContext, resolve};
    use daq_core::topology::Topology;

    fn plan(text: &str) -> Plan {
        let mut diagnostics = Diagnostics::new();
        let document = Document::from_text("daq.toml", text, &mut diagnostics);
        let registry = daq_pipelines::registry();
        let config = Config::read(&document, &registry, "daq", &mut diagnostics);
        let context = PlanContext::default();
        let plan = resolve(&config, &Topology::detect(), &context, &mut diagnostics);
        plan.unwrap_or_else(|| panic!("{}", diagnostics.render(document.sources(), false)))
    }

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
    fn packets_of_open_frames_of_parts_are_not_missing() {
        let part = |expected| PartReport {
            expected,
            ..PartReport::default()
        };
        // Frames of 2 parts with 4 packets each: one whole frame, and 7 packets of the open one.
        let mut counts = SourceReport {
            epochs: 1,
            pending: 7,
            parts: [("a".to_owned(), part(4)), ("b".to_owned(), part(4))].into(),
            ..SourceReport::default()
        };
        assert_eq!(missing_of_parts(&counts, 8), Some(1));
        counts.epochs = 2;
        assert_eq!(missing_of_parts(&counts, 8), None);
    }

    #[test]
    fn frames_without_a_slot_are_not_missing() {
        let text = "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npacket = 1024\n[ring.raw]\nslot = 8192\nslots = 16\n\
                    [sink.n]\ndriver = \"null\"\ninput = \"raw\"\n";
        let plan = plan(text);
        let finite = Finite {
            ring: "raw".to_owned(),
            frames: 20,
            idle: Span(Duration::from_secs(5)),
        };
        let missing = |expected, pending, published| {
            let counts = SourceReport {
                expected,
                pending,
                ..SourceReport::default()
            };
            let missing = finite.missing(&plan.sources[0], &counts, published);
            let Some(Missing::Packets { packets, .. }) = missing else {
                panic!("{missing:?}");
            };
            packets
        };
        // All frames, of which 5 found the ring full.
        assert_eq!(missing(160, 0, 15), 0);
        // The last frame, and 2 of its packets.
        assert_eq!(missing(152, 0, 19), 8);
        assert_eq!(missing(154, 2, 19), 6);
        // A sender that restarted inside of a frame.
        assert_eq!(missing(146, 0, 19), 8);
    }

    #[test]
    fn run_is_idle_after_the_last_packet_and_frame_of_its_ring() {
        let (second, idle) = (Duration::from_secs(1), Duration::from_secs(5));
        let source = |last| SourceReport {
            last_packet_ns: last,
            ..SourceReport::default()
        };
        let reader = |pending| ReaderReport {
            pending,
            ..ReaderReport::default()
        };
        // The source `other` and its reader do not belong to the ring.
        let report = |last, pending| Report {
            sources: [
                ("adc".to_owned(), source(last)),
                ("other".to_owned(), source(Some(104_000_000_000))),
            ]
            .into(),
            readers: [
                ("disk".to_owned(), reader(pending)),
                ("else".to_owned(), reader(3)),
            ]
            .into(),
            ..Report::default()
        };
        let upstream = Upstream {
            rings: ["raw"].into(),
            readers: ["disk"].into(),
            sources: ["adc"].into(),
        };
        let last = Some(100_000_000_000);
        assert!(upstream.is_idle(&report(last, 0), 105 * second, idle));
        assert!(!upstream.is_idle(&report(last, 0), 104 * second, idle));
        assert!(!upstream.is_idle(&report(last, 1), 200 * second, idle));
        assert!(!upstream.is_idle(&report(None, 0), 200 * second, idle));
    }

    #[test]
    fn frames_of_kernels_come_from_the_source_of_their_input() {
        let text = "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npacket = 1024\nsamples = { type = \"int16\" }\n\
                    [ring.raw]\nslot = 8192\nslots = 16\n[kernel.health]\nuse = \"stats\"\ninput = \"raw\"\n\
                    output = \"health\"\n[ring.health]\nslots = 16\n[sink.n]\ndriver = \"null\"\ninput = \"health\"\n\
                    [source.other]\ndriver = \"sim\"\nring = \"else\"\n[ring.else]\nslots = 16\n\
                    [sink.m]\ndriver = \"null\"\ninput = \"else\"\n";
        let plan = plan(text);
        let upstream = Upstream::of(&plan, "health");
        assert_eq!(upstream.sources, ["adc"].into());
        assert_eq!(upstream.readers, ["health", "n"].into());
    }
}
