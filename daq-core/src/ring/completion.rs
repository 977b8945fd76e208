//! How leases complete: at once, or when a device reports it.

use crate::gpu::Event;
use crate::gpu::doorbell::Credits;
use crate::gpu::driver::CudaError;
use ringbuf::traits::{Consumer, Observer, Producer as _, Split as _};
use std::fmt;

/// When the slots of a lease are freed.
#[derive(Clone)]
pub enum Completion {
    /// At once.
    Immediate,
    /// When the event is done.
    Event(std::sync::Arc<dyn Event>),
    /// When a persistent kernel has completed all frames before a given one.
    Credit {
        /// Where the kernel reports its progress.
        credits: std::sync::Arc<Credits>,
        /// The given frame, counted from the kernel's start.
        at: u64,
    },
}

impl Completion {
    /// Whether the work is done, or never will be because the device failed. Never blocks.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Immediate => true,
            Self::Event(event) => event.is_done(),
            Self::Credit { credits, at } => credits.has(*at) || credits.failure().is_some(),
        }
    }
}

impl Completion {
    /// Why the device failed before the work was done; `None` if no failure is known.
    pub fn failure(&self) -> Option<CudaError> {
        match self {
            Self::Event(event) => event.failure(),
            // Work that was done before the kernel failed remains done.
            Self::Credit { credits, at } if !credits.has(*at) => credits.failure().cloned(),
            Self::Immediate | Self::Credit { .. } => None,
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Immediate => f.write_str("Immediate"),
            Self::Event(_) => f.write_str("Event"),
            Self::Credit { at, .. } => write!(f, "Credit({at})"),
        }
    }
}

/// A retired lease whose completion may not be done.
pub(super) struct InFlight {
    pub(super) frames: u64,
    /// How its frames are counted.
    pub(super) used: Use,
    pub(super) completion: Completion,
}

/// How frames that a reader has passed are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// They were leased: `read` of them count as read, the others as discarded.
    Leased { read: u64 },
    /// They have missing packets and were not leased.
    Incomplete,
}

/// Retired leases that are not done, oldest first: both ends of a queue that never grows.
pub(super) struct InFlightLeases {
    push: ringbuf::HeapProd<InFlight>,
    pop: ringbuf::HeapCons<InFlight>,
}

impl InFlightLeases {
    /// Creates a queue for at most `most` leases.
    pub(super) fn new(most: usize) -> Self {
        let (push, pop) = ringbuf::HeapRb::new(most).split();
        Self { push, pop }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pop.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.pop.occupied_len()
    }

    pub(super) fn push(&mut self, lease: InFlight) {
        let pushed = self.push.try_push(lease);
        debug_assert!(
            pushed.is_ok(),
            "more leases in flight than there is room for"
        );
    }

    /// Whether the oldest lease is done; false if there is none.
    pub(super) fn is_oldest_done(&self) -> bool {
        self.pop
            .first()
            .is_some_and(|oldest| oldest.completion.is_done())
    }

    /// Removes and returns the oldest lease if it is done.
    pub(super) fn pop_done(&mut self) -> Option<InFlight> {
        if self.is_oldest_done() {
            self.pop.try_pop()
        } else {
            None
        }
    }
}
