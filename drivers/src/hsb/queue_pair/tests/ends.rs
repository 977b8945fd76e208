//! Tests of assigning frame ends to frames: outages, repetitions and restarted counts.

use super::*;

#[test]
fn restarted_sensor_begins_an_epoch() {
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..3);
    bench.take(3);
    bench.psn = 0x7_7777;
    bench.send_all(3..5);
    let frames = bench.take(2);
    let origins: Vec<_> = frames
        .iter()
        .map(|done| {
            (
                done.origin.unwrap().sequence,
                done.origin.unwrap().epoch,
                done.missing,
            )
        })
        .collect();
    assert_eq!(origins, [(0, 2, 0), (1, 2, 0)]);
    assert!(frames.iter().all(|done| !done.is_bad && done.passed == 0));
}

#[test]
fn repeated_end_is_ignored_and_metadata_are_counted() {
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..3);
    bench.take(3);
    for frame in [2, 1] {
        let psn = bench.psn - 1 - 7 * u32::try_from(2 - frame).unwrap();
        bench.end(frame, psn, &metadata_bytes(frame, frame, psn));
    }
    bench.skipped = 3;
    bench.send(3, &[]);
    let frames = bench.take(1);
    assert_eq!(bench.faults[Fault::Repeated as usize], 2);
    let origin = frames[0].origin.unwrap();
    assert_eq!((origin.sequence, origin.epoch), (3, 1));
    assert_eq!((frames[0].missing, frames[0].passed), (0, 0));
    let counts = [
        &bench.counters.metadata,
        &bench.counters.skipped,
        &bench.counters.short,
    ];
    assert_eq!(counts.map(daq_core::ledger::Counter::get), [4, 3, 0]);
    // The same frame end may be repeated any number of times.
    let psn = bench.psn - 1;
    for _ in 0..2 * MAX_OLD_ENDS {
        bench.end(3, psn, &metadata_bytes(3, 6, psn));
    }
    bench.until(Fault::Repeated, 2 + 2 * MAX_OLD_ENDS);
    assert_eq!(bench.overwritten(), 0);
    // A repeated end whose page has received another end since: no frame is known to be intact.
    for _ in 0..2 * MAX_OLD_ENDS {
        bench.end(1, 18_u32.wrapping_sub(56), &[0; 128]);
    }
    bench.until(Fault::Repeated, 2 + 4 * MAX_OLD_ENDS);
    assert_eq!(bench.overwritten(), 4);
    bench.send(4, &[]);
    let frames = bench.take(1);
    assert_eq!(frames[0].origin.unwrap().epoch, 1);
    assert_eq!((frames[0].missing, frames[0].passed), (0, 0));
    // The page was not checked for markers, so the frame is bad.
    assert!(frames[0].is_bad);
    assert_eq!(bench.faults[Fault::Order as usize], 0);
}

#[test]
fn continuing_old_ends_begin_an_epoch() {
    let mut bench = Bench::new(5, 24, false);
    for frame in 0..16 {
        bench.send(frame, &[]);
        bench.take(1);
    }
    // The sensor restarts its count one round (8 frames of 7 packets) before.
    bench.psn -= 56;
    bench.send_all(16..16 + MAX_OLD_ENDS);
    bench.until(Fault::Repeated, MAX_OLD_ENDS);
    // Until the restart is confirmed, the sensor may have written this far.
    assert_eq!(
        bench.overwritten(),
        15 + 2 + UNREPORTED + MAX_OLD_ENDS - PAGES as u64
    );
    let mut frames = Vec::new();
    for frame in 20..22 {
        bench.send(frame, &[]);
        frames.extend(bench.take(1));
        assert!(bench.page(frame) == payload(frame));
    }
    let calls: Vec<_> = frames
        .iter()
        .map(|done| {
            let origin = done.origin.unwrap();
            (origin.sequence, origin.epoch, done.missing, done.passed)
        })
        .collect();
    assert_eq!(calls, [(0, 2, MAX_OLD_ENDS, MAX_OLD_ENDS), (1, 2, 0, 0)]);
    assert!(frames.iter().all(|done| !done.is_bad));
    assert_eq!(bench.faults[Fault::Order as usize], 1);
}

#[test]
fn outage_of_any_length_is_counted_with_metadata() {
    // Outages of more than half of the 20-bit range. With 2^20 packets over all pages, the immediate shows no loss.
    for (psn, bits, outage) in [
        (0x10_0005, 24, 100_000),
        (0x10_0005, 24, 1 << 20),
        (5, 20, 80_000),
    ] {
        let mut bench = Bench::new(psn, bits, false);
        bench.send_all(0..3);
        bench.take(3);
        let packets = u32::try_from(7 * outage).unwrap();
        bench.psn = (bench.psn + packets) & ((1 << bits) - 1);
        bench.send(3 + outage, &[]);
        let done = bench.take(1);
        assert_eq!((done[0].missing, done[0].passed), (outage, outage));
        let origin = done[0].origin.unwrap();
        assert_eq!((origin.sequence, origin.epoch), (3 + outage, 1));
        // The page was prepared for a much earlier frame.
        assert!(done[0].is_bad);
        assert!(bench.poll().unwrap().is_empty());
        for frame in 4..4 + 2 * PAGES as u64 {
            bench.send(frame + outage, &[]);
            let done = bench.take(1);
            assert_eq!(done[0].missing, 0);
            // The next two pages were not prepared either, because the sensor may have written there before its frame
            // end arrived.
            assert_eq!(done[0].is_bad, frame < 6, "{frame}");
        }
        assert_eq!(bench.faults[Fault::Order as usize], 0);
    }
}

#[test]
fn outage_without_metadata_is_an_epoch() {
    let mut bench = Bench::new(5, 24, false);
    bench.plain = true;
    bench.send_all(0..3);
    bench.take(3);
    let outage = 100_000;
    bench.psn += 6 * outage;
    bench.send(3 + u64::from(outage), &[]);
    let done = bench.take(1);
    let origin = done[0].origin.unwrap();
    assert_eq!((origin.sequence, origin.epoch), (0, 2));
    assert_eq!(bench.faults[Fault::Order as usize], 1);
}

#[test]
fn separate_metadata_are_detected_again() {
    let mut bench = Bench::new(5, 24, false);
    bench.plain = true;
    bench.send(0, &[]);
    bench.plain = false;
    bench.send_all(1..5);
    bench.plain = true;
    bench.send(5, &[]);
    bench.plain = false;
    bench.send_all(6..8);
    for (i, done) in bench.take(8).iter().enumerate() {
        let origin = done.origin.unwrap();
        assert_eq!((origin.sequence, origin.epoch), (i as u64, 1));
        assert_eq!((done.missing, done.is_bad), (0, false));
        assert_eq!(done.timestamp.ns == 0, i % 5 == 0);
    }
    bench.psn = 0x7_7777;
    bench.plain = true;
    bench.send(8, &[]);
    bench.plain = false;
    bench.send_all(9..12);
    for (i, done) in bench.take(4).iter().enumerate() {
        let origin = done.origin.unwrap();
        assert_eq!((origin.sequence, origin.epoch), (i as u64, 2));
    }
    assert_eq!(bench.faults[Fault::Order as usize], 1);
    assert_eq!(bench.counters.metadata.get(), 9);
}
