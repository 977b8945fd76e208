//! Ledgers: what was expected, what came, what was lost and why.
//!
//! A ledger is a handful of counters that one thread writes and any thread reads. Nothing is ever counted
//! down except gauges that say so. The equations hold in every snapshot because each has one term that is
//! derived when the snapshot is taken (`pending`), from counters read in the order that keeps it from
//! going negative.

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

/// Why a place is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Cause {
    /// It never arrived, and nothing on this host says that it was dropped here.
    WireGap = 0,
    /// It never arrived, and the kernel counted drops at this socket meanwhile.
    KernelDrop = 1,
    /// It arrived after its frame was published.
    Late = 2,
    /// It arrived damaged.
    BadPacket = 3,
    /// It arrived and its frame found no slot: a reader held the ring.
    RingFull = 4,
    /// The device overwrote it before it was handed on.
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
        /// Most frames at a time that the slowest reader had not retired (gauge).
        high_water,
        /// Frames handed to readers.
        published,
        /// Frames made and refused for want of a slot.
        ring_full,
    }
}

ledger! {
    /// The counters of a reader: published since attach = read + overrun + discarded + dropped_incomplete + pending.
    ReaderLedger {
        /// Frames published before it attached (gauge).
        attached,
        /// Frames leased, those among them that a poll under way may lease; 2^62 while a guarantee protects all (gauge).
        leased,
        /// Frames leased and retired.
        read,
        /// Frames overwritten before they were leased.
        overrun,
        /// Frames thrown away: by declared policy, or because they changed while leased.
        discarded,
        /// Frames with missing packets that were not handed to it, by `incomplete = "drop"`.
        dropped_incomplete,
        /// Frames refused by the producer because this reader held the ring.
        held,
    }
}

ledger! {
    /// The counters of a kernel: input = consumed + withheld + failed + pending.
    KernelLedger {
        /// Frames taken from the input ring.
        input,
        /// Frames whose content has gone into published output.
        consumed,
        /// Frames that wait inside the kernel for their integration to end (gauge).
        withheld,
        /// Frames the kernel could not process.
        failed,
        /// Frames made.
        made,
        /// Bursts put on a GPU and done.
        launches,
        /// Nanoseconds that the GPU took for them.
        device_ns,
        /// Nanoseconds that the GPU waited on the kernel's stream between bursts.
        gap_ns,
        /// Millionths of a multiprocessor's threads that the kernel's blocks can keep occupied (gauge).
        occupancy,
    }
}

ledger! {
    /// The counters of a copy between host memory and a GPU: taken = frames + failed + pending.
    CopyLedger {
        /// Frames of which a copy was begun.
        taken,
        /// Frames copied.
        frames,
        /// Frames lost in copies in which the device failed.
        failed,
        /// Frames copied by stores of the CPU, and not by the GPU's copy engine.
        stored,
        /// Copies done, by either.
        copies,
        /// Bytes in them.
        bytes,
        /// Copies under way (gauge).
        in_flight,
        /// Nanoseconds during which at least one copy was under way.
        busy_ns,
        /// Copies of at most 4 KiB.
        size_4k,
        /// Copies of at most 16 KiB, and more than the counter before says.
        size_16k,
        /// Copies of at most 64 KiB, …
        size_64k,
        /// Copies of at most 256 KiB, …
        size_256k,
        /// Copies of at most 1 MiB, …
        size_1m,
        /// Copies of at most 4 MiB, …
        size_4m,
        /// Copies of at most 16 MiB, …
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

    /// Counts a copy of `bytes` bytes as done.
    pub fn count_copy(&self, bytes: u64) {
        self.copies.add(1);
        self.bytes.add(bytes);
        let class = Self::BOUNDS.partition_point(|bound| *bound < bytes);
        self.sizes()[class].add(1);
    }

    /// The counters of the size classes, in the order of [`BOUNDS`](Self::BOUNDS) and then the rest.
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
        /// Frames taken; what is not in a finished file yet is lost in a kill.
        frames,
        /// Payload bytes of those frames.
        bytes,
        /// Files, or their like, completed.
        files,
        /// 1 while the medium has no space or the receiver is away (gauge).
        full,
        /// Frames that the sink did not take because the medium had no space or failed or the receiver was away.
        dropped,
        /// Frames among `frames` that were not written because the medium failed later.
        lost,
        /// Times that its peer was connected, where it has one.
        connections,
        /// Times that it began to wait for its peer to take frames.
        stalls,
    }
}

ledger! {
    /// The counters of a source: expected = delivered + pending + Σ lost.
    ///
    /// The unit is what carries the sequence number: a packet for network sources.
    SourceLedger {
        /// Places between the first and the last one seen, summed over epochs.
        expected,
        /// Places that are in published frames.
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
        /// Published frames some of whose expected packets are missing: those are filled.
        incomplete,
        /// Payload bytes of delivered places.
        bytes,
        /// Packets whose place had arrived already.
        duplicates,
        /// Packets without a readable or believable sequence number.
        rejected,
        /// Packets that carry no data by design (descriptors, end of stream).
        control,
        /// Times that counting began: 1 after the first packet.
        epochs,
        /// Places jumped over, forward, at the start of an epoch; not in `expected`.
        jumped,
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
