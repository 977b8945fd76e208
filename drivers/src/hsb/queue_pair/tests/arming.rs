//! Tests of arming and disarming, and of writes that must not change memory.

use super::*;
use daq_testkit::{wait_for, wait_until};

#[test]
fn frames_not_reported_before_rearming_are_lost() {
    let mut bench = Bench::new(5, 24, false);
    for frame in 0..10 {
        bench.send(frame, &[]);
        bench.take(1);
    }
    bench.send(10, &[PACKETS]);
    bench.send_all(11..14);
    bench.await_end(13);
    bench.stop();
    bench.arm();
    assert!(bench.poll().unwrap().is_empty());
    let lost = (bench.completions.discarded(), bench.completions.missing());
    assert_eq!((lost, bench.completions.overrun()), ((3, 1), 0));
    bench.send(0, &[]);
    let done = bench.take(1);
    let origin = done[0].origin.unwrap();
    assert_eq!((origin.sequence, origin.epoch, origin.arrived), (0, 2, 6));
    assert_eq!(bench.completions.discarded(), 0);
}

#[test]
fn failed_requests_are_counted() {
    let mut bench = Bench::new(5, 24, false);
    lock(&bench.seen).refuses = true;
    bench.stop();
    assert_eq!(bench.counters.control_errors.get(), 1);
}

#[test]
fn device_without_registers_is_armed_with_another_queue_pair() {
    let mut bench = Bench::with(5, 24, false, Duration::from_millis(100));
    bench.send_all(0..3);
    bench.take(3);
    let pair = bench.register(0);
    lock(&bench.seen).registers.clear();
    let error = wait_for("the restart to be noticed", || {
        bench.poll().map(|done| assert!(done.is_empty())).err()
    });
    assert!(
        matches!(&error, EngineError::Faulted { faults, .. } if faults[..] == ["restarted"]),
        "{error}"
    );
    bench.stop();
    assert_eq!(bench.counters.rearmed.get(), 0);
    bench.arm();
    assert_eq!(bench.counters.rearmed.get(), 1);
    assert_ne!(bench.register(0), pair);
    bench.send_all(0..2);
    let done = bench.take(2);
    assert!(done.iter().all(|done| !done.is_bad));
    assert_eq!(done[1].origin.unwrap().epoch, 2);
}

/// Polls until `is_met` returns true. No frame may arrive meanwhile.
fn poll_until(bench: &mut Bench, what: &str, mut is_met: impl FnMut(&Bench) -> bool) {
    wait_until(what, || {
        is_met(bench) || {
            assert!(bench.poll().unwrap().is_empty());
            false
        }
    });
}

#[test]
fn late_announcement_arms_the_device() {
    let looks = Arc::new(Mutex::new((0, false)));
    let found = looks.clone();
    let target = |control| {
        let mut control = Some(control);
        Target::Unknown(Box::new(move || {
            let mut looks = found.lock().unwrap();
            looks.0 += 1;
            let control = control.take_if(|_| looks.1);
            control.ok_or_else(|| SourceError::new("device = \"auto\"", "no device".to_owned()))
        }))
    };
    let mut bench = Bench::of(5, 24, false, Duration::ZERO, target);
    // Arm without a device, stop, and arm again.
    for _ in 0..2 {
        bench.arm();
        let before = looks.lock().unwrap().0;
        poll_until(&mut bench, "a look for the device", |_| {
            looks.lock().unwrap().0 > before
        });
        assert!(lock(&bench.seen).registers.is_empty());
        bench.stop();
    }
    bench.arm();
    looks.lock().unwrap().1 = true;
    poll_until(&mut bench, "the device", |bench| {
        lock(&bench.seen).registers.get(&MASK) == Some(&8)
    });
    bench.send_all(0..3);
    let done = bench.take(3);
    assert!(done.iter().all(|done| !done.is_bad));
    assert_eq!(bench.counters.rearmed.get(), 0);
}

