//! Stores datagrams until their format is detected, then places them.
//!
//! ```text
//!   datagrams ─▶ detector (shared by the threads) ─▶ detected: fix format and window
//!        └────▶ stored in order, limited memory ────────────▶ placed ─▶ normal path
//! ```
//! Each thread stores its own datagrams. It places them when it notices that any thread has detected the format.
//! Datagrams that arrive meanwhile are queued behind them. Datagrams that do not fit into the buffer and cannot be
//! placed are counted as `rejected`.

use super::Depacketizer;
use super::pending::PendingDatagrams;
use crate::packet::{Flow, Format, Progress, SizeDetector, frames};
use daq_core::frame::Timestamp;
use daq_core::reorder::ReorderWindow;
use daq_core::units::counted;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of flows whose datagrams are stored.
const MAX_FLOWS: usize = 4096;

/// The state of one thread while the format is detected.
#[derive(Debug)]
pub(super) struct Detection {
    detector: Arc<dyn SizeDetector>,
    pending: PendingDatagrams,
    /// The flows of the stored datagrams; `None` if flows do not matter. The index is the tag of a datagram.
    flows: Option<Vec<Flow>>,
    is_pinned: bool,
}

impl Detection {
    /// Returns the state for a format that must be detected, or `None` for a known format.
    pub(super) fn new(format: &Format) -> Option<Self> {
        let detector = format.detect()?.detector()?;
        Some(Self {
            pending: PendingDatagrams::new(detector.hold_bytes()),
            detector,
            flows: format.facts().flow.origin().map(|_| Vec::new()),
            is_pinned: false,
        })
    }

    /// Stores a datagram of `flow` after the others. Returns false if there is no memory for it.
    fn push(&mut self, datagram: &[u8], received: Timestamp, flow: Option<Flow>) -> bool {
        let tag = match (&mut self.flows, flow) {
            (Some(flows), Some(flow)) => {
                let known = flows.iter().position(|other| *other == flow);
                if known.is_none() && flows.len() == MAX_FLOWS {
                    return false;
                }
                let index = known.unwrap_or_else(|| {
                    flows.push(flow);
                    flows.len() - 1
                });
                u16::try_from(index).unwrap_or(u16::MAX)
            }
            _ => 0,
        };
        self.pending.push(datagram, received, tag)
    }

    /// Returns the oldest datagram, and its flow if flows matter.
    fn front(&self) -> Option<(&[u8], Timestamp, Option<Flow>)> {
        let (datagram, received, tag) = self.pending.front()?;
        let flows = self.flows.as_ref();
        let flow = flows.and_then(|flows| flows.get(usize::from(tag)).copied());
        Some((datagram, received, flow))
    }
}

