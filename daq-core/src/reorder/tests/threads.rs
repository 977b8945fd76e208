//! Tests of several threads that fill one window.

use super::pair::{Pair, put};
use super::*;

/// A thread that lags far behind the others opens no epoch backwards. After the others stop, its packets are accepted.
#[test]
fn lagging_thread_is_not_restart() {
    let Pair {
        mut sequencer,
        other: mut lagging,
        ledger,
        ..
    } = Pair::new(64, geometry());
    for sequence in 1000..1040 {
        assert_eq!(put(&mut sequencer, sequence), Outcome::Placed);
    }
    for step in 0..20 {
        let outcome = put(&mut lagging, 900 + step);
        assert!(matches!(outcome, Outcome::Kept | Outcome::Rejected));
        assert_eq!(put(&mut sequencer, 1040 + step), Outcome::Placed);
    }
    lagging.finish();
    let report = SourceReport::of(&ledger);
    assert_eq!(
        (report.epochs, report.rejected, report.expected),
        (1, 20, 60)
    );
    // After the other thread has stopped, consistent packets of the sequencer open an epoch.
    for sequence in 0..6 {
        put(&mut sequencer, sequence);
    }
    assert_eq!(SourceReport::of(&ledger).epochs, 2);
}

/// Several threads fill one window with interleaved flows.
#[test]
fn threads_share_one_window() {
    const PACKETS: u64 = 40_000;
    let geometry = Geometry {
        window: 4,
        ..Geometry::new(PACKETS_PER_FRAME, BYTES)
    };
    // The ring has a slot for every frame, because the reading thread may be descheduled until all are written.
    let slots = usize::try_from(PACKETS).unwrap() / PACKETS_PER_FRAME as usize;
    let options = RingOptions {
        packets_per_frame: PACKETS_PER_FRAME,
        supports_backpressure: false,
        ..RingOptions::new("raw", slots, geometry.frame_bytes)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    let ledger = SourceLedger::default();
    let mut windows = ReorderWindow::new(producer, geometry, 3, &ledger);
    let stop = std::sync::atomic::AtomicU64::new(0);
    let progress: Vec<_> = (0..2)
        .map(|_| std::sync::atomic::AtomicU64::new(0))
        .collect();
    let mut frames = 0;
    std::thread::scope(|scope| {
        let mut sequencer = windows.remove(0);
        let (stop, progress) = (&stop, &progress);
        scope.spawn(move || {
            while stop.load(Ordering::Acquire) < 2 {
                sequencer.tick(Instant::now());
                std::thread::yield_now();
            }
            sequencer.finish();
        });
        for (flow, mut window) in windows.into_iter().enumerate() {
            scope.spawn(move || {
                for i in 0..PACKETS / 2 {
                    // No flow may be ahead of the other by more than the window.
                    while progress[1 - flow].load(Ordering::Acquire) + 8 < i {
                        std::thread::yield_now();
                    }
                    let sequence = i * 2 + flow as u64;
                    window.with_batch(|batch| {
                        batch.place(
                            PacketId::of(sequence),
                            &payload(sequence),
                            Timestamp::default(),
                        )
                    });
                    progress[flow].store(i, Ordering::Release);
                }
                progress[flow].store(u64::MAX / 2, Ordering::Release);
                stop.fetch_add(1, Ordering::AcqRel);
            });
        }
        while !reader.is_finished() {
            if let Some(lease) = reader.poll(1) {
                let frame = lease.frame(0);
                for index in 0..PACKETS_PER_FRAME {
                    if frame.present().is_present(index) {
                        let sequence =
                            frame.meta().sequence * u64::from(PACKETS_PER_FRAME) + u64::from(index);
                        let range = index as usize * BYTES..(index as usize + 1) * BYTES;
                        assert_eq!(frame.bytes().unwrap()[range], payload(sequence));
                    }
                }
                frames += 1;
            } else {
                std::thread::yield_now();
            }
        }
    });
    let report = SourceReport::of(&ledger);
    assert_eq!(report.expected, report.delivered + report.lost_total());
    let others = report.rejected + report.before_start;
    assert_eq!(report.expected + others, PACKETS, "{report:?}");
    assert!(others < 8, "{report:?}");
    assert!(frames >= PACKETS / u64::from(PACKETS_PER_FRAME) - 2);
}

/// A thread that is not the sequencer skips a unit, then continues with the next unit.
#[test]
fn unit_skipped_by_other_thread_is_known_before_next_packet() {
    const UNITS: u64 = 400;
    let geometry = Geometry {
        numbering: Numbering {
            packets_per_unit: PACKETS_PER_FRAME,
            ..Numbering::PLAIN
        },
        ..geometry()
    };
    let Pair {
        mut sequencer,
        mut other,
        ledger,
        ..
    } = Pair::new(512, geometry);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for unit in 0..UNITS {
                if unit % 2 == 1 {
                    other.skip(unit);
                    continue;
                }
                for sub in 0..PACKETS_PER_FRAME {
                    let id = PacketId { unit, sub };
                    let outcome = other
                        .with_batch(|batch| batch.place(id, &payload(unit), Timestamp::default()));
                    assert_eq!(outcome, Outcome::Placed);
                }
            }
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            sequencer.tick(Instant::now());
            std::thread::yield_now();
        }
        sequencer.finish();
    });
    let report = SourceReport::of(&ledger);
    let packets = UNITS / 2 * u64::from(PACKETS_PER_FRAME);
    assert_eq!(
        (report.expected, report.delivered),
        (packets, packets),
        "{report:?}"
    );
}

