//! Tests the history with reports of a simulated run.

use super::*;
use daq_core::ledger::ReaderReport;
use proptest::prelude::*;

const START: u64 = 1_763_942_400;

fn history(now: u64) -> History {
    let sources = [("adc".to_owned(), "raw".to_owned())].into();
    History::new(sources, vec!["raw".to_owned()], now)
}

fn started(now: u64) -> History {
    let history = history(now);
    history.start(None).unwrap();
    history
}

/// A report with `expected` packets, of which `lost` never arrived.
fn report(expected: u64, lost: u64) -> Report {
    let mut report = Report::default();
    let mut source = SourceReport {
        expected,
        delivered: expected - lost,
        bytes: 100 * (expected - lost),
        epochs: 1,
        ..SourceReport::default()
    };
    if lost > 0 {
        source.lost.insert("wire_gap", lost);
    }
    report.sources.insert("adc".to_owned(), source);
    let ring = RingReport {
        capacity: 8,
        published: expected / 10,
        ..RingReport::default()
    };
    report.rings.insert("raw".to_owned(), ring);
    let reader = ReaderReport {
        ring: "raw".to_owned(),
        pending: expected % 20,
        ..ReaderReport::default()
    };
    report.readers.insert("disk".to_owned(), reader);
    report
}

fn total(column: &Column) -> u64 {
    column.iter().flatten().sum()
}

#[test]
fn buckets_contain_the_differences_of_counters() {
    let history = started(START);
    for (second, expected, lost) in [(0, 10, 0), (0, 15, 0), (1, 30, 2), (4, 40, 2)] {
        history.record(&report(expected, lost), START + second);
    }
    let answer = history.answer(Span::Minutes, START);
    assert_eq!((answer.step, answer.start), (1, START));
    let adc = &answer.sources["adc"];
    // The bucket in progress is left out. A second without a check of the counters is known to be empty.
    assert_eq!(adc.numbers.expected, [Some(15), Some(15), Some(0), Some(0)]);
    assert_eq!(
        adc.numbers.lost["wire_gap"],
        [Some(0), Some(2), Some(0), Some(0)]
    );
    assert!(adc.numbers.blocked.is_empty());
    let raw = &answer.rings["raw"];
    assert_eq!(raw.numbers.published, [Some(1), Some(2), Some(0), Some(0)]);
    // At most the capacity of the ring.
    assert_eq!(raw.numbers.fill, [Some(8), Some(8), Some(0), Some(0)]);
    assert_eq!(raw.capacity, 8);
    let all = history.answer(Span::Minutes, 0);
    assert_eq!(all.start, START + 4 - 600);
    assert_eq!(all.sources["adc"].numbers.expected.len(), 600);
    assert_eq!(all.sources["adc"].numbers.expected[0], None);
}

#[test]
fn old_buckets_are_dropped() {
    let history = started(START);
    for second in 0..2000 {
        history.record(&report(10 * (second + 1), 0), START + second);
    }
    let answer = history.answer(Span::Minutes, 0);
    let expected = &answer.sources["adc"].numbers.expected;
    assert_eq!((expected.len(), total(expected)), (600, 6000));
    let day = history.answer(Span::Day, START);
    // 33 complete minutes.
    assert_eq!(total(&day.sources["adc"].numbers.expected), 33 * 600);
    history.record(&report(30_000, 0), START + 10 * DAY);
    let day = history.answer(Span::Day, 0);
    assert_eq!(total(&day.sources["adc"].numbers.expected), 0);
    assert_eq!(day.sources["adc"].numbers.expected.len(), DAY_MINUTES);
    assert!(day.marks.is_empty(), "{:?}", day.marks);
}

#[test]
fn restarted_daemon_continues_the_day_and_marks_the_gap() {
    let first = started(START);
    first.record(&report(100, 3), START + 30);
    first.end();
    let text = serde_json::to_vec(&first.saved()).unwrap();
    let second = history(START + 330);
    second.start(Some(file::parse(&text).unwrap())).unwrap();
    second.record(&report(50, 0), START + 330);
    second.record(&report(60, 0), START + 400);
    let day = second.answer(Span::Day, START);
    let adc = &day.sources["adc"];
    let gap = [None; 4];
    let expected = [&[Some(100)][..], &gap, &[Some(50)]].concat();
    assert_eq!(adc.numbers.expected, expected);
    assert_eq!(adc.numbers.lost["wire_gap"][0], Some(3));
    assert_eq!(
        adc.sentence,
        "complete since 00:05:30 UTC; before that 3 packets lost on the wire and 5 min without a record"
    );
    let marks: Vec<_> = day.marks.iter().map(|mark| (mark.at, mark.kind)).collect();
    assert_eq!(
        marks,
        [
            (START, MarkKind::Start),
            (START + 30, MarkKind::Stop),
            (START + 330, MarkKind::Restart)
        ]
    );
    // A run that was killed has no mark of its end.
    let mut killed = second.saved();
    assert!(!killed.ended);
    killed.checked = START + 360;
    let third = history(START + 460);
    third.start(Some(killed)).unwrap();
    let mark = third.answer(Span::Day, 0).marks.pop().unwrap();
    assert!(mark.text.contains("killed"), "{mark:?}");
    assert_eq!(mark.unrecorded, Some(100));
    let later = history(START + 40 + DAY);
    later.start(Some(first.saved())).unwrap();
    let marks = later.answer(Span::Day, 0).marks;
    assert_eq!((marks.len(), marks[0].kind), (1, MarkKind::Start));
}

