//! Fields of packets that travel with their frame.

use super::*;
use crate::frame::KeptFields;

fn bench() -> Bench {
    let options = RingOptions {
        packets_per_frame: PACKETS_PER_FRAME,
        kept: vec!["antenna".to_owned(), "bunch".to_owned()],
        ..RingOptions::new("raw", 8, PACKETS_PER_FRAME as usize * BYTES)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    let ledger = SourceLedger::default();
    let window = ReorderWindow::new(producer, geometry(), 1, &ledger)
        .pop()
        .unwrap();
    Bench {
        window,
        reader,
        ledger,
        ring_ledger: RingLedger::default(),
    }
}

impl Bench {
    /// Places packet `sequence`, which contains `fields`. Returns whether the window read the fields.
    fn put_with(&mut self, sequence: u64, fields: KeptFields) -> bool {
        let mut is_read = false;
        self.window.with_batch(|batch| {
            let time = Timestamp::default();
            let outcome = batch.place(PacketId::of(sequence), &payload(sequence), time);
            batch.keep_fields(outcome, || {
                is_read = true;
                fields
            });
        });
        is_read
    }

    /// Returns the frame number and the kept fields of all frames that are ready.
    fn kept(&mut self) -> Vec<(u64, Option<u64>, Option<u64>)> {
        let mut frames = Vec::new();
        while let Some(lease) = self.reader.poll(1) {
            let meta = *lease.frame(0).meta();
            frames.push((meta.sequence, meta.kept.get(0), meta.kept.get(1)));
        }
        frames
    }
}

fn both(antenna: u64, bunch: u64) -> KeptFields {
    KeptFields::default().with(0, antenna).with(1, bunch)
}

#[test]
fn frame_keeps_fields_of_first_packet_that_has_them() {
    let mut bench = bench();
    // Packet 0 is missing. The first packet that arrives has no field, and the next has one.
    assert!(bench.put_with(2, KeptFields::default()));
    assert!(bench.put_with(1, KeptFields::default().with(1, 70)));
    assert!(bench.put_with(3, both(5, 71)));
    // All fields of the frame are known, so its other packets are not read.
    for sequence in 4..8 {
        let is_read = bench.put_with(sequence, both(6, 80 + sequence));
        assert_eq!(is_read, sequence == 4);
    }
    bench.window.finish();
    let expected = [(0, Some(5), Some(70)), (1, Some(6), Some(84))];
    assert_eq!(bench.kept(), expected);
}

#[test]
fn frame_without_fields_does_not_inherit_those_of_its_slot() {
    let mut bench = bench();
    for sequence in 0..400 {
        let has_fields = sequence < 200;
        let fields = if has_fields {
            both(1, 2)
        } else {
            KeptFields::default()
        };
        bench.put_with(sequence, fields);
        for (_, antenna, bunch) in bench.kept() {
            let expected = has_fields.then_some(());
            assert_eq!(
                (antenna.map(|_| ()), bunch.map(|_| ())),
                (expected, expected)
            );
        }
    }
}

#[test]
fn packets_kept_aside_bring_their_fields_into_the_new_epoch() {
    let mut bench = bench();
    for sequence in (0..4).chain(1_000_000..1_000_008) {
        bench.put_with(sequence, both(sequence / 4, sequence));
    }
    bench.window.finish();
    let frames: Vec<_> = bench.kept().into_iter().map(|(_, a, b)| (a, b)).collect();
    let expected = [0, 250_000, 250_001].map(|frame| (Some(frame), Some(4 * frame)));
    assert_eq!(frames, expected);
}
