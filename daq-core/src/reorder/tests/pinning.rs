//! Tests of geometries that are detected from the first packets.

use super::*;

/// Returns a pinned geometry of one packet per frame.
fn pinned(planned: &Geometry) -> Geometry {
    Geometry {
        packets_per_frame: 1,
        first_bytes: BYTES,
        packet_bytes: BYTES,
        frame_bytes: BYTES,
        ..*planned
    }
}

#[test]
fn frames_have_pinned_length_and_packet_sizes() {
    let mut bench = bench(8, geometry());
    bench.window.pin(pinned(&geometry()));
    for sequence in 0..3 {
        assert_eq!(bench.put(sequence), Outcome::Placed);
    }
    for sequence in 0..3 {
        let lease = bench.reader.poll(1).unwrap();
        let meta = *lease.frame(0).meta();
        let bytes = u32::try_from(BYTES).unwrap();
        assert_eq!(
            (meta.sequence, meta.length, meta.packets_per_frame),
            (sequence, BYTES, 1)
        );
        assert_eq!(
            (meta.packet_sizes.first, meta.packet_sizes.rest),
            (bytes, bytes)
        );
    }
    assert_eq!(bench.report().delivered, 3);
}

/// The sequencer may adopt another thread's geometry before it has detected its own.
#[test]
fn threads_pinning_in_turn_share_one_window() {
    let options = RingOptions {
        packets_per_frame: PACKETS_PER_FRAME,
        supports_backpressure: false,
        ..RingOptions::new("raw", 8, geometry().frame_bytes)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    let ledger = SourceLedger::default();
    let mut windows = ReorderWindow::new(producer, geometry(), 2, &ledger);
    let mut other = windows.pop().unwrap();
    let mut sequencer = windows.pop().unwrap();
    other.pin(pinned(&geometry()));
    sequencer.tick(Instant::now());
    sequencer.pin(pinned(&geometry()));
    assert!(Arc::ptr_eq(&sequencer.shared, &other.shared));
    let put = |window: &mut ReorderWindow, sequence| {
        let id = PacketId::of(sequence);
        window.with_batch(|batch| batch.place(id, &payload(sequence), Timestamp::default()))
    };
    assert_eq!(put(&mut sequencer, 0), Outcome::Placed);
    // A thread that is not the sequencer waits for slots of its frames.
    std::thread::scope(|scope| {
        let placing = scope.spawn(|| put(&mut other, 1));
        while !placing.is_finished() {
            sequencer.tick(Instant::now());
            std::thread::yield_now();
        }
        assert_eq!(placing.join().unwrap(), Outcome::Placed);
    });
    sequencer.tick(Instant::now());
    assert_eq!(reader.poll(2).unwrap().len(), 2);
}
