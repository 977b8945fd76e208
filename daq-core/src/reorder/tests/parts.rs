//! Frames of several parts, each of which has a sender of its own.

use super::*;
use crate::ledger::{CounterFile, PartLedgers};

/// Places both packets of `part` in `frame`.
pub(super) fn put(window: &mut ReorderWindow, part: u32, frame: u64) {
    for sub in [2 * part, 2 * part + 1] {
        window.with_batch(|batch| {
            let id = PacketId { unit: frame, sub };
            batch.place(id, &payload(frame), Timestamp::default())
        });
    }
}

/// Creates the handles of `writers` threads for `frames` open frames of `parts` parts, and the ledger.
pub(super) fn window(
    parts: u32,
    writers: usize,
    frames: usize,
) -> (Vec<ReorderWindow>, SourceLedger, Ring) {
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
        window: frames,
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

/// Places packets, each a frame and an index, in a window of `frames` frames, then ends the run. Returns the outcomes, the numbers
/// of expected and lost packets of parts 0 and 1 (`a` and `b` below), and the report.
fn run(frames: usize, packets: &[(u64, u32)]) -> (Vec<Outcome>, [(u64, u64); 2], SourceReport) {
    let (mut windows, ledger, _ring) = window(2, 1, frames);
    let mut put = |(unit, sub): &(u64, u32)| {
        let id = PacketId {
            unit: *unit,
            sub: *sub,
        };
        windows[0].with_batch(|batch| batch.place(id, &payload(*unit), Timestamp::default()))
    };
    let outcomes = packets.iter().map(&mut put).collect();
    windows[0].finish();
    let report = SourceReport::of(&ledger);
    let total = |count: fn(&crate::ledger::PartReport) -> u64| -> u64 {
        report.parts.values().map(count).sum()
    };
    assert_eq!(report.expected, total(|part| part.expected), "{report:?}");
    assert_eq!(report.delivered, total(|part| part.delivered), "{report:?}");
    assert_eq!(report.lost_total(), total(|part| part.lost), "{report:?}");
    assert_eq!(report.expected, report.delivered + report.lost_total());
    let of = ["0", "1"].map(|part| (report.parts[part].expected, report.parts[part].lost));
    (outcomes, of, report)
}

/// Returns the packets of the frames `frames`.
fn whole(frames: std::ops::Range<u64>) -> impl Iterator<Item = (u64, u32)> {
    frames.flat_map(|frame| (0..PACKETS_PER_FRAME).map(move |index| (frame, index)))
}

#[test]
fn packets_before_first_packet_of_a_part_are_not_expected() {
    let start = [(10, 1), (10, 3)];
    let packets: Vec<_> = start.into_iter().chain(whole(11..15)).collect();
    let (_, parts, report) = run(2, &packets);
    assert_eq!((parts, report.before_start), ([(9, 0), (9, 0)], 0));

    // Part b begins one frame after part a, and sends packets of earlier frames late.
    let start = [(10, 0), (9, 3), (10, 1), (11, 0), (11, 1), (11, 2), (11, 3)];
    let late = [(12, 0), (12, 1), (13, 0), (10, 2)];
    let rest = [(12, 2), (12, 3), (13, 1), (13, 2), (13, 3)];
    let packets: Vec<_> = start.into_iter().chain(late).chain(rest).collect();
    let (outcomes, parts, report) = run(2, &packets);
    assert_eq!(
        (outcomes[1], outcomes[10]),
        (Outcome::BeforeStart, Outcome::BeforeStart)
    );
    assert_eq!((parts, report.before_start), ([(8, 0), (6, 0)], 2));
    assert_eq!(report.incomplete, 0, "{report:?}");

    // Part b begins out of order, in a frame that is still open.
    let start = [(10, 0), (10, 1), (11, 3), (11, 0), (11, 2), (11, 1)];
    let packets: Vec<_> = start.into_iter().chain(whole(12..15)).collect();
    let (_, parts, report) = run(2, &packets);
    assert_eq!((parts, report.before_start), ([(10, 0), (8, 0)], 0));
}

/// Part b is always three packets, one and a half frames, ahead of part a.
#[test]
fn run_of_parts_at_a_distance_loses_nothing_wherever_it_begins_and_ends() {
    for (first, count) in (20..24).flat_map(|first| (1..20).map(move |count| (first, count))) {
        let position = |part: u32, n: u64| (n / 2, 2 * part + u32::try_from(n % 2).unwrap());
        let packets: Vec<_> = (first..first + count)
            .flat_map(|n| [position(0, n), position(1, n + 3)])
            .collect();
        let (_, parts, report) = run(3, &packets);
        assert_eq!(
            (report.lost_total(), report.rejected, report.incomplete),
            (0, 0, 0),
            "{first}, {count}: {report:?}"
        );
        let counted = report.expected + report.before_start;
        assert_eq!((counted, parts[1]), (2 * count, (count, 0)), "{report:?}");
    }
}

proptest! {
    /// Packets of two parts may be lost, repeated or delayed. The ledgers of the source and of its parts add up.
    #[test]
    fn every_packet_of_parts_is_accounted(delays in prop::collection::vec(prop::option::weighted(0.8, 0_usize..20), 1..120), ahead in 0_u64..8, repeated in any::<prop::sample::Index>()) {
        let mut schedule: Vec<_> = (0..)
            .zip(&delays)
            .filter_map(|(i, delay)| Some((i + (*delay)? / 12 * 7, i)))
            .map(|(at, i)| {
                let (n, part) = (40 + i as u64 / 2, u32::from(i % 2 == 1));
                let n = n + ahead * u64::from(part);
                (at, (n / 2, 2 * part + u32::from(n % 2 == 1)))
            })
            .collect();
        prop_assume!(!schedule.is_empty());
        schedule.push(schedule[repeated.index(schedule.len())]);
        schedule.sort_unstable();
        let packets: Vec<_> = schedule.into_iter().map(|(_, packet)| packet).collect();
        let (outcomes, _, report) = run(2, &packets);
        let count = |outcome| outcomes.iter().filter(|other| **other == outcome).count() as u64;
        let late = report.lost.get("late").copied().unwrap_or(0);
        // A packet that was kept aside also ends in one of these counters.
        let kept: u64 = [
            (report.delivered, count(Outcome::Placed)),
            (late, count(Outcome::Late)),
            (report.duplicates, count(Outcome::Duplicate)),
            (report.before_start, count(Outcome::BeforeStart)),
            (report.rejected, count(Outcome::Rejected)),
        ]
        .into_iter()
        .map(|(counted, seen)| counted - seen)
        .sum();
        let aside = count(Outcome::Kept) + count(Outcome::Repeated);
        prop_assert_eq!(kept, aside, "{:?} {:?}", outcomes, packets);
    }
}

#[test]
fn silent_part_is_lost_from_the_first_frame_on() {
    let packets: Vec<_> = whole(10..15).filter(|(_, index)| *index < 2).collect();
    let (_, parts, report) = run(2, &packets);
    // The run ends before the packets of part b in the last frame.
    assert_eq!(parts, [(10, 0), (8, 8)], "{report:?}");
}

#[test]
fn packets_after_last_packet_of_a_part_are_not_expected() {
    let packets: Vec<_> = whole(10..14).chain([(14, 0), (14, 2)]).collect();
    let (_, parts, report) = run(2, &packets);
    assert_eq!(
        (parts, report.incomplete),
        ([(9, 0), (9, 0)], 0),
        "{report:?}"
    );
    // Part b has not begun the last frame, but is not silent.
    let packets: Vec<_> = whole(10..14).chain([(14, 0), (14, 1)]).collect();
    let (_, parts, _) = run(2, &packets);
    assert_eq!(parts, [(10, 0), (8, 0)]);
    // A run that begins and ends inside a frame.
    let (_, parts, _) = run(2, &[(10, 1), (10, 2)]);
    assert_eq!(parts, [(1, 0), (1, 0)]);
}

/// The senders of the two parts do not restart at the same time, and each part has a thread of its own. Frames of the old numbering
/// that one of them still sends must not keep the other from confirming the new epoch.
#[test]
fn parts_that_restart_one_after_the_other_open_one_epoch() {
    let (mut windows, ledger, _ring) = window(2, 2, 2);
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
    let (mut windows, ledger, _ring) = window(3, 1, 2);
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
