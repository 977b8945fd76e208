//! Tests of frames that the CPU stores, with and without copies at the same time.

use super::*;

/// Returns the number of bytes that a store of frame `n` writes, which is a multiple of the line size.
fn lines(n: u64) -> usize {
    content(n).len().next_multiple_of(64)
}

#[test]
fn small_burst_is_stored_and_large_burst_copied() {
    let (device, mut copy_engine, mut ends) = fixture((64, 64), 1 << 20, 2, 3 * SLOT);
    ends.make(3);
    assert_eq!(copy_engine.step(), Ok(Step::Busy));
    assert_eq!((ends.target.published(), device.in_flight()), (3, 0));
    assert_eq!((ends.ledger.stored.get(), ends.ledger.copies.get()), (3, 1));
    // The next burst exceeds the threshold, so it is copied.
    let bytes: usize = (3..13).map(|n| content(n).len()).sum();
    assert!(bytes > 3 * SLOT);
    ends.make(10);
    copy_engine.step().unwrap();
    assert_eq!((ends.target.published(), device.in_flight()), (3, 1));
    // Later frames wait for this copy or are also copied. They are not stored, so they do not overtake it.
    ends.make(1);
    copy_engine.step().unwrap();
    assert_eq!((ends.target.published(), device.in_flight()), (3, 2));
    device.finish(DONE);
    ends.make(1);
    copy_engine.step().unwrap();
    assert_eq!(ends.target.published(), 13);
    while device.finish(DONE) {}
    copy_engine.step().unwrap();
    while device.finish(DONE) {}
    copy_engine.step().unwrap();
    assert_eq!((ends.target.published(), ends.ledger.stored.get()), (15, 3));
    ends.make(1);
    copy_engine.step().unwrap();
    assert_eq!((ends.target.published(), ends.ledger.stored.get()), (16, 4));
    ends.take(usize::MAX);
    assert_eq!(ends.seen, 16);
    ends.balances();
}

#[test]
fn short_frames_in_large_slots_are_measured_by_length() {
    let (_, mut copy_engine, mut ends) = fixture((64, 64), 1 << 20, 2, SLOT);
    let mut slots = ends.source.reserve(8);
    for n in 0..8 {
        slots.finish(FrameMeta::whole(n, 16));
    }
    slots.publish();
    copy_engine.step().unwrap();
    assert_eq!((ends.ledger.stored.get(), ends.target.published()), (8, 8));
    let wanted: Vec<_> = (0..8).map(|slot| (slot * SLOT, 64)).collect();
    assert_eq!(ends.memory.stored(), wanted);
    assert_eq!(ends.ledger.bytes.get(), 8 * 64);
}

#[test]
fn full_frames_are_stored_together_and_short_ones_by_length() {
    let (_, mut copy_engine, mut ends) = fixture((32, 32), 1 << 20, 1, usize::MAX);
    // Whole lines are stored, so a slot is full if the frame's last byte is in its last line.
    let lengths = [SLOT, SLOT - 5, 0, SLOT, 70, 64, SLOT - 63, SLOT];
    let mut slots = ends.source.reserve(lengths.len());
    for (n, length) in (0..).zip(lengths) {
        slots.finish(FrameMeta::whole(n, length));
    }
    slots.publish();
    copy_engine.step().unwrap();
    let wanted = [
        (0, 2 * SLOT),
        (3 * SLOT, SLOT + 128),
        (5 * SLOT, 64),
        (6 * SLOT, 2 * SLOT),
    ];
    assert_eq!(ends.memory.stored(), wanted);
    // Bursts that wrap around the end of the ring.
    let mut next = lengths.len() as u64;
    for _ in 0..5 {
        ends.reader.poll(usize::MAX);
        let mut slots = ends.source.reserve(7);
        while slots.remaining() > 0 {
            slots.finish(FrameMeta::whole(next, SLOT));
            next += 1;
        }
        slots.publish();
        copy_engine.step().unwrap();
    }
    let last = ends.memory.stored().split_off(3);
    assert_eq!(
        last,
        [(29 * SLOT, 3 * SLOT), (0, 4 * SLOT), (4 * SLOT, 7 * SLOT)]
    );
    assert_eq!(ends.ledger.stored.get(), 43);
}

#[test]
fn threshold_zero_stores_nothing_and_huge_copies_nothing() {
    for (cpu_store_threshold, stored) in [(0, 0), (usize::MAX, 40)] {
        let (device, mut copy_engine, mut ends) =
            fixture((64, 64), 1 << 20, 2, cpu_store_threshold);
        for _ in 0..4 {
            ends.make(10);
            while copy_engine.step().unwrap() == Step::Busy || device.finish(DONE) {}
        }
        assert_eq!(
            ends.ledger.stored.get(),
            stored,
            "threshold {cpu_store_threshold}"
        );
        assert_eq!(ends.ledger.frames.get(), 40);
        ends.balances();
    }
}

