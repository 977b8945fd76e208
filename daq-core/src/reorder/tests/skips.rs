//! Tests of units without data, and of packets that nevertheless arrive for them.

use super::*;

/// Returns a geometry in which a unit is a frame.
pub(super) fn geometry() -> Geometry {
    Geometry {
        numbering: Numbering {
            packets_per_unit: PACKETS_PER_FRAME,
            ..Numbering::PLAIN
        },
        ..super::geometry()
    }
}

pub(super) fn put(bench: &mut Bench, unit: u64, sub: u32) -> Outcome {
    let sequence = unit * u64::from(PACKETS_PER_FRAME) + u64::from(sub);
    bench.window.with_batch(|batch| {
        batch.place(
            PacketId { unit, sub },
            &payload(sequence),
            Timestamp::default(),
        )
    })
}

#[test]
fn packet_for_skipped_unit_is_rejected() {
    let mut bench = bench(8, geometry());
    put(&mut bench, 10, 0);
    bench.window.skip(11);
    let mut slots = Vec::with_capacity(16);
    bench
        .window
        .with_batch(|batch| batch.predict(16, &mut slots));
    assert!(slots.iter().all(|slot| slot.id().unit < 11));
    assert_eq!(put(&mut bench, 12, 0), Outcome::Placed);
    assert_eq!(put(&mut bench, 11, 0), Outcome::Rejected);
    let id = PacketId { unit: 11, sub: 1 };
    assert_eq!(
        bench.window.with_batch(|batch| batch.place_bad(id)),
        Outcome::Rejected
    );
    for sub in 1..PACKETS_PER_FRAME {
        assert_eq!(put(&mut bench, 12, sub), Outcome::Placed);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.delivered, report.rejected, report.pending),
        (5, 2, 0)
    );
    assert_eq!(report.lost, lost(&[("wire_gap", 3)]));
    assert_eq!(bench.ring_ledger.ring_full.get(), 0);
}

#[test]
fn more_skipped_units_than_the_window_are_not_lost() {
    let mut bench = bench(8, geometry());
    for sub in 0..PACKETS_PER_FRAME {
        put(&mut bench, 10, sub);
    }
    for unit in 11..40 {
        bench.window.skip(unit);
    }
    for sub in 0..PACKETS_PER_FRAME {
        assert_eq!(put(&mut bench, 40, sub), Outcome::Placed);
    }
    bench.window.finish();
    let report = bench.report();
    let counts = (report.expected, report.delivered, report.lost_total());
    assert_eq!(counts, (8, 8, 0));
    assert_eq!(bench.read().len(), 2);
}

/// One packet that states another heap length must not cause the loss of that heap's packets.
#[test]
fn payload_overrides_earlier_skip() {
    let mut bench = bench(8, geometry());
    put(&mut bench, 10, 0);
    bench.window.skip(11);
    let id = PacketId { unit: 11, sub: 0 };
    assert!(bench.window.with_batch(|batch| batch.has_room(id, None)));
    for sub in 0..PACKETS_PER_FRAME {
        if sub == 2 {
            bench.window.skip(11);
        }
        assert_eq!(put(&mut bench, 11, sub), Outcome::Placed);
    }
    bench.window.skip(12);
    let id = PacketId { unit: 12, sub: 1 };
    assert_eq!(
        bench.window.with_batch(|batch| batch.place_bad(id)),
        Outcome::Placed
    );
    bench.window.finish();
    assert_eq!(
        bench.read(),
        [
            (10, 1, vec![40]),
            (11, 1, vec![44, 45, 46, 47]),
            (12, 1, vec![])
        ]
    );
    let report = bench.report();
    assert_eq!((report.delivered, report.pending), (5, 0));
    assert_eq!(report.lost, lost(&[("wire_gap", 4), ("bad_packet", 1)]));
}

/// Only payload shows that later units have arrived. Control packets of later units do not.
#[test]
fn skips_in_any_order_lose_no_payload() {
    let geometry = Geometry {
        window: 4,
        ..geometry()
    };
    let mut bench = bench(8, geometry);
    put(&mut bench, 10, 0);
    bench.window.skip(12);
    bench.window.skip(11);
    for sub in 0..PACKETS_PER_FRAME {
        assert_eq!(put(&mut bench, 11, sub), Outcome::Placed);
    }
    assert_eq!(put(&mut bench, 13, 0), Outcome::Placed);
    assert_eq!(put(&mut bench, 12, 0), Outcome::Rejected);
    bench.window.finish();
    let frames: Vec<_> = bench.read().iter().map(|frame| frame.0).collect();
    assert_eq!(frames, [10, 11, 13]);
}

