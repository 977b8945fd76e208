//! Tests of sources that apply backpressure.

use super::*;

/// Places `sequence`. If there is no room, reads one frame first.
fn put_with_room(bench: &mut Bench, sequence: u64) -> Vec<(u64, u32, Vec<u64>)> {
    let mut frames = Vec::new();
    for _ in 0..100 {
        let mut batch = bench.window.batch();
        if batch.has_room(PacketId::of(sequence), None) {
            let outcome = batch.place(
                PacketId::of(sequence),
                &payload(sequence),
                Timestamp::default(),
            );
            assert_ne!(
                outcome,
                Outcome::RingFull,
                "packet {sequence} was rejected although the ring had room"
            );
            batch.commit();
            return frames;
        }
        batch.commit();
        let read = bench.read();
        assert!(
            !read.is_empty(),
            "packet {sequence} waits for a slot, but no frame can be read"
        );
        frames.extend(read);
    }
    panic!("packet {sequence} never got a slot");
}

#[test]
fn source_with_backpressure_loses_nothing_across_gaps_and_restarts() {
    for slots in 2..10 {
        for window in 1..5 {
            let geometry = Geometry {
                window,
                max_gap: 1000,
                ..geometry()
            };
            let mut bench = bench(slots, geometry);
            let mut frames = Vec::new();
            // Whole frames are missing: fewer than are open, more, and many more. Then the numbering restarts within a
            // frame.
            let numbers = [0..9, 17..20, 40..47, 200..215, 90_001..90_010, 6..30];
            for sequence in numbers.into_iter().flatten() {
                frames.extend(put_with_room(&mut bench, sequence));
            }
            frames.extend(bench.read());
            bench.window.finish();
            frames.extend(bench.read());
            let report = bench.report();
            let shape = format!("{slots} slots, window of {window} frames: {report:?}");
            assert_eq!(bench.ring_ledger.ring_full.get(), 0, "{shape}");
            assert_eq!(
                report.lost.keys().collect::<Vec<_>>(),
                [&"wire_gap"],
                "{shape}"
            );
            assert_eq!(report.epochs, 3, "{shape}");
            let arrived: u64 = frames.iter().map(|frame| frame.2.len() as u64).sum();
            assert_eq!(report.delivered, arrived, "{shape}");
            // Far numbers are accepted from the third consistent packet.
            assert_eq!(report.delivered + report.rejected, 67, "{shape}");
        }
    }
}

#[test]
fn packet_without_slot_has_room_in_full_ring() {
    let mut bench = bench(2, geometry());
    for sequence in 0..8 {
        bench.put(sequence);
    }
    let mut batch = bench.window.batch();
    let mut has_room = |sequence| batch.has_room(PacketId::of(sequence), None);
    assert!(
        !has_room(8) && !has_room(12),
        "the reader must hold both slots"
    );
    assert!(has_room(1), "a packet that has arrived needs no slot");
    assert!(
        has_room(1_000_000),
        "a packet that is not accepted needs no slot"
    );
    batch.commit();
    assert_eq!(
        bench.report().expected,
        8,
        "a query must not change the ledger"
    );
}

/// A heap of descriptors contains no data, so a packet with its number needs no slot, even if an older frame is open.
#[test]
fn packet_of_skipped_unit_does_not_wait() {
    for is_full in [false, true] {
        let mut bench = bench(if is_full { 2 } else { 8 }, skips::geometry());
        for unit in [8, 9] {
            (0..PACKETS_PER_FRAME)
                .for_each(|sub| assert_eq!(skips::put(&mut bench, unit, sub), Outcome::Placed));
        }
        if !is_full {
            assert_eq!(bench.read().len(), 2);
            // This frame stays open at the front of the window.
            skips::put(&mut bench, 10, 0);
        }
        let next = if is_full { 10 } else { 11 };
        bench.window.skip(next);
        bench
            .window
            .with_batch(|batch| batch.has_room(PacketId::of(next + 1), None));
        let id = PacketId { unit: next, sub: 0 };
        let mut batch = bench.window.batch();
        assert!(batch.has_room(id, None) && batch.has_room(id, Some(BYTES.into())));
        let outcome = batch.place(id, &payload(0), Timestamp::default());
        assert_eq!(outcome, Outcome::Rejected);
        batch.commit();
    }
}

/// A query moves the window as the packet itself would. A packet that is rejected must move nothing.
#[test]
fn room_query_for_wrong_length_changes_nothing() {
    let mut bench = bench(8, skips::geometry());
    skips::put(&mut bench, 10, 0);
    skips::put(&mut bench, 11, 0);
    let far = PacketId { unit: 13, sub: 0 };
    let nowhere = PacketId {
        unit: 13,
        sub: PACKETS_PER_FRAME,
    };
    let mut batch = bench.window.batch();
    for (id, bytes) in [(far, BYTES - 1), (far, 0), (nowhere, BYTES)] {
        assert!(batch.has_room(id, Some(bytes.into())));
        let outcome = batch.place(id, &vec![0; bytes], Timestamp::default());
        assert_eq!(outcome, Outcome::Rejected);
    }
    batch.commit();
    bench.window.restart();
    assert!(
        bench
            .window
            .with_batch(|batch| batch.has_room(nowhere, None))
    );
    assert_eq!((bench.read(), bench.report().expected), (vec![], 2));
    assert!(
        bench
            .window
            .with_batch(|batch| batch.has_room(far, Some(BYTES.into())))
    );
    assert_eq!(bench.read().len(), 1, "all but the last frame is closed");
}
