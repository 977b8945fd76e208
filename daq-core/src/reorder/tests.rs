//! Compares the window with a simple model that knows the outcome of every packet.

mod delays;
mod epochs;
mod fairness;
mod gaps;
mod kept;
mod leaps;
mod lengths;
mod pair;
mod parts;
mod pinning;
mod random;
mod restarts;
mod skips;
mod stale;
mod threads;
mod waiting;

use super::*;
use crate::frame::{Flags, Timestamp};
use crate::ledger::{ReaderLedger, RingLedger, SourceReport};
use crate::region::{HostOptions, Region};
use crate::ring::{Reader, Ring, RingOptions};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const PACKETS_PER_FRAME: u32 = 4;
const BYTES: usize = 8;

struct Bench {
    window: ReorderWindow,
    reader: Reader,
    ledger: SourceLedger,
    ring_ledger: RingLedger,
}

fn bench(slots: usize, geometry: Geometry) -> Bench {
    let options = RingOptions {
        packets_per_frame: geometry.packets_per_frame,
        supports_backpressure: false,
        fill: Fill::byte(0xee),
        ..RingOptions::new("raw", slots, geometry.frame_bytes)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let ring_ledger = RingLedger::default();
    let (ring, producer) = Ring::new(region, options, ring_ledger.clone()).unwrap();
    let reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    let ledger = SourceLedger::default();
    let window = ReorderWindow::new(producer, geometry, 1, &ledger)
        .pop()
        .unwrap();
    Bench {
        window,
        reader,
        ledger,
        ring_ledger,
    }
}

fn geometry() -> Geometry {
    Geometry {
        window: 2,
        resync_after: 3,
        ..Geometry::new(PACKETS_PER_FRAME, BYTES)
    }
}

fn payload(sequence: u64) -> [u8; BYTES] {
    sequence.to_le_bytes()
}

impl Bench {
    fn put(&mut self, sequence: u64) -> Outcome {
        self.window.with_batch(|batch| {
            batch.place(
                PacketId::of(sequence),
                &payload(sequence),
                Timestamp::default(),
            )
        })
    }

    fn report(&self) -> SourceReport {
        SourceReport::of(&self.ledger)
    }

    /// Returns (frame number, epoch, sequence numbers of the packets that arrived) of all frames that are ready.
    fn read(&mut self) -> Vec<(u64, u32, Vec<u64>)> {
        let mut frames = Vec::new();
        while let Some(lease) = self.reader.poll(1) {
            let frame = lease.frame(0);
            let meta = *frame.meta();
            let bytes = frame.bytes().unwrap();
            let mut arrived = Vec::new();
            for index in 0..PACKETS_PER_FRAME {
                let range = index as usize * BYTES..(index as usize + 1) * BYTES;
                if frame.present().is_present(index) {
                    let sequence = meta.sequence * u64::from(PACKETS_PER_FRAME) + u64::from(index);
                    assert_eq!(bytes[range], payload(sequence), "payload of {sequence}");
                    arrived.push(sequence);
                } else {
                    assert_eq!(
                        bytes[range], [0xee; BYTES],
                        "a missing packet shows stale bytes"
                    );
                }
            }
            assert_eq!(meta.arrived as usize, arrived.len());
            assert_eq!(
                meta.is_incomplete(),
                arrived.len() < PACKETS_PER_FRAME as usize
            );
            frames.push((meta.sequence, meta.epoch, arrived));
        }
        frames
    }
}

fn lost(causes: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    causes.iter().copied().collect()
}

#[test]
fn frames_in_order_are_published_when_complete() {
    let mut bench = bench(8, geometry());
    for sequence in 0..8 {
        assert_eq!(bench.put(sequence), Outcome::Placed);
    }
    assert_eq!(
        bench.read(),
        [(0, 1, vec![0, 1, 2, 3]), (1, 1, vec![4, 5, 6, 7])]
    );
    let report = bench.report();
    assert_eq!(
        (
            report.expected,
            report.delivered,
            report.pending,
            report.epochs
        ),
        (8, 8, 0, 1)
    );
    assert_eq!(report.bytes, 64);
}

#[test]
fn reordered_packets_are_placed() {
    let mut bench = bench(8, geometry());
    for sequence in [4, 1, 7, 0, 3, 2, 6, 5] {
        bench.put(sequence);
    }
    // The stream begins at packet 4. Frame 0 is before the first frame.
    assert_eq!(bench.read(), [(1, 1, vec![4, 5, 6, 7])]);
    let report = bench.report();
    assert_eq!((report.before_start, report.rejected), (4, 0));
}

#[test]
fn gap_is_pending_until_window_passes() {
    let mut bench = bench(16, geometry());
    for sequence in (0..12).filter(|sequence| *sequence != 5) {
        bench.put(sequence);
    }
    let report = bench.report();
    assert_eq!(
        (report.expected, report.delivered, report.pending),
        (11, 4, 7)
    );
    for sequence in 12..28 {
        bench.put(sequence);
    }
    assert_eq!(bench.report().lost, lost(&[("wire_gap", 1)]));
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.expected, report.delivered, report.pending),
        (28, 27, 0)
    );
    assert_eq!(bench.read()[1], (1, 1, vec![4, 6, 7]));
}

