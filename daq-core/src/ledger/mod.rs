//! Ledgers: what was expected, what arrived, what was lost and why.
//!
//! A ledger is a small set of counters that one thread writes and any thread reads. No counter ever decreases, except
//! gauges, which are marked. The equations hold in every snapshot because each has one term that is derived when the
//! snapshot is taken (`pending`), from counters that are read in an order that keeps it non-negative.

mod counter_file;
mod counts;
#[macro_use]
mod macros;
mod engine;
mod loss;
mod rejections;
mod snapshot;

pub use counter_file::{Counter, CounterFile, CounterFileError, LastRun};
pub use counts::Counts;
pub use engine::{EngineCounters, EngineLedger, EngineReport, Proof};
pub use loss::Loss;
pub use rejections::{FAR_NUMBER, Rejections};
pub use snapshot::{
    CopyReport, DeviceReport, KernelReport, ReaderReport, Report, RingReport, SinkReport,
    SourceReport, Violation,
};

use std::fmt;

/// Why a packet is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Cause {
    /// It never arrived, and there is no evidence that this host dropped it.
    WireGap = 0,
    /// It never arrived, and Linux counted drops at this socket meanwhile.
    KernelDrop = 1,
    /// It arrived after its frame was published.
    Late = 2,
    /// It arrived damaged.
    BadPacket = 3,
    /// It arrived, but its frame had no slot because a reader blocked the ring.
    RingFull = 4,
    /// The device overwrote it before it was published.
    Overrun = 5,
}

impl Cause {
    /// Every cause, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::WireGap,
        Self::KernelDrop,
        Self::Late,
        Self::BadPacket,
        Self::RingFull,
        Self::Overrun,
    ];

    /// The name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WireGap => "wire_gap",
            Self::KernelDrop => "kernel_drop",
            Self::Late => "late",
            Self::BadPacket => "bad_packet",
            Self::RingFull => "ring_full",
            Self::Overrun => "overrun",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

ledger! {
    /// The counters of a ring.
    RingLedger {
        /// Slots (gauge).
        capacity,
        /// Maximum number of frames at a time that the slowest reader had not retired (gauge).
        high_water,
        /// Frames published to readers.
        published,
        /// Frames produced but refused because no slot was free.
        ring_full,
    }
}

ledger! {
    /// The counters of a reader: published since attach = read + overrun + discarded + dropped_incomplete + pending.
    ReaderLedger {
        /// Frames published before the reader attached (gauge).
        attached,
        /// Frames leased, including those that a poll in progress may lease; 2^62 while a guarantee protects all
        /// frames (gauge).
        leased,
        /// Frames leased and retired.
        read,
        /// Frames overwritten before they were leased.
        overrun,
        /// Frames discarded: by configured policy, or because they changed while leased.
        discarded,
        /// Frames with missing packets that were not leased, because of `incomplete = "drop"`.
        dropped_incomplete,
        /// Frames that the producer refused because this reader blocked the ring.
        blocked,
    }
}

ledger! {
    /// The counters of a kernel: input = consumed + accumulating + failed + pending.
    KernelLedger {
        /// Frames read from the input ring.
        input,
        /// Frames whose content is in published output.
        consumed,
        /// Frames that accumulate in the kernel until their integration ends (gauge).
        accumulating,
        /// Frames that the kernel could not process.
        failed,
        /// Frames produced.
        produced,
        /// Bursts submitted to a GPU and completed.
        launches,
        /// Nanoseconds that the GPU needed for them.
        device_ns,
        /// Nanoseconds that the GPU was idle on the kernel's stream between bursts.
        gap_ns,
        /// The part of a multiprocessor's threads that the kernel's blocks can occupy, in millionths (gauge).
        occupancy,
    }
}

