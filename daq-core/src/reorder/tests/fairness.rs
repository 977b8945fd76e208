//! One sender must not make the packets of other parts late.

use super::parts::{put, window};
use super::*;
use std::time::Instant;

const WINDOW: u64 = 8;

/// Places the packet `index` of `part` in `frame`.
fn put_one(window: &mut ReorderWindow, part: u32, index: u32, frame: u64) -> Outcome {
    let id = PacketId {
        unit: frame,
        sub: 2 * part + index,
    };
    window.with_batch(|batch| batch.place(id, &payload(frame), Timestamp::default()))
}

/// Checks that `part` has `packets` packets, of which none is lost.
fn assert_whole(report: &SourceReport, part: &str, packets: u64) {
    let counts = &report.parts[part];
    assert_eq!(
        (counts.expected, counts.delivered, counts.rejected),
        (packets, packets, 0),
        "part {part} of {report:?}"
    );
}

#[test]
fn packets_of_one_part_after_the_window_close_no_frame_of_the_others() {
    for parts in [2, 3, 5] {
        let (mut windows, ledger, _ring) = window(parts, 1, 8);
        let window = &mut windows[0];
        for frame in 1000..1100 {
            let is_hostile = (1020..1070).contains(&frame);
            for part in 0..parts {
                if part > 0 || !is_hostile {
                    put(window, part, frame);
                    continue;
                }
                // Frames after the open frames, and any other one in the window or behind it.
                for ahead in [WINDOW, 2 * WINDOW - 1, frame % WINDOW, 2 * WINDOW - 1] {
                    let _ = put_one(window, part, 0, frame + ahead);
                }
                let _ = put_one(window, part, 1, frame - frame % 5);
            }
        }
        window.finish();
        let report = SourceReport::of(&ledger);
        for part in 1..parts {
            assert_whole(&report, &part.to_string(), 200);
        }
    }
}

#[test]
fn silent_part_delays_no_packet_of_the_other() {
    let (mut windows, ledger, _ring) = window(2, 1, 8);
    let window = &mut windows[0];
    for frame in 1000..1100 {
        put(window, 0, frame);
        match frame {
            1000..1010 | 1050.. => put(window, 1, frame),
            // The sender stops in the middle of a frame.
            1010 => {
                let _ = put_one(window, 1, 0, frame);
            }
            _ => {}
        }
    }
    windows[0].finish();
    let report = SourceReport::of(&ledger);
    assert_whole(&report, "0", 200);
    assert_eq!(report.parts["1"].lost, 79, "{report:?}");
}

#[test]
fn part_that_is_ahead_continues_when_the_other_ends() {
    for ahead in 1..WINDOW {
        let (mut windows, ledger, _ring) = window(2, 1, 8);
        let window = &mut windows[0];
        for frame in 1000..1100 {
            put(window, 0, frame);
            if (1000..1040).contains(&(frame - ahead)) {
                put(window, 1, frame - ahead);
            }
        }
        windows[0].finish();
        assert_whole(&SourceReport::of(&ledger), "0", 200);
    }
}

#[test]
fn all_parts_continue_after_a_pause_longer_than_the_window() {
    let (mut windows, ledger, _ring) = window(3, 1, 8);
    for frame in (1000..1020).chain(1032..1060) {
        (0..3).for_each(|part| put(&mut windows[0], part, frame));
    }
    windows[0].finish();
    let report = SourceReport::of(&ledger);
    for part in ["0", "1", "2"] {
        let counts = &report.parts[part];
        let wanted = (120, 96, 24, 0);
        let found = (
            counts.expected,
            counts.delivered,
            counts.lost,
            counts.rejected,
        );
        assert_eq!(found, wanted, "{report:?}");
    }
}

#[test]
fn early_packet_of_one_part_closes_no_frame_during_silence() {
    let (mut windows, ledger, _ring) = window(3, 1, 8);
    let window = &mut windows[0];
    let mut now = Instant::now();
    for frame in 1000..1030 {
        put(window, 0, frame);
        if frame < 1010 {
            put(window, 1, frame);
            put(window, 2, frame);
            continue;
        }
        let _ = put_one(window, 2, 0, frame + WINDOW - 1);
        for _ in 0..5 {
            now += Duration::from_millis(50);
            window.tick(now);
        }
        put(window, 1, frame);
    }
    // The ledgers of the others end with their own packets.
    let _ = put_one(window, 2, 0, 1029 + WINDOW);
    window.finish();
    let report = SourceReport::of(&ledger);
    assert_whole(&report, "0", 60);
    assert_whole(&report, "1", 60);
}
