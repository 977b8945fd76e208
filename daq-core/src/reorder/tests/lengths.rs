//! Frames that differ in size.

use super::*;

const MAX_BYTES: usize = PACKETS_PER_FRAME as usize * BYTES;

/// The byte that all packets of frame `unit` consist of.
fn byte(unit: u64) -> u8 {
    unit.to_le_bytes()[0]
}

/// Returns the number of packets of a frame of `bytes` bytes.
fn packets(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES)).unwrap()
}

fn bench() -> Bench {
    let numbering = Numbering {
        packets_per_unit: PACKETS_PER_FRAME,
        ..Numbering::PLAIN
    };
    super::bench(
        32,
        Geometry {
            numbering,
            ..geometry()
        },
    )
}

impl Bench {
    /// Places packet `sub` of frame `unit`, which has `frame` bytes.
    fn put_in(&mut self, unit: u64, sub: u32, frame: usize) -> Outcome {
        let bytes = frame.saturating_sub(sub as usize * BYTES).min(BYTES);
        let payload = vec![byte(unit); bytes];
        let id = PacketId { unit, sub };
        self.window
            .with_batch(|batch| batch.place_sized(id, &payload, Some(frame), Timestamp::default()))
    }

    /// Places the packets of frame `unit` for which `arrives` is true.
    fn put_frame(&mut self, unit: u64, frame: usize, arrives: impl Fn(u32) -> bool) {
        for sub in (0..packets(frame)).filter(|sub| arrives(*sub)) {
            assert_eq!(self.put_in(unit, sub, frame), Outcome::Placed);
        }
    }

    /// Returns the number, the size, the number of packets and the number of missing packets of all frames that are ready.
    /// Checks their bytes.
    fn read_frames(&mut self) -> Vec<(u64, usize, u32, u32)> {
        let mut frames = Vec::new();
        while let Some(lease) = self.reader.poll(1) {
            let frame = lease.frame(0);
            let meta = *frame.meta();
            for (index, bytes) in (0..).zip(frame.bytes().unwrap().chunks(BYTES)) {
                let is_present = frame.present().is_present(index);
                let expected = if is_present {
                    byte(meta.sequence)
                } else {
                    0xee
                };
                assert!(bytes.iter().all(|byte| *byte == expected), "{meta:?}");
            }
            let missing = meta.packets_per_frame - meta.arrived;
            assert_eq!(meta.is_incomplete(), missing > 0);
            frames.push((meta.sequence, meta.length, meta.packets_per_frame, missing));
        }
        frames
    }
}

#[test]
fn frame_is_published_when_packets_of_its_size_arrived() {
    let mut bench = bench();
    for (unit, bytes) in (0..).zip([32, 5, 8, 9, 31, 1]) {
        bench.put_frame(unit, bytes, |_| true);
        assert_eq!(bench.read_frames(), [(unit, bytes, packets(bytes), 0)]);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.expected, report.delivered, report.bytes),
        (13, 13, 86)
    );
    assert_eq!(
        (report.epochs, report.rejected, report.lost_total()),
        (1, 0, 0)
    );
}

#[test]
fn packets_missing_from_a_short_frame_are_lost() {
    let mut bench = bench();
    bench.put_frame(0, MAX_BYTES, |_| true);
    bench.put_frame(1, 20, |sub| sub != 1);
    // Nothing of frame 2 arrives, so its size is unknown.
    for unit in 3..6 {
        bench.put_frame(unit, 16, |_| true);
    }
    bench.window.finish();
    let expected = [
        (0, 32, 4, 0),
        (1, 20, 3, 1),
        (2, 32, 4, 4),
        (3, 16, 2, 0),
        (4, 16, 2, 0),
        (5, 16, 2, 0),
    ];
    assert_eq!(bench.read_frames(), expected);
    let report = bench.report();
    assert_eq!(report.lost, lost(&[("wire_gap", 5)]));
    assert_eq!(
        (report.expected, report.delivered, report.incomplete),
        (17, 12, 2)
    );
    assert_eq!(report.bytes, 32 + 12 + 3 * 16);
}

