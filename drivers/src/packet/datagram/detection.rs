//! Stores datagrams until their format is detected, then places them.
//!
//! ```text
//!   datagrams ─▶ detector (shared by the threads) ─▶ detected: fix format and window
//!        └────▶ stored in order, limited memory ────────────▶ placed ─▶ normal path
//! ```
//! Each thread stores its own datagrams. It places them when it notices that any thread has detected the format.
//! Datagrams that arrive meanwhile are queued behind them. Datagrams that do not fit into the buffer and cannot be
//! placed are counted as `rejected`.

use super::Placer;
use super::pending::PendingDatagrams;
use crate::packet::spead::{Detector, Progress, Spead, hold_bytes as spead_hold_bytes};
use crate::packet::{Format, frames};
use daq_core::frame::Timestamp;
use daq_core::reorder::{Geometry, ReorderWindow};
use daq_core::units::counted;
use std::sync::Arc;
use std::time::Instant;

/// Returns the buffer size in bytes that each of `threads` threads needs while `format` is detected, for frames of at most the
/// size of `geometry`.
pub(crate) fn hold_bytes(format: &Format, geometry: &Geometry, threads: usize) -> usize {
    if format.is_detecting() {
        spead_hold_bytes(geometry.frame_bytes, threads)
    } else {
        0
    }
}

/// The state of one thread while the format is detected.
#[derive(Debug)]
pub(super) struct Detection {
    detector: Arc<Detector>,
    pending: PendingDatagrams,
    is_pinned: bool,
}

impl Detection {
    /// Returns the state for a format that must be detected, or `None` for a known format.
    pub(super) fn new(format: &Format) -> Option<Self> {
        let detector = format.detector()?.clone();
        Some(Self {
            pending: PendingDatagrams::new(detector.hold_bytes()),
            detector,
            is_pinned: false,
        })
    }
}

impl Placer {
    /// Returns whether stored datagrams have not been placed yet.
    pub fn is_catching_up(&self) -> bool {
        self.detection.is_some()
    }

    /// Handles the detection timeout and places stored datagrams. Call at least every second while datagrams are
    /// stored.
    pub fn poll(&mut self, window: &mut ReorderWindow) {
        let Some(mut detection) = self.detection.take() else {
            return;
        };
        if !detection.is_pinned {
            let progress = detection.detector.settle(Instant::now(), false);
            self.follow(&mut detection, window, progress);
        }
        self.drain(detection, window, true);
    }

    /// Ends detection with the packets received so far and places all stored datagrams. If `holds` is true, the function stops
    /// at the first datagram that has no room, and returns false.
    pub fn flush(&mut self, window: &mut ReorderWindow, holds: bool) -> bool {
        let Some(mut detection) = self.detection.take() else {
            return true;
        };
        self.settle_now(&mut detection, window);
        self.drain(detection, window, holds)
    }

    /// Places datagrams after the stored ones.
    #[cold]
    pub(super) fn place_later<'d>(
        &mut self,
        window: &mut ReorderWindow,
        datagrams: impl IntoIterator<Item = (&'d [u8], Timestamp)>,
    ) {
        for (bytes, received) in datagrams {
            let Some(mut detection) = self.detection.take() else {
                self.place_one(window, bytes, received, false);
                continue;
            };
            if !self.observe(&mut detection, window, bytes) {
                self.detection = Some(detection);
                continue;
            }
            if !detection.pending.push(bytes, received) {
                self.settle_now(&mut detection, window);
                self.drain(detection, window, false);
                match &mut self.detection {
                    None => drop(self.place_one(window, bytes, received, false)),
                    Some(detection) => drop(detection.pending.push(bytes, received)),
                }
                continue;
            }
            self.detection = Some(detection);
        }
        if let Some(detection) = self.detection.take() {
            self.drain(detection, window, true);
        }
    }

