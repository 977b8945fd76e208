//! Tests of senders that restart their numbers within the window, and of packets that only arrive again.

use super::pair::Pair;
use super::*;
use crate::frame::Clock;

/// Places packet `sequence` of the `run`-th acquisition at `milliseconds`.
fn put(bench: &mut Bench, sequence: u64, run: u8, milliseconds: u64) -> Outcome {
    let time = Timestamp {
        ns: 1_000_000 * milliseconds,
        clock: Clock::Kernel,
    };
    let mut payload = payload(sequence);
    payload[BYTES - 1] = run;
    bench
        .window
        .with_batch(|batch| batch.place(PacketId::of(sequence), &payload, time))
}

/// Returns (frame number, epoch, run of each packet that arrived) of all frames that are ready.
fn runs(bench: &mut Bench) -> Vec<(u64, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some(lease) = bench.reader.poll(1) {
        let frame = lease.frame(0);
        let bytes = frame.bytes().unwrap();
        let present = (0..PACKETS_PER_FRAME).filter(|index| frame.present().is_present(*index));
        let runs = present
            .map(|index| bytes[(index as usize + 1) * BYTES - 1])
            .collect();
        frames.push((frame.meta().sequence, frame.meta().epoch, runs));
    }
    frames
}

fn wide(window: usize) -> Bench {
    bench(
        1024,
        Geometry {
            window,
            ..geometry()
        },
    )
}

/// Acquisitions of 20 frames, each numbered from the same number. Their payload differs, or they follow each other after a pause.
#[test]
fn short_acquisitions_are_epochs() {
    for (differs, pause) in [(true, 0), (false, 300), (true, 300)] {
        for (window, first) in [(2, 4), (2, 6), (8, 4), (8, 5), (64, 4), (64, 7)] {
            let mut bench = wide(window);
            for acquisition in 0..3 {
                for sequence in first..first + 80 {
                    let run = if differs { acquisition } else { 0 };
                    put(&mut bench, sequence, run, pause * u64::from(acquisition));
                }
            }
            bench.window.finish();
            let report = bench.report();
            let case = format!("window {window}, first {first}, {pause} ms: {report:?}");
            assert_eq!((report.epochs, report.delivered), (3, 240), "{case}");
            assert_eq!(
                (report.rejected, report.duplicates, report.lost_total()),
                (0, 0, 0),
                "{case}"
            );
            for (_, epoch, runs) in runs(&mut bench) {
                let run = if differs {
                    u8::try_from(epoch).unwrap() - 1
                } else {
                    0
                };
                assert!(
                    runs.iter().all(|own| *own == run),
                    "two runs share a frame: {case}"
                );
            }
        }
    }
}

/// Many acquisitions are restarts of one sender, not two senders that alternate.
#[test]
fn many_acquisitions_are_epochs() {
    for window in [2, 8, 64] {
        let mut bench = wide(window);
        let mut lost = 0;
        for acquisition in 0..40 {
            // Some acquisitions lose their first packets.
            let first = if acquisition % 7 == 3 { 24 } else { 4 };
            lost += first - 4;
            for sequence in first..84 {
                put(&mut bench, sequence, acquisition, 0);
            }
        }
        bench.window.finish();
        let report = bench.report();
        assert_eq!(
            (report.epochs, report.delivered),
            (40, 3200 - lost),
            "window {window}: {report:?}"
        );
        assert_eq!(report.duplicates + report.rejected + report.before_start, 0);
    }
}

/// The first acquisition is incomplete. No packet of the second one fills a hole of the first, and none is rejected.
#[test]
fn holes_of_an_acquisition_stay_holes() {
    let cases: [fn(u64) -> bool; 6] = [
        |sequence| sequence == 4,
        |sequence| sequence < 9,
        |sequence| sequence == 6,
        |sequence| [4, 7, 10, 13].contains(&sequence),
        |sequence| sequence % 4 == 3,
        |sequence| sequence > 4 && sequence < 30,
    ];
    for (window, pause) in [(8, 0), (64, 0), (64, 150)] {
        for (case, is_lost) in cases.iter().enumerate() {
            for end in [25, 44, 84, 404] {
                let first: Vec<_> = (4..end).filter(|sequence| !is_lost(*sequence)).collect();
                if first.len() >= 16 {
                    let case = format!("case {case}, window {window}, {pause} ms, end {end}");
                    check_two_acquisitions(&first, end, window, pause, &case);
                }
            }
        }
    }
}

