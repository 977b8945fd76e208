//! Tests of reported frames: their bytes, missing packets and overwritten pages.

use super::*;
use daq_testkit::assert_fields;

#[test]
fn frames_are_identical_over_many_rounds() {
    for (psn, bits, embeds) in [(7, 24, false), (0xf_ffd0, 24, true), (0xf_ffd0, 20, false)] {
        let mut bench = Bench::new(psn, bits, embeds);
        assert_eq!(bench.register(0), {
            let seen = lock(&bench.seen);
            seen.registers[&PORT] & 0xff_ffff
        });
        assert_eq!(bench.register(0x10) as usize, STRIDE / 128);
        assert_eq!(bench.register(0x14) as usize, PAGES - 1);
        assert_eq!(bench.register(0x18) as usize, FRAME);
        for frame in 0..40 {
            bench.send(frame, &[]);
            let done = bench.next();
            assert_eq!(done.len(), 1);
            let origin = done[0].origin.unwrap();
            assert_eq!((origin.sequence, origin.epoch), (frame, 1));
            assert_eq!((origin.packets_per_frame, origin.arrived), (6, 6));
            assert_eq!((origin.flags, done[0].is_bad), (Flags(0), false));
            assert_eq!(bench.completions.present(0), [0x3f]);
            assert_eq!((done[0].length, done[0].missing), (FRAME, 0));
            assert_eq!(done[0].passed, 0);
            assert_eq!(done[0].timestamp.ns, (SECONDS + frame) * 1_000_000_000);
            assert_eq!(done[0].timestamp.clock, Clock::Sensor);
            assert!(bench.page(frame) == payload(frame), "frame {frame}");
            assert_eq!(bench.completions.faults(), [0; FAULTS.len()]);
        }
    }
}

#[test]
fn missing_packets_are_counted_and_marked() {
    for embeds in [false, true] {
        let last = if embeds { PACKETS - 1 } else { PACKETS };
        let mut bench = Bench::new(100, 24, embeds);
        bench.send_all(0..2);
        bench.take(2);
        // The ends of these frames are lost, so they cause no completion.
        bench.send(2, &[last]);
        bench.send(3, &[1, last]);
        bench.send(4, &[0, 3]);
        let done = bench.next();
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].missing, done[0].passed), (2, 2));
        let origin = done[0].origin.unwrap();
        assert_fields!(origin => sequence: 4, packets_per_frame: 6, arrived: 4);
        assert_eq!(origin.flags, Flags::INCOMPLETE);
        assert_eq!(bench.completions.present(0), [0b11_0110]);
        assert_eq!(bench.completions.faults(), [0; FAULTS.len()]);
        let (page, expected) = (bench.page(4), payload(4));
        for place in [1, 2, 4, 5] {
            let place = place * PACKET..FRAME.min((place + 1) * PACKET);
            assert_eq!(page[place.clone()], expected[place]);
        }
        // One round later, the page of the frame without an end has markers again.
        let mut frames = Vec::new();
        for frame in 5..10 {
            bench.send(frame, &[]);
            frames.extend(bench.next());
        }
        bench.send(10, &[2]);
        bench.send(11, &[]);
        frames.extend(bench.take(7 - frames.len()));
        let arrived: Vec<_> = frames
            .iter()
            .map(|done| (done.origin.unwrap().arrived, done.missing, done.is_bad))
            .collect();
        let whole = (6, 0, false);
        let expected = [whole, whole, whole, whole, whole, (5, 0, false), whole];
        assert_eq!(arrived, expected);
        // Only the end of the frame arrives.
        bench.send(12, &(0..last).collect::<Vec<_>>());
        let done = bench.take(1);
        assert_eq!(done[0].origin.unwrap().arrived, u32::from(embeds));
        assert_eq!(done[0].is_bad, !embeds);
    }
}

#[test]
fn incomplete_packets_are_missing() {
    const LAST: usize = FRAME - (PACKETS - 1) * PACKET;
    for plain in [false, true] {
        let mut bench = Bench::new(5, 24, false);
        bench.plain = plain;
        for frame in 0..10 {
            bench.send(frame, &[]);
            bench.take(1);
        }
        // The frame ends within the last packet: in its middle, and one byte early. With metadata also within an
        // earlier packet, and between two packets. The latter two do not change the PSNs of the next frame.
        let mut cuts = vec![FRAME - LAST / 2, FRAME - 1];
        if !plain {
            cuts.extend([3 * PACKET + PACKET / 2, 2 * PACKET]);
        }
        for (bytes, frame) in cuts.into_iter().zip(10..) {
            bench.send_cut(frame, bytes);
            let done = bench.take(1);
            let origin = done[0].origin.unwrap();
            let whole = bytes / PACKET;
            assert_eq!((origin.sequence, origin.epoch), (frame, 1));
            assert_eq!(origin.arrived as usize, whole, "{bytes}");
            assert_eq!(origin.flags, Flags::INCOMPLETE);
            assert_eq!(bench.completions.present(0), [(1 << whole) - 1]);
            assert_eq!((done[0].is_bad, done[0].length), (false, FRAME));
            assert!(bench.page(frame)[..bytes] == payload(frame)[..bytes]);
        }
        // A frame with less than one packet is bad.
        if !plain {
            bench.send_cut(14, PACKET - 1);
            assert!(bench.take(1)[0].is_bad);
        }
        let short = if plain { 2 } else { 5 };
        assert_eq!(bench.counters.short.get(), short);
        assert_eq!(bench.faults[Fault::Order as usize], 0);
    }
}

