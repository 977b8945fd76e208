//! Snapshots of ledgers, as shown by `--report json`, `/status`, `/metrics` and the live display.

use super::{
    Cause, CopyLedger, EngineReport, KernelLedger, ReaderLedger, RingLedger, SinkLedger,
    SourceLedger,
};
use crate::gpu::Backend;
use crate::gpu::Dispatch;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{Ordering, fence};

/// A snapshot of a source's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// Number of packets between the first and the last one seen, summed over epochs.
    pub expected: u64,
    /// Number of packets in published frames.
    pub delivered: u64,
    /// Number of packets whose disposition is not final.
    pub pending: u64,
    /// Number of packets lost, by cause; causes without losses are left out.
    pub lost: BTreeMap<&'static str, u64>,
    /// Number of delivered frames with missing packets; the missing packets are filled.
    pub incomplete: u64,
    /// Number of payload bytes delivered.
    pub bytes: u64,
    /// Number of packets that had already arrived before.
    pub duplicates: u64,
    /// Number of packets whose sequence number is unreadable or implausible.
    pub rejected: u64,
    /// The number of rejected packets by reason, if the driver reports reasons.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected_by: BTreeMap<&'static str, u64>,
    /// Number of packets that carry no data by design.
    pub control: u64,
    /// Number of epochs.
    pub epochs: u64,
    /// Number of packets skipped at the start of epochs; not in `expected`.
    pub skipped: u64,
    /// Arrival time of the last packet with data, in nanoseconds since 1970; `None` before the first packet. Updated
    /// five times a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_packet_ns: Option<u64>,
    /// Whether no packet with data has arrived for longer than `silent_after`.
    pub silent: bool,
    /// The counters of the source's DMA engine; `None` for a source without a DMA engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineReport>,
    /// Additional counters of the source, by name; empty if the source has none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<&'static str, u64>,
}

impl SourceReport {
    /// Returns the unit of the counts: `"packets"`, or `"frames"` for DMA engines, which deliver whole frames.
    pub const fn unit(&self) -> &'static str {
        if self.engine.is_some() {
            "frames"
        } else {
            "packets"
        }
    }

    /// Reads the counters. `expected` is read last, because each packet is counted as expected before it is counted in
    /// another counter.
    pub fn of(ledger: &SourceLedger) -> Self {
        // Read before `delivered`, of which these frames are a part.
        let incomplete = ledger.incomplete.get();
        let delivered = ledger.delivered.get();
        let lost: BTreeMap<_, _> = Cause::ALL
            .into_iter()
            .map(|cause| (cause.name(), ledger.lost(cause).get()))
            .filter(|(_, count)| *count > 0)
            .collect();
        let expected = ledger.expected.get();
        let settled = delivered + lost.values().sum::<u64>();
        Self {
            expected,
            delivered,
            pending: expected.saturating_sub(settled),
            lost,
            incomplete,
            bytes: ledger.bytes.get(),
            duplicates: ledger.duplicates.get(),
            rejected: ledger.rejected.get(),
            control: ledger.control.get(),
            epochs: ledger.epochs.get(),
            skipped: ledger.skipped.get(),
            ..Self::default()
        }
    }

    /// Returns the number of packets lost, over all causes.
    pub fn lost_total(&self) -> u64 {
        self.lost.values().sum()
    }
}

/// A snapshot of a ring's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RingReport {
    /// Number of slots.
    pub capacity: u64,
    /// Maximum number of slots in use at a time.
    pub high_water: u64,
    /// Number of frames offered to the ring.
    pub produced: u64,
    /// Number of frames published to readers.
    pub published: u64,
    /// Number of frames refused because no slot was free.
    pub ring_full: u64,
    /// Nanoseconds since the newest frame was published; `None` before the first. Updated five times a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_frame_age_ns: Option<u64>,
    /// The backend of the ring's BAR mapping, if the ring is on a GPU and the CPU can write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapping: Option<Backend>,
}

impl RingReport {
    /// Reads the counters.
    pub fn of(ledger: &RingLedger) -> Self {
        let (published, ring_full) = (ledger.published.get(), ledger.ring_full.get());
        Self {
            capacity: ledger.capacity.get(),
            high_water: ledger.high_water.get(),
            produced: published + ring_full,
            published,
            ring_full,
            newest_frame_age_ns: None,
            mapping: None,
        }
    }
}

/// A snapshot of a reader's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReaderReport {
    /// The ring that the reader reads.
    pub ring: String,
    /// Number of frames published since the reader attached.
    pub published: u64,
    /// Number of frames leased and retired.
    pub read: u64,
    /// Number of frames overwritten before they were leased.
    pub overrun: u64,
    /// Number of frames discarded.
    pub discarded: u64,
    /// Number of frames with missing packets that were not leased, because of `incomplete = "drop"`.
    pub dropped_incomplete: u64,
    /// Number of frames waiting or leased.
    pub pending: u64,
    /// Number of frames that the producer refused because this reader blocked the ring.
    pub blocked: u64,
}

