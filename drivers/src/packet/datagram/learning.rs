//! Places datagrams whose format is detected from the first of them.
//!
//! ```text
//!   datagrams ─▶ learner (shared by the threads) ─▶ learned: pin format and window
//!        └────▶ kept in order, a bounded number ─────────────▶ placed ─▶ the ordinary path
//! ```
//! Each thread keeps its own datagrams and places them when it notices that any thread has completed the format. What
//! arrives meanwhile is kept behind them. Datagrams that find no room there and cannot be placed count as `rejected`.

use super::Placer;
use super::held::Held;
use crate::packet::spead::{Learner, Progress, Spead, hold_bytes as spead_hold_bytes};
use crate::packet::{Format, frames};
use daq_core::frame::Timestamp;
use daq_core::reorder::{Geometry, ReorderWindow};
use daq_core::units::counted;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that each of `threads` threads keeps while `format` is learned in frames of `geometry` at most.
pub(crate) fn hold_bytes(format: &Format, geometry: &Geometry, threads: usize) -> usize {
    if format.is_learning() {
        spead_hold_bytes(geometry.frame_bytes, threads)
    } else {
        0
    }
}

/// What one thread keeps until it can place packets.
#[derive(Debug)]
pub(super) struct Learning {
    learner: Arc<Learner>,
    held: Held,
    is_pinned: bool,
}

impl Learning {
    /// For a format that is to be learned; `None` for one that is known.
    pub(super) fn new(format: &Format) -> Option<Self> {
        let Format::Spead(spead) = format else {
            return None;
        };
        let learner = spead.learner()?.clone();
        Some(Self {
            held: Held::new(learner.hold_bytes()),
            learner,
            is_pinned: false,
        })
    }
}

impl Placer {
    /// Whether datagrams that were kept while the format was learned are still to be placed.
    pub fn is_catching_up(&self) -> bool {
        self.learning.is_some()
    }

    /// Work that no datagram causes while the format is learned: call it at least every second.
    pub fn poll(&mut self, window: &mut ReorderWindow) {
        let Some(mut learning) = self.learning.take() else {
            return;
        };
        if !learning.is_pinned {
            let progress = learning.learner.settle(Instant::now(), false);
            self.follow(&mut learning, window, progress);
        }
        self.drain(learning, window, true);
    }

    /// Learns from what has arrived so far and places everything that was kept; `holds` = only as far as there is room:
    /// false if some of it must wait.
    pub fn flush(&mut self, window: &mut ReorderWindow, holds: bool) -> bool {
        let Some(mut learning) = self.learning.take() else {
            return true;
        };
        self.settle_now(&mut learning, window);
        self.drain(learning, window, holds)
    }

    /// Places datagrams behind those that were kept.
    #[cold]
    pub(super) fn place_later<'d>(
        &mut self,
        window: &mut ReorderWindow,
        datagrams: impl IntoIterator<Item = (&'d [u8], Timestamp)>,
    ) {
        for (bytes, received) in datagrams {
            let Some(mut learning) = self.learning.take() else {
                self.place_one(window, bytes, received, false);
                continue;
            };
            if !self.observe(&mut learning, window, bytes) {
                self.learning = Some(learning);
                continue;
            }
            if !learning.held.push(bytes, received) {
                self.settle_now(&mut learning, window);
                self.drain(learning, window, false);
                match &mut self.learning {
                    None => drop(self.place_one(window, bytes, received, false)),
                    Some(learning) => drop(learning.held.push(bytes, received)),
                }
                continue;
            }
            self.learning = Some(learning);
        }
        if let Some(learning) = self.learning.take() {
            self.drain(learning, window, true);
        }
    }

    /// Places a datagram behind those that were kept, of which each waits for room; false if it must be given again.
    #[cold]
    pub(super) fn place_later_with_room(
        &mut self,
        window: &mut ReorderWindow,
        bytes: &[u8],
        received: Timestamp,
    ) -> bool {
        let Some(mut learning) = self.learning.take() else {
            return self.place_one(window, bytes, received, true);
        };
        if !learning.is_pinned {
            if !self.observe(&mut learning, window, bytes)
                || !learning.is_pinned && learning.held.push(bytes, received)
            {
                self.learning = Some(learning);
                return true;
            }
            self.settle_now(&mut learning, window);
        }
        self.drain(learning, window, true)
            && match &mut self.learning {
                Some(learning) => learning.held.push(bytes, received),
                None => self.place_one(window, bytes, received, true),
            }
    }

    /// Shows a datagram to the learner; false if it was rejected.
    fn observe(
        &mut self,
        learning: &mut Learning,
        window: &mut ReorderWindow,
        bytes: &[u8],
    ) -> bool {
        if learning.is_pinned {
            return true;
        }
        match learning.learner.observe(bytes) {
            Ok(progress) => {
                self.follow(learning, window, progress);
                true
            }
            Err(reject) => {
                window.reject(1);
                self.log_reject(&reject, bytes);
                false
            }
        }
    }

    fn follow(&mut self, learning: &mut Learning, window: &mut ReorderWindow, progress: Progress) {
        match progress {
            Progress::Learning => {}
            Progress::Learned => self.pin(learning, window),
            Progress::Refused => self.give_up(learning, window),
        }
    }

    /// Learns from what has arrived, or gives that up.
    fn settle_now(&mut self, learning: &mut Learning, window: &mut ReorderWindow) {
        if learning.is_pinned {
            return;
        }
        match learning.learner.settle(Instant::now(), true) {
            Progress::Learned => self.pin(learning, window),
            Progress::Learning | Progress::Refused => self.give_up(learning, window),
        }
    }

    /// Takes over what was learned.
    fn pin(&mut self, learning: &mut Learning, window: &mut ReorderWindow) {
        let Format::Spead(spead) = &mut self.format else {
            return;
        };
        if !spead.pin(&self.name) {
            return;
        }
        self.recut = spead.recut().map(Box::new);
        window.pin(frames::pinned(window.geometry(), &self.format));
        learning.is_pinned = true;
        if learning.learner.is_first_to_log()
            && let Some(learned) = learning.learner.summary()
        {
            tracing::info!("source {}: {learned}", self.name);
        }
    }

    /// Counts what was kept, which cannot be placed, and starts again.
    fn give_up(&mut self, learning: &mut Learning, window: &mut ReorderWindow) {
        let why = learning.learner.give_up();
        let (mut messages, mut rejected) = (0, 0);
        while let Some((datagram, _)) = learning.held.front() {
            *(if Spead::is_message(datagram) {
                &mut messages
            } else {
                &mut rejected
            }) += 1;
            learning.held.pop();
        }
        window.control(messages);
        window.reject(rejected);
        if rejected > 0 && self.rejections.count("unknown_sizes", rejected, &why) {
            tracing::warn!(
                "source {}: cannot detect the sizes of heaps and packets: {why}. Rejected: {}; more are only counted",
                self.name,
                counted(rejected, "packet"),
            );
        }
    }

    /// Places what was kept; `holds` = only as far as there is room: false if some of it must wait.
    fn drain(
        &mut self,
        mut learning: Box<Learning>,
        window: &mut ReorderWindow,
        holds: bool,
    ) -> bool {
        if !learning.is_pinned {
            self.learning = Some(learning);
            return true;
        }
        while let Some((bytes, received)) = learning.held.front() {
            if !self.place_one(window, bytes, received, holds) {
                self.learning = Some(learning);
                return false;
            }
            learning.held.pop();
        }
        true
    }
}