/// Sends an acquisition of the packets `first`, then one of all packets from 4 to `end`.
fn check_two_acquisitions(first: &[u64], end: u64, window: usize, pause: u64, case: &str) {
    let mut bench = wide(window);
    let mut now = Instant::now();
    let second: Vec<_> = (4..end).collect();
    for (acquisition, sequences) in [(0, first), (1, &second)] {
        for sequence in sequences {
            put(
                &mut bench,
                *sequence,
                acquisition,
                u64::from(acquisition) * pause,
            );
        }
        for _ in 0..pause / 10 {
            now += Duration::from_millis(10);
            bench.window.tick(now);
        }
    }
    bench.window.finish();
    let report = bench.report();
    let case = format!("{case}: {report:?}");
    let delivered = first.len() as u64 + end - 4;
    // Packets before the first and after the last one of an acquisition are not expected.
    let expected = first[first.len() - 1] + 1 - first[0] + end - 4;
    assert_eq!(
        (report.epochs, report.delivered, report.expected),
        (2, delivered, expected),
        "{case}"
    );
    assert_eq!(
        report.duplicates + report.rejected + report.before_start,
        0,
        "{case}"
    );
    for (_, epoch, runs) in runs(&mut bench) {
        let own = u8::try_from(epoch).unwrap() - 1;
        assert!(runs.iter().all(|run| *run == own), "{case}");
    }
}

/// The first packets of the first frame of an epoch arrive out of order.
#[test]
fn late_first_packets_are_placed() {
    let geometry = || Geometry {
        window: 16,
        ..Geometry::new(8, BYTES)
    };
    for block in [1, 2, 4, 7] {
        for delay in [4, 8, 16, 20, 28, 40] {
            let (late, begin) = (0..block, block..block + delay);
            let numbers = begin.clone().chain(late.clone()).chain(begin.end..200);
            // At the start, and after a restart.
            for before in [0..0, 1000..1400] {
                let mut bench = bench(1024, geometry());
                for sequence in before.clone().chain(numbers.clone()) {
                    put(&mut bench, sequence, 0, 0);
                }
                bench.window.finish();
                let report = bench.report();
                let case = format!("{before:?}, then {late:?} after {begin:?}: {report:?}");
                let sent = before.end - before.start + 200;
                assert_eq!((report.expected, report.delivered), (sent, sent), "{case}");
                let epochs = 1 + u64::from(before.end > 0);
                assert_eq!((report.epochs, report.rejected), (epochs, 0), "{case}");
            }
        }
    }
}

/// The first numbers of the second acquisition are just behind the window, and the others are in it.
#[test]
fn restart_at_the_edge_of_the_window_loses_nothing() {
    for window in [4, 8] {
        for length in 3 * window as u64..12 * window as u64 {
            let mut bench = wide(window);
            for acquisition in 0..2 {
                for sequence in 0..length {
                    put(&mut bench, sequence, acquisition, 0);
                }
            }
            bench.window.finish();
            let report = bench.report();
            let case = format!("window {window}, {length} packets: {report:?}");
            assert_eq!((report.epochs, report.delivered), (2, 2 * length), "{case}");
            assert_eq!(
                report.rejected + report.duplicates + report.lost_total(),
                0,
                "{case}"
            );
        }
    }
}

/// A number that never changes shows a wrong offset of the field, not a restart.
#[test]
fn constant_number_opens_no_epoch() {
    let mut bench = wide(8);
    for run in 0..50 {
        put(&mut bench, 7, run, 0);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.epochs, report.delivered, report.duplicates),
        (1, 1, 49)
    );
}

/// Several threads cannot compare payload, so packets that arrive again after pauses open no epoch.
#[test]
fn repeats_in_several_threads_open_no_epoch() {
    let wide = Geometry {
        window: 16,
        ..geometry()
    };
    let Pair {
        mut sequencer,
        ledger,
        ..
    } = Pair::new(256, wide);
    let mut now = Instant::now();
    let mut sent = 0;
    for burst in 0..12_u64 {
        // The sequencer notices the pause.
        for _ in 0..10 {
            now += Duration::from_millis(20);
            sequencer.tick(now);
        }
        sequencer.with_batch(|batch| {
            let packets = 8 * burst..8 * burst + 8;
            // The end of the burst before arrives again, and so does the burst itself.
            let again = packets.start.saturating_sub(4)..packets.start;
            for sequence in again.chain(packets.clone()).chain(packets) {
                let payload = payload(sequence);
                batch.place(PacketId::of(sequence), &payload, Timestamp::default());
                sent += 1;
            }
        });
    }
    sequencer.finish();
    let report = SourceReport::of(&ledger);
    assert_eq!((report.epochs, report.delivered), (1, 96), "{report:?}");
    assert_eq!(report.delivered + report.duplicates, sent);
}