#[test]
fn overtaken_frames_are_bad() {
    let mut bench = Bench::new(0, 24, false);
    bench.send_all(0..20);
    bench.await_end(19);
    assert_eq!(
        bench.engine.as_mut().unwrap().overwritten().unwrap(),
        19 + 2 + UNREPORTED - 8
    );
    let done = bench.poll().unwrap();
    // Frames 0 to 11 were overwritten. Frames 12 to 19 are present, but in pages that were not prepared.
    assert_eq!(bench.completions.overrun(), 12);
    assert_eq!(done.len(), 8);
    assert_eq!(done[0].passed, 0);
    assert!(done.iter().all(|done| done.is_bad));
    assert_eq!(bench.completions.faults()[Fault::Overtaken as usize], 8);
    // The next frame in each page that is far enough from the sensor is intact again.
    assert!(bench.poll().unwrap().is_empty());
    bench.send_all(20..28);
    let frames = bench.take(8);
    // The bound was 14, so the pages of transfers 12 and 13 were not prepared for transfers 20 and 21.
    let bad: Vec<_> = frames.iter().map(|done| done.is_bad).collect();
    assert_eq!(bad[..2], [true, true]);
    assert!(!bad[2..8].contains(&true), "{bad:?}");
}

#[test]
fn other_metadata_prove_an_overwritten_page() {
    let mut bench = Bench::new(5, 24, false);
    for frame in 0..10 {
        bench.send(frame, &[]);
        bench.take(1);
    }
    bench.send(10, &[]);
    bench.await_end(10);
    // Write metadata of the next frame in the same page, whose end never arrives.
    let at = bench.base() + 2 * STRIDE as u64 + BEHIND as u64;
    let psn = bench.psn + 55;
    assert!(bench.write(bench.key(), at, &metadata_bytes(18, 18, psn), None));
    bench.send(11, &[]);
    bench.await_end(11);
    let done = bench.take(2);
    assert_eq!([done[0].is_bad, done[1].is_bad], [true, false]);
    assert_eq!(done[0].timestamp.ns, 0);
    assert_eq!(bench.faults[Fault::Metadata as usize], 1);
    assert_eq!(bench.faults[Fault::Overtaken as usize], 1);
}

#[test]
fn more_ends_than_receives_discard_all_frames() {
    let mut bench = Bench::new(5, 24, false);
    bench.stop();
    lock(&bench.seen).max = Some(15);
    let error = bench.try_arm().unwrap_err().to_string();
    assert!(error.contains("hold at most 15 completions"), "{error}");
    lock(&bench.seen).max = Some(16);
    bench.arm();
    bench.send_all(0..40);
    // Data of the last frame arrive even without a posted receive.
    while bench.page(39)[..PACKET] != payload(39)[..PACKET] {
        std::thread::yield_now();
    }
    let done = bench.poll().unwrap();
    let overrun = bench.completions.overrun();
    assert_eq!((done.len(), overrun), (PAGES, 16 - PAGES as u64));
    assert!(done.iter().all(|done| done.is_bad));
    // The bound is larger if the last frame end found a receive that was posted again.
    assert!(bench.overwritten() >= 16);
}

/// Delays the engine while the sensor continues. Frames reported as complete must be intact, and all frames must be
/// counted.
#[test]
fn sensor_that_overtakes_the_engine_damages_no_frame() {
    let mut bench = Bench::new(5, 24, false);
    let (mut sent, mut transfers, mut whole, mut lost) = (0, 0, 0, 0);
    for burst in [8, 30, 3, 5, 8, 2, 40, 7, 9, 1, 16, 6, 6] {
        bench.send_all(sent..sent + burst);
        sent += burst;
        bench.await_end(sent - 1);
        let done = bench.poll().unwrap();
        let overrun = bench.completions.overrun();
        (transfers, lost) = (transfers + overrun, lost + overrun);
        for done in done {
            transfers += done.passed;
            let origin = done.origin.unwrap();
            assert_eq!((origin.sequence, done.missing), (transfers, 0));
            let page = bench.page(transfers);
            if done.is_bad || bench.overwritten() > transfers {
                lost += 1;
            } else {
                whole += 1;
                assert_eq!(origin.arrived, 6);
                assert!(page == payload(transfers), "frame {transfers} is torn");
            }
            transfers += 1;
        }
        assert_eq!((transfers, whole + lost), (sent, sent));
    }
    assert!(whole >= 8 && lost >= 60, "{whole} {lost}");
}