/// Strays of another thread are far ahead. The stream continues, and nothing is counted as lost.
#[test]
fn stream_continues_after_strays_of_another_thread() {
    for (strays, own) in [(5, false), (10, false), (10, true), (40, false)] {
        let geometry = Geometry {
            max_gap: 100_000,
            ..geometry()
        };
        let Pair {
            mut sequencer,
            mut other,
            ledger,
            ..
        } = Pair::new(256, geometry);
        for sequence in 0..400 {
            put(&mut sequencer, sequence);
        }
        if own {
            for i in 0..strays {
                put(&mut sequencer, 60_000 + i);
            }
        } else {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    for i in 0..strays {
                        put(&mut other, 60_000 + i);
                    }
                });
                while !thread.is_finished() {
                    sequencer.tick(Instant::now());
                    std::thread::yield_now();
                }
            });
        }
        for sequence in 400..800 {
            put(&mut sequencer, sequence);
        }
        drop(other);
        sequencer.finish();
        let report = SourceReport::of(&ledger);
        let case = format!("{strays} strays, {own}: {report:?}");
        assert_eq!(report.delivered + report.rejected, 800 + strays, "{case}");
        assert!(
            report.delivered >= 800 && report.lost_total() == 0,
            "{case}"
        );
    }
}

/// What a thread of the test receives.
#[derive(Clone, Copy, Debug)]
enum Received {
    /// The next packets of its sender.
    Next(u64),
    /// The sender restarts at this number.
    Restart(u64),
    /// Consecutive packets far ahead, after which the sender continues.
    Strays(u64),
    /// The last packets again.
    Again(u64),
}

fn received() -> impl Strategy<Value = Vec<Received>> {
    let one = prop_oneof![
        6 => (1_u64..40).prop_map(Received::Next),
        1 => prop_oneof![Just(4_u64), 0_u64..2000].prop_map(Received::Restart),
        1 => (1_u64..8).prop_map(Received::Strays),
        1 => (1_u64..8).prop_map(Received::Again),
    ];
    prop::collection::vec(one, 1..30)
}

/// Returns the numbers of the packets that `received` describes.
fn numbers(received: &[Received]) -> Vec<u64> {
    let mut next = 4;
    let mut numbers = Vec::new();
    for one in received {
        match *one {
            Received::Next(packets) => {
                numbers.extend(next..next + packets);
                next += packets;
            }
            Received::Restart(first) => next = first,
            Received::Strays(packets) => numbers.extend(next + 5000..next + 5000 + packets),
            Received::Again(packets) => numbers.extend(next.saturating_sub(packets)..next),
        }
    }
    numbers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Two threads receive restarts, strays and repeats at any time. Neither waits for ever, and every packet is in one count.
    #[test]
    fn threads_account_every_packet_of_restarts(lists in [received(), received()], window in prop_oneof![Just(2_usize), Just(16)]) {
        let geometry = Geometry { window, max_gap: 100, ..geometry() };
        let Pair { mut sequencer, mut other, ledger, .. } = Pair::new(64, geometry);
        let [first, second] = lists.map(|list| numbers(&list));
        let sent = (first.len() + second.len()) as u64;
        let put = |window: &mut ReorderWindow, sequence: u64| {
            window.with_batch(|batch| batch.place(PacketId::of(sequence), &payload(sequence), Timestamp::default()));
            window.tick(Instant::now());
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || second.iter().for_each(|sequence| put(&mut other, *sequence)));
            for sequence in &first {
                put(&mut sequencer, *sequence);
            }
            while !thread.is_finished() {
                sequencer.tick(Instant::now());
                std::thread::yield_now();
            }
        });
        sequencer.finish();
        let report = SourceReport::of(&ledger);
        let lost = |cause| report.lost.get(cause).copied().unwrap_or(0);
        let counted = report.delivered + report.duplicates + report.rejected + report.before_start + lost("late") + lost("ring_full");
        prop_assert_eq!(counted, sent, "{:?}", report);
        prop_assert_eq!(report.expected, report.delivered + report.lost_total());
    }
}
