//! Tests of new epochs: which packets confirm an epoch, and what happens to earlier packets.

use super::pair::{Pair, put};
use super::*;
use crate::frame::{Clock, FrameMeta};

/// Returns the metadata of all frames that are ready.
pub(super) fn metas(bench: &mut Bench) -> Vec<FrameMeta> {
    let mut metas = Vec::new();
    while let Some(lease) = bench.reader.poll(1) {
        metas.push(*lease.frame(0).meta());
    }
    metas
}

#[test]
fn first_packets_of_confirmed_epoch_are_placed() {
    let mut bench = bench(64, geometry());
    for sequence in 1000..1008 {
        bench.put(sequence);
    }
    // The packets are out of order and one is repeated, but all belong to the new epoch.
    for sequence in [1, 0, 0, 3, 2, 4] {
        bench.put(sequence);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.epochs, report.rejected, report.duplicates),
        (2, 0, 1)
    );
    assert_eq!((report.expected, report.delivered), (13, 13));
    let frames: Vec<_> = bench
        .read()
        .into_iter()
        .filter(|frame| frame.1 == 2)
        .collect();
    assert_eq!(frames, [(0, 2, vec![0, 1, 2, 3]), (1, 2, vec![4])]);
}

#[test]
fn unconfirmed_candidates_are_rejected() {
    let mut bench = bench(64, geometry());
    for sequence in 1000..1008 {
        bench.put(sequence);
    }
    assert_eq!(bench.put(0), Outcome::Kept);
    assert_eq!(bench.put(1), Outcome::Kept);
    assert_eq!(bench.report().rejected, 0);
    // An inconsistent packet replaces the candidates. It is rejected when the stream continues, or after a second of
    // silence.
    assert_eq!(bench.put(500_000), Outcome::Kept);
    assert_eq!(bench.report().rejected, 2);
    let start = Instant::now();
    bench.window.tick(start);
    bench.window.tick(start + Duration::from_secs(2));
    assert_eq!(bench.report().rejected, 3);
    assert_eq!(bench.put(0), Outcome::Kept);
    assert_eq!(bench.put(1008), Outcome::Placed);
    assert_eq!(bench.report().rejected, 4);
    assert_eq!(bench.put(0), Outcome::Kept);
    bench.window.finish();
    let report = bench.report();
    assert_eq!((report.epochs, report.rejected, report.expected), (1, 5, 9));
}

#[test]
fn packets_before_confirmed_gap_are_placed() {
    let mut bench = bench(
        64,
        Geometry {
            max_gap: 1000,
            ..geometry()
        },
    );
    for sequence in (0..8).chain(500..508) {
        bench.put(sequence);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!((report.epochs, report.rejected), (1, 0));
    assert_eq!((report.expected, report.delivered), (508, 16));
}

#[test]
fn damaged_candidate_keeps_its_packet_slot() {
    let mut bench = bench(64, geometry());
    for sequence in 1000..1004 {
        bench.put(sequence);
    }
    bench.put(0);
    let outcome = bench
        .window
        .with_batch(|batch| batch.place_bad(PacketId::of(1)));
    assert_eq!(outcome, Outcome::Kept);
    bench.put(2);
    bench.put(3);
    bench.window.finish();
    let report = bench.report();
    assert_eq!(report.lost, lost(&[("bad_packet", 1)]));
    assert_eq!((report.expected, report.delivered), (8, 7));
}

#[test]
fn skipped_unit_among_candidates_is_not_expected() {
    let geometry = skips::geometry();
    let mut bench = bench(64, geometry);
    for sub in 0..PACKETS_PER_FRAME {
        skips::put(&mut bench, 1000, sub);
    }
    // Unit 2 is a heap of descriptors that arrives before the last packets of unit 1.
    skips::put(&mut bench, 1, 0);
    skips::put(&mut bench, 1, 1);
    bench.window.skip(2);
    for (unit, subs) in [(1, 2..PACKETS_PER_FRAME), (3, 0..PACKETS_PER_FRAME)] {
        for sub in subs {
            assert_eq!(skips::put(&mut bench, unit, sub), Outcome::Placed);
        }
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.epochs, report.rejected, report.lost_total()),
        (2, 0, 0)
    );
    assert_eq!((report.expected, report.delivered), (12, 12));
}

