//! Tests of rings, including a comparison with a simple model.

use super::*;
use crate::doorbell::Credits;
use crate::frame::{Flags, FrameMeta};
use crate::gpu::Event;
use crate::ledger::{ReaderReport, RingReport};
use crate::notify::Wait;
use crate::region::{HostOptions, SharedWords};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const FOREVER: Duration = Duration::from_mins(1);

fn ring(slots: usize, supports_backpressure: bool) -> (Ring, Producer, RingLedger) {
    let options = RingOptions {
        supports_backpressure,
        ..RingOptions::new("raw", slots, 8)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let ledger = RingLedger::default();
    let (ring, producer) = Ring::new(region, options, ledger.clone()).unwrap();
    (ring, producer, ledger)
}

/// Publishes one frame. Returns false if no slot was free, so that the frame was refused.
fn make(producer: &mut Producer, sequence: u64) -> bool {
    let mut slots = producer.reserve(1);
    let Some(bytes) = slots.bytes_mut() else {
        producer.refuse(1);
        return false;
    };
    bytes.copy_from_slice(&sequence.to_le_bytes());
    slots.finish(FrameMeta::whole(sequence, 8));
    slots.publish();
    true
}

fn check(frame: &Frame<'_>) -> u64 {
    let sequence = u64::from_le_bytes(frame.bytes().unwrap().try_into().unwrap());
    assert_eq!(sequence, frame.meta().sequence);
    sequence
}

/// An event that is done after it was signalled.
#[derive(Default)]
struct TestEvent(AtomicBool);

impl TestEvent {
    fn signal(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }

    fn new() -> (std::sync::Arc<Self>, Completion) {
        let event = std::sync::Arc::new(Self::default());
        (event.clone(), Completion::Event(event))
    }
}

impl Event for TestEvent {
    fn is_done(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}

#[test]
fn leases_retire_in_order_of_their_events() {
    let (ring, mut producer, _) = ring(4, true);
    let ledger = ReaderLedger::default();
    let mut reader = ring.attach(true, 1, ledger.clone()).unwrap();
    for sequence in 0..4 {
        assert!(make(&mut producer, sequence));
    }
    let (first, first_done) = TestEvent::new();
    let (second, second_done) = TestEvent::new();
    let words = SharedWords::new(8).unwrap();
    let credits = std::sync::Arc::new(Credits::with(words, 1, 1));
    reader.poll(1).unwrap().retire(first_done);
    reader.poll(1).unwrap().retire(second_done);
    reader.poll(1).unwrap().retire(Completion::Credit {
        credits: credits.clone(),
        at: 1,
    });
    drop(reader.poll(1).unwrap());
    assert_eq!((reader.held(), ledger.read.get()), (4, 0));
    assert!(!make(&mut producer, 4), "every slot is leased");
    second.signal();
    reader.reap(|_| panic!("the first lease is not done"));
    first.signal();
    let mut retired = 0;
    reader.reap(|frames| retired += frames);
    assert_eq!((retired, reader.held(), ledger.read.get()), (2, 2, 2));
    credits.set(0, 1);
    reader.reap(|frames| retired += frames);
    assert_eq!((retired, reader.held()), (4, 0));
}

#[test]
fn reader_waits_for_leases_in_flight() {
    let (ring, mut producer, _) = ring(4, true);
    let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    assert!(
        !reader.wait_in_flight(Wait::Event, FOREVER),
        "no frame is in flight"
    );
    make(&mut producer, 0);
    let (event, done) = TestEvent::new();
    reader.poll(1).unwrap().retire(done);
    // A closed ring is not finished while a device still reads it. Waiting must not spin meanwhile.
    drop(producer);
    assert!(!reader.wait_in_flight(Wait::Adaptive, Duration::from_millis(1)));
    let teller = std::thread::spawn(move || event.signal());
    assert!(!reader.wait(Wait::Event, FOREVER), "no frame is ready");
    let mut reaped = 0;
    reader.reap(|frames| reaped += frames);
    assert_eq!(reaped, 1, "the wait ended before the work was done");
    assert!(reader.is_finished());
    teller.join().unwrap();
}

#[test]
fn discarded_frames_behind_work_in_flight_are_freed_after_it() {
    let (ring, mut producer, _) = ring(4, true);
    let ledger = ReaderLedger::default();
    let mut reader = ring.attach(false, 1, ledger.clone()).unwrap();
    for sequence in 0..4 {
        make(&mut producer, sequence);
    }
    let (event, done) = TestEvent::new();
    reader.poll(1).unwrap().retire(done);
    assert_eq!(reader.discard_pending(), 3);
    assert!(
        !make(&mut producer, 4),
        "a device still reads the oldest slot"
    );
    event.signal();
    reader.reap(|_| {});
    assert!(make(&mut producer, 5));
    assert_eq!((ledger.read.get(), ledger.discarded.get()), (1, 3));
}

#[test]
fn slot_with_copy_in_flight_is_not_reused() {
    let (ring, mut producer, _) = ring(4, false);
    let mut reader = ring.attach(false, 1, ReaderLedger::default()).unwrap();
    make(&mut producer, 0);
    make(&mut producer, 1);
    let (event, done) = TestEvent::new();
    reader.poll(1).unwrap().retire(done);
    assert!(reader.poll(1).is_none());
    assert!(!reader.wait(Wait::Event, Duration::from_millis(1)));
    event.signal();
    reader.reap(|_| {});
    assert!(reader.wait(Wait::Event, FOREVER));
    assert_eq!(check(&reader.poll(1).unwrap().frame(0)), 1);
}

#[test]
fn reader_dropped_waits_for_device() {
    let (ring, mut producer, _) = ring(2, true);
    let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    make(&mut producer, 0);
    let (event, done) = TestEvent::new();
    reader.poll(1).unwrap().retire(done);
    let leaver = std::thread::spawn(move || reader.detach_within(FOREVER));
    make(&mut producer, 1);
    assert!(!make(&mut producer, 2), "the device has not finished");
    event.signal();
    assert!(leaver.join().unwrap());
    assert!(make(&mut producer, 3));
}

#[test]
fn slot_never_released_by_device_is_leaked() {
    for supports_backpressure in [true, false] {
        let (ring, mut producer, _) = ring(2, supports_backpressure);
        let region = std::sync::Arc::downgrade(ring.region());
        let mut reader = ring.attach(false, 1, ReaderLedger::default()).unwrap();
        make(&mut producer, 0);
        let words = SharedWords::new(8).unwrap();
        let credits = std::sync::Arc::new(Credits::with(words, 1, 1));
        let credit = std::sync::Arc::downgrade(&credits);
        let lease = reader.poll(1).unwrap();
        let address = lease.frame(0).address();
        lease.retire(Completion::Credit { credits, at: 1 });
        assert!(!reader.detach_within(Duration::from_millis(1)));
        make(&mut producer, 1);
        assert_eq!(
            make(&mut producer, 2),
            !supports_backpressure,
            "a slot is leased"
        );
        drop((ring, producer));
        assert!(region.upgrade().is_some() && credit.upgrade().is_some());
        // SAFETY: the 8 bytes belong to a slot or to the reader's private copy. Both were leaked, so they are never
        // freed.
        let still = unsafe { address.cast::<[u8; 8]>().read_volatile() };
        assert_eq!(still, [0; 8]);
    }
}

#[test]
fn submitted_slots_are_published_in_order() {
    let (ring, mut producer, _) = ring(4, true);
    let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    for sequence in [10_u64, 11] {
        let mut slots = producer.reserve(1);
        slots
            .bytes_mut()
            .unwrap()
            .copy_from_slice(&sequence.to_le_bytes());
        slots.finish(FrameMeta::whole(sequence, 8));
        assert_eq!(slots.submit(), 1);
    }
    assert!(reader.poll(4).is_none());
    producer.publish(1);
    assert_eq!(check(&reader.poll(4).unwrap().frame(0)), 10);
    producer.publish(1);
    assert_eq!(check(&reader.poll(4).unwrap().frame(0)), 11);
}

#[test]
fn reader_dropped_releases_its_slots() {
    let (ring, mut producer, _) = ring(2, false);
    let reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    assert!(make(&mut producer, 0) && make(&mut producer, 1) && !make(&mut producer, 2));
    drop(reader);
    assert!(make(&mut producer, 3));
}

#[test]
fn full_ring_blames_slowest_reader() {
    let (ring, mut producer, ledger) = ring(2, false);
    let ledgers: Vec<_> = (0..2).map(|_| ReaderLedger::default()).collect();
    let mut fast = ring.attach(true, 1, ledgers[0].clone()).unwrap();
    let _slow = ring.attach(true, 1, ledgers[1].clone()).unwrap();
    for sequence in 0..5 {
        make(&mut producer, sequence);
        drop(fast.poll(8));
    }
    assert_eq!(
        (
            ledger.published.get(),
            ledger.ring_full.get(),
            ledger.high_water.get()
        ),
        (2, 3, 2)
    );
    assert_eq!((ledgers[0].blocked.get(), ledgers[1].blocked.get()), (0, 3));
}

#[test]
fn attach_beyond_reader_limit_is_rejected() {
    let (ring, _producer, _) = ring(2, true);
    let readers: Vec<_> = (0..8)
        .map(|_| ring.attach(true, 1, ReaderLedger::default()).unwrap())
        .collect();
    assert!(matches!(
        ring.attach(true, 1, ReaderLedger::default()),
        Err(RingError::Readers { readers: 8, .. })
    ));
    drop(readers);
    assert!(ring.attach(true, 1, ReaderLedger::default()).is_ok());
}

#[test]
fn invalid_ring_shape_is_rejected() {
    let region = Region::host(64, HostOptions::default()).unwrap();
    let one = RingOptions::new("raw", 1, 8);
    assert!(matches!(
        Ring::new(region.clone(), one, RingLedger::default()),
        Err(RingError::Shape { .. })
    ));
    let large = RingOptions::new("raw", 1000, 8);
    assert!(matches!(
        Ring::new(region, large, RingLedger::default()),
        Err(RingError::RegionTooSmall { .. })
    ));
}

/// A step of the test: an action of the producer, a reader or a device.
#[derive(Clone, Debug)]
enum Step {
    Make(u8),
    /// A reader leases and retires frames: (reader, maximum number of frames).
    Read(usize, usize),
    Discard(usize),
    /// A reader leases frames and a device starts to read them: (reader, maximum number of frames).
    Submit(usize, usize),
    /// The device completes the oldest work of a reader.
    Done(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1_u8..8).prop_map(Step::Make),
        (0_usize..3, 1_usize..6).prop_map(|(reader, max)| Step::Read(reader, max)),
        (0_usize..3).prop_map(Step::Discard),
        (0_usize..3, 1_usize..6).prop_map(|(reader, max)| Step::Submit(reader, max)),
        (0_usize..3).prop_map(Step::Done),
    ];
    prop::collection::vec(step, 1..80)
}

/// Frames that a device reads until its work is done.
struct Work {
    event: std::sync::Arc<TestEvent>,
    /// Addresses of frames, and the sequence numbers that they must contain until the work is done.
    reads: Vec<(*const u8, u64)>,
}

impl Work {
    fn finish(self) {
        for (address, sequence) in &self.reads {
            // SAFETY: the 8 bytes belong to a slot or to a reader's private copy, whose ring and reader are alive. Only
            // one thread accesses them.
            let now = unsafe { address.cast::<[u8; 8]>().read_volatile() };
            assert_eq!(
                u64::from_le_bytes(now),
                *sequence,
                "overwritten while a device read it"
            );
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.event.signal();
    }
}

proptest! {
    /// The equations of ring and readers hold after every step. Readers receive frames in order, each at most once,
    /// with the correct content. A guaranteed reader receives every frame.
    #[test]
    fn ring_and_reader_ledgers_balance(slots in 2_usize..9, supports_backpressure: bool, guarantees: [bool; 3], steps in steps()) {
        let (ring, mut producer, ledger) = ring(slots, supports_backpressure);
        let ledgers: Vec<_> = (0..3).map(|_| ReaderLedger::default()).collect();
        let mut readers: Vec<_> =
            guarantees.iter().zip(&ledgers).map(|(guarantee, ledger)| ring.attach(*guarantee, 4, ledger.clone()).unwrap()).collect();
        let mut last = [None; 3];
        let (mut made, mut sequence) = (0_u64, 0_u64);
        let mut work: [VecDeque<Work>; 3] = Default::default();
        let mut was_held = false;
        for step in steps {
            match step {
                Step::Make(count) => {
                    for _ in 0..count {
                        made += 1;
                        // The sequence number of a refused frame is not used again.
                        make(&mut producer, sequence);
                        sequence += 1;
                    }
                }
                Step::Read(i, max) => {
                    if let Some(lease) = readers[i].poll(max) {
                        prop_assert!(lease.len() <= max);
                        for frame in lease.iter() {
                            let sequence = check(&frame);
                            prop_assert!(last[i] < Some(sequence));
                            last[i] = Some(sequence);
                        }
                    }
                }
                Step::Discard(i) => {
                    if let Some(lease) = readers[i].poll(usize::MAX) {
                        last[i] = lease.iter().map(|frame| Some(check(&frame))).max().unwrap();
                        lease.discard();
                    }
                }
                Step::Submit(i, max) => {
                    if let Some(lease) = readers[i].poll(max) {
                        last[i] = lease.iter().map(|frame| Some(check(&frame))).max().unwrap();
                        let reads = lease.iter().map(|frame| (frame.address(), check(&frame))).collect();
                        let (event, done) = TestEvent::new();
                        work[i].push_back(Work { event, reads });
                        lease.retire(done);
                        was_held = true;
                    }
                }
                Step::Done(i) => {
                    if let Some(work) = work[i].pop_front() {
                        work.finish();
                    }
                    readers[i].reap(|_| {});
                }
            }
            let report = RingReport::of(&ledger);
            prop_assert_eq!(report.produced, made);
            prop_assert_eq!(report.produced, report.published + report.ring_full);
            prop_assert!(report.high_water <= slots as u64);
            for (i, reader) in readers.iter().enumerate() {
                let report = ReaderReport::of(&ledgers[i], "raw", &ledger);
                prop_assert_eq!(report.published, report.read + report.overrun + report.discarded + report.pending);
                // Overwritten frames count as overrun, even if the reader has not detected it yet.
                prop_assert_eq!(report.pending, reader.pending().min(slots as u64) + reader.held());
                prop_assert!(!guarantees[i] || report.overrun == 0);
            }
            if !guarantees.contains(&true) && !was_held {
                prop_assert_eq!(RingReport::of(&ledger).ring_full, 0, "no reader blocks the ring");
            }
        }
        work.into_iter().flatten().for_each(Work::finish);
    }
}

/// A reader without guarantee competes with a producer without backpressure. The reader never receives a torn frame.
#[test]
fn copied_frames_are_never_torn() {
    const WORDS: usize = 512;
    let options = RingOptions {
        supports_backpressure: false,
        ..RingOptions::new("raw", 4, WORDS * 8)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (ring, mut producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let ledger = ReaderLedger::default();
    let mut reader = ring.attach(false, 2, ledger.clone()).unwrap();
    let writer = std::thread::spawn(move || {
        for sequence in 0..40_000_u64 {
            let mut slots = producer.reserve(1);
            let bytes = slots.bytes_mut().unwrap();
            for word in bytes.as_chunks_mut::<8>().0 {
                *word = sequence.to_le_bytes();
            }
            slots.finish(FrameMeta::whole(sequence, WORDS * 8));
            slots.publish();
        }
    });
    let mut seen = 0;
    while !reader.is_finished() {
        if let Some(lease) = reader.poll(2) {
            for frame in lease.iter() {
                let (words, _) = frame.bytes().unwrap().as_chunks::<8>();
                let expected = frame.meta().sequence.to_le_bytes();
                assert!(words.iter().all(|word| *word == expected), "a torn frame");
                seen += 1;
            }
        }
    }
    writer.join().unwrap();
    assert_eq!(seen + ledger.overrun.get(), 40_000);
    assert_eq!(seen, ledger.read.get());
}

/// Frames that a reader has returned stay in their slots, and the next lease starts with them.
#[test]
fn returned_frames_are_leased_again_with_newer_frames() {
    let (ring, mut producer, of_ring) = ring(4, true);
    let ledger = ReaderLedger::default();
    let mut reader = ring.attach(true, 4, ledger.clone()).unwrap();
    for sequence in 0..3 {
        assert!(make(&mut producer, sequence));
    }
    let numbers = |lease: &Lease<'_>| lease.iter().map(|frame| check(&frame)).collect::<Vec<_>>();
    let first = reader.poll(2).unwrap();
    assert!(first.is_guaranteed());
    first.retire_first(1);
    assert_eq!((reader.position(), reader.held()), (1, 0));
    // Two slots are free: the one that was never used, and that of the retired frame.
    assert!(make(&mut producer, 3) && make(&mut producer, 4) && !make(&mut producer, 5));
    let second = reader.poll(4).unwrap();
    assert_eq!(numbers(&second), [1, 2, 3, 4]);
    second.retire_first(0);
    assert!(!make(&mut producer, 5));
    let report = ReaderReport::of(&ledger, "raw", &of_ring);
    assert_eq!((report.read, report.pending), (1, 4));
    let third = reader.poll(4).unwrap();
    assert_eq!(numbers(&third), [1, 2, 3, 4]);
    drop(third);
    drop(producer);
    assert!(reader.is_finished());
    assert_eq!(ReaderReport::of(&ledger, "raw", &of_ring).read, 5);
}

/// A reader that drops incomplete frames leases only complete frames, with every kind of protection.
#[test]
fn incomplete_frames_are_dropped_and_counted() {
    for (supports_backpressure, guarantee) in [(true, true), (true, false), (false, false)] {
        let (ring, mut producer, of_ring) = ring(16, supports_backpressure);
        let ledger = ReaderLedger::default();
        let reader = ring.attach(guarantee, 4, ledger.clone()).unwrap();
        let mut reader = reader.dropping_incomplete(true);
        for sequence in 0..12_u64 {
            let mut slots = producer.reserve(1);
            slots
                .bytes_mut()
                .unwrap()
                .copy_from_slice(&sequence.to_le_bytes());
            let flags = if sequence % 4 == 1 || sequence > 9 {
                Flags::INCOMPLETE
            } else {
                Flags::default()
            };
            slots.finish(FrameMeta {
                flags,
                ..FrameMeta::whole(sequence, 8)
            });
            slots.publish();
        }
        let report = || {
            let report = ReaderReport::of(&ledger, "raw", &of_ring);
            let sum = report.read + report.discarded + report.dropped_incomplete + report.pending;
            assert_eq!((report.published, report.overrun), (sum, 0));
            (report.read, report.dropped_incomplete)
        };
        let is_copy = !supports_backpressure;
        let (event, done) = TestEvent::new();
        let first = reader.poll(8).unwrap();
        assert_eq!((first.len(), check(&first.frame(0))), (1, 0));
        first.retire(if is_copy { Completion::Immediate } else { done });
        // Frame 1 is skipped, but its slot is freed only after the slot of frame 0.
        let second = reader.poll(3).unwrap();
        let frames: Vec<_> = second.iter().map(|frame| check(&frame)).collect();
        assert!(
            frames == [2, 3, 4] || is_copy && frames == [2, 3],
            "{frames:?}"
        );
        drop(second);
        assert_eq!(report().0 > 0, is_copy);
        event.signal();
        let mut ended = 0;
        reader.reap(|frames| ended += frames);
        assert_eq!(ended, if is_copy { 0 } else { 4 });
        while let Some(lease) = reader.poll(8) {
            for frame in lease.iter() {
                assert!(!frame.meta().is_incomplete());
            }
        }
        reader.reap(|_| {});
        assert_eq!(report(), (7, 5), "{supports_backpressure} {guarantee}");
        drop(producer);
        assert!(reader.is_finished());
    }
}

#[test]
fn tap_returns_newest_frame_once_without_backpressure() {
    let (ring, mut producer, _) = ring(4, true);
    let mut tap = ring.tap().unwrap();
    assert!(tap.newest().unwrap().is_none());
    for sequence in 0..10 {
        assert!(make(&mut producer, sequence));
    }
    let frame = tap.newest().unwrap().unwrap();
    assert_eq!((frame.index(), frame.meta().sequence), (9, 9));
    assert_eq!(frame.bytes(), 9_u64.to_le_bytes());
    assert!(tap.newest().unwrap().is_none());
    // A claimed slot may be overwritten at any time, so the frames in all slots are no longer intact.
    assert_eq!(producer.claim(4), 4);
    let mut late = ring.tap().unwrap();
    assert!(late.newest().unwrap().is_none());
}

#[test]
fn tap_beside_fast_producer_returns_only_intact_frames() {
    let (ring, mut producer, _) = ring(4, false);
    let mut tap = ring.tap().unwrap();
    let is_over = std::sync::Arc::new(AtomicBool::new(false));
    let end = is_over.clone();
    let thread = std::thread::spawn(move || {
        let mut sequence = 0;
        while !end.load(std::sync::atomic::Ordering::Relaxed) {
            sequence += u64::from(make(&mut producer, sequence));
        }
    });
    let mut last = None;
    while last.is_none_or(|last| last < 100_000) {
        if let Some(frame) = tap.newest().unwrap() {
            assert_eq!(frame.bytes(), frame.meta().sequence.to_le_bytes());
            assert_eq!(frame.meta().sequence, frame.index());
            assert!(last.is_none_or(|last| last < frame.index()));
            last = Some(frame.index());
        }
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    thread.join().unwrap();
}