/// A restart in the window that several threads cannot recognise is not reported as mere duplicates.
#[test]
fn many_repeats_without_a_new_packet_are_rejected() {
    let wide = Geometry {
        window: 64,
        ..geometry()
    };
    let Pair {
        mut sequencer,
        ledger,
        ..
    } = Pair::new(256, wide);
    let mut unexplained = 0;
    for _ in 0..2 {
        for sequence in 0..100 {
            let payload = payload(sequence);
            sequencer.with_batch(|batch| {
                batch.place(PacketId::of(sequence), &payload, Timestamp::default());
                unexplained += u64::from(batch.is_unexplained());
            });
        }
    }
    let report = SourceReport::of(&ledger);
    assert_eq!((report.duplicates, report.rejected), (64, 36), "{report:?}");
    assert_eq!(unexplained, 36);
}

/// The first acquisition was joined in the middle, so the next one begins before its first packet.
#[test]
fn acquisition_joined_in_the_middle_is_followed_by_a_whole_one() {
    for window in [2, 8, 64] {
        let mut bench = wide(window);
        for sequence in 30..80 {
            put(&mut bench, sequence, 0, 0);
        }
        for sequence in 4..80 {
            put(&mut bench, sequence, 1, 0);
        }
        bench.window.finish();
        let report = bench.report();
        assert_eq!(
            (report.epochs, report.delivered),
            (2, 126),
            "window {window}: {report:?}"
        );
        assert_eq!(
            (report.before_start, report.rejected, report.duplicates),
            (0, 0, 0)
        );
    }
}

/// Repeated packets open no epoch: each packet twice, each frame twice, the last packets again after a pause, and again.
#[test]
fn packets_that_arrive_again_open_no_epoch() {
    type Order = Vec<(u64, u64)>;
    let twice: Order = (4..80).flat_map(|sequence| [(sequence, 0); 2]).collect();
    let frames: Order = (1..20_u64)
        .flat_map(|frame| (0..8).map(move |i| (4 * frame + i % 4, 0)))
        .collect();
    let eights: Order = (0..10_u64)
        .flat_map(|block| (0..16).map(move |i| (8 * block + i % 8, 0)))
        .collect();
    let tail: Order = (4..80)
        .map(|sequence| (sequence, 0))
        .chain((64..80).map(|sequence| (sequence, 500)))
        .chain((72..80).map(|sequence| (sequence, 2000)))
        .chain((80..100).map(|sequence| (sequence, 2500)))
        .collect();
    for (i, order) in [twice, frames, eights, tail].iter().enumerate() {
        for window in [8, 64] {
            let mut bench = wide(window);
            for (sequence, milliseconds) in order {
                put(&mut bench, *sequence, 0, *milliseconds);
            }
            bench.window.finish();
            let report = bench.report();
            let packets: std::collections::BTreeSet<_> =
                order.iter().map(|packet| packet.0).collect();
            let repeats = (order.len() - packets.len()) as u64;
            let case = format!("order {i}, window {window}: {report:?}");
            assert_eq!(
                (report.epochs, report.delivered),
                (1, packets.len() as u64),
                "{case}"
            );
            assert_eq!(
                (report.duplicates, report.rejected, report.lost_total()),
                (repeats, 0, 0),
                "{case}"
            );
        }
    }
}

/// The same packets as in the middle of the stream arrive alone after silence, so they are only repeated.
#[test]
fn late_repeats_after_silence_are_duplicates() {
    let mut bench = wide(8);
    for sequence in 0..40 {
        put(&mut bench, sequence, 0, 0);
    }
    listen(&mut bench, Instant::now(), 1500);
    for sequence in 20..36 {
        put(&mut bench, sequence, 0, 1500);
    }
    for sequence in 40..60 {
        assert_eq!(put(&mut bench, sequence, 0, 1600), Outcome::Placed);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.epochs, report.delivered, report.duplicates),
        (1, 60, 16),
        "{report:?}"
    );
}

/// A source that waits for slots loses no packet of a restart.
#[test]
fn restart_waits_for_slots() {
    // The packet that confirms the second run was lost in the first one.
    check_waiting((4, 5), 3, 20, (0, 6));
    // The first packet of a run was lost.
    for (window, slots) in [(4, 5), (8, 16), (8, 17), (32, 64)] {
        for end in [24, 40, 68, 84, 132, 200] {
            for lost in [(0, 4), (1, 4), (3, 4), (3, 5)] {
                check_waiting((window, slots), 5, end, lost);
            }
        }
    }
}