    /// Places a datagram after the stored ones, if there is room for all of them. Returns false if the caller must pass
    /// the datagram again.
    #[cold]
    pub(super) fn place_later_with_room(
        &mut self,
        window: &mut ReorderWindow,
        bytes: &[u8],
        received: Timestamp,
    ) -> bool {
        let Some(mut detection) = self.detection.take() else {
            return self.place_one(window, bytes, received, true);
        };
        if !detection.is_pinned {
            if !self.observe(&mut detection, window, bytes)
                || !detection.is_pinned && detection.pending.push(bytes, received)
            {
                self.detection = Some(detection);
                return true;
            }
            self.settle_now(&mut detection, window);
        }
        self.drain(detection, window, true)
            && match &mut self.detection {
                Some(detection) => detection.pending.push(bytes, received),
                None => self.place_one(window, bytes, received, true),
            }
    }

    /// Passes a datagram to the detector. Returns false if the detector rejected it.
    fn observe(
        &mut self,
        detection: &mut Detection,
        window: &mut ReorderWindow,
        bytes: &[u8],
    ) -> bool {
        if detection.is_pinned {
            return true;
        }
        match detection.detector.observe(bytes) {
            Ok(progress) => {
                self.follow(detection, window, progress);
                true
            }
            Err(reject) => {
                window.reject(1);
                self.log_reject(&reject, bytes);
                false
            }
        }
    }

    fn follow(
        &mut self,
        detection: &mut Detection,
        window: &mut ReorderWindow,
        progress: Progress,
    ) {
        match progress {
            Progress::Detecting => {}
            Progress::Detected => self.pin(detection, window),
            Progress::Refused => self.give_up(detection, window),
        }
    }

    /// Ends detection with the packets received so far, or discards them if they are not sufficient.
    fn settle_now(&mut self, detection: &mut Detection, window: &mut ReorderWindow) {
        if detection.is_pinned {
            return;
        }
        match detection.detector.settle(Instant::now(), true) {
            Progress::Detected => self.pin(detection, window),
            Progress::Detecting | Progress::Refused => self.give_up(detection, window),
        }
    }

    /// Applies the detected sizes to the format and the window.
    fn pin(&mut self, detection: &mut Detection, window: &mut ReorderWindow) {
        let Format::Spead(spead) = &mut self.format else {
            return;
        };
        if !spead.pin(&self.name) {
            return;
        }
        self.recut = spead.recut().map(Box::new);
        window.pin(frames::pinned(window.geometry(), &self.format));
        detection.is_pinned = true;
        if detection.detector.is_first_to_log()
            && let Some(detected) = detection.detector.summary()
        {
            tracing::info!("source {}: {detected}", self.name);
        }
    }

    /// Counts and discards the stored datagrams, which cannot be placed, and restarts detection.
    fn give_up(&mut self, detection: &mut Detection, window: &mut ReorderWindow) {
        let why = detection.detector.give_up();
        let (mut messages, mut rejected) = (0, 0);
        while let Some((datagram, _)) = detection.pending.front() {
            *(if Spead::is_message(datagram) {
                &mut messages
            } else {
                &mut rejected
            }) += 1;
            detection.pending.pop();
        }
        window.control(messages);
        window.reject(rejected);
        if rejected > 0 && self.rejections.count("unknown_sizes", rejected, &why) {
            tracing::warn!(
                "source {}: cannot detect the sizes of heaps and packets: {why}. Rejected: {}; further rejected \
                 packets are only counted",
                self.name,
                counted(rejected, "packet"),
            );
        }
    }

    /// Places stored datagrams. If `holds` is true, the function stops at the first datagram that has no room, and returns
    /// false.
    fn drain(
        &mut self,
        mut detection: Box<Detection>,
        window: &mut ReorderWindow,
        holds: bool,
    ) -> bool {
        if !detection.is_pinned {
            self.detection = Some(detection);
            return true;
        }
        while let Some((bytes, received)) = detection.pending.front() {
            if !self.place_one(window, bytes, received, holds) {
                self.detection = Some(detection);
                return false;
            }
            detection.pending.pop();
        }
        true
    }
}