#[test]
fn restart_in_the_same_minute_continues_the_bucket() {
    let first = started(START);
    first.record(&report(10, 0), START + 1);
    first.end();
    let second = history(START + 5);
    second.start(Some(first.saved())).unwrap();
    second.record(&report(7, 0), START + 6);
    second.record(&report(7, 0), START + 60);
    let day = second.answer(Span::Day, START);
    assert_eq!(day.sources["adc"].numbers.expected, [Some(17)]);
}

#[test]
fn sender_restarts_are_marked() {
    let history = started(START);
    let mut now = report(10, 0);
    history.record(&now, START);
    now.sources.get_mut("adc").unwrap().epochs = 2;
    now.sources.get_mut("adc").unwrap().skipped = 5;
    history.record(&now, START + 1);
    let answer = history.answer(Span::Minutes, 0);
    let mark = answer.marks.last().unwrap();
    assert_eq!(
        (mark.kind, mark.source.as_deref()),
        (MarkKind::Epoch, Some("adc"))
    );
    assert!(mark.text.contains("epoch 2, 5 packets skipped"), "{mark:?}");
    assert_eq!(
        answer.sources["adc"].sentence,
        "losing data: 5 packets skipped by a jump of their numbers in the last 10 s"
    );
}

#[test]
fn clock_that_is_set_back_far_begins_the_history_again() {
    let history = started(START);
    history.record(&report(10, 0), START + 100);
    history.record(&report(20, 0), START + 50);
    assert_eq!(history.answer(Span::Minutes, 0).marks.len(), 1);
    history.record(&report(30, 0), START - DAY);
    history.record(&report(30, 0), START - DAY + 1);
    let answer = history.answer(Span::Minutes, 0);
    assert_eq!(total(&answer.sources["adc"].numbers.expected), 10);
    assert_eq!(answer.marks, []);
}

#[test]
fn unusable_saved_history_is_refused_with_reason() {
    let first = started(START);
    first.record(&report(10, 0), START + 1);
    let saved = first.saved();
    let refused = |change: &dyn Fn(&mut SavedHistory)| {
        let mut changed = saved.clone();
        change(&mut changed);
        let second = history(START + 60);
        let error = second.start(Some(changed)).unwrap_err();
        assert_eq!(second.answer(Span::Day, 0).marks[0].kind, MarkKind::Start);
        error
    };
    assert!(refused(&|saved| saved.format = 9).contains("format 9"));
    assert!(refused(&|saved| saved.minutes.step = 7).contains("another length"));
    assert!(refused(&|saved| saved.minutes.start += 600).contains("future"));
    let short = |saved: &mut SavedHistory| {
        let source = saved.minutes.sources.get_mut("adc").unwrap();
        source.bytes.pop();
    };
    assert!(refused(&short).contains("differ in length"));
}

#[test]
fn file_is_replaced_and_damaged_file_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.history.json");
    let first = history(START);
    let saver = Saver::start(Some(path.clone()), &first).unwrap();
    first.record(&report(10, 0), START + 1);
    saver.end(first.saved());
    let second = history(START + 120);
    let saver = Saver::start(Some(path.clone()), &second).unwrap();
    let day = second.answer(Span::Day, START);
    assert_eq!(total(&day.sources["adc"].numbers.expected), 10);
    saver.end(second.saved());
    let entries = std::fs::read_dir(directory.path()).unwrap();
    assert_eq!(entries.count(), 1, "temporary files are renamed");
    std::fs::write(&path, b"{\"format\":1").unwrap();
    let third = history(START + 180);
    let saver = Saver::start(Some(path.clone()), &third).unwrap();
    assert_eq!(third.answer(Span::Day, 0).marks[0].kind, MarkKind::Start);
    saver.end(third.saved());
    assert!(file::parse(&std::fs::read(&path).unwrap()).is_ok());
}

proptest! {
    /// A file with any damage is refused or used, but stops nothing.
    #[test]
    fn damaged_files_cause_no_panic(at in 0_usize..4000, byte: u8, cut in 0_usize..4000, number: u64) {
        let first = started(START);
        first.record(&report(10, 3), START + 1);
        let mut text = serde_json::to_string(&first.saved()).unwrap();
        text = text.replace(&START.to_string(), &number.to_string());
        let mut bytes = text.into_bytes();
        // Most of the file is columns of nulls, so keep its end.
        let at = bytes.len().saturating_sub(at + 1);
        bytes[at] = byte;
        if number % 2 == 0 {
            bytes.truncate(cut);
        }
        if let Ok(saved) = file::parse(&bytes) {
            let second = history(START + 60);
            let _ = second.start(Some(saved));
            second.record(&report(20, 3), START + 61);
            second.answer(Span::Day, 0);
        }
    }
}
