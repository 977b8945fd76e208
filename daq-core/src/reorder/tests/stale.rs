//! Tests of threads whose epoch another thread replaces while they wait.

use super::pair::{Pair, put};
use super::*;
use std::thread;

fn pair() -> Pair {
    let geometry = Geometry {
        resync_after: 2,
        ..geometry()
    };
    Pair::new(64, geometry)
}

/// Waits until `ready`, which needs progress of another thread.
fn wait_for(ready: impl Fn() -> bool) {
    while !ready() {
        thread::yield_now();
    }
}

/// A thread that waits for a slot while an epoch opens continues its batch in the new epoch.
#[test]
fn batch_does_not_continue_in_a_replaced_epoch() {
    let Pair {
        mut sequencer,
        mut other,
        ring,
        ledger,
    } = pair();
    let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    for sequence in 1000..1008 {
        assert_eq!(put(&mut sequencer, sequence), Outcome::Placed);
    }
    let shared = sequencer.shared.clone();
    let thread = thread::spawn(move || {
        let mut batch = other.batch();
        // This frame has no slot yet, so the thread waits for the sequencer.
        batch.place(PacketId::of(1008), &payload(1008), Timestamp::default());
        batch.place(PacketId::of(1030), &payload(1030), Timestamp::default());
        batch.commit();
        other
    });
    wait_for(|| shared.wanted[1].load(Ordering::Acquire) != 0);
    wait_for(|| shared.pins[1].load(Ordering::Acquire) == shared::IDLE);
    put(&mut sequencer, 5_000_000);
    put(&mut sequencer, 5_000_001);
    let mut other = thread.join().unwrap();
    put(&mut sequencer, 5_000_002);
    put(&mut sequencer, 5_000_003);
    other.finish();
    sequencer.finish();
    let mut delivered = 0;
    while let Some(lease) = reader.poll(1) {
        let frame = lease.frame(0);
        for index in (0..PACKETS_PER_FRAME).filter(|index| frame.present().is_present(*index)) {
            let sequence = frame.meta().sequence * u64::from(PACKETS_PER_FRAME) + u64::from(index);
            let range = index as usize * BYTES..(index as usize + 1) * BYTES;
            assert_eq!(frame.bytes().unwrap()[range], payload(sequence));
            delivered += 1;
        }
    }
    let report = SourceReport::of(&ledger);
    assert_eq!((report.epochs, report.delivered), (2, delivered));
    assert_eq!(report.delivered + report.rejected, 14, "{report:?}");
}

/// A request for an epoch replaces a request that is outdated, because an epoch was opened meanwhile.
#[test]
fn request_is_served_after_an_outdated_request() {
    let Pair {
        mut sequencer,
        mut other,
        ring: _ring,
        ledger,
    } = pair();
    for sequence in 1000..1004 {
        assert_eq!(put(&mut sequencer, sequence), Outcome::Placed);
    }
    let shared = sequencer.shared.clone();
    let has_request = || shared.has_requests.load(Ordering::Acquire) != 0;
    let thread = thread::spawn(move || {
        for sequence in [5_000_000, 5_000_001, 7_000_000, 7_000_001] {
            put(&mut other, sequence);
        }
        other
    });
    wait_for(has_request);
    // The request is pending until the deadline.
    sequencer.tick(Instant::now());
    put(&mut sequencer, 9_000_000);
    put(&mut sequencer, 9_000_001);
    wait_for(has_request);
    let now = Instant::now();
    for tick in 0.. {
        if thread.is_finished() {
            break;
        }
        assert!(tick < 100_000, "the request is never served");
        sequencer.tick(now + Duration::from_millis(tick));
        thread::yield_now();
    }
    let mut other = thread.join().unwrap();
    other.finish();
    sequencer.finish();
    let report = SourceReport::of(&ledger);
    assert_eq!(report.delivered + report.rejected, 10, "{report:?}");
}

/// A packet of another size confirms no epoch at which it would exceed its packet slot.
#[test]
fn confirming_packet_must_fit_its_packet_slot() {
    let mut bench = bench(8, geometry());
    for sequence in 0..8 {
        bench.put(sequence);
    }
    bench.put(1_000_000);
    bench.put(1_000_001);
    let long = [0x55; 25 * BYTES];
    let outcome = bench
        .window
        .with_batch(|batch| batch.place(PacketId::of(1_000_002), &long, Timestamp::default()));
    assert_eq!(outcome, Outcome::Rejected);
    bench.put(1_000_003);
    bench.window.finish();
    assert_eq!(bench.report().rejected, 1);
    assert_eq!(
        bench.read().last().unwrap().2,
        [1_000_000, 1_000_001, 1_000_003]
    );
}