#[test]
fn stores_proceed_while_all_copies_are_in_flight() {
    let (device, mut copy_engine, notifier) = thread(1 << 20, 1, 2 * SLOT);
    let mut ring_copies: Vec<_> = (0..2)
        .map(|_| Ends::new((64, 64), 1 << 20, &mut copy_engine, &notifier))
        .collect();
    ring_copies[0].make(20);
    copy_engine.step().unwrap();
    assert_eq!(device.in_flight(), 1);
    ring_copies[1].make(2);
    copy_engine.wait(Wait::Adaptive, Duration::from_mins(10));
    assert_eq!(copy_engine.step(), Ok(Step::Busy));
    assert_eq!(
        (ring_copies[1].target.published(), device.in_flight()),
        (2, 1)
    );
    // These frames exceed the threshold, so they wait until a copy can be started.
    ring_copies[1].make(20);
    assert_eq!(copy_engine.step(), Ok(Step::Idle));
    device.finish(DONE);
    copy_engine.step().unwrap();
    assert_eq!(
        (ring_copies[1].ledger.started.get(), device.in_flight()),
        (18, 1)
    );
    while device.finish(DONE) {}
}

#[test]
fn step_with_continuous_source_ends() {
    let (_, mut copy_engine, mut ends) = fixture((64, 64), SLOT, 4, usize::MAX);
    ends.make(30);
    // A chunk contains one frame, so each step stores one frame.
    for done in 1..=30 {
        assert_eq!(copy_engine.step(), Ok(Step::Busy));
        assert_eq!(ends.target.published(), done);
    }
    assert_eq!(copy_engine.step(), Ok(Step::Idle));
}

#[test]
fn lost_memory_ends_copy_and_publishes_nothing() {
    let (_, mut copy_engine, mut ends) = fixture((32, 32), 1 << 20, 2, usize::MAX);
    ends.make(3);
    copy_engine.step().unwrap();
    ends.memory.lost.store(true, Ordering::Relaxed);
    ends.make(4);
    assert_eq!(copy_engine.step(), Err(lost()));
    ends.memory.lost.store(false, Ordering::Relaxed);
    ends.make(2);
    assert!(!copy_engine.discard(), "the source has not ended");
    drop(ends.source);
    assert!(copy_engine.discard());
    assert_eq!((ends.target.published(), ends.ledger.frames.get()), (3, 3));
    assert_eq!(
        (ends.ledger.started.get(), ends.ledger.failed.get()),
        (7, 4)
    );
    assert_eq!(ends.read.read.get() + ends.read.discarded.get(), 9);
}

/// Creates an inline copy between two rings.
fn inline_copy(slots: (usize, usize), burst: usize) -> (RingCopy, Ends) {
    Ends::with(
        slots,
        &Arc::default(),
        |reader, producer, ledger, stores| RingCopy::with(reader, producer, ledger, burst, stores),
    )
}

proptest! {
    #[test]
    fn stored_frames_are_visible_after_step(
        slots in (2_usize..9, 2_usize..9),
        burst in 1_usize..6,
        script in prop::collection::vec((0_usize..6, 0_u8..3), 1..80),
    ) {
        let (mut inline_copy, mut ends) = inline_copy(slots, burst);
        for (count, what) in script {
            match what {
                0 => ends.make(count),
                1 => ends.take(count),
                _ => {
                    let (before, ready) = (ends.target.published(), inline_copy.is_ready());
                    let frames = inline_copy.step().unwrap();
                    prop_assert_eq!(frames > 0, ready);
                    prop_assert!(frames <= burst);
                    prop_assert_eq!(ends.target.published(), before + frames as u64);
                }
            }
            ends.balances();
            prop_assert_eq!(ends.ledger.started.get(), ends.ledger.stored.get());
        }
        drop(ends.source);
        loop {
            inline_copy.step().unwrap();
            while let Some(lease) = ends.reader.poll(usize::MAX) {
                ends.seen += lease.len() as u64;
            }
            if inline_copy.is_finished() {
                break;
            }
        }
        prop_assert_eq!((ends.seen, ends.read.read.get()), (ends.made, ends.made));
        let bytes: usize = (0..ends.made).map(lines).sum();
        prop_assert_eq!(ends.ledger.bytes.get(), bytes as u64);
        prop_assert!(!ends.target.is_closed());
        drop(inline_copy);
        prop_assert!(ends.target.is_closed());
    }
}

#[test]
fn store_copy_with_lost_memory_stops() {
    let (mut inline_copy, mut ends) = inline_copy((16, 16), 4);
    ends.make(5);
    assert_eq!(inline_copy.step(), Ok(4));
    ends.memory.lost.store(true, Ordering::Relaxed);
    assert_eq!(inline_copy.step(), Err(lost()));
    ends.memory.lost.store(false, Ordering::Relaxed);
    ends.make(2);
    assert!(!inline_copy.is_ready());
    assert_eq!(inline_copy.step(), Ok(0));
    drop(ends.source);
    assert!(inline_copy.discard());
    assert_eq!((ends.target.published(), ends.ledger.failed.get()), (4, 1));
    assert_eq!((ends.read.read.get(), ends.read.discarded.get()), (5, 2));
}

#[test]
fn rings_without_mapping_are_not_stored() {
    let (from, _source) = ring("from", 4, Placement::Host, &Arc::default());
    let (_target, producer) = ring("to", 4, Placement::Cuda(0), &Arc::default());
    let reader = from.attach(true, 1, ReaderLedger::default()).unwrap();
    assert!(RingCopy::inline(reader, producer, CopyLedger::default(), 4).is_none());
}