#[test]
fn wrong_keys_and_addresses_change_nothing() {
    let mut bench = Bench::new(5, 24, false);
    bench.send(0, &[]);
    bench.take(1);
    let end = bench.base() + (STRIDE * PAGES) as u64;
    let room = bench.region.bytes() as u64;
    let bad = [
        (bench.key() ^ 1, bench.base()),
        (bench.key(), bench.base() - 64),
        (bench.key(), end - (STRIDE * PAGES) as u64 + room - 64),
        (bench.key(), 0),
    ];
    for ((key, address), frame) in bad.into_iter().zip(1..) {
        let pages = |bench: &Bench| {
            let others = (0..8).filter(|page| *page != frame);
            others.map(|page| bench.page(page)).collect::<Vec<_>>()
        };
        // After this poll, the pages of reported frames have markers again.
        assert!(bench.poll().unwrap().is_empty());
        let before = pages(&bench);
        assert!(bench.write(key, address, &[0xbd; 128], None));
        // Writes are processed in order, so the invalid write was processed once the frame after it has arrived.
        bench.send(frame, &[]);
        assert!(!bench.take(1)[0].is_bad);
        assert!(before == pages(&bench), "{key:#x} {address:#x}");
        assert!(bench.page(frame) == payload(frame));
    }
    // A frame end whose immediate names a page that does not exist.
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..2);
    bench.write(bench.key(), bench.base(), &[0; 128], Some(9 | 70 << 12));
    bench.send(2, &[]);
    bench.take(3);
    assert_eq!(bench.faults[Fault::Immediate as usize], 1);
}

#[test]
fn failure_gives_the_sensor_another_key() {
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..3);
    bench.take(3);
    let (pair, key, base) = (bench.register(0), bench.key(), bench.base());
    lock(&bench.seen).fails = Some(Call::Poll);
    let error = bench.poll().unwrap_err();
    assert!(
        matches!(&error, EngineError::Faulted { faults, .. } if faults[..] == ["queue"]),
        "{error}"
    );
    bench.stop();
    assert_eq!(
        (bench.key(), bench.base()),
        (0, 0),
        "the sensor was disarmed"
    );
    bench.arm();
    assert_ne!((bench.register(0), bench.key()), (pair, key));
    // A write with the previous key must not change memory. It was processed once the frames sent after it have
    // arrived.
    let before = bench.page(5);
    assert!(bench.write(key, base + 5 * STRIDE as u64, &[0xbd; 128], None));
    bench.send_all(0..3);
    let frames = bench.take(3);
    assert!(bench.page(5) == before);
    assert!(frames.iter().all(|done| !done.is_bad));
    assert_eq!(frames[2].origin.unwrap().sequence, 2);
    assert!(bench.page(2) == payload(2));
}

/// Returns a bench in which the frames before 10 were reported, and the ends of frames 10 to 12 were collected but not
/// reported.
fn unreported() -> Bench {
    let mut bench = Bench::new(5, 24, false);
    for frame in 0..10 {
        bench.send(frame, &[]);
        bench.take(1);
    }
    bench.send_all(10..13);
    bench.await_end(12);
    bench
}

#[test]
fn completion_failure_discards_ended_frames() {
    for call in [Call::Poll, Call::Receive] {
        let mut bench = unreported();
        lock(&bench.seen).fails = Some(call);
        // Frames that the sensor writes meanwhile are not reported.
        bench.send_all(13..15);
        let mut sent = 0;
        let error = loop {
            match bench.poll() {
                Err(error) => break error,
                // No receive was posted in this poll, because the ends of frames 13 and 14 had not arrived.
                Ok(done) => sent += done.len(),
            }
        };
        assert!(matches!(error, EngineError::Faulted { .. }), "{error}");
        let done = bench.completions.as_slice().to_vec();
        let reported = 10 + sent as u64 + done.len() as u64;
        assert!(
            reported >= 13 && done.iter().all(|done| done.is_bad),
            "{call:?}"
        );
        // Frames that were reported before the failure are discarded too.
        assert!(bench.overwritten() >= reported);
    }
    // The failure happens after the report and before the copy.
    let mut bench = unreported();
    assert!(bench.poll().unwrap().iter().all(|done| !done.is_bad));
    assert!(bench.overwritten() < 10);
    lock(&bench.seen).fails = Some(Call::Poll);
    assert_eq!(bench.overwritten(), 13);
    let mut bench = unreported();
    assert!(bench.poll().unwrap().iter().all(|done| !done.is_bad));
    lock(&bench.seen).fails = Some(Call::Wait);
    bench.engine.as_mut().unwrap().wait(LONG).unwrap();
    assert_eq!(bench.overwritten(), 13);
    // After a stop, the engine can be armed again.
    bench.stop();
    assert_eq!(bench.rest().1, 13);
    bench.arm();
    bench.send(0, &[]);
    assert!(!bench.take(1)[0].is_bad);
}