#[test]
fn packet_after_frame_close_is_late_once() {
    let mut bench = bench(16, geometry());
    for sequence in (0..9).filter(|sequence| *sequence != 2) {
        bench.put(sequence);
    }
    assert_eq!(bench.put(2), Outcome::Late);
    assert_eq!(bench.put(2), Outcome::Duplicate);
    assert_eq!(bench.put(3), Outcome::Duplicate);
    bench.window.finish();
    let report = bench.report();
    assert_eq!(report.lost, lost(&[("late", 1)]));
    assert_eq!(
        (report.expected, report.delivered, report.duplicates),
        (9, 8, 2)
    );
}

#[test]
fn damaged_packets_are_counted_separately() {
    let mut bench = bench(16, geometry());
    for sequence in 0..8 {
        if sequence == 6 {
            assert_eq!(
                bench
                    .window
                    .with_batch(|batch| batch.place_bad(PacketId::of(6))),
                Outcome::Placed
            );
        } else {
            bench.put(sequence);
        }
    }
    bench.window.finish();
    assert_eq!(bench.report().lost, lost(&[("bad_packet", 1)]));
}

#[test]
fn gaps_are_attributed_to_kernel_drops() {
    let mut bench = bench(16, geometry());
    for sequence in (0..6).chain(8..12) {
        bench.put(sequence);
    }
    bench.window.note_drops(1);
    bench.window.finish();
    assert_eq!(bench.report().lost, lost(&[("kernel_drop", 2)]));
}

#[test]
fn gaps_stay_pending_until_kernel_drops_are_read() {
    let mut bench = bench(64, geometry());
    bench.window.note_drops(0);
    // Each gap is as long as a window, so frames are closed and finalised before anyone can read Linux's drop counter.
    for step in 0..12 {
        for sequence in step * 8..step * 8 + 4 {
            bench.put(sequence);
        }
    }
    assert_eq!(
        bench.report().lost,
        lost(&[]),
        "the cause must not be final"
    );
    bench.window.note_drops(7);
    bench.window.tick(Instant::now());
    let kernel = bench.report().lost["kernel_drop"];
    assert!(kernel >= 24, "{:?}", bench.report());
    bench.window.note_drops(7);
    for sequence in 92..132 {
        bench.put(sequence);
    }
    // Drop counters are read as long as gaps are open.
    bench.window.note_drops(7);
    bench.window.tick(Instant::now());
    let after = bench.report().lost["kernel_drop"];
    // A later gap without new drops in Linux was lost on the wire.
    for sequence in (136..148).chain(149..172) {
        bench.put(sequence);
    }
    bench.window.note_drops(7);
    bench.window.tick(Instant::now());
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        report.lost,
        lost(&[("kernel_drop", after), ("wire_gap", 5)])
    );
    assert_eq!(report.expected, report.delivered + after + 5);
}