ledger! {
    /// The counters of a copy between host memory and a GPU: started = frames + failed + pending.
    CopyLedger {
        /// Frames whose copy was started.
        started,
        /// Frames copied.
        frames,
        /// Frames lost because the device failed during their copy.
        failed,
        /// Frames copied by CPU stores instead of the GPU's copy engine.
        stored,
        /// Copies completed, by either.
        copies,
        /// Bytes in them.
        bytes,
        /// Copies in flight (gauge).
        in_flight,
        /// Nanoseconds during which at least one copy was in flight.
        busy_ns,
        /// Copies of at most 4 KiB.
        size_4k,
        /// Copies larger than the previous class, of at most 16 KiB.
        size_16k,
        /// Copies larger than the previous class, of at most 64 KiB.
        size_64k,
        /// Copies larger than the previous class, of at most 256 KiB.
        size_256k,
        /// Copies larger than the previous class, of at most 1 MiB.
        size_1m,
        /// Copies larger than the previous class, of at most 4 MiB.
        size_4m,
        /// Copies larger than the previous class, of at most 16 MiB.
        size_16m,
        /// Larger copies.
        size_more,
    }
}

impl CopyLedger {
    /// Upper bounds of the size classes in bytes; the last class has none.
    pub const BOUNDS: [u64; 7] = [
        4 << 10,
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
        16 << 20,
    ];

    /// Counts a completed copy of `bytes` bytes.
    pub fn count_copy(&self, bytes: u64) {
        self.copies.add(1);
        self.bytes.add(bytes);
        let class = Self::BOUNDS.partition_point(|bound| *bound < bytes);
        self.sizes()[class].add(1);
    }

    /// The counters of the size classes: one for each of [`BOUNDS`](Self::BOUNDS), then one for larger copies.
    pub const fn sizes(&self) -> [&Counter; 8] {
        [
            &self.size_4k,
            &self.size_16k,
            &self.size_64k,
            &self.size_256k,
            &self.size_1m,
            &self.size_4m,
            &self.size_16m,
            &self.size_more,
        ]
    }
}

ledger! {
    /// The counters of a sink.
    SinkLedger {
        /// Frames accepted. Frames that are not in a finished file yet are lost if the process is killed.
        frames,
        /// Payload bytes of those frames.
        bytes,
        /// Files, or comparable units, completed.
        files,
        /// 1 while the medium is full or the receiver is disconnected (gauge).
        full,
        /// Frames not accepted because the medium was full or failed, or the receiver was disconnected.
        dropped,
        /// Frames among `frames` that were not written because the medium failed later.
        lost,
        /// Number of times that the receiver connected, for sinks that have one.
        connections,
        /// Number of times that the sink began to wait for the receiver.
        stalls,
    }
}

ledger! {
    /// The counters of a source: expected = delivered + pending + Σ lost.
    ///
    /// The unit is what carries the sequence number: a packet for network sources.
    SourceLedger {
        /// Packets between the first and the last one seen, summed over epochs.
        expected,
        /// Packets in published frames.
        delivered,
        /// Lost: [`Cause::WireGap`].
        lost_wire_gap,
        /// Lost: [`Cause::KernelDrop`].
        lost_kernel_drop,
        /// Lost: [`Cause::Late`].
        lost_late,
        /// Lost: [`Cause::BadPacket`].
        lost_bad_packet,
        /// Lost: [`Cause::RingFull`].
        lost_ring_full,
        /// Lost: [`Cause::Overrun`].
        lost_overrun,
        /// Published frames with missing packets; the missing packets are filled.
        incomplete,
        /// Payload bytes of delivered packets.
        bytes,
        /// Packets that had arrived already.
        duplicates,
        /// Packets whose sequence number is unreadable or implausible.
        rejected,
        /// Packets that carry no data by design (descriptors, end of stream).
        control,
        /// Number of epochs: 1 after the first packet, then one more for each restart of the numbering.
        epochs,
        /// Packets skipped forward at the start of an epoch; not in `expected`.
        skipped,
    }
}

impl SourceLedger {
    /// The counter of a cause.
    pub const fn lost(&self, cause: Cause) -> &Counter {
        match cause {
            Cause::WireGap => &self.lost_wire_gap,
            Cause::KernelDrop => &self.lost_kernel_drop,
            Cause::Late => &self.lost_late,
            Cause::BadPacket => &self.lost_bad_packet,
            Cause::RingFull => &self.lost_ring_full,
            Cause::Overrun => &self.lost_overrun,
        }
    }
}