#[test]
fn packet_that_contradicts_its_frame_is_rejected() {
    let mut bench = bench();
    assert_eq!(bench.put_in(0, 0, 12), Outcome::Placed);
    assert_eq!(bench.put_in(0, 1, 16), Outcome::Rejected);
    assert_eq!(bench.put_in(0, 2, 24), Outcome::Rejected);
    assert_eq!(bench.put_in(0, 1, 12), Outcome::Placed);
    // Larger than the largest frame, and a frame without bytes.
    assert_eq!(bench.put_in(1, 0, MAX_BYTES + 1), Outcome::Rejected);
    assert_eq!(bench.put_in(1, 0, 0), Outcome::Rejected);
    bench.window.finish();
    assert_eq!(bench.read_frames(), [(0, 12, 2, 0)]);
    assert_eq!(bench.report().rejected, 4);
}

#[test]
fn restarted_numbers_open_an_epoch_with_frames_of_other_sizes() {
    let mut bench = bench();
    for unit in 0..10 {
        bench.put_frame(1000 + unit, 9, |_| true);
    }
    for unit in 0..10 {
        for sub in 0..3 {
            bench.put_in(unit, sub, 17);
        }
    }
    bench.window.finish();
    let frames = bench.read_frames();
    let of_first = (0..10).map(|unit| (1000 + unit, 9, 2, 0));
    let of_second = (0..10).map(|unit| (unit, 17, 3, 0));
    assert!(frames.into_iter().eq(of_first.chain(of_second)));
    let report = bench.report();
    assert_eq!(
        (report.epochs, report.delivered, report.lost_total()),
        (2, 50, 0)
    );
}

proptest! {
    /// Packets of frames of any size are lost, duplicated and reordered. The ledger must add up, and the frames must contain
    /// exactly what arrived.
    #[test]
    fn every_packet_of_frames_of_any_size_is_accounted(
        sizes in prop::collection::vec((1..=MAX_BYTES, any::<[u8; 4]>()), 1..60),
    ) {
        let mut bench = bench();
        let mut schedule = Vec::new();
        for (unit, (bytes, faults)) in (0_u64..).zip(&sizes) {
            for (sub, fault) in (0..packets(*bytes)).zip(faults) {
                let at = unit * 4 + u64::from(sub);
                match fault % 8 {
                    0 => {}
                    1 => schedule.extend([(at, unit, sub, *bytes), (at + 1, unit, sub, *bytes)]),
                    2 => schedule.push((at + 5, unit, sub, *bytes)),
                    _ => schedule.push((at, unit, sub, *bytes)),
                }
            }
        }
        schedule.sort_unstable();
        let (mut placed, mut kept) = (0, 0);
        let mut frames = Vec::new();
        for (_, unit, sub, bytes) in schedule {
            let outcome = bench.put_in(unit, sub, bytes);
            placed += u64::from(outcome == Outcome::Placed);
            kept += u64::from(outcome == Outcome::Kept);
            let now = bench.report();
            prop_assert_eq!(now.expected, now.delivered + now.pending + now.lost_total());
            frames.extend(bench.read_frames());
        }
        bench.window.finish();
        frames.extend(bench.read_frames());
        let report = bench.report();
        prop_assert_eq!(report.pending, 0);
        prop_assert_eq!(report.expected, report.delivered + report.lost_total());
        // Packets that were kept aside may be placed later.
        prop_assert!((placed..=placed + kept).contains(&report.delivered));
        for (unit, bytes, packets, missing) in frames {
            let is_known = missing < packets;
            let sent = sizes[usize::try_from(unit).unwrap()].0;
            let expected = if is_known { sent } else { MAX_BYTES };
            prop_assert_eq!(bytes, expected);
        }
    }
}
