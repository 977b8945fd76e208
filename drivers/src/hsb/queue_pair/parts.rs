//! Data types of the engine: the pages of an arming, frames that ended, faults.

use super::super::metadata::Metadata;
use daq_core::region::Region;
use daq_rdma::engine::RegisteredSlots;
use std::sync::Arc;

/// The pages of one arming.
pub(super) struct Ring {
    pub(super) region: Arc<Region>,
    pub(super) slots: RegisteredSlots,
}

impl Ring {
    pub(super) const fn pages(&self) -> u64 {
        self.slots.count as u64
    }

    /// Returns the page of `transfer`.
    pub(super) const fn page(&self, transfer: u64) -> usize {
        self.slots.slot(transfer) as usize
    }

    /// Returns the offset of the page of `transfer` in the region.
    pub(super) const fn at(&self, transfer: u64) -> usize {
        self.slots.offset_of(self.page(transfer))
    }

    /// Returns the number of transfers from `newest` to the next one that uses `page`, at least 1.
    pub(super) const fn ahead(&self, newest: u64, page: u64) -> u64 {
        let own = self.page(newest) as u64;
        match (page + self.pages() - own) % self.pages() {
            0 => self.pages(),
            ahead => ahead,
        }
    }
}

/// The end of a frame, as a completion and the metadata report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) page: u64,
    /// The low bits of the PSN of the last packet.
    pub(super) psn: u32,
    /// Whether the last packet contained only metadata.
    pub(super) alone: bool,
    pub(super) metadata: Option<Metadata>,
    pub(super) is_overwritten: bool,
    /// Whether the last packet contained data, and fewer bytes than the last packet of a full frame.
    pub(super) is_short: bool,
}

/// The way in which a sensor ends its frames, as far as observed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndPattern {
    /// Metadata arrive in a separate packet.
    pub(super) alone: bool,
    /// Metadata contain PSNs with more bits than an immediate.
    pub(super) wide: bool,
    /// Metadata number the frames consecutively.
    pub(super) numbered: bool,
}

/// The last frame with metadata.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastMetadata {
    pub(super) frame: u64,
    pub(super) metadata: Metadata,
}

/// A run of old frame ends that continue each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The last frame end.
    pub(super) end: End,
    pub(super) count: u64,
}

/// A frame that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) transfer: u64,
    pub(super) frame: u64,
    pub(super) epoch: u64,
    /// Metadata that arrived with the frame's end.
    pub(super) metadata: Option<Metadata>,
    /// Whether the page contains metadata other than the metadata that arrived.
    pub(super) is_overwritten: bool,
    /// Whether the frame's last packet was shorter than that of a full frame.
    pub(super) is_short: bool,
    pub(super) passed: u64,
    pub(super) missing: u64,
}

daq_rdma::faults! {
    /// Faults that the engine counts in addition to frames.
    pub(super) enum Fault;
    /// The names of all faults, in the order of [`Fault`].
    pub(super) const FAULTS;
    /// The queue pair failed, or its completion queue overflowed.
    Queue = "queue",
    /// The NIC failed.
    Nic = "card",
    /// A completion without an immediate, or with an invalid page.
    Immediate = "immediate",
    /// A PSN that does not continue the previous one.
    Order = "order",
    /// A frame end that had arrived before.
    Repeated = "repeated",
    /// The metadata that arrived are no longer in their page, because the page was overwritten.
    Metadata = "metadata",
    /// A frame in a page that the sensor may have used before it was prepared, or may have overwritten.
    Overtaken = "overtaken",
    /// The sensor's device has lost its registers.
    Restarted = "restarted",
}
