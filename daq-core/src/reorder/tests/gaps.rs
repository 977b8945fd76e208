//! Tests of gaps so long that the window passes them in one step.

use super::*;

/// Returns a bench whose window passes every frame of a gap separately.
fn one_by_one(slots: usize, geometry: Geometry) -> Bench {
    let mut bench = bench(slots, geometry);
    if let Some(sequencer) = &mut bench.window.state.sequencer {
        sequencer.min_gap_step = u64::MAX;
    }
    bench
}

/// A gap in the sequence numbers of a recording can be as long as the number range.
#[test]
fn gap_as_long_as_counter_range_is_counted() {
    const FAR: u64 = 1 << 46;
    for holds in [false, true] {
        let mut bench = bench(
            8,
            Geometry {
                resync_after: 1,
                max_gap: 1 << 48,
                ..geometry()
            },
        );
        bench.put(0);
        let mut batch = bench.window.batch();
        assert!(!holds || batch.has_room(PacketId::of(FAR), None));
        batch.place(PacketId::of(FAR), &payload(FAR), Timestamp::default());
        batch.commit();
        bench.window.finish();
        let report = bench.report();
        assert_eq!((report.expected, report.delivered), (FAR + 1, 2));
        assert_eq!(report.lost, lost(&[("wire_gap", FAR - 1)]));
        assert_eq!((report.pending, report.epochs), (0, 1));
        let frames = bench.read();
        assert_eq!(frames.last(), Some(&(FAR / 4, 1, vec![FAR])));
    }
}

/// Two threads' handles must continue after a long gap as one handle does.
#[test]
fn long_gap_is_consistent_across_threads() {
    const FAR: u64 = 1 << 46;
    let geometry = Geometry {
        resync_after: 1,
        max_gap: 1 << 48,
        ..geometry()
    };
    let options = RingOptions {
        packets_per_frame: PACKETS_PER_FRAME,
        ..RingOptions::new("raw", 16, geometry.frame_bytes)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (_ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let ledger = SourceLedger::default();
    let mut windows = ReorderWindow::new(producer, geometry, 2, &ledger);
    for (writer, sequence) in [(0, 0), (1, 1), (0, FAR), (1, FAR + 1), (1, FAR - 1)] {
        windows[writer].with_batch(|batch| {
            batch.place(
                PacketId::of(sequence),
                &payload(sequence),
                Timestamp::default(),
            )
        });
    }
    windows[0].finish();
    let report = SourceReport::of(&ledger);
    assert_eq!(
        (report.expected, report.delivered),
        (FAR + 2, 5),
        "{report:?}"
    );
    assert_eq!((report.lost_total(), report.rejected), (FAR - 3, 0));
}

/// An event in the stream. Packet numbers are relative to the highest one so far.
#[derive(Clone, Copy, Debug)]
enum Event {
    Packet(i64),
    Damaged(i64),
    Gap(u64),
    /// Linux has dropped this many more packets.
    Drops(u64),
    Tick,
    Read,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => Just(Event::Packet(1)),
        4 => (-20_i64..20).prop_map(Event::Packet),
        1 => (-8_i64..8).prop_map(Event::Damaged),
        3 => (20_u64..400).prop_map(Event::Gap),
        1 => (0_u64..2).prop_map(Event::Drops),
        1 => Just(Event::Tick),
        2 => Just(Event::Read),
    ];
    prop::collection::vec(event, 1..120)
}

/// Returns the internal state of a window that is not part of the report.
fn inside(bench: &Bench) -> String {
    let (shared, sequencer) = (&bench.window.shared, &bench.window.state.sequencer);
    let load = |word: &crate::sync::AtomicU64| word.load(Ordering::Relaxed);
    format!(
        "{:?} {:?}",
        [
            load(&shared.base),
            load(&shared.horizon),
            load(&shared.start),
            load(&shared.finalised)
        ],
        sequencer.as_ref().map(Sequencer::dispositions)
    )
}

proptest! {
    /// Passing a gap in one step must have the same result as passing its frames one by one: the same outcomes, frames,
    /// counters, causes and internal state.
    #[test]
    fn long_gap_in_one_step_equals_many_steps(events in events(), slots in 2_usize..12, window in 1_usize..5, holds: bool, reads_drops: bool) {
        let geometry = Geometry { window, resync_after: 1, max_gap: 2000, ..geometry() };
        let mut benches = [bench(slots, geometry), one_by_one(slots, geometry)];
        let now = Instant::now();
        let (mut top, mut drops) = (1000_u64, 0);
        for (n, event) in (0..).zip(events) {
            let position = match event {
                Event::Packet(by) | Event::Damaged(by) => top.saturating_add_signed(by),
                Event::Gap(by) => top + by,
                _ => top,
            };
            top = top.max(position);
            if let Event::Drops(more) = event {
                drops += more;
            }
            let seen = benches.each_mut().map(|bench| {
                let id = PacketId::of(position);
                let (mut outcome, mut frames) = (None, Vec::new());
                match event {
                    Event::Packet(_) | Event::Gap(_) => {
                        let mut batch = bench.window.batch();
                        if !holds || batch.has_room(id, None) {
                            outcome = Some(batch.place(id, &payload(position), Timestamp::default()));
                        }
                        batch.commit();
                    }
                    Event::Damaged(_) => outcome = Some(bench.window.with_batch(|batch| batch.place_bad(id))),
                    Event::Drops(_) if reads_drops => bench.window.note_drops(drops),
                    Event::Drops(_) => {}
                    Event::Tick => bench.window.tick(now + Duration::from_millis(40) * n),
                    Event::Read => frames = bench.read(),
                }
                (outcome, frames, bench.report(), inside(bench))
            });
            prop_assert_eq!(&seen[0], &seen[1]);
        }
        let ends = benches.each_mut().map(|bench| {
            bench.window.finish();
            (bench.read(), bench.report(), bench.ring_ledger.published.get(), bench.ring_ledger.ring_full.get())
        });
        prop_assert_eq!(&ends[0], &ends[1]);
        prop_assert_eq!(ends[0].1.pending, 0);
    }
}