#[test]
fn full_ring_drops_arrivals_and_blames_reader() {
    let mut bench = bench(2, geometry());
    for sequence in 0..16 {
        bench.put(sequence);
    }
    assert_eq!(bench.put(16), Outcome::RingFull);
    let report = bench.report();
    assert_eq!(
        (report.delivered, report.lost),
        (8, lost(&[("ring_full", 8)]))
    );
    assert_eq!(
        (
            bench.ring_ledger.published.get(),
            bench.ring_ledger.ring_full.get()
        ),
        (2, 2)
    );
    assert_eq!(bench.read().len(), 2);
    for sequence in 20..24 {
        assert_eq!(bench.put(sequence), Outcome::Placed);
    }
    bench.window.finish();
    // Packet 16 found no slot for frame 4, and the other three packets of that frame never arrived.
    assert_eq!(bench.read(), [(5, 1, vec![20, 21, 22, 23])]);
    let report = bench.report();
    assert_eq!((report.expected, report.pending), (24, 0));
    assert_eq!(report.lost, lost(&[("ring_full", 9), ("wire_gap", 3)]));
    assert_eq!(bench.ring_ledger.ring_full.get(), 3);
}

#[test]
fn outlier_is_rejected_and_confirmed_restart_opens_epoch() {
    let mut bench = bench(16, geometry());
    for sequence in 0..6 {
        bench.put(sequence);
    }
    assert_eq!(bench.put(1_000_000), Outcome::Kept);
    assert_eq!(bench.put(6), Outcome::Placed);
    assert_eq!(bench.report().rejected, 1);
    assert_eq!(bench.put(1000), Outcome::Kept);
    assert_eq!(bench.put(1001), Outcome::Kept);
    assert_eq!(bench.put(1002), Outcome::Placed);
    bench.put(1003);
    assert_eq!(bench.report().pending, 0);
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.epochs, report.rejected, report.skipped),
        (2, 1, 993)
    );
    assert_eq!(
        (report.expected, report.delivered, report.pending),
        (11, 11, 0)
    );
    assert_eq!(
        bench.read(),
        [
            (0, 1, vec![0, 1, 2, 3]),
            (1, 1, vec![4, 5, 6]),
            (250, 2, vec![1000, 1001, 1002, 1003])
        ]
    );
}

#[test]
fn confirmed_gap_is_lost_and_opens_no_epoch() {
    let mut bench = bench(
        16,
        Geometry {
            max_gap: 1000,
            ..geometry()
        },
    );
    for sequence in 0..8 {
        bench.put(sequence);
    }
    assert_eq!(
        bench.put(900),
        Outcome::Kept,
        "a single packet must not be accepted"
    );
    assert_eq!(bench.put(8), Outcome::Placed);
    for sequence in 500..504 {
        bench.put(sequence);
    }
    // A step forward that is too long, and a step back, each open an epoch.
    for sequence in (3000..3004).chain(2000..2004) {
        bench.put(sequence);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.epochs, report.rejected, report.skipped),
        (3, 1, 2496)
    );
    assert_eq!((report.expected, report.delivered), (512, 21));
    assert_eq!(report.pending, 0);
}

#[test]
fn sender_restart_opens_epoch() {
    let mut bench = bench(64, geometry());
    for sequence in (1000..1008).chain(0..8) {
        bench.put(sequence);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!((report.epochs, report.rejected, report.skipped), (2, 0, 0));
    assert_eq!((report.expected, report.delivered), (16, 16));
}

#[test]
fn narrow_sequence_wrap_loses_nothing() {
    let geometry = Geometry {
        numbering: Numbering {
            width: 16,
            ..Numbering::PLAIN
        },
        ..geometry()
    };
    let mut bench = bench(16, geometry);
    for sequence in 65_530..65_550_u64 {
        assert_eq!(bench.put_as(sequence & 0xffff, sequence), Outcome::Placed);
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.expected, report.delivered, report.epochs),
        (20, 20, 1)
    );
    let first: Vec<_> = bench.read().iter().map(|frame| frame.0).collect();
    assert_eq!(first, [16_382, 16_383, 16_384, 16_385, 16_386, 16_387]);
}

#[test]
fn packet_of_wrong_length_is_rejected() {
    let mut bench = bench(8, geometry());
    bench.put(0);
    assert_eq!(
        bench.window.with_batch(|batch| batch.place(
            PacketId::of(1),
            &[0; 7],
            Timestamp::default()
        )),
        Outcome::Rejected
    );
    assert_eq!(bench.report().expected, 1);
}

