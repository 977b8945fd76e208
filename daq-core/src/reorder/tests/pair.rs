//! A window that two threads fill.

use super::*;

pub(super) struct Pair {
    pub(super) sequencer: ReorderWindow,
    pub(super) other: ReorderWindow,
    pub(super) ring: Ring,
    pub(super) ledger: SourceLedger,
}

impl Pair {
    pub(super) fn new(slots: usize, geometry: Geometry) -> Self {
        let options = RingOptions {
            packets_per_frame: geometry.packets_per_frame,
            supports_backpressure: false,
            fill: Fill::byte(0xee),
            ..RingOptions::new("raw", slots, geometry.frame_bytes)
        };
        let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
        let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
        let ledger = SourceLedger::default();
        let mut windows = ReorderWindow::new(producer, geometry, 2, &ledger);
        let other = windows.pop().unwrap();
        let sequencer = windows.pop().unwrap();
        Self {
            sequencer,
            other,
            ring,
            ledger,
        }
    }
}

/// Places packet `sequence` in a batch of its own.
pub(super) fn put(window: &mut ReorderWindow, sequence: u64) -> Outcome {
    window.with_batch(|batch| {
        batch.place(
            PacketId::of(sequence),
            &payload(sequence),
            Timestamp::default(),
        )
    })
}
