//! Tests of threads that fall behind the others, or that the machine delays.

use super::pair::{Pair, put};
use super::*;
use crate::frame::Clock;
use std::sync::atomic::AtomicU64;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a window of two threads whose numbers have 16 bits.
fn narrow() -> Pair {
    let geometry = Geometry {
        window: 8,
        max_gap: 10_000,
        numbering: Numbering {
            width: 16,
            ..Numbering::PLAIN
        },
        ..geometry()
    };
    Pair::new(256, geometry)
}

/// A thread without packets for more than half of the number range continues when its packets arrive again.
#[test]
fn thread_continues_after_half_of_the_number_range() {
    const OWN: u64 = 40_000;
    const SHARED: u64 = 300;
    let Pair {
        mut sequencer,
        mut other,
        ledger,
        ..
    } = narrow();
    let next = AtomicU64::new(0);
    let wait_for = |sequence, tick: &mut dyn FnMut()| {
        while next.load(Ordering::Acquire) != sequence {
            tick();
            std::thread::yield_now();
        }
    };
    for sequence in 0..8 {
        assert_eq!(put(&mut sequencer, sequence), Outcome::Placed);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 8..OWN {
                put(&mut other, sequence);
            }
            next.store(OWN, Ordering::Release);
            for sequence in (OWN + 1..OWN + SHARED).step_by(2) {
                wait_for(sequence, &mut || ());
                assert_eq!(put(&mut other, sequence), Outcome::Placed);
                next.store(sequence + 1, Ordering::Release);
            }
        });
        for sequence in (OWN..OWN + SHARED).step_by(2) {
            wait_for(sequence, &mut || sequencer.tick(Instant::now()));
            assert_eq!(put(&mut sequencer, sequence), Outcome::Placed);
            next.store(sequence + 1, Ordering::Release);
        }
        wait_for(OWN + SHARED, &mut || sequencer.tick(Instant::now()));
    });
    sequencer.finish();
    let report = SourceReport::of(&ledger);
    assert_eq!((report.rejected, report.lost_total()), (0, 0), "{report:?}");
}

/// Strays are strays also if the sequencer has received no packet for more than half of the number range.
#[test]
fn sequencer_without_packets_holds_gaps() {
    const PACKETS: u64 = 40_000;
    let Pair {
        mut sequencer,
        mut other,
        ledger,
        ..
    } = narrow();
    for sequence in 0..8 {
        put(&mut sequencer, sequence);
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let strays = PACKETS + 5000..PACKETS + 5004;
            for sequence in (8..PACKETS).chain(strays).chain(PACKETS..PACKETS + 4000) {
                put(&mut other, sequence);
            }
        });
        while !thread.is_finished() {
            sequencer.tick(Instant::now());
            std::thread::yield_now();
        }
    });
    sequencer.finish();
    let report = SourceReport::of(&ledger);
    assert!(report.delivered >= PACKETS + 3900, "{report:?}");
}

/// The refusal of one thread's request does not let strays of another thread end the stream.
#[test]
fn refusal_of_another_request_crosses_no_gap() {
    let geometry = Geometry {
        max_gap: 100_000,
        window: 4,
        ..geometry()
    };
    let Pair {
        mut sequencer,
        mut other,
        ledger,
        ..
    } = Pair::new(256, geometry);
    for sequence in (0..402).chain([5_000_000, 5_000_001]) {
        put(&mut sequencer, sequence);
    }
    let shared = sequencer.shared.clone();
    let has_returned = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let has_returned = &has_returned;
        let thread = scope.spawn(move || {
            // The sequencer pins the window while it waits for this thread, before it opens the epoch.
            while shared.pins[0].load(Ordering::Acquire) == shared::IDLE
                && !has_returned.load(Ordering::Acquire)
            {
                std::thread::yield_now();
            }
            for sequence in [402, 60_000, 60_001, 60_002, 60_003] {
                put(&mut other, sequence);
            }
        });
        put(&mut sequencer, 5_000_002);
        has_returned.store(true, Ordering::Release);
        while !thread.is_finished() {
            sequencer.tick(Instant::now());
            std::thread::yield_now();
        }
    });
    for sequence in 403..5403 {
        put(&mut sequencer, sequence);
    }
    sequencer.finish();
    let report = SourceReport::of(&ledger);
    assert!(report.delivered >= 5300, "{report:?}");
}

