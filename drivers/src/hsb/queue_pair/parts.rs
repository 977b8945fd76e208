//! What the engine keeps and counts: the pages of an arming, frames that have ended, faults.

use daq_core::region::Region;
use std::sync::Arc;

/// The pages of one arming.
pub(super) struct Ring {
    pub(super) region: Arc<Region>,
    /// Where page 0 lies in it.
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

    /// Where the page of `transfer` lies in the region.
    pub(super) const fn at(&self, transfer: u64) -> usize {
        self.offset + self.page(transfer) * self.stride
    }

    /// Transfers from the one after the `newest` to the next one that goes to `page`, from 1 on.
    pub(super) const fn ahead(&self, newest: u64, page: u64) -> u64 {
        let own = self.page(newest) as u64;
        match (page + self.pages - own) % self.pages {
            0 => self.pages,
            ahead => ahead,
        }
    }
}

/// A frame that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) transfer: u64,
    pub(super) frame: u64,
    pub(super) epoch: u64,
    /// The low bits of the number of its last packet.
    pub(super) psn: u32,
    pub(super) passed: u64,
    pub(super) missing: u64,
}

/// What it counts beside frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The queue failed, or its completions were overrun.
    Queue,
    /// The card failed.
    Card,
    /// A completion without an immediate, or of a page that there is not.
    Immediate,
    /// A number that does not go on from the one before.
    Order,
    /// The end of a frame that has ended before.
    Repeated,
    /// A frame of which packets are missing.
    Incomplete,
    /// Metadata that are of another frame.
    Metadata,
    /// A frame in a page that the sensor may have reached before it was made ready.
    Overtaken,
}

/// The names of all faults, in their order.
pub(in super::super) const FAULTS: &[&str] = &[
    "queue",
    "card",
    "immediate",
    "order",
    "repeated",
    "incomplete",
    "metadata",
    "overtaken",
];
