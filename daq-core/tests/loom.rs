//! Model checking of rings and reorder windows: checks every interleaving of a few threads on small rings.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p daq-core --release --test loom`.
#![cfg(loom)]

use daq_core::frame::{FrameMeta, Timestamp};
use daq_core::gpu::Event;
use daq_core::ledger::{ReaderLedger, RingLedger, SourceLedger, SourceReport};
use daq_core::region::{HostOptions, Region};
use daq_core::reorder::{Geometry, PacketId, ReorderWindow};
use daq_core::ring::{Completion, Producer, Ring, RingOptions};
use loom::sync::atomic::Ordering;
use loom::thread;

/// Checks every interleaving with at most `preemptions` forced thread switches.
fn model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(check);
}

fn ring(slots: usize, supports_backpressure: bool, packets_per_frame: u32) -> (Ring, Producer) {
    let options = RingOptions {
        supports_backpressure,
        packets_per_frame,
        readers: 1,
        ..RingOptions::new("model", slots, 8)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    Ring::new(region, options, RingLedger::default()).unwrap()
}

/// Returns two handles of a reorder window with one open frame.
fn windows(producer: Producer, geometry: Geometry, ledger: &SourceLedger) -> [ReorderWindow; 2] {
    let window = 1;
    let handles = ReorderWindow::new(producer, Geometry { window, ..geometry }, 2, ledger);
    handles.try_into().ok().unwrap()
}

/// Places packet `sequence` with 4 bytes.
fn put(window: &mut ReorderWindow, sequence: u64) {
    window.with_batch(|batch| {
        batch.place(PacketId::of(sequence), &[1; 4], Timestamp::default());
    });
}

/// Publishes `frames` frames and counts frames without a free slot as refused. Returns the number of published frames.
fn produce(mut producer: Producer, frames: u64) -> u64 {
    for sequence in 0..frames {
        if producer.claim(1) == 1 {
            producer.describe(0, &FrameMeta::whole(sequence, 8), std::iter::empty());
            producer.publish(1);
        } else {
            producer.refuse(1);
        }
    }
    producer.published()
}

/// A guaranteed reader receives every published frame, unchanged and in order. `Lease::frame` reads the canary, which
/// loom checks for races with the producer.
#[test]
fn reader_with_guarantee_sees_every_frame() {
    model(3, || {
        let (ring, producer) = ring(2, false, 0);
        let ledger = ReaderLedger::default();
        let mut reader = ring.attach(true, 1, ledger.clone()).unwrap();
        let writer = thread::spawn(move || produce(producer, 4));
        let mut seen = Vec::new();
        while !reader.is_finished() {
            match reader.poll(2) {
                Some(lease) => seen.extend(lease.iter().map(|frame| frame.meta().sequence)),
                None => thread::yield_now(),
            }
        }
        let published = writer.join().unwrap();
        assert_eq!(seen.len() as u64, published);
        assert!(seen.is_sorted());
        assert_eq!((ledger.read.get(), ledger.overrun.get()), (published, 0));
    });
}

/// With an unguaranteed reader and a producer with backpressure, leased frames do not change and missed frames are
/// counted.
#[test]
fn leased_slots_with_backpressure_are_not_overwritten() {
    model(3, || {
        let (ring, producer) = ring(2, true, 0);
        let ledger = ReaderLedger::default();
        let mut reader = ring.attach(false, 1, ledger.clone()).unwrap();
        let writer = thread::spawn(move || produce(producer, 4));
        let mut seen = 0;
        for _ in 0..2 {
            if let Some(lease) = reader.poll(1) {
                let _ = lease.frame(0);
                seen += lease.len() as u64;
            }
        }
        let published = writer.join().unwrap();
        while let Some(lease) = reader.poll(2) {
            seen += lease.iter().count() as u64;
        }
        assert_eq!(ledger.read.get(), seen);
        assert_eq!(published, seen + ledger.overrun.get());
    });
}

/// Simulated work on a device, which is done when its flag is set.
#[derive(Default)]
struct Work(loom::sync::atomic::AtomicBool);

impl Event for Work {
    fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Frames that a device still reads do not change while their reader leases more frames.
#[test]
fn leases_in_flight_keep_their_slots() {
    model(3, || {
        let (ring, mut producer) = ring(2, true, 0);
        let ledger = ReaderLedger::default();
        let mut reader = ring.attach(false, 1, ledger.clone()).unwrap();
        producer.claim(1);
        producer.describe(0, &FrameMeta::whole(0, 8), std::iter::empty());
        producer.publish(1);
        let writer = thread::spawn(move || {
            for _ in 0..2 {
                // Claim two slots together, so that the claim can announce slots that it must release again.
                for i in 0..producer.claim(2) {
                    let meta = FrameMeta::whole(producer.published() + i, 8);
                    producer.describe(i, &meta, std::iter::empty());
                }
                producer.publish(producer.open());
            }
        });
        let work = std::sync::Arc::new(Work::default());
        let (mut held, mut missed) = (0, 0);
        for _ in 0..3 {
            if let Some(lease) = reader.poll(1) {
                let _ = lease.frame(0);
                lease.retire(Completion::Event(work.clone()));
                // The producer may have overrun the reader before the first lease, but never after it.
                if held == 0 {
                    missed = ledger.overrun.get();
                }
                held += 1;
            }
        }
        assert!(held <= 2, "a leased slot was overwritten");
        assert!(held == 0 || ledger.overrun.get() == missed);
        work.0.store(true, Ordering::Release);
        reader.reap(|_| {});
        drop(reader);
        writer.join().unwrap();
    });
}

/// A reader that attaches while frames are published never sees a slot that is being written.
#[test]
fn reader_attached_while_running_is_consistent() {
    model(3, || {
        let (ring, producer) = ring(2, false, 0);
        let writer = thread::spawn(move || produce(producer, 3));
        let ledger = ReaderLedger::default();
        let mut reader = ring.attach(true, 1, ledger.clone()).unwrap();
        let mut seen = 0;
        if let Some(lease) = reader.poll(2) {
            seen += lease.iter().count() as u64;
        }
        let published = writer.join().unwrap();
        while let Some(lease) = reader.poll(2) {
            seen += lease.iter().count() as u64;
        }
        assert_eq!(published, ledger.attached.get() + seen);
    });
}

/// Two threads write packets into one window, and one of them closes frames. No packet is written after its frame was
/// published, and every packet is counted.
#[test]
fn writers_and_sequencer_share_one_window() {
    model(3, || {
        let (ring, producer) = ring(4, false, 2);
        let mut reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
        let ledger = SourceLedger::default();
        let [mut sequencer, mut writer] = windows(producer, Geometry::new(2, 4), &ledger);
        // Start the epoch before the other thread begins.
        put(&mut sequencer, 0);
        let other = thread::spawn(move || {
            put(&mut writer, 1);
            drop(writer);
        });
        put(&mut sequencer, 2);
        other.join().unwrap();
        sequencer.finish();
        let report = SourceReport::of(&ledger);
        assert_eq!(report.expected, 3);
        assert_eq!(report.expected, report.delivered + report.lost_total());
        drop(sequencer);
        let mut frames = 0;
        while let Some(lease) = reader.poll(1) {
            frames += lease.len();
        }
        assert_eq!(frames, 2);
    });
}

/// The window skips a long gap in one step while another thread writes a packet before the gap. No packet is written
/// after its frame was published, and every packet is counted.
#[test]
fn long_gap_while_other_thread_writes_is_handled() {
    model(3, || {
        let (_ring, producer) = ring(4, false, 2);
        let ledger = SourceLedger::default();
        let geometry = Geometry {
            resync_after: 2,
            max_gap: 100,
            ..Geometry::new(2, 4)
        };
        let [mut sequencer, mut writer] = windows(producer, geometry, &ledger);
        put(&mut sequencer, 0);
        let other = thread::spawn(move || put(&mut writer, 1));
        // The second packet after the gap confirms the first.
        put(&mut sequencer, 40);
        put(&mut sequencer, 41);
        other.join().unwrap();
        sequencer.finish();
        let report = SourceReport::of(&ledger);
        assert_eq!((report.expected, report.pending, report.epochs), (42, 0, 1));
        assert_eq!(report.expected, report.delivered + report.lost_total());
    });
}

/// Two threads receive the same packet. One thread writes it, the other counts a duplicate, and no byte is written
/// twice.
#[test]
fn packet_from_two_writers_is_placed_once() {
    model(3, || {
        let (_ring, producer) = ring(4, false, 2);
        let ledger = SourceLedger::default();
        let [mut sequencer, mut writer] = windows(producer, Geometry::new(2, 4), &ledger);
        put(&mut sequencer, 0);
        let other = thread::spawn(move || put(&mut writer, 1));
        put(&mut sequencer, 1);
        other.join().unwrap();
        sequencer.finish();
        let report = SourceReport::of(&ledger);
        assert_eq!(
            (report.expected, report.delivered, report.duplicates),
            (2, 2, 1)
        );
    });
}

/// One thread confirms an epoch while the sequencer places packets of the old numbers. The request is not lost, and every packet
/// is in one count.
#[test]
fn epoch_of_another_thread_is_opened_once() {
    model(3, || {
        let (_ring, producer) = ring(4, false, 2);
        let ledger = SourceLedger::default();
        let geometry = Geometry {
            resync_after: 2,
            ..Geometry::new(2, 4)
        };
        let [mut sequencer, mut writer] = windows(producer, geometry, &ledger);
        put(&mut sequencer, 0);
        let other = Thread::of(move || {
            put(&mut writer, 1000);
            put(&mut writer, 1001);
        });
        put(&mut sequencer, 1);
        other.wait(&mut sequencer);
        put(&mut sequencer, 1002);
        put(&mut sequencer, 1003);
        sequencer.finish();
        let report = SourceReport::of(&ledger);
        assert_eq!(report.expected, report.delivered + report.lost_total());
        assert_eq!((report.epochs, counted(&report)), (2, 6), "{report:?}");
    });
}

/// Two threads confirm different epochs at the same time, so that one of them replaces the other's. Every packet is in one count.
#[test]
fn epochs_of_two_threads_replace_each_other() {
    model(2, || {
        let (_ring, producer) = ring(4, false, 2);
        let ledger = SourceLedger::default();
        let geometry = Geometry {
            resync_after: 2,
            ..Geometry::new(2, 4)
        };
        let [mut sequencer, mut writer] = windows(producer, geometry, &ledger);
        put(&mut sequencer, 0);
        let other = Thread::of(move || {
            for sequence in [1000, 1001] {
                put(&mut writer, sequence);
            }
        });
        for sequence in [5000, 5001] {
            put(&mut sequencer, sequence);
        }
        other.wait(&mut sequencer);
        sequencer.finish();
        let report = SourceReport::of(&ledger);
        assert_eq!(report.expected, report.delivered + report.lost_total());
        assert_eq!(counted(&report), 5, "{report:?}");
    });
}

/// A thread that fills the window, and whether it has ended.
struct Thread {
    handle: thread::JoinHandle<()>,
    has_ended: loom::sync::Arc<loom::sync::atomic::AtomicBool>,
}

impl Thread {
    fn of(fill: impl FnOnce() + 'static) -> Self {
        let has_ended = loom::sync::Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let ended = has_ended.clone();
        let handle = thread::spawn(move || {
            fill();
            ended.store(true, Ordering::Release);
        });
        Self { handle, has_ended }
    }

    /// Does the sequencer's work until the thread has ended, which may wait for an epoch.
    fn wait(self, sequencer: &mut ReorderWindow) {
        while !self.has_ended.load(Ordering::Acquire) {
            sequencer.tick(std::time::Instant::now());
            thread::yield_now();
        }
        self.handle.join().unwrap();
    }
}

/// Returns the number of packets that arrived, by their counts.
fn counted(report: &SourceReport) -> u64 {
    let lost = ["late", "ring_full"].map(|cause| report.lost.get(cause).copied().unwrap_or(0));
    report.delivered
        + report.rejected
        + report.duplicates
        + report.before_start
        + lost.iter().sum::<u64>()
}