impl ReaderReport {
    /// Reads the counters. The counters of the ring are read last, so that `pending` is never negative.
    ///
    /// If frames were overwritten before the reader leased them, this function also counts these frames as overrun. The
    /// reader itself cannot count these frames while its thread is blocked in a write.
    pub fn of(ledger: &ReaderLedger, ring: &str, of_ring: &RingLedger) -> Self {
        let published = of_ring.published.get();
        // Pairs with the fence in `Reader::announce`: either the lease is seen here, or the reader sees that the
        // frames it was about to lease were overwritten.
        fence(Ordering::SeqCst);
        let slots = of_ring.capacity.get();
        let kept = ledger.attached.get() + ledger.leased.get() + slots;
        if slots > 0 && published > kept {
            ledger.overrun.raise(published - kept);
        }
        let (read, overrun, discarded, dropped_incomplete) = (
            ledger.read.get(),
            ledger.overrun.get(),
            ledger.discarded.get(),
            ledger.dropped_incomplete.get(),
        );
        let published = of_ring
            .published
            .get()
            .saturating_sub(ledger.attached.get());
        Self {
            ring: ring.to_owned(),
            published,
            read,
            overrun,
            discarded,
            dropped_incomplete,
            pending: published.saturating_sub(read + overrun + discarded + dropped_incomplete),
            blocked: ledger.blocked.get(),
        }
    }
}

/// A snapshot of a kernel's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelReport {
    /// Number of frames read.
    #[serde(rename = "in")]
    pub input: u64,
    /// Number of frames whose content is in the output.
    pub consumed: u64,
    /// Number of frames that accumulate until an integration ends.
    pub accumulating: u64,
    /// Number of frames that could not be processed.
    pub failed: u64,
    /// Number of frames in progress.
    pub pending: u64,
    /// Number of frames produced.
    pub produced: u64,
    /// GPU statistics; `None` for kernels on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
}

/// GPU statistics of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// How bursts are submitted. A persistent kernel is neither launched nor timed, so its statistics are 0.
    pub dispatch: Dispatch,
    /// Number of bursts submitted to the GPU and completed.
    pub launches: u64,
    /// Time that the GPU needed for these bursts, in nanoseconds.
    pub busy_ns: u64,
    /// Time that the GPU was idle on the kernel's stream between bursts, in nanoseconds.
    pub gap_ns: u64,
    /// The fraction of a multiprocessor's threads that the kernel's blocks can occupy, in millionths.
    pub occupancy_ppm: u64,
}

impl KernelReport {
    /// Reads the counters. Frames move from `accumulating` to `consumed`, so `consumed` is read first.
    pub fn of(ledger: &KernelLedger) -> Self {
        let consumed = ledger.consumed.get();
        let failed = ledger.failed.get();
        let produced = ledger.produced.get();
        let accumulating = ledger.accumulating.get();
        let input = ledger.input.get();
        let pending = input.saturating_sub(consumed + accumulating + failed);
        Self {
            input,
            consumed,
            accumulating,
            failed,
            pending,
            produced,
            device: None,
        }
    }

    /// Reads the counters of a kernel on a GPU, including the GPU statistics.
    pub fn on_device(ledger: &KernelLedger, dispatch: Dispatch) -> Self {
        Self {
            device: Some(DeviceReport {
                dispatch,
                launches: ledger.launches.get(),
                busy_ns: ledger.device_ns.get(),
                gap_ns: ledger.gap_ns.get(),
                occupancy_ppm: ledger.occupancy.get(),
            }),
            ..Self::of(ledger)
        }
    }
}

/// A snapshot of the ledger of a copy between host memory and a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// The ring that the copy reads.
    pub from: String,
    /// The ring that the copy fills.
    pub to: String,
    /// Number of frames whose copy was started.
    pub started: u64,
    /// Number of frames copied.
    pub frames: u64,
    /// Number of frames lost because the device failed during their copy.
    pub failed: u64,
    /// Number of frames among `frames` that the CPU stored; the GPU's copy engine copied the others.
    pub stored: u64,
    /// Number of frames in flight.
    pub pending: u64,
    /// Number of copies completed, by CPU stores or by the copy engine.
    pub copies: u64,
    /// Number of bytes of the completed copies.
    pub bytes: u64,
    /// Number of copies in flight.
    pub in_flight: u64,
    /// Time during which at least one copy was in flight, in nanoseconds.
    pub busy_ns: u64,
    /// Number of copies by size: at most [`CopyLedger::BOUNDS`] bytes each, and larger ones.
    pub sizes: [u64; 8],
}

impl CopyReport {
    /// Reads the counters, `started` last, so that `pending` is never negative.
    pub fn of(ledger: &CopyLedger, from: &str, to: &str) -> Self {
        let sizes = ledger.sizes().map(super::Counter::get);
        let (copies, bytes) = (ledger.copies.get(), ledger.bytes.get());
        let stored = ledger.stored.get();
        let (frames, failed) = (ledger.frames.get(), ledger.failed.get());
        let started = ledger.started.get();
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            started,
            frames,
            failed,
            stored,
            pending: started.saturating_sub(frames + failed),
            copies,
            bytes,
            in_flight: ledger.in_flight.get(),
            busy_ns: ledger.busy_ns.get(),
            sizes,
        }
    }
}