#[test]
fn frame_with_gap_is_closed_after_timeout() {
    let mut bench = bench(8, geometry());
    for sequence in (0..8).filter(|sequence| *sequence != 1) {
        bench.put(sequence);
    }
    let start = Instant::now();
    // If the thread was delayed for 5 s, it has not polled, so this does not count as silence.
    bench.window.tick(start);
    bench.window.tick(start + Duration::from_secs(5));
    assert_eq!(bench.read(), []);
    let start = start + Duration::from_secs(5);
    let listen = |bench: &mut Bench, from: u64, to: u64| {
        for ms in (from..to).step_by(5) {
            bench.window.tick(start + Duration::from_millis(ms));
        }
    };
    listen(&mut bench, 5, 150);
    assert_eq!(bench.read().len(), 2);
    assert_eq!(bench.report().pending, 1);
    listen(&mut bench, 150, 1500);
    assert_eq!(bench.report().lost, lost(&[("wire_gap", 1)]));
    // A restarted sender would begin with a number of a closed frame.
    assert_eq!(bench.put(1), Outcome::Repeated);
    bench.window.finish();
    assert_eq!(bench.report().rejected, 1);
}

/// Ticks every 5 ms for `ms` milliseconds from `start`.
fn listen(bench: &mut Bench, start: Instant, ms: u64) {
    for ms in (0..ms).step_by(5) {
        bench.window.tick(start + Duration::from_millis(ms));
    }
}

#[test]
fn frame_with_only_last_packet_stays_open_in_silence() {
    let mut bench = bench(8, geometry());
    bench.put(0);
    bench.put(3);
    listen(&mut bench, Instant::now(), 500);
    assert_eq!(bench.read(), []);
    // Another thread may still place packets in the frame.
    for sequence in 1..3 {
        assert_eq!(bench.put(sequence), Outcome::Placed);
    }
    assert_eq!(bench.read(), [(0, 1, vec![0, 1, 2, 3])]);
}

#[test]
fn frame_stays_open_while_earlier_packets_arrive() {
    let mut bench = bench(8, geometry());
    bench.put(0);
    bench.put(7);
    let mut start = Instant::now();
    for sequence in (1..7).rev() {
        listen(&mut bench, start, 80);
        start += Duration::from_millis(80);
        assert_eq!(bench.put(sequence), Outcome::Placed);
    }
    assert_eq!(bench.read().len(), 2);
}

#[test]
fn frame_that_ended_is_closed_in_silence() {
    let mut bench = bench(8, geometry());
    bench.window.await_times();
    bench.put(0);
    assert!(
        bench
            .window
            .with_batch(|batch| batch.end(PacketId::of(3), Timestamp::default()))
    );
    listen(&mut bench, Instant::now(), 500);
    assert_eq!(bench.read(), [(0, 1, vec![0])]);
    assert_eq!(bench.report().pending, 3);
}

#[test]
fn closed_frames_are_known_while_late_packets_are_counted() {
    let mut bench = bench(8, geometry());
    for sequence in 4 * 4..4 * 10 {
        bench.put(sequence);
    }
    let first_of = |frame: u64| PacketId::of(4 * frame);
    // Ten frames are closed. The last two of them, frames 8 and 9, are still tracked.
    let batch = bench.window.batch();
    let known: Vec<u64> = (0..12)
        .filter(|frame| batch.knows(first_of(*frame)))
        .collect();
    assert_eq!(known, [8, 9, 10, 11]);
    batch.commit();
    for (frame, outcome) in [(8, Outcome::Duplicate), (7, Outcome::Kept)] {
        assert_eq!(bench.put(4 * frame), outcome, "{frame}");
    }
    // The end of a frame after the open frames is not accepted.
    let mut batch = bench.window.batch();
    let ends = [7, 11, 12].map(|frame| batch.end(first_of(frame), Timestamp::default()));
    assert_eq!(ends, [true, true, false]);
    batch.commit();
}

#[test]
fn packets_of_a_dropped_batch_are_published_later() {
    let mut bench = bench(8, geometry());
    let mut batch = bench.window.batch();
    for sequence in 0..4 {
        let id = PacketId::of(sequence);
        batch.place(id, &payload(sequence), Timestamp::default());
    }
    drop(batch);
    assert_eq!(bench.read(), []);
    bench.put(4);
    assert_eq!(bench.read(), [(0, 1, vec![0, 1, 2, 3])]);
    assert_eq!(bench.report().expected, 5);
}