#[test]
fn first_frame_of_epoch_has_time_of_its_first_packet() {
    let mut bench = bench(
        64,
        Geometry {
            frame_ns: 4000,
            ..geometry()
        },
    );
    for sequence in (1000..1004).chain(0..8_u64) {
        let time = Timestamp {
            ns: 1_000_000 + 1000 * sequence,
            clock: Clock::Sensor,
        };
        bench
            .window
            .with_batch(|batch| batch.place(PacketId::of(sequence), &payload(sequence), time));
    }
    bench.window.finish();
    let metas = metas(&mut bench);
    let frames: Vec<_> = metas
        .iter()
        .map(|meta| (meta.epoch, meta.timestamp.ns, meta.arrived))
        .collect();
    assert_eq!(
        frames,
        [(1, 2_000_000, 4), (2, 1_000_000, 4), (2, 1_004_000, 4)]
    );
}

/// A source with backpressure places candidates one by one, and loses none of them in a small ring.
#[test]
fn candidates_with_backpressure_wait_for_slots() {
    for max_gap in [0, 1 << 20] {
        let geometry = Geometry {
            window: 2,
            resync_after: 5,
            max_gap,
            ..Geometry::new(1, BYTES)
        };
        let options = RingOptions {
            packets_per_frame: 1,
            supports_backpressure: true,
            ..RingOptions::new("raw", 2, geometry.frame_bytes)
        };
        let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
        let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
        let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
        let ledger = SourceLedger::default();
        let mut window = ReorderWindow::new(producer, geometry, 1, &ledger)
            .pop()
            .unwrap();
        let mut frames = Vec::new();
        for sequence in (0..6).chain(1000..1009_u64) {
            let mut waited = 0;
            loop {
                let mut batch = window.batch();
                let id = PacketId::of(sequence);
                let has_room = batch.has_room(id, None);
                if has_room {
                    let outcome = batch.place(id, &payload(sequence), Timestamp::default());
                    assert!(matches!(outcome, Outcome::Placed | Outcome::Kept));
                }
                batch.commit();
                if has_room {
                    break;
                }
                waited += 1;
                assert!(waited < 100, "packet {sequence} was never placed");
                while let Some(lease) = reader.poll(1) {
                    let frame = lease.frame(0);
                    if frame.meta().arrived > 0 {
                        frames.push(frame.meta().sequence);
                    }
                }
            }
        }
        window.finish();
        while let Some(lease) = reader.poll(1) {
            if lease.frame(0).meta().arrived > 0 {
                frames.push(lease.frame(0).meta().sequence);
            }
        }
        let expected: Vec<_> = (0..6).chain(1000..1009).collect();
        assert_eq!(frames, expected, "max_gap {max_gap}");
        let report = SourceReport::of(&ledger);
        assert_eq!((report.delivered, report.rejected), (15, 0));
        assert_eq!(report.epochs, if max_gap == 0 { 2 } else { 1 });
    }
}

