//! Ledgers, which count expected, delivered and lost packets and frames, and the causes of losses.
//!
//! A ledger is a small set of counters that one thread writes and any thread reads. No counter ever decreases, except
//! gauges, which are marked. The equations hold in every snapshot, because the term `pending` of each equation is
//! calculated from the other counters when the snapshot is made. The counters are read in an order that keeps `pending`
//! non-negative.

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

/// Cause of a lost packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Cause {
    /// The packet never arrived, and there is no evidence that this host dropped it.
    WireGap = 0,
    /// The packet never arrived, and Linux counted drops at this socket meanwhile.
    KernelDrop = 1,
    /// The packet arrived after its frame was published.
    Late = 2,
    /// The packet arrived damaged.
    BadPacket = 3,
    /// The packet arrived, but its frame had no slot because a reader blocked the ring.
    RingFull = 4,
    /// The device overwrote the packet before it was published.
    Overrun = 5,
}

impl Cause {
    /// Every cause, in ascending order of its numeric value.
    pub const ALL: [Self; 6] = [
        Self::WireGap,
        Self::KernelDrop,
        Self::Late,
        Self::BadPacket,
        Self::RingFull,
        Self::Overrun,
    ];

    /// Returns the name used in reports and metrics.
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
        /// Number of slots (gauge).
        capacity,
        /// Maximum number of frames that the slowest reader had not retired at any one time (gauge).
        high_water,
        /// Number of frames published to readers.
        published,
        /// Number of frames produced but refused because no slot was free.
        ring_full,
    }
}

ledger! {
    /// The counters of a reader: published since attach = read + overrun + discarded + dropped_incomplete + pending.
    ReaderLedger {
        /// Number of frames published before the reader attached (gauge).
        attached,
        /// Number of frames leased, including those that a poll in progress may lease; 2^62 while a guarantee protects
        /// all frames (gauge).
        leased,
        /// Number of frames leased and retired.
        read,
        /// Number of frames overwritten before they were leased.
        overrun,
        /// Number of frames discarded: by configured policy, or because they changed while leased.
        discarded,
        /// Number of frames with missing packets that were not leased, because of `incomplete = "drop"`.
        dropped_incomplete,
        /// Number of frames that the producer refused because this reader blocked the ring.
        blocked,
    }
}

ledger! {
    /// The counters of a kernel: input = consumed + accumulating + failed + pending.
    KernelLedger {
        /// Number of frames read from the input ring.
        input,
        /// Number of frames whose content is in published output.
        consumed,
        /// Number of frames that accumulate in the kernel until their integration ends (gauge).
        accumulating,
        /// Number of frames that the kernel could not process.
        failed,
        /// Number of frames produced.
        produced,
        /// Number of bursts submitted to a GPU and completed.
        launches,
        /// Time that the GPU needed for these bursts, in nanoseconds.
        device_ns,
        /// Time that the GPU was idle on the kernel's stream between bursts, in nanoseconds.
        gap_ns,
        /// The fraction of a multiprocessor's threads that the kernel's blocks can occupy, in millionths (gauge).
        occupancy,
    }
}

ledger! {
    /// The counters of a copy between host memory and a GPU: started = frames + failed + pending.
    CopyLedger {
        /// Number of frames whose copy was started.
        started,
        /// Number of frames copied.
        frames,
        /// Number of frames lost because the device failed during their copy.
        failed,
        /// Number of frames copied by CPU stores instead of the GPU's copy engine.
        stored,
        /// Number of copies completed, by CPU stores or by the copy engine.
        copies,
        /// Number of bytes of the completed copies.
        bytes,
        /// Number of copies in flight (gauge).
        in_flight,
        /// Time during which at least one copy was in flight, in nanoseconds.
        busy_ns,
        /// Number of copies of at most 4 KiB.
        size_4k,
        /// Number of copies of more than 4 KiB and at most 16 KiB.
        size_16k,
        /// Number of copies of more than 16 KiB and at most 64 KiB.
        size_64k,
        /// Number of copies of more than 64 KiB and at most 256 KiB.
        size_256k,
        /// Number of copies of more than 256 KiB and at most 1 MiB.
        size_1m,
        /// Number of copies of more than 1 MiB and at most 4 MiB.
        size_4m,
        /// Number of copies of more than 4 MiB and at most 16 MiB.
        size_16m,
        /// Number of copies of more than 16 MiB.
        size_more,
    }
}

impl CopyLedger {
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

    /// Counts a completed copy of `bytes` bytes.
    pub fn count_copy(&self, bytes: u64) {
        self.copies.add(1);
        self.bytes.add(bytes);
        let class = Self::BOUNDS.partition_point(|bound| *bound < bytes);
        self.sizes()[class].add(1);
    }

    /// Returns the counters of the size classes: one for each of [`BOUNDS`](Self::BOUNDS), then one for larger copies.
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
        /// Number of frames accepted. Frames that are not in a finished file yet are lost if the process is killed.
        frames,
        /// Number of payload bytes of the accepted frames.
        bytes,
        /// Number of files, or comparable units, completed.
        files,
        /// 1 while the medium is full or the receiver is disconnected (gauge).
        full,
        /// Number of frames not accepted because the medium was full or failed, or the receiver was disconnected.
        dropped,
        /// Number of frames among `frames` that were not written because the medium failed later.
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
    /// The counted unit is the one that contains the sequence number; for network sources, this is a packet.
    SourceLedger {
        /// Number of packets between the first and the last one seen, summed over epochs.
        expected,
        /// Number of packets in published frames.
        delivered,
        /// Number of packets lost because of [`Cause::WireGap`].
        lost_wire_gap,
        /// Number of packets lost because of [`Cause::KernelDrop`].
        lost_kernel_drop,
        /// Number of packets lost because of [`Cause::Late`].
        lost_late,
        /// Number of packets lost because of [`Cause::BadPacket`].
        lost_bad_packet,
        /// Number of packets lost because of [`Cause::RingFull`].
        lost_ring_full,
        /// Number of packets lost because of [`Cause::Overrun`].
        lost_overrun,
        /// Number of published frames with missing packets; the missing packets are filled.
        incomplete,
        /// Number of payload bytes of delivered packets.
        bytes,
        /// Number of packets that had already arrived before.
        duplicates,
        /// Number of packets whose sequence number is unreadable or implausible.
        rejected,
        /// Number of packets that carry no data by design (descriptors, end of stream).
        control,
        /// Number of epochs: 1 after the first packet, then one more for each restart of the numbering.
        epochs,
        /// Number of packets skipped forward at the start of an epoch; not in `expected`.
        skipped,
    }
}

impl SourceLedger {
    /// Returns the counter of a cause.
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
