//! Tests of consistent packets far ahead of the stream: a long gap, or strays after which the stream continues as before.

use super::epochs::metas;
use super::*;

const MAX_GAP: u64 = 10_000;

fn leaping() -> Geometry {
    Geometry {
        max_gap: MAX_GAP,
        ..geometry()
    }
}

/// Places the packets `sequences`, and returns the number that were not placed or kept.
fn put_all(bench: &mut Bench, sequences: impl IntoIterator<Item = u64>) -> usize {
    let outcomes = sequences.into_iter().map(|sequence| bench.put(sequence));
    outcomes
        .filter(|outcome| !matches!(outcome, Outcome::Placed | Outcome::Kept))
        .count()
}

#[test]
fn stream_continues_after_strays_within_the_maximum_gap() {
    for ahead in [40, 600, MAX_GAP - 1, MAX_GAP + 1000] {
        for strays in [3, 4, 5, 20] {
            for first in [1000, 1002] {
                let mut bench = bench(1024, leaping());
                assert_eq!(put_all(&mut bench, 0..first), 0);
                assert_eq!(
                    put_all(&mut bench, first + ahead..first + ahead + strays),
                    0
                );
                assert_eq!(put_all(&mut bench, first..first + 200), 0);
                bench.window.finish();
                let report = bench.report();
                let case = format!("{strays} packets {ahead} ahead of {first}: {report:?}");
                assert_eq!(report.delivered, first + 200 + strays, "{case}");
                assert_eq!((report.lost_total(), report.rejected), (0, 0), "{case}");
                assert_eq!(report.expected, report.delivered, "{case}");
            }
        }
    }
}

/// The stream reaches the numbers of the strays later, and they are delivered again.
/// Strays are behind the stream, so they open an epoch. The stream then continues in another one, and no number between is lost.
#[test]
fn stream_continues_after_strays_behind_it() {
    for strays in [3, 4, 6] {
        let mut bench = bench(256, leaping());
        put_all(&mut bench, 0..400);
        put_all(&mut bench, 100..100 + strays);
        put_all(&mut bench, 400..800);
        bench.window.finish();
        let report = bench.report();
        let case = format!("{strays} strays: {report:?}");
        assert_eq!((report.lost_total(), report.skipped), (0, 0), "{case}");
        assert_eq!(
            report.delivered + report.rejected + report.duplicates,
            800 + strays,
            "{case}"
        );
        assert!(report.delivered >= 800, "{case}");
    }
}

#[test]
fn numbers_of_strays_arrive_later() {
    let mut bench = bench(1024, leaping());
    put_all(&mut bench, (0..100).chain(500..504).chain(100..800));
    bench.window.finish();
    let report = bench.report();
    assert_eq!(
        (report.delivered, report.lost_total()),
        (804, 0),
        "{report:?}"
    );
    assert_eq!((report.rejected, report.duplicates), (0, 0));
    let frames = bench.read();
    let last: Vec<_> = frames
        .iter()
        .map(|frame| (frame.0, frame.1))
        .skip(24)
        .collect();
    assert_eq!(last[..3], [(24, 1), (125, 1), (25, 2)]);
    assert!(frames.iter().all(|frame| frame.2.len() == 4), "{frames:?}");
}

/// Strays that repeat with growing distances, before the stream continues.
#[test]
fn several_groups_of_strays_are_no_gaps() {
    let mut bench = bench(1024, leaping());
    put_all(&mut bench, 0..100);
    for group in 1..=20 {
        put_all(&mut bench, (0..4).map(|i| 500 * group + i));
    }
    put_all(&mut bench, 100..200);
    bench.window.finish();
    let report = bench.report();
    assert_eq!(report.delivered, 200 + 20 * 4, "{report:?}");
    assert_eq!((report.lost_total(), report.rejected), (0, 0), "{report:?}");
}

#[test]
fn gap_is_counted_once_the_stream_has_continued() {
    let mut bench = bench(256, leaping());
    put_all(&mut bench, (0..6).chain(500..504));
    let now = Instant::now();
    bench.window.tick(now);
    assert_eq!(bench.report().expected, 10, "strays are possible");
    put_all(&mut bench, 504..540);
    bench.window.tick(now + Duration::from_millis(100));
    assert_eq!(bench.report().lost_total(), 0, "strays are possible");
    bench.window.tick(now + Duration::from_secs(2));
    let report = bench.report();
    assert_eq!((report.expected, report.delivered), (540, 46));
    assert_eq!(report.lost, lost(&[("wire_gap", 494)]));
    // A packet of the gap is now too late.
    assert_eq!(bench.put(300), Outcome::Rejected);
}

#[test]
fn gap_before_the_end_is_counted() {
    let mut bench = bench(256, leaping());
    put_all(&mut bench, (0..6).chain(501..505));
    bench.window.finish();
    let report = bench.report();
    assert_eq!((report.expected, report.delivered), (505, 10));
    assert_eq!(
        (report.lost, report.epochs),
        (lost(&[("wire_gap", 495)]), 1)
    );
    let metas = metas(&mut bench);
    let frames: Vec<_> = metas
        .iter()
        .map(|meta| {
            (
                meta.sequence,
                meta.arrived,
                meta.flags.contains(Flags::TRUNCATED),
            )
        })
        .collect();
    assert_eq!(
        frames,
        [
            (0, 4, false),
            (1, 2, false),
            (125, 3, false),
            (126, 1, true)
        ]
    );
}

#[test]
fn long_gap_is_attributed_to_kernel_drops_in_front_of_it() {
    let mut bench = bench(256, leaping());
    bench.window.note_drops(0);
    put_all(&mut bench, 0..6);
    put_all(&mut bench, 500..504);
    bench.window.note_drops(1);
    put_all(&mut bench, 504..540);
    let now = Instant::now();
    bench.window.tick(now);
    bench.window.tick(now + Duration::from_secs(2));
    assert_eq!(bench.report().lost, lost(&[("kernel_drop", 494)]));
}

proptest! {
    /// Wherever strays arrive, every packet is in one count, no counter decreases, and no number that arrives is lost.
    #[test]
    fn strays_cost_no_packet(groups in prop::collection::vec((1_u64..60, 1_u64..3000, 1_u64..12), 1..8)) {
        let mut bench = bench(4096, leaping());
        let (mut next, mut sent, mut before) = (0, 0, SourceReport::default());
        for (good, ahead, strays) in groups {
            let near = (next + 30).max(next + ahead);
            for sequence in (next..next + good).chain(near + good..near + good + strays) {
                bench.put(sequence);
                sent += 1;
                let now = bench.report();
                prop_assert_eq!(now.expected, now.delivered + now.pending + now.lost_total());
                prop_assert!(now.expected >= before.expected && now.lost_total() >= before.lost_total());
                before = now;
            }
            next += good;
        }
        bench.window.finish();
        let report = bench.report();
        let counted = report.delivered + report.rejected + report.duplicates + report.before_start + report.lost.get("late").unwrap_or(&0);
        prop_assert_eq!(counted, sent, "{:?}", report);
    }
}