/// A snapshot of a sink's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SinkReport {
    /// Number of frames accepted.
    pub frames: u64,
    /// Number of payload bytes of the accepted frames.
    pub bytes: u64,
    /// Number of files, or comparable units, completed.
    pub files: u64,
    /// Whether the medium is full or the receiver is disconnected.
    pub full: bool,
    /// Number of frames that the sink did not accept.
    pub dropped: u64,
    /// Number of frames accepted but not written.
    pub lost: u64,
    /// Number of times that the receiver connected; 0 for sinks without one.
    pub connections: u64,
    /// Number of times that the sink began to wait for the receiver.
    pub stalls: u64,
}

impl SinkReport {
    /// Reads the counters.
    pub fn of(ledger: &SinkLedger) -> Self {
        Self {
            frames: ledger.frames.get(),
            bytes: ledger.bytes.get(),
            files: ledger.files.get(),
            full: ledger.full.get() != 0,
            dropped: ledger.dropped.get(),
            lost: ledger.lost.get(),
            connections: ledger.connections.get(),
            stalls: ledger.stalls.get(),
        }
    }
}

/// A snapshot of all ledgers of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Source ledgers, by name of the source.
    pub sources: BTreeMap<String, SourceReport>,
    /// Ring ledgers, by name of the ring.
    pub rings: BTreeMap<String, RingReport>,
    /// Reader ledgers, by name of the kernel, sink or copy that reads.
    pub readers: BTreeMap<String, ReaderReport>,
    /// Copy ledgers, by name of the ring that the copy fills.
    pub copies: BTreeMap<String, CopyReport>,
    /// Kernel ledgers, by name of the kernel.
    pub kernels: BTreeMap<String, KernelReport>,
    /// Sink ledgers, by name of the sink.
    pub sinks: BTreeMap<String, SinkReport>,
    /// Seconds since the start of the pipeline.
    pub seconds: f64,
}

/// A ledger equation that does not hold. This is always a bug in daq, never a property of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the ledger.
    pub ledger: String,
    /// The equation with its numbers.
    pub equation: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.ledger, self.equation)
    }
}

impl Report {
    /// Returns every equation that does not hold.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut check = |ledger: String, left: u64, right: &[u64], equation: &str| {
            if left != right.iter().sum::<u64>() {
                found.push(Violation {
                    ledger,
                    equation: format!("{equation}: {left} is not the sum of {right:?}"),
                });
            }
        };
        for (name, source) in &self.sources {
            let right = [source.delivered, source.pending, source.lost_total()];
            check(
                format!("source {name}"),
                source.expected,
                &right,
                "expected = delivered + pending + lost",
            );
        }
        for (name, ring) in &self.rings {
            check(
                format!("ring {name}"),
                ring.produced,
                &[ring.published, ring.ring_full],
                "produced = published + ring_full",
            );
        }
        for (name, reader) in &self.readers {
            let right = [
                reader.read,
                reader.overrun,
                reader.discarded,
                reader.dropped_incomplete,
                reader.pending,
            ];
            check(
                format!("reader {name}"),
                reader.published,
                &right,
                "published = read + overrun + discarded + dropped_incomplete + pending",
            );
        }
        for (name, copy) in &self.copies {
            check(
                format!("copy to {name}"),
                copy.started,
                &[copy.frames, copy.failed, copy.pending],
                "started = frames + failed + pending",
            );
        }
        for (name, kernel) in &self.kernels {
            let right = [
                kernel.consumed,
                kernel.accumulating,
                kernel.failed,
                kernel.pending,
            ];
            check(
                format!("kernel {name}"),
                kernel.input,
                &right,
                "in = consumed + accumulating + failed + pending",
            );
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_overwritten_before_lease_are_overrun() {
        let (ring, reader) = (RingLedger::default(), ReaderLedger::default());
        ring.capacity.set(16);
        reader.attached.set(10);
        let report = |published| {
            ring.published.set(published);
            let report = ReaderReport::of(&reader, "raw", &ring);
            assert_eq!(
                report.published,
                report.read + report.overrun + report.discarded + report.pending
            );
            (report.overrun, report.pending)
        };
        // The reader has leased four frames, which stay pending.
        reader.leased.set(4);
        assert_eq!(report(30), (0, 20));
        assert_eq!(report(130), (100, 20));
        reader.leased.set(8);
        assert_eq!(report(130), (100, 20), "a counter must not decrease");
    }

    #[test]
    fn broken_ledger_equations_are_named() {
        let mut report = Report::default();
        let source = SourceReport {
            expected: 3,
            delivered: 1,
            pending: 1,
            ..SourceReport::default()
        };
        report.sources.insert("adc".to_owned(), source);
        let found = report.violations();
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("source adc"), "{}", found[0]);
        report
            .sources
            .get_mut("adc")
            .unwrap()
            .lost
            .insert("wire_gap", 1);
        assert_eq!(report.violations(), []);
    }
}