#[test]
fn stopped_queue_keeps_ended_frames() {
    let mut bench = unreported();
    lock(&bench.seen).fails = Some(Call::All);
    assert!(bench.poll().is_err());
    let done = bench.completions.as_slice();
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| !done.is_bad));
    assert!(bench.overwritten() < 10);
    let mut bench = unreported();
    lock(&bench.seen).fails = Some(Call::All);
    assert!(bench.overwritten() < 10);
    bench.stop();
    let (done, overwritten) = bench.rest();
    assert!(done.len() == 3 && done.iter().all(|done| !done.is_bad));
    assert!(overwritten < 10);
}

#[test]
fn sensor_that_continues_discards_ended_frames() {
    let mut bench = unreported();
    bench.stop_within(Duration::ZERO);
    let (done, overwritten) = bench.rest();
    assert!(done.len() == 3 && done.iter().all(|done| done.is_bad));
    assert_eq!(overwritten, 13);
    // The frames are also discarded if the silence cannot be checked.
    for call in [Call::Poll, Call::Wait] {
        let mut bench = unreported();
        lock(&bench.seen).fails = Some(call);
        bench.stop();
        let (done, overwritten) = bench.rest();
        assert!(done.len() == 3 && done.iter().all(|done| done.is_bad));
        assert_eq!(overwritten, 13);
    }
    let mut bench = unreported();
    bench.stop();
    let (done, overwritten) = bench.rest();
    assert!(done.len() == 3 && done.iter().all(|done| !done.is_bad));
    assert!(overwritten < 10);
}

#[test]
fn stop_ends_writes_and_reports_ended_frames() {
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..8);
    bench.await_end(7);
    let mut sensor = lock(&bench.seen).sensor.take().unwrap();
    let (key, base) = (bench.key(), bench.base());
    bench.stop();
    let calls = lock(&bench.seen).calls.clone();
    assert_eq!(calls, ["mask 0", "mask 8", "mask 0", "queue destroyed"]);
    let before: Vec<_> = (1..8).map(|page| bench.page(page)[8..].to_vec()).collect();
    let verb = Verb::write(base + STRIDE as u64, key, None);
    let work = WorkRequest {
        id: 1,
        verb,
        payload: Payload::Inline(&[0xbd; 128]),
        signaled: true,
    };
    // The call may succeed or fail.
    let _ = sensor.post_send(&work);
    let engine = bench.idle.as_mut().unwrap();
    bench.completions.clear(usize::MAX);
    engine.poll(&mut bench.completions).unwrap();
    let done = bench.completions.as_slice();
    assert_eq!(done.len(), 8);
    assert!(done.iter().all(|done| !done.is_bad));
    drop(sensor);
    // Frames of the next queue pair arrive after the earlier write was processed.
    bench.arm();
    bench.send_all(0..1);
    bench.take(1);
    // The pages may differ only in the markers written by arming.
    let is_kept = (1..8).zip(&before).all(|(page, before)| {
        let after = bench.page(page);
        let between = |at: &usize| at % PACKET >= 8;
        (8..FRAME)
            .filter(between)
            .all(|at| after[at] == before[at - 8])
    });
    assert!(is_kept);
}

#[test]
fn unsuitable_slots_are_rejected() {
    let mut bench = Bench::of(5, 24, false, Duration::ZERO, Target::Known);
    let (mut engine, map) = bench.fresh.take().unwrap();
    let base = map.address();
    let addresses = |count: u64, step: u64| (0..count).map(|i| base + i * step).collect();
    let stride = STRIDE as u64;
    let cases: [(Vec<u64>, usize, &str); 5] = [
        (addresses(3, stride), STRIDE, "3 slots"),
        (addresses(8, stride), FRAME, "its metadata"),
        (addresses(8, stride + 64), STRIDE, "a multiple of 128"),
        (addresses(80, stride), STRIDE, "exceed the registered"),
        (
            (0..8).map(|i| 64 + i * stride).collect(),
            STRIDE,
            "not registered",
        ),
    ];
    for (addresses, bytes, word) in cases {
        let slots = Slots {
            addresses,
            bytes,
            first: 0,
            doorbell: None,
            placement: Placement::Host,
        };
        // SAFETY: the engine refuses these slots, so nothing is written.
        let error = unsafe { engine.arm(&slots) }.unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    drop(map);
}
