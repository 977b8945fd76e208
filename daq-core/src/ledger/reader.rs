//! The ledger of a reader.

use super::stored::{Balanced, Stored};
use super::{Counter, Latency, LatencyReport, RingLedger};
use std::sync::atomic::{Ordering, fence};

ledger! {
    /// The counters of a reader.
    ledger ReaderLedger {
        /// Number of frames published before the reader attached (gauge).
        attached: Counter,
        /// Number of frames leased, including those that a poll in progress may lease, or
        /// [`UNLIMITED`](ReaderLedger::UNLIMITED) (gauge).
        leased: Counter,
    }
    /// A snapshot of a reader's ledger.
    report ReaderReport ["reader", "ring"] {
        /// The ring that the reader reads.
        ring: String,
        /// The process ID of a client in another process; `None` for a kernel, a sink or a copy.
        #[serde(skip_serializing_if = "Option::is_none")]
        process: Option<u32>,
        /// Frames published since the reader attached.
        published: u64, counter "daq_reader_published_frames_total" {
            meaning: "Always the sum of read, overrun, discarded, dropped as incomplete and pending.",
        },
        /// Frames that the reader has finished.
        read: u64 = Counter, counter "daq_reader_read_frames_total" {
            meaning: "The rate of this metric is the frame rate of the reader.",
            cause: "A rate below that of daq_reader_published_frames_total: the reader falls behind.",
            remedy: "Check daq_reader_pending_frames, and the processor time of its thread.",
        },
        /// Frames overwritten before the reader read them.
        overrun: u64 = Counter, counter "daq_reader_overrun_frames_total" {
            meaning: "Loss of this reader only, allowed by `guarantee = false`.",
            cause: "The reader is slower than the source.",
            remedy: "See daq_ring_full_frames_total; or set `guarantee = true` if the source should wait for this \
                     reader.",
        },
        /// Frames discarded by the sink's overflow policy, or because they changed while the reader read them.
        discarded: u64 = Counter, counter "daq_reader_discarded_frames_total" {
            meaning: "Frames that were read but not used.",
            cause: "The disk was full and the sink's overflow policy discards frames, or a free-running producer \
                    overwrote the frame.",
            remedy: "Disk full: free disk space. Overwritten frames: increase `slots`.",
        },
        /// Frames with missing packets that the reader skipped.
        dropped_incomplete: u64 = Counter, counter "daq_reader_dropped_incomplete_frames_total" {
            meaning: "Caused by `incomplete = \"drop\"` in the reader's section. Other readers of the ring get these \
                      frames.",
            cause: "Packets were lost, or the stream began or ended inside a frame.",
            remedy: "See daq_source_lost_packets_total.",
        },
        /// Lag of the reader: frames that the reader is reading or has not read yet.
        pending: u64, gauge "daq_reader_pending_frames" {
            meaning: "Near 0: the reader keeps up. Near daq_ring_capacity_slots: the reader is about to lose frames \
                      or to block the producer.",
            cause: "The reader pauses, or is too slow.",
            remedy: "See daq_ring_full_frames_total.",
        },
        /// Frames that the producer refused because this reader blocked the ring.
        blocked: u64 = Counter, counter "daq_reader_blocked_frames_total" {
            meaning: "The label `reader` names the reader that blocks the ring. The refused frames are also counted \
                      in daq_ring_full_frames_total.",
            cause: "This reader is too slow. `copy to RING`: this copy waits for a slot of RING that a reader of \
                    RING blocks, or the copies to the GPU are too slow.",
            remedy: "Apply the remedies of daq_ring_full_frames_total to this reader. For `copy to RING`, check the \
                     readers of RING.",
        },
        /// Time from the publication of a frame until the reader has finished the frame.
        #[serde(skip_serializing_if = "LatencyReport::is_empty")]
        latency: LatencyReport = Latency, histogram "daq_reader_latency_seconds" by "le" {
            meaning: "For a kernel, the time until its output is published; for a copy, until the copy is complete; for a \
                      sink, until the sink has accepted the frame. At high rates, about one burst per millisecond is \
                      measured. Frames that the reader misses or drops are not measured.",
            cause: "High values: the reader waits for a slow disk, a busy core or GPU, or processes large bursts.",
            remedy: "See daq_reader_pending_frames and daq_ring_full_frames_total.",
        },
    }
    equation published = read + overrun + discarded + dropped_incomplete, pending;
}

impl ReaderLedger {
    /// Value of `leased` with which a report counts no frame as overrun, because a guarantee protects all frames or
    /// because the reader itself counts them. It is larger than any number of frames, and not shown to users.
    pub const UNLIMITED: u64 = 1 << 62;
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
        let mut report = Self {
            ring: ring.to_owned(),
            ..ledger.read()
        };
        let published = of_ring.published.get();
        report.published = published.saturating_sub(ledger.attached.get());
        report.settle();
        report
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
}