#[test]
fn packets_for_closed_slots_open_no_epoch() {
    let mut bench = bench(64, geometry());
    // Every eighth packet is delayed by far more than the window.
    for sequence in (0..400).filter(|sequence| sequence % 8 != 5) {
        bench.put(sequence);
        bench.read();
    }
    for sequence in (0..360).filter(|sequence| sequence % 8 == 5) {
        assert_eq!(bench.put(sequence), Outcome::Rejected, "{sequence}");
    }
    for sequence in 400..440 {
        bench.put(sequence);
        bench.read();
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!((report.epochs, report.expected), (1, 440));
    assert_eq!((report.rejected, report.delivered), (45, 390));
    assert_eq!(report.lost_total(), 50);
}

/// A restart whose numbers are inside the window begins before the first packet of the run, or after silence.
#[test]
fn restart_within_window_opens_epoch_after_silence() {
    for silent in [false, true] {
        let mut bench = bench(
            256,
            Geometry {
                window: 64,
                ..geometry()
            },
        );
        for sequence in 20..40 {
            bench.put(sequence);
        }
        if silent {
            listen(&mut bench, Instant::now(), 1500);
        }
        for sequence in 0..40 {
            bench.put(sequence);
        }
        bench.window.finish();
        let report = bench.report();
        assert_eq!(report.rejected, 0);
        let counts = (report.epochs, report.before_start, report.duplicates);
        assert_eq!(counts, (2, 0, 0), "silent: {silent}");
        assert_eq!(report.lost_total(), 0);
    }
}

/// After a packet that continues the old numbering, packets of closed frames do not show a restart any more.
#[test]
fn packet_of_open_frame_ends_silence() {
    for (continues, is_same) in [(false, false), (false, true), (true, true)] {
        let mut bench = bench(256, geometry());
        for sequence in (0..17).chain([18]) {
            bench.put(sequence);
        }
        let start = Instant::now();
        listen(&mut bench, start, 1500);
        if continues {
            assert_eq!(bench.put(17), Outcome::Placed);
            bench.window.tick(start + Duration::from_millis(1500));
        }
        // The same bytes again would be repeated packets.
        for sequence in 8..16 {
            let payload = if is_same {
                payload(sequence)
            } else {
                [0xab; BYTES]
            };
            bench.window.with_batch(|batch| {
                batch.place(PacketId::of(sequence), &payload, Timestamp::default())
            });
        }
        bench.window.finish();
        let report = bench.report();
        let expected = if continues || is_same { (1, 8) } else { (2, 0) };
        let duplicates = report.duplicates;
        assert_eq!(
            (report.epochs, duplicates),
            expected,
            "{continues} {is_same}"
        );
    }
}

#[test]
fn restart_to_known_sequence_opens_epoch() {
    let mut bench = bench(256, geometry());
    for sequence in (0..100).chain(0..100) {
        bench.put(sequence);
        bench.read();
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!((report.epochs, report.rejected), (2, 0));
    assert_eq!((report.expected, report.delivered), (200, 200));
}

/// Each of several threads receives only some of the first packets after a restart. All must be placed.
#[test]
fn candidates_of_all_threads_after_restart_are_placed() {
    let geometry = Geometry {
        window: 16,
        ..Geometry::new(1, BYTES)
    };
    let Pair {
        mut sequencer,
        mut other,
        ledger,
        ..
    } = Pair::new(64, geometry);
    for sequence in 1000..1010 {
        assert_eq!(put(&mut sequencer, sequence), Outcome::Placed);
    }
    for sequence in [4, 0] {
        assert_eq!(put(&mut other, sequence), Outcome::Kept);
    }
    for sequence in [1, 2, 3] {
        assert_eq!(put(&mut sequencer, sequence), Outcome::Kept);
    }
    assert_eq!(put(&mut sequencer, 5), Outcome::Placed);
    other.batch().commit();
    sequencer.finish();
    let report = SourceReport::of(&ledger);
    assert_eq!((report.epochs, report.rejected), (2, 0));
    assert_eq!((report.expected, report.delivered), (16, 16));
}

/// Packets of the first frame that arrive after many others are placed if the stream continues, or if nothing follows.
#[test]
fn late_first_packets_are_placed_while_their_frame_is_open() {
    for continues in [true, false] {
        let geometry = Geometry {
            window: 32,
            ..geometry()
        };
        let mut bench = bench(64, geometry);
        for sequence in (2..=80).filter(|sequence| ![3, 5].contains(sequence)) {
            assert_eq!(bench.put(sequence), Outcome::Placed);
        }
        for sequence in [0, 1] {
            assert_eq!(bench.put(sequence), Outcome::Repeated);
        }
        if continues {
            assert_eq!(bench.put(5), Outcome::Placed);
        } else {
            let now = Instant::now();
            bench.window.tick(now);
            bench.window.tick(now + Duration::from_secs(2));
        }
        bench.window.finish();
        let report = bench.report();
        assert_eq!(report.before_start, 0, "{report:?}");
        assert_eq!(report.delivered, 79 + u64::from(continues), "{report:?}");
    }
}