#[test]
fn predicted_packet_slots_receive_without_copy() {
    let mut bench = bench(8, geometry());
    bench.put(0);
    let mut slots = Vec::with_capacity(16);
    let mut batch = bench.window.batch();
    batch.predict(16, &mut slots);
    assert_eq!(slots.len(), 7);
    for (slot, sequence) in slots.iter().zip(1..) {
        // SAFETY: the packet slot is valid for writes of `bytes` bytes until the batch ends.
        unsafe {
            std::ptr::copy_nonoverlapping(payload(sequence).as_ptr(), slot.memory(), slot.bytes());
        };
    }
    for (slot, sequence) in slots.iter().zip(1..) {
        if sequence == 3 {
            assert!(
                !batch.accept(PacketId::of(4), slot, Timestamp::default()),
                "wrong slot"
            );
        } else {
            assert!(batch.accept(PacketId::of(sequence), slot, Timestamp::default()));
        }
    }
    batch.commit();
    bench.window.finish();
    assert_eq!(
        bench.read(),
        [(0, 1, vec![0, 1, 2]), (1, 1, vec![4, 5, 6, 7])]
    );
}

#[test]
fn skipped_units_are_not_expected() {
    let geometry = Geometry {
        numbering: Numbering {
            width: 40,
            step: 1,
            packets_per_unit: PACKETS_PER_FRAME,
        },
        ..geometry()
    };
    let mut bench = bench(8, geometry);
    let put = |bench: &mut Bench, unit: u64| {
        for sub in 0..PACKETS_PER_FRAME {
            let sequence = unit * u64::from(PACKETS_PER_FRAME) + u64::from(sub);
            let id = PacketId { unit, sub };
            assert_eq!(
                bench.window.with_batch(|batch| batch.place(
                    id,
                    &payload(sequence),
                    Timestamp::default()
                )),
                Outcome::Placed
            );
        }
    };
    put(&mut bench, 7);
    bench.window.skip(8);
    bench.window.skip(7); // too late, because the unit has arrived
    put(&mut bench, 9);
    put(&mut bench, 10);
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.expected, report.delivered, report.lost),
        (12, 12, lost(&[]))
    );
    assert_eq!(
        bench.read().iter().map(|frame| frame.0).collect::<Vec<_>>(),
        [7, 9, 10]
    );
}

#[test]
fn last_partial_frame_is_flagged_truncated() {
    let mut bench = bench(8, geometry());
    for sequence in 0..6 {
        bench.put(sequence);
    }
    bench.window.finish();
    let lease = bench.reader.poll(8).unwrap();
    assert!(!lease.frame(0).meta().flags.contains(Flags::TRUNCATED));
    assert!(lease.frame(0).meta().flags.contains(Flags::EPOCH));
    assert!(lease.frame(1).meta().flags.contains(Flags::TRUNCATED));
}

/// Whole frames were requested, so the last packets of the newest frame are lost, like the ones between its packets.
#[test]
fn last_frame_that_was_requested_is_incomplete() {
    for (packets, missing) in [(&[0, 1, 2, 3, 4, 6][..], 2), (&[0, 1, 2, 3], 0), (&[], 0)] {
        let mut bench = bench(8, geometry());
        for sequence in packets {
            bench.put(*sequence);
        }
        bench.window.finish_frame();
        let report = bench.report();
        let case = format!("{packets:?}: {report:?}");
        assert_eq!(report.lost_total(), missing, "{case}");
        assert_eq!(report.expected, packets.len() as u64 + missing, "{case}");
        assert_eq!(report.incomplete, u64::from(missing > 0), "{case}");
        while let Some(lease) = bench.reader.poll(1) {
            assert!(!lease.frame(0).meta().flags.contains(Flags::TRUNCATED));
        }
    }
}

#[test]
fn announced_sequence_restart_opens_epoch_immediately() {
    let mut bench = bench(16, geometry());
    for _ in 0..3 {
        for sequence in 2..7 {
            assert_eq!(bench.put(sequence), Outcome::Placed);
        }
        bench.window.restart();
        bench.window.restart();
    }
    bench.window.finish();
    let report = bench.report();
    assert_eq!((report.epochs, report.rejected, report.skipped), (3, 0, 0));
    assert_eq!((report.expected, report.delivered), (15, 15));
    let epochs: Vec<_> = bench
        .read()
        .iter()
        .map(|frame| (frame.1, frame.0))
        .collect();
    assert_eq!(epochs, [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]);
}

