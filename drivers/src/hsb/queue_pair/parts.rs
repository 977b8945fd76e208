//! Data types of the engine: the pages of an arming, frames that ended, faults.

use super::super::metadata::Metadata;
use daq_core::region::Region;
use std::sync::Arc;

/// The pages of one arming.
pub(super) struct Ring {
    pub(super) region: Arc<Region>,
    /// Offset of page 0 in the region.
    pub(super) offset: usize,
    pub(super) stride: usize,
    pub(super) pages: u64,
    /// The page of transfer 0.
    pub(super) first: u64,
}

impl Ring {
    #[expect(clippy::cast_possible_truncation, reason = "at most 4096 pages")]
    pub(super) const fn page(&self, transfer: u64) -> usize {
        ((self.first + transfer % self.pages) % self.pages) as usize
    }

    /// Returns the offset of the page of `transfer` in the region.
    pub(super) const fn at(&self, transfer: u64) -> usize {
        self.offset + self.page(transfer) * self.stride
    }

    /// Returns the number of transfers from `newest` to the next one that uses `page`, at least 1.
    pub(super) const fn ahead(&self, newest: u64, page: u64) -> u64 {
        let own = self.page(newest) as u64;
        match (page + self.pages - own) % self.pages {
            0 => self.pages,
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

/// Faults that the engine counts in addition to frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The queue pair failed, or its completion queue overflowed.
    Queue,
    /// The NIC failed.
    Nic,
    /// A completion without an immediate, or with an invalid page.
    Immediate,
    /// A PSN that does not continue the previous one.
    Order,
    /// A frame end that had arrived before.
    Repeated,
    /// The metadata that arrived are no longer in their page, because the page was overwritten.
    Metadata,
    /// A frame in a page that the sensor may have used before it was prepared, or may have overwritten.
    Overtaken,
    /// The sensor's device has lost its registers.
    Restarted,
}

/// The names of all faults, in the order of [`Fault`].
pub(in super::super) const FAULTS: &[&str] = &[
    "queue",
    "card",
    "immediate",
    "order",
    "repeated",
    "metadata",
    "overtaken",
    "restarted",
];
