//! Completion of leases: immediately, or when a device reports the end of its work.

use crate::doorbell::Credits;
use crate::gpu::Event;
use crate::gpu::driver::CudaError;
use ringbuf::traits::{Consumer, Observer, Producer as _, Split as _};
use std::fmt;

/// When the slots of a lease are freed.
#[derive(Clone)]
pub enum Completion {
    /// The slots are freed immediately.
    Immediate,
    /// The slots are freed when the event is done.
    Event(std::sync::Arc<dyn Event>),
    /// The slots are freed when a persistent kernel has completed all frames before frame `at`.
    Credit {
        /// The words through which the kernel reports its progress.
        credits: std::sync::Arc<Credits>,
        /// Number of a frame, counted from the kernel's start.
        at: u64,
    },
}

impl Completion {
    /// Whether the work is done, or can no longer be done because the device failed. Never blocks.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Immediate => true,
            Self::Event(event) => event.is_done(),
            Self::Credit { credits, at } => credits.has(*at) || credits.failure().is_some(),
        }
    }
}

impl Completion {
    /// Returns the device failure that occurred before the work was done; `None` if no failure is known.
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
    /// How the frames of the lease are counted.
    pub(super) used: Use,
    pub(super) completion: Completion,
}

/// How frames that a reader has passed are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The frames were leased. `read` of them count as read, the others as discarded.
    Leased { read: u64 },
    /// The frames have missing packets and were not leased.
    Incomplete,
}

/// A queue of retired leases that are not done, oldest first. Its capacity is fixed.
pub(super) struct InFlightLeases {
    push: ringbuf::HeapProd<InFlight>,
    pop: ringbuf::HeapCons<InFlight>,
}

impl InFlightLeases {
    /// Creates a queue for at most `max` leases.
    pub(super) fn new(max: usize) -> Self {
        let (push, pop) = ringbuf::HeapRb::new(max).split();
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
            "more leases are in flight than the queue can hold"
        );
    }

    /// Whether the oldest lease is done; false if the queue is empty.
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