/// If the signal duration of a frame is known, its start time is known whichever packet arrives first.
#[test]
fn frame_with_missing_first_packets_has_start_time() {
    for (frame_ns, expected) in [(4000, 10_000), (0, 12_000)] {
        let mut bench = bench(
            8,
            Geometry {
                frame_ns,
                ..geometry()
            },
        );
        for sequence in 0..4_u64 {
            let time = Timestamp {
                ns: 10_000 + sequence * 1000,
                clock: crate::frame::Clock::Sensor,
            };
            if sequence >= 2 {
                let id = PacketId::of(sequence);
                bench
                    .window
                    .with_batch(|batch| batch.place(id, &payload(sequence), time));
            }
        }
        bench.window.finish();
        let lease = bench.reader.poll(1).unwrap();
        assert_eq!(lease.frame(0).meta().timestamp.ns, expected);
    }
}

/// Frames without packets have the times between their neighbours, also if the duration of a frame is unknown.
#[test]
fn frames_without_packets_have_predicted_times() {
    for frame_ns in [4000, 0] {
        let mut bench = bench(
            16,
            Geometry {
                frame_ns,
                window: 4,
                ..geometry()
            },
        );
        for sequence in (0..8_u64).chain(16..24) {
            // Without a duration, each packet has the time of its frame.
            let in_frame = if frame_ns > 0 { sequence % 4 } else { 0 };
            let time = Timestamp {
                ns: 10_000 + sequence / 4 * 4000 + in_frame * 1000,
                clock: crate::frame::Clock::Sensor,
            };
            let id = PacketId::of(sequence);
            bench
                .window
                .with_batch(|batch| batch.place(id, &payload(sequence), time));
        }
        bench.window.finish();
        let mut times = Vec::new();
        while let Some(lease) = bench.reader.poll(1) {
            times.push(lease.frame(0).meta().timestamp.ns);
        }
        let expected: Vec<u64> = (0..6).map(|frame| 10_000 + frame * 4000).collect();
        assert_eq!(times, expected, "{frame_ns}");
    }
}

impl Bench {
    fn put_as(&mut self, number: u64, sequence: u64) -> Outcome {
        self.window.with_batch(|batch| {
            batch.place(
                PacketId::of(number),
                &payload(sequence),
                Timestamp::default(),
            )
        })
    }
}

#[test]
fn complete_frame_without_time_waits_for_time() {
    let mut bench = bench(
        8,
        Geometry {
            numbering: Numbering {
                packets_per_unit: PACKETS_PER_FRAME,
                ..Numbering::PLAIN
            },
            ..geometry()
        },
    );
    bench.window.await_times();
    let time = Timestamp {
        ns: 7,
        clock: crate::frame::Clock::Sensor,
    };
    let id = |unit, sub| PacketId { unit, sub };
    let put = |bench: &mut Bench, unit, subs: std::ops::Range<u32>| {
        for sub in subs {
            let outcome = bench
                .window
                .with_batch(|batch| batch.place(id(unit, sub), &[0; BYTES], Timestamp::default()));
            assert_eq!(outcome, Outcome::Placed);
        }
    };
    let stamps = |bench: &mut Bench| {
        let mut stamps = Vec::new();
        while let Some(lease) = bench.reader.poll(1) {
            stamps.push(lease.frame(0).meta().timestamp);
        }
        stamps
    };
    put(&mut bench, 0, 0..PACKETS_PER_FRAME);
    assert_eq!(stamps(&mut bench), []);
    bench.window.with_batch(|batch| batch.end(id(0, 0), time));
    assert_eq!(stamps(&mut bench), [time]);
    // A frame without its time is published when the window advances past it. Its missing packets are expected then.
    put(&mut bench, 1, 0..1);
    bench.window.with_batch(|batch| batch.end(id(1, 0), time));
    assert_eq!((bench.report().expected, bench.report().pending), (5, 1));
    put(&mut bench, 2, 0..PACKETS_PER_FRAME);
    assert_eq!(stamps(&mut bench), []);
    put(&mut bench, 3, 0..1);
    assert_eq!(stamps(&mut bench), [time]);
    bench.window.finish();
    assert_eq!(stamps(&mut bench), [Timestamp::default(); 2]);
    let report = bench.report();
    assert_eq!(
        (report.expected, report.delivered, report.lost_total()),
        (13, 10, 3)
    );
}