/// Sends `runs` runs of the packets from 4 to `end`, without the packet `lost` of a run, and waits for slots.
fn check_waiting((frames, slots): (usize, usize), runs: u8, end: u64, lost: (u8, u64)) {
    let geometry = Geometry {
        window: frames,
        ..geometry()
    };
    let options = RingOptions {
        packets_per_frame: PACKETS_PER_FRAME,
        supports_backpressure: true,
        ..RingOptions::new("raw", slots, geometry.frame_bytes)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    let ledger = SourceLedger::default();
    let mut window = ReorderWindow::new(producer, geometry, 1, &ledger)
        .pop()
        .unwrap();
    let (mut delivered, mut now) = (0, Instant::now());
    let all = (0..runs).flat_map(|run| (4..end).map(move |sequence| (run, sequence)));
    for (run, sequence) in all.filter(|packet| *packet != lost) {
        let mut waited = 0;
        loop {
            let mut batch = window.batch();
            let id = PacketId::of(sequence);
            let has_room = batch.has_room(id, Some(BYTES.into()));
            if has_room {
                batch.place(id, &[run; BYTES], Timestamp::default());
            }
            batch.commit();
            if has_room {
                break;
            }
            // The reader needs longer than packets are kept aside.
            now += Duration::from_secs(2);
            window.tick(now);
            waited += 1;
            assert!(
                waited < 100,
                "packet {sequence} of run {run} was never placed"
            );
            if waited < 3 {
                continue;
            }
            while let Some(lease) = reader.poll(1) {
                delivered += u64::from(lease.frame(0).meta().arrived);
            }
        }
    }
    window.finish();
    while let Some(lease) = reader.poll(1) {
        delivered += u64::from(lease.frame(0).meta().arrived);
    }
    let report = SourceReport::of(&ledger);
    let sent = u64::from(runs) * (end - 4) - 1;
    let case = format!("window {frames}, {slots} slots, end {end}, lost {lost:?}: {report:?}");
    assert_eq!(
        (report.epochs, report.delivered, delivered),
        (u64::from(runs), sent, sent),
        "{case}"
    );
    let others = report.duplicates + report.rejected;
    assert_eq!((others, report.before_start), (0, 0), "{case}");
    // A packet before the first or after the last one of a run is not expected.
    let is_inside = lost.1 > 4 && lost.1 < end - 1;
    assert_eq!(report.lost_total(), u64::from(is_inside), "{case}");
}

/// The number of a packet can need more than 64 bits, because a frame number of 64 bits is multiplied by the packets of a frame.
#[test]
fn frame_numbers_at_every_power_of_two_keep_their_places() {
    for packets in [1, 2, 3, 4, 7, 16, 100, 128] {
        for bits in 1..=64 {
            let first = (1_u64 << (bits - 1)).wrapping_mul(2).wrapping_sub(3);
            let geometry = Geometry {
                numbering: Numbering {
                    packets_per_unit: packets,
                    ..Numbering::PLAIN
                },
                resync_after: 3,
                ..Geometry::new(packets, BYTES)
            };
            let mut bench = bench(32, geometry);
            // An earlier epoch, so that the frames after it are located by an epoch that opens later.
            for unit in [first ^ 1 << 40, first] {
                for frame in (0..6).map(|i| unit.wrapping_add(i)) {
                    for sub in 0..packets {
                        let id = PacketId { unit: frame, sub };
                        let payload = payload(frame.wrapping_mul(1000) + u64::from(sub));
                        bench
                            .window
                            .with_batch(|batch| batch.place(id, &payload, Timestamp::default()));
                    }
                }
            }
            bench.window.finish();
            let mut numbers = Vec::new();
            while let Some(lease) = bench.reader.poll(1) {
                let frame = lease.frame(0);
                let number = frame.meta().sequence;
                for (sub, bytes) in (0_u64..).zip(frame.bytes().unwrap().chunks(BYTES)) {
                    let case = format!("packet {sub} of {packets} in frame {number}, 2^{bits}");
                    assert_eq!(bytes, payload(number.wrapping_mul(1000) + sub), "{case}");
                }
                numbers.push(number);
            }
            let expected = |unit: u64| (0..6).map(move |i| unit.wrapping_add(i));
            let expected: Vec<_> = expected(first ^ 1 << 40).chain(expected(first)).collect();
            assert_eq!(
                numbers,
                expected,
                "{packets} packets, 2^{bits}: {:?}",
                bench.report()
            );
        }
    }
}