impl Depacketizer {
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
            if !detection.push(bytes, received, self.flow) {
                self.settle_now(&mut detection, window);
                self.drain(detection, window, false);
                match &mut self.detection {
                    None => drop(self.place_one(window, bytes, received, false)),
                    Some(detection) => {
                        if !detection.push(bytes, received, self.flow) {
                            window.reject(1);
                        }
                    }
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
                || !detection.is_pinned && detection.push(bytes, received, self.flow)
            {
                self.detection = Some(detection);
                return true;
            }
            self.settle_now(&mut detection, window);
        }
        self.drain(detection, window, true)
            && match &mut self.detection {
                Some(detection) => {
                    if !detection.push(bytes, received, self.flow) {
                        window.reject(1);
                    }
                    true
                }
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
        let observed = match self.flow_reject {
            Some(reject) => Err(reject),
            None => detection.detector.observe(bytes),
        };
        match observed {
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
            Progress::Refused => self.discard_pending(detection, window),
        }
    }

    /// Ends detection with the packets received so far, or discards them if they are not sufficient.
    fn settle_now(&mut self, detection: &mut Detection, window: &mut ReorderWindow) {
        if detection.is_pinned {
            return;
        }
        match detection.detector.settle(Instant::now(), true) {
            Progress::Detected => self.pin(detection, window),
            Progress::Detecting | Progress::Refused => self.discard_pending(detection, window),
        }
    }

    /// Applies the detected sizes to the format and the window.
    fn pin(&mut self, detection: &mut Detection, window: &mut ReorderWindow) {
        let Some(format) = detection.detector.detected(&self.name) else {
            return;
        };
        window.pin(frames::pinned(window.geometry(), &format));
        self.use_format(format);
        detection.is_pinned = true;
        if let Some(detected) = detection.detector.summary() {
            tracing::info!("source {}: {detected}", self.name);
        }
    }

    /// Counts and discards the stored datagrams, which cannot be placed, and restarts detection.
    fn discard_pending(&mut self, detection: &mut Detection, window: &mut ReorderWindow) {
        let why = detection.detector.restart();
        let (mut messages, mut rejected) = (0, 0);
        while let Some((datagram, ..)) = detection.pending.front() {
            if detection.detector.is_message(datagram) {
                messages += 1;
            } else {
                rejected += 1;
            }
            detection.pending.pop();
        }
        if let Some(flows) = &mut detection.flows {
            flows.clear();
        }
        window.control(messages);
        window.reject(rejected);
        if rejected > 0 && self.rejections.count("unknown_sizes", rejected, &why) {
            tracing::warn!(
                "source {}: cannot detect the sizes of {}s and packets: {why}. Rejected: {}; further rejected \
                 packets are only counted",
                self.name,
                self.format.facts().unit_key,
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
        let current = self.flow;
        while let Some((bytes, received, flow)) = detection.front() {
            if let Some(flow) = flow {
                self.use_flow(flow);
            }
            if !self.place_one(window, bytes, received, holds) {
                self.return_to(current);
                self.detection = Some(detection);
                return false;
            }
            detection.pending.pop();
        }
        self.return_to(current);
        true
    }

    /// Selects the flow that was current before stored datagrams of other flows were placed.
    fn return_to(&mut self, flow: Option<Flow>) {
        if let Some(flow) = flow {
            self.use_flow(flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::spead::{Item, SpeadConfig, build_packet, item};
    use daq_core::ledger::{SourceLedger, SourceReport};
    use daq_core::reorder::Geometry;
    use daq_core::ring::RingOptions;
    use daq_testkit::ring::RingFixture;

    const HEAP: u32 = 256;
    const PACKET: u32 = 64;

    /// Returns the packets of heap `counter`.
    fn heap(counter: u32) -> impl Iterator<Item = Vec<u8>> {
        (0..HEAP / PACKET).map(move |part| {
            let mut items = vec![
                Item::immediate(item::HEAP_COUNTER, counter.into()),
                Item::immediate(item::HEAP_LENGTH, HEAP.into()),
                Item::immediate(item::HEAP_OFFSET, (part * PACKET).into()),
                Item::immediate(item::PAYLOAD_LENGTH, PACKET.into()),
                Item::immediate(0x1600, counter.into()),
            ];
            items.extend((part == 0).then(|| Item::addressed(item::SAMPLES, 0)));
            let mut bytes = Vec::new();
            build_packet(40, &items, &[7; 64], &mut bytes);
            bytes
        })
    }

    /// Datagrams of many senders before the first heap are counted, and do not stop the source.
    #[test]
    fn many_flows_before_the_first_heap_are_counted() {
        let config: SpeadConfig = toml::from_str("heap = 256\nframe = { item = 0x1600 }").unwrap();
        let format = config.build().unwrap();
        let planned = Geometry {
            numbering: format.facts().numbering,
            first_bytes: 1,
            ..Geometry::new(HEAP, 1)
        };
        for waits in [false, true] {
            let options = RingOptions {
                packets_per_frame: planned.packets_per_frame,
                supports_backpressure: false,
                ..RingOptions::new("raw", 512, planned.frame_bytes)
            };
            let fixture = RingFixture::new(options);
            let ledger = SourceLedger::default();
            let mut window = ReorderWindow::new(fixture.producer, planned, 1, &ledger).remove(0);
            let detecting = format.detect().unwrap().start_detection(&planned, 1);
            let mut depacketizer = Depacketizer::new("adc", detecting);
            let mut sent = 0;
            let mut put = |port: u16, bytes: &[u8]| {
                let source = Some(([10, 0, 0, 9], port).into());
                depacketizer.use_flow(Flow {
                    source,
                    destination: None,
                });
                if waits {
                    assert!(depacketizer.place_with_room(&mut window, bytes, Timestamp::default()));
                } else {
                    depacketizer.place(&mut window, [(bytes, Timestamp::default())]);
                }
                sent += 1;
            };
            for port in 1..=u16::try_from(MAX_FLOWS).unwrap() + 500 {
                put(port, &[0x53, 4, 3, 5, 0, 0, 0, 0]);
            }
            for counter in 1..=200 {
                heap(counter).for_each(|bytes| put(9, &bytes));
            }
            depacketizer.flush(&mut window, false);
            window.finish();
            let report = SourceReport::of(&ledger);
            assert_eq!(report.delivered + report.rejected, sent, "{report:?}");
            assert!(report.delivered > 700, "{report:?}");
        }
    }
}