/// A heap of descriptors that is reported after later heaps have arrived is neither a loss nor a frame.
#[test]
fn frames_ahead_of_skipped_unit_are_renumbered() {
    let geometry = Geometry {
        window: 4,
        ..geometry()
    };
    let mut bench = bench(16, geometry);
    put(&mut bench, 10, 0);
    for (unit, sub) in [(12, 0), (13, 3), (12, 2)] {
        assert_eq!(put(&mut bench, unit, sub), Outcome::Placed);
    }
    bench.window.skip(11);
    for (unit, sub) in [(12, 1), (14, 0), (12, 3)] {
        assert_eq!(put(&mut bench, unit, sub), Outcome::Placed);
    }
    assert_eq!(put(&mut bench, 11, 0), Outcome::Rejected);
    bench.window.finish();
    assert_eq!(
        bench.read(),
        [
            (10, 1, vec![40]),
            (12, 1, vec![48, 49, 50, 51]),
            (13, 1, vec![55]),
            (14, 1, vec![56])
        ]
    );
    let report = bench.report();
    assert_eq!(
        (report.expected, report.delivered, report.pending),
        (13, 7, 0)
    );
    assert_eq!(report.lost, lost(&[("wire_gap", 6)]));
}

/// A control packet for a frame that was already closed cannot undo the loss.
#[test]
fn skip_after_frame_close_is_late() {
    let geometry = Geometry {
        window: 4,
        ..geometry()
    };
    let mut bench = bench(16, geometry);
    for unit in (10..16).filter(|unit| *unit != 11) {
        for sub in 0..PACKETS_PER_FRAME {
            assert_eq!(put(&mut bench, unit, sub), Outcome::Placed);
        }
    }
    bench.window.skip(11);
    bench.window.finish();
    let report = bench.report();
    assert_eq!((report.delivered, report.pending), (20, 0));
    assert_eq!(report.lost, lost(&[("late", 4)]));
}

/// If the first packet has a wrong length, its number is used as a reference but opens no frame.
#[test]
fn skip_before_first_packet_opens_no_frame() {
    for came in [&[(10, 1), (12, 0)][..], &[(12, 0)]] {
        let mut bench = bench(8, geometry());
        let id = PacketId::of(10);
        let outcome = bench
            .window
            .with_batch(|batch| batch.place(id, &[0], Timestamp::default()));
        assert_eq!(outcome, Outcome::Rejected);
        bench.window.skip(11);
        for (unit, sub) in came {
            assert_eq!(put(&mut bench, *unit, *sub), Outcome::Placed);
        }
        bench.window.finish();
        let report = bench.report();
        let delivered = came.len() as u64;
        assert_eq!((report.delivered, report.pending), (delivered, 0));
        assert_eq!(report.expected, delivered + report.lost_total());
    }
}

/// The same packet again and again confirms nothing, whatever its index in the unit.
#[test]
fn repeated_distant_packet_opens_no_epoch() {
    for sub in 0..PACKETS_PER_FRAME {
        let mut bench = bench(64, geometry());
        for unit in 1000..1003 {
            for sub in 0..PACKETS_PER_FRAME {
                put(&mut bench, unit, sub);
            }
        }
        for _ in 0..4 {
            assert_eq!(put(&mut bench, 5_000_000, sub), Outcome::Kept);
        }
        assert_eq!(bench.report().epochs, 1);
    }
}

/// An event in the stream. Packet numbers are relative to the highest one so far.
#[derive(Clone, Copy, Debug)]
enum Event {
    Packet(i64),
    /// The unit this many units after the highest contains no data.
    Void(u64),
    Read,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        12 => Just(Event::Packet(1)),
        6 => (-20_i64..10).prop_map(Event::Packet),
        2 => (0_u64..3).prop_map(Event::Void),
        2 => Just(Event::Read),
    ];
    prop::collection::vec(event, 1..300)
}

proptest! {
    /// Whichever units are declared without data, every packet must be in one counter and the ledger must add up.
    #[test]
    fn every_packet_is_in_one_counter(events in events(), slots in 2_usize..12) {
        let mut bench = bench(slots, geometry());
        let packets_per_frame = u64::from(PACKETS_PER_FRAME);
        let (mut top, mut packets) = (100 * packets_per_frame, 0);
        let mut damaged = std::collections::BTreeSet::new();
        for event in events {
            match event {
                Event::Packet(by) => {
                    let position = top.saturating_add_signed(by);
                    top = top.max(position);
                    let (unit, sub) = geometry().split(position);
                    if position % 7 != 3 {
                        put(&mut bench, unit, sub);
                        packets += 1;
                    } else if damaged.insert(position) {
                        bench.window.with_batch(|batch| batch.place_bad(PacketId { unit, sub }));
                        packets += 1;
                    }
                }
                Event::Void(by) => bench.window.skip(top / packets_per_frame + by),
                Event::Read => { bench.read(); }
            }
            let now = bench.report();
            prop_assert_eq!(now.expected, now.delivered + now.pending + now.lost_total());
        }
        bench.window.finish();
        let report = bench.report();
        prop_assert_eq!(report.pending, 0, "{:?}", report);
        let lost = report.lost_total() - report.lost.get("wire_gap").copied().unwrap_or(0);
        prop_assert_eq!(report.delivered + lost + report.duplicates + report.rejected + report.before_start, packets, "{:?}", report);
    }
}
