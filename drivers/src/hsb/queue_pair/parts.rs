//! What the engine keeps and counts: the pages of an arming, frames that have ended, faults.

use super::super::metadata::Metadata;
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

/// What the end of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) page: u64,
    /// The low bits of the number of the last packet.
    pub(super) psn: u32,
    /// Whether that packet had metadata alone.
    pub(super) alone: bool,
    pub(super) metadata: Option<Metadata>,
    pub(super) is_torn: bool,
    /// Whether that packet had data, and fewer than a frame's last one has.
    pub(super) is_short: bool,
}

/// What is known of how a sensor ends frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habits {
    /// Metadata come alone.
    pub(super) alone: bool,
    /// They number packets beyond the bits of an immediate.
    pub(super) wide: bool,
    /// They number frames as they come.
    pub(super) numbered: bool,
}

/// Where a frame stood whose metadata came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) frame: u64,
    pub(super) metadata: Metadata,
}

/// Ends of the past of which each goes on from the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The last of them.
    pub(super) end: End,
    pub(super) count: u64,
}

/// A frame that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) transfer: u64,
    pub(super) frame: u64,
    pub(super) epoch: u64,
    /// Its metadata, where they came with its end.
    pub(super) metadata: Option<Metadata>,
    /// Whether other metadata were in its page than had come.
    pub(super) is_torn: bool,
    /// Whether the packet that ended it was shorter than a frame's last one.
    pub(super) is_short: bool,
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
    /// Metadata that came and are not in their frame's page: it was written since.
    Metadata,
    /// A frame in a page that the sensor may have reached before it was made ready, or has written since.
    Overtaken,
    /// The sensor's device has lost its registers.
    Restarted,
}

/// The names of all faults, in their order.
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
