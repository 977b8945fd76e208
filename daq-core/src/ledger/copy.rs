//! The ledger of a copy between host memory and a GPU.

use super::metric::{Put, Sample, Sampled, seconds};
use super::stored::{Balanced, Make, Stored};
use super::{Counter, CounterFileError};

ledger! {
    /// The counters of a copy between host memory and a GPU.
    ledger CopyLedger {}
    /// A snapshot of the ledger of a copy between host memory and a GPU.
    report CopyReport ["from", "to"] {
        /// The ring that the copy reads.
        from: String,
        /// The ring that the copy fills.
        to: String,
        /// Frames whose copy between host memory and a GPU was started.
        started: u64 = Counter, counter "daq_copy_started_frames_total" {
            meaning: "Always the sum of copied, failed and pending.",
        },
        /// Frames copied and published in the ring named by `to`.
        frames: u64 = Counter, counter "daq_copy_frames_total" {
            meaning: "The rate of this metric is the frame rate of the ring named by `to`.",
            cause: "A rate below that of daq_ring_published_frames_total of the ring named by `from`: the copies \
                    fall behind.",
            remedy: "Compare daq_copy_bytes_total divided by daq_copy_busy_seconds_total with the result of `daq \
                     tune`. If they are equal, the bus is saturated. If the copies are idle, the ring named by `to` \
                     is full: check daq_reader_pending_frames of its readers.",
        },
        /// Frames lost because the device failed during a copy.
        failed: u64 = Counter, counter "daq_copy_failed_frames_total" {
            meaning: "These frames are not in the target ring. The pipeline ends after the first failure.",
            cause: "The GPU fell off the bus, had a memory error, or was reset.",
            remedy: "The log names the error. Search `dmesg` for `Xid`, and run `daq doctor`.",
        },
        /// Copied frames that the CPU stored; the GPU's copy engine copied the others.
        stored: u64 = Counter, counter "daq_copy_stored_frames_total" {
            meaning: "These frames are also in daq_copy_frames_total. The CPU stores all frames if a persistent \
                      kernel is the only reader of the ring; otherwise it stores only small bursts.",
            cause: "Value 0: no backend can map the ring (daq_ring_mapping_info), or bursts are larger than the \
                    CPU-store threshold.",
            remedy: "`daq plan` prints the method of each copy and the reason.",
        },
        /// Frames whose copy is in progress.
        pending: u64, gauge "daq_copy_pending_frames" {
            meaning: "At most the number of frames in the copies that daq_copy_in_flight counts.",
            cause: "A constant value while daq_copy_frames_total does not grow: the GPU or its driver hangs.",
            remedy: "Check `nvidia-smi`, `dmesg` and `/-/healthy`.",
        },
        /// Completed copies. Each copy contains all frames that were ready, up to a limit.
        copies: u64 = Counter, counter "daq_copies_total" {
            meaning: "daq_copy_frames_total divided by this metric is the number of frames per copy.",
        },
        /// Bytes copied, without the bytes of failed copies.
        bytes: u64 = Counter, counter "daq_copy_bytes_total" {
            meaning: "The rate of this metric is the throughput of the copy. This rate divided by the rate of \
                      daq_copy_busy_seconds_total is the bandwidth while copies are in progress.",
            cause: "A bandwidth far below the result of `daq tune`: copies too small to saturate the bus, a narrow \
                    or slow PCIe link, or other traffic on the link.",
            remedy: "Check daq_copy_size_bytes: if most copies are small, use larger slots. `daq doctor` prints the \
                     maximum and the current speed of the link.",
        },
        /// Copies in progress (queue depth).
        in_flight: u64 = Counter, gauge "daq_copy_in_flight" {
            meaning: "Value 0: no frame waits for a copy. The maximum is `depth` of the section [staging], or the \
                      value from `daq tune`; all copies between the same two memories share it. At the maximum, the bus \
                      limits the rate.",
            cause: "Data arrive faster than they are copied.",
            remedy: "See daq_copy_frames_total.",
        },
        /// Time during which at least one copy was in flight, in nanoseconds.
        busy_ns: u64 = Counter, counter "daq_copy_busy_seconds_total" (|copy, put| seconds(copy.busy_ns).sample(put)) {
            help: "Seconds with at least one copy in progress.",
            meaning: "The rate of this metric is the share of time with a copy in progress. Near 1, the bus is \
                      always in use.",
            cause: "Near 1: the bus is saturated, or the copies are small and latency dominates.",
            remedy: "Check daq_copy_size_bytes. Small copies: use larger slots. Large copies: reduce the bytes per \
                     sample, or use another GPU for some of the sources.",
        },
        /// Copies by size in bytes.
        sizes: [u64; 8] = CopySizes, histogram "daq_copy_size_bytes" by "le" (sample_sizes) {
            meaning: "The sum equals daq_copy_bytes_total, the count equals daq_copies_total. The size of a copy \
                      grows with the load, up to the chunk size that `daq tune` measures.",
            cause: "Small copies: low load, or the ring named by `to` is nearly full, so that few frames find a slot.",
            remedy: "At low load, no action is needed. Otherwise increase `slots` in the ring named by `to`, and \
                     check daq_reader_pending_frames of its readers.",
        },
    }
    equation started = frames + failed, pending;
}

impl CopyReport {
    /// Reads the counters.
    pub fn of(ledger: &CopyLedger, from: &str, to: &str) -> Self {
        let mut report = Self {
            from: from.to_owned(),
            to: to.to_owned(),
            ..ledger.read()
        };
        report.settle();
        report
    }
}

impl CopyLedger {
    /// Counts a completed copy of `bytes` bytes.
    pub(crate) fn count_copy(&self, bytes: u64) {
        self.copies.add(1);
        self.bytes.add(bytes);
        self.sizes.of(bytes).add(1);
    }
}

/// The number of copies in each size class.
#[derive(Clone, Debug, Default)]
pub struct CopySizes([Counter; 8]);

impl CopySizes {
    /// Upper bounds of the size classes in bytes; the last class has no upper bound.
    pub const BOUNDS: [u64; 7] = [
        4 << 10,
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
        16 << 20,
    ];
    /// Names of the size classes in a counter file.
    const NAMES: [&str; 8] = ["4k", "16k", "64k", "256k", "1m", "4m", "16m", "more"];

    /// Returns the counter of copies of `bytes` bytes.
    pub fn of(&self, bytes: u64) -> &Counter {
        let class = Self::BOUNDS.partition_point(|bound| *bound < bytes);
        &self.0[class]
    }
}

impl Stored for CopySizes {
    type Value = [u64; 8];

    fn create(prefix: &str, _field: &str, make: Make<'_>) -> Result<Self, CounterFileError> {
        let mut sizes = Self::default();
        for (size, name) in sizes.0.iter_mut().zip(Self::NAMES) {
            *size = make(&format!("{prefix}.size_{name}"))?;
        }
        Ok(sizes)
    }

    fn read(&self) -> [u64; 8] {
        self.0.each_ref().map(Counter::get)
    }
}

fn sample_sizes(copy: &CopyReport, put: Put<'_>) {
    put(Sample::Histogram {
        bounds: &CopySizes::BOUNDS,
        counts: &copy.sizes,
        count: copy.copies,
        sum: copy.bytes,
        divisor: 1.0,
    });
}