/// The time without packets begins with the last packet.
#[test]
fn frame_stays_open_for_the_whole_time() {
    let Pair {
        mut sequencer,
        mut other,
        ..
    } = Pair::new(
        16,
        Geometry {
            window: 4,
            ..geometry()
        },
    );
    let start = Instant::now();
    put(&mut sequencer, 0);
    for _ in 0..2 {
        other.tick(start);
        sequencer.tick(start);
    }
    for sequence in [1, 3, 4] {
        put(&mut sequencer, sequence);
    }
    sequencer.tick(start + ms(45));
    for at in [50, 100, 144] {
        other.tick(start + ms(at));
        sequencer.tick(start + ms(at));
    }
    assert_eq!(put(&mut other, 2), Outcome::Placed);
}

/// A thread that the machine wakes late reads the packet that woke it after its tick.
#[test]
fn tick_after_waking_is_no_poll() {
    let Pair {
        mut sequencer,
        mut other,
        ..
    } = Pair::new(
        16,
        Geometry {
            window: 4,
            ..geometry()
        },
    );
    let start = Instant::now();
    for sequence in [0, 1, 3, 4] {
        put(&mut sequencer, sequence);
    }
    for at in [0, 50] {
        other.tick(start + ms(at));
        sequencer.tick(start + ms(at));
    }
    for at in 51..300 {
        sequencer.tick(start + ms(at));
    }
    other.tick(start + ms(300));
    sequencer.tick(start + ms(300));
    assert_eq!(put(&mut other, 2), Outcome::Placed);
}

/// Frames stay open while a thread does not poll its socket, in which their packets may wait. They are closed once all threads have
/// polled for `close_after`.
#[test]
fn frame_waits_for_delayed_thread() {
    let geometry = Geometry {
        window: 4,
        close_after: Duration::from_millis(400),
        ..geometry()
    };
    let Pair {
        mut sequencer,
        other: mut delayed,
        ring,
        ledger,
    } = Pair::new(8, geometry);
    let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    let mut published = || std::iter::from_fn(|| reader.poll(1).map(drop)).count();
    let mut now = Instant::now();
    let mut pass = |window: &mut ReorderWindow| {
        now += Duration::from_millis(50);
        window.tick(now);
    };
    for sequence in [0, 1, 3, 4, 8] {
        put(&mut sequencer, sequence);
    }
    (0..200).for_each(|_| pass(&mut sequencer));
    assert_eq!(published(), 0);
    assert_eq!(put(&mut delayed, 2), Outcome::Placed);
    let mut pass_both = |times: u32| {
        for _ in 0..times {
            pass(&mut delayed);
            pass(&mut sequencer);
        }
    };
    pass_both(7);
    assert_eq!(published(), 1, "frame 0 is complete");
    pass_both(3);
    assert_eq!(published(), 1, "frame 1 was open for long enough");
    pass_both(100);
    let report = SourceReport::of(&ledger);
    assert_eq!(report.lost, lost(&[("wire_gap", 3)]));
    // The frame of the last packet is open.
    assert_eq!((report.delivered, report.pending), (5, 1));
}

/// A delayed thread reads packets of the old numbering after another thread has opened an epoch.
#[test]
fn packets_received_before_an_epoch_open_no_further_epoch() {
    const BEGAN: u64 = 10_000_000_000;
    let put_at = |window: &mut ReorderWindow, sequence: u64, ns| {
        window.with_batch(|batch| {
            batch.received_at(Timestamp {
                ns,
                clock: Clock::Kernel,
            });
            let time = Timestamp::default();
            batch.place(PacketId::of(sequence), &payload(sequence), time)
        })
    };
    // The clock may have been set back by seconds.
    for (received, epochs) in [
        (BEGAN - 1, 2),
        (BEGAN + 1, 3),
        (0, 3),
        (BEGAN - 2_000_000_000, 3),
    ] {
        let Pair {
            mut sequencer,
            mut other,
            ledger,
            ..
        } = Pair::new(256, geometry());
        for sequence in 0..40 {
            put_at(&mut sequencer, sequence, BEGAN - 1);
        }
        for sequence in 5_000_000..5_000_008 {
            put_at(&mut sequencer, sequence, BEGAN + sequence - 5_000_000);
        }
        assert_eq!(SourceReport::of(&ledger).epochs, 2);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for sequence in 40..48 {
                    put_at(&mut other, sequence, received);
                }
            });
            while !thread.is_finished() {
                sequencer.tick(Instant::now());
                std::thread::yield_now();
            }
        });
        sequencer.finish();
        let report = SourceReport::of(&ledger);
        assert_eq!(report.epochs, epochs, "{received}: {report:?}");
        let rejected = if epochs == 2 { 8 } else { 0 };
        assert_eq!(
            (report.rejected, report.delivered),
            (rejected, 56 - rejected),
            "{received}: {report:?}"
        );
    }
}
