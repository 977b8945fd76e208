//! Frames of several parts, each of which has a sender of its own.

use super::*;
use crate::ledger::{CounterFile, PartLedgers};

/// Places both packets of `part` in `frame`. Part 0 is filled by the sequencer, and part 1 by another thread.
fn put(windows: &mut [ReorderWindow], part: u32, frame: u64) {
    for sub in [2 * part, 2 * part + 1] {
        windows[part as usize].with_batch(|batch| {
            let id = PacketId { unit: frame, sub };
            batch.place(id, &payload(frame), Timestamp::default())
        });
    }
}

/// The senders of the two parts do not restart at the same time. Frames of the old numbering that one of them still sends
/// must not keep the other from confirming the new epoch.
#[test]
fn parts_that_restart_one_after_the_other_open_one_epoch() {
    let numbering = crate::reorder::Numbering {
        packets_per_unit: PACKETS_PER_FRAME,
        ..crate::reorder::Numbering::PLAIN
    };
    let geometry = Geometry {
        parts: 2,
        numbering,
        ..geometry()
    };
    let options = RingOptions {
        packets_per_frame: PACKETS_PER_FRAME,
        ..RingOptions::new("raw", 64, geometry.frame_bytes)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (_ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let names = ["a".to_owned(), "b".to_owned()];
    let ledger = SourceLedger {
        parts: PartLedgers::on(&CounterFile::in_memory(), "adc", &names).unwrap(),
        ..SourceLedger::default()
    };
    let mut windows = ReorderWindow::new(producer, geometry, 2, &ledger);
    for frame in 1000..1010 {
        put(&mut windows, 0, frame);
        put(&mut windows, 1, frame);
    }
    put(&mut windows, 0, 1010);
    put(&mut windows, 0, 0);
    put(&mut windows, 0, 1);
    // The sender of part 1 has not restarted yet.
    put(&mut windows, 1, 1010);
    put(&mut windows, 1, 0);
    put(&mut windows, 1, 1);
    assert_eq!(SourceReport::of(&ledger).epochs, 1);
    put(&mut windows, 0, 2);
    put(&mut windows, 0, 3);
    let report = SourceReport::of(&ledger);
    assert_eq!(report.epochs, 2, "{report:?}");
}
