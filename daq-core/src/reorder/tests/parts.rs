//! Frames of several parts, each of which has a sender of its own.

use super::*;
use crate::ledger::{CounterFile, PartLedgers};

/// Places both packets of `part` in `frame`.
fn put(window: &mut ReorderWindow, part: u32, frame: u64) {
    for sub in [2 * part, 2 * part + 1] {
        window.with_batch(|batch| {
            let id = PacketId { unit: frame, sub };
            batch.place(id, &payload(frame), Timestamp::default())
        });
    }
}

/// Creates the handles of `writers` threads for frames of `parts` parts, and the ledger.
fn window(parts: u32, writers: usize) -> (Vec<ReorderWindow>, SourceLedger, Ring) {
    let packets = 2 * parts;
    let numbering = crate::reorder::Numbering {
        packets_per_unit: packets,
        ..crate::reorder::Numbering::PLAIN
    };
    let geometry = Geometry {
        parts,
        numbering,
        packets_per_frame: packets,
        frame_bytes: packets as usize * BYTES,
        ..geometry()
    };
    let options = RingOptions {
        packets_per_frame: packets,
        ..RingOptions::new("raw", 64, geometry.frame_bytes)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let names: Vec<_> = (0..parts).map(|part| part.to_string()).collect();
    let ledger = SourceLedger {
        parts: PartLedgers::on(&CounterFile::in_memory(), "adc", &names).unwrap(),
        ..SourceLedger::default()
    };
    (
        ReorderWindow::new(producer, geometry, writers, &ledger),
        ledger,
        ring,
    )
}

/// The senders of the two parts do not restart at the same time, and each part has a thread of its own. Frames of the old numbering
/// that one of them still sends must not keep the other from confirming the new epoch.
#[test]
fn parts_that_restart_one_after_the_other_open_one_epoch() {
    let (mut windows, ledger, _ring) = window(2, 2);
    // Frames are opened by the first thread.
    for frame in 1000..1010 {
        put(&mut windows[0], 0, frame);
        put(&mut windows[1], 1, frame);
    }
    put(&mut windows[0], 0, 1010);
    put(&mut windows[0], 0, 0);
    put(&mut windows[0], 0, 1);
    // The sender of part 1 has not restarted yet.
    put(&mut windows[1], 1, 1010);
    put(&mut windows[1], 1, 0);
    put(&mut windows[1], 1, 1);
    assert_eq!(SourceReport::of(&ledger).epochs, 1);
    put(&mut windows[0], 0, 2);
    put(&mut windows[0], 0, 3);
    let report = SourceReport::of(&ledger);
    assert_eq!(report.epochs, 2, "{report:?}");
}

/// Sends frames of three parts, of which the parts below `restarted` restart. Returns the report.
fn restart(restarted: u32) -> SourceReport {
    let (mut windows, ledger, _ring) = window(3, 1);
    let window = &mut windows[0];
    for frame in 1000..1010 {
        (0..3).for_each(|part| put(window, part, frame));
    }
    for n in 0..10 {
        for part in 0..3 {
            put(window, part, if part < restarted { n } else { 1010 + n });
        }
    }
    SourceReport::of(&ledger)
}

#[test]
fn part_that_does_not_restart_cannot_prevent_the_epoch_of_most_parts() {
    let report = restart(2);
    assert_eq!(report.epochs, 2, "{report:?}");
    assert!(report.parts["0"].delivered > 20, "{report:?}");
}

#[test]
fn part_that_restarts_alone_is_rejected_until_its_numbers_fit() {
    let report = restart(1);
    assert_eq!(report.epochs, 1, "{report:?}");
    assert_eq!(
        report.parts["1"].lost + report.parts["2"].lost,
        0,
        "{report:?}"
    );
}
