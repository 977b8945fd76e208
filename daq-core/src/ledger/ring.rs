//! The ledger of a ring.

use super::metric::{Sampled, seconds};
use super::stored::Stored;
use super::{Counter, Latency, LatencyReport, PublishTimes};
use crate::gpu::Backend;

ledger! {
    /// The counters of a ring.
    ledger RingLedger {
        /// When frames were published, for the latency of the readers.
        times: PublishTimes,
    }
    /// A snapshot of a ring's ledger.
    report RingReport ["ring"] {
        /// Slots of the ring.
        capacity: u64 = Counter, gauge "daq_ring_capacity_slots" {
            meaning: "Fixed by `slots` in the ring's section.",
            cause: "Constant.",
        },
        /// Nanoseconds since the newest frame was published; `None` before the first. Updated five times a second.
        #[serde(skip_serializing_if = "Option::is_none")]
        newest_frame_age_ns: Option<u64>, gauge "daq_ring_newest_frame_age_seconds"
            (|ring, put| ring.newest_frame_age_ns.map(seconds).sample(put)) {
            help: "Seconds since the newest frame of the ring was published; absent before the first frame.",
            meaning: "Sampled five times a second, so the value is at most 0.2 s too small.",
            cause: "A growing value: the ring's source is silent, or the kernel before the ring does not produce \
                    frames.",
            remedy: "Check daq_source_last_packet_timestamp_seconds of the source, and the rings before this one.",
        },
        /// Maximum number of slots in use at the same time since startup.
        high_water: u64 = Counter, gauge "daq_ring_high_water_slots" {
            meaning: "The largest part of the ring that the run has needed. If the value equals the capacity, the \
                      ring was full at least once, or a reader without guarantee lagged by the whole ring.",
            cause: "A reader paused because of a slow disk, a busy core or a long integration.",
            remedy: "Increase `slots` if the value comes near the capacity. Decrease `slots` if the value always \
                     stays far below the capacity.",
        },
        /// Frames that the producer offered to the ring.
        produced: u64, counter "daq_ring_produced_frames_total" {
            meaning: "Always the sum of published frames and frames refused because the ring was full.",
        },
        /// Frames published to the readers.
        published: u64 = Counter, counter "daq_ring_published_frames_total" {
            meaning: "The rate of this metric is the frame rate of the ring.",
            cause: "A rate of 0: the source or kernel that fills the ring has no data, or a reader blocks the ring.",
            remedy: "Check the producer's ledger and daq_ring_full_frames_total.",
        },
        /// Frames refused because no slot was free.
        ring_full: u64 = Counter, counter "daq_ring_full_frames_total" {
            meaning: "These frames are lost, because a reader with `guarantee = true` blocked the ring and the \
                      producer cannot wait.",
            cause: "The reader named by daq_reader_blocked_frames_total is slower than the source on average, or \
                    paused for longer than the ring can buffer. If `copy to RING` blocks RING@host, a reader of RING \
                    with `guarantee = true` is too slow, or the copies to the GPU are too slow.",
            remedy: "If the reader is too slow on average: give the reader its own core, a faster disk, or less \
                     work. If the reader pauses: increase `slots`. If the reader may lose frames: set `guarantee = \
                     false`. If the full ring is RING@host (the host ring that daq adds in front of RING): apply \
                     these remedies to the reader of RING whose daq_reader_pending_frames is near the capacity of \
                     RING. If there is no such reader, the copies are too slow: see daq_copy_frames_total.",
        },
        /// Time from the arrival of a frame's first packet at this host until the frame was published.
        #[serde(skip_serializing_if = "LatencyReport::is_empty")]
        latency: LatencyReport = Latency, histogram "daq_ring_latency_seconds" by "le" {
            meaning: "Measured for frames with a timestamp of the clock `host` or `kernel`; absent for other clocks. \
                      The time includes the transmission of all packets of the frame. For the output ring of a kernel, \
                      it includes all stages before. At high rates, about one burst per millisecond is measured.",
            cause: "High values: large frames at a low rate, a large reorder window while packets are missing, a long \
                    integration, or a stage before this ring that is too slow.",
            remedy: "Compare with daq_reader_latency_seconds of the readers before this ring. Smaller slots shorten the \
                     time until a frame is complete.",
        },
        /// The backend of the ring's BAR mapping, if the ring is on a GPU and the CPU can write it.
        #[serde(skip_serializing_if = "Option::is_none")]
        mapping: Option<Backend>, gauge "daq_ring_mapping_info" by "backend" {
            help: "Always 1; exported for GPU rings that the CPU can store to. The label `backend` is the mapping \
                   backend.",
            meaning: "The CPU stores frames to such a ring if CPU stores are faster than the copy engine; \
                      daq_copy_stored_frames_total counts these frames.",
            cause: "This metric is absent for a GPU ring in two cases: its slots are larger than the default \
                    CPU-store threshold (the copy engine is faster), or the CPU cannot store to that GPU.",
            remedy: "`daq plan` prints the reason; `daq doctor` prints how to enable CPU stores to GPU memory.",
        },
    }
    equation produced = published + ring_full;
}

impl RingReport {
    /// Reads the counters.
    pub fn of(ledger: &RingLedger) -> Self {
        let mut report = ledger.read();
        report.produced = report.published + report.ring_full;
        report
    }
}
