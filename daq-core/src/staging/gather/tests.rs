use super::*;
use crate::gpu::driver::Rows;
use crate::ledger::{CopyReport, ReaderLedger, ReaderReport, RingLedger};
use crate::region::{HostOptions, Region};
use crate::ring::{Fill, Reader, Ring, RingOptions};
use crate::staging::tests::{DONE, Device, FAILED};
use crate::staging::{CopyEngineThread, CopyMethod, RingCopy, Selection, between};
use proptest::prelude::*;

const MATRIX: Matrix = Matrix {
    rows: 6,
    row_bytes: 24,
};
const BYTES: usize = 6 * 24;
const SLOTS: usize = 8;

fn tuning(frames: usize) -> Tuning {
    Tuning {
        chunk: frames * 192,
        depth: 4,
        rate: 1e9,
        overhead: Duration::ZERO,
        cpu_store_threshold: 0,
    }
}

/// A ring in host memory, its producer and its ledger.
fn ring(name: &str, slot: usize, fill: Fill) -> (Ring, Producer, RingLedger) {
    let options = RingOptions {
        packets_per_frame: 70,
        fill,
        ..RingOptions::new(name, SLOTS, slot)
    };
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let ledger = RingLedger::default();
    let (ring, producer) = Ring::new(region, options, ledger.clone()).unwrap();
    (ring, producer, ledger)
}

fn content(frame: u64) -> Vec<u8> {
    (0..BYTES as u64)
        .map(|at| u8::try_from((frame * 31 + at * 7) % 251).unwrap())
        .collect()
}

/// Returns the bytes of `tile` in `frame`.
fn part(frame: &[u8], tile: &Tile) -> Vec<u8> {
    let rows = tile.rows.clone();
    rows.flat_map(|row| {
        let start = row * MATRIX.row_bytes;
        frame[start + tile.columns.start..start + tile.columns.end].to_vec()
    })
    .collect()
}

fn put(producer: &mut Producer, meta: FrameMeta, bytes: &[u8]) -> bool {
    let mut slots = producer.reserve(1);
    let Some(slot) = slots.bytes_mut() else {
        return false;
    };
    slot[..bytes.len()].copy_from_slice(bytes);
    slots.finish_with(meta, &[u64::MAX - meta.sequence, 0x15]);
    slots.publish() == 1
}

fn whole(frame: u64, length: usize) -> FrameMeta {
    FrameMeta {
        packets_per_frame: 70,
        arrived: 69,
        ..FrameMeta::whole(frame, length)
    }
}

fn rows(count: usize) -> Vec<Tile> {
    let height = MATRIX.rows / count;
    (0..count)
        .map(|i| Tile {
            rows: i * height..(i + 1) * height,
            columns: 0..MATRIX.row_bytes,
        })
        .collect()
}

fn columns(count: usize) -> Vec<Tile> {
    let width = MATRIX.row_bytes / count;
    (0..count)
        .map(|i| Tile {
            rows: 0..MATRIX.rows,
            columns: i * width..(i + 1) * width,
        })
        .collect()
}

/// Rings that are the shares of one ring.
struct Shares {
    rings: Vec<Ring>,
    tiles: Option<Vec<Tile>>,
}

impl Shares {
    /// Creates the shares and their producers.
    fn new(count: usize, tiles: Option<Vec<Tile>>) -> (Self, Vec<Producer>) {
        let slot = |i: usize| tiles.as_ref().map_or(BYTES, |tiles| tiles[i].bytes());
        let made = (0..count).map(|i| ring(&format!("share{i}"), slot(i), Fill::ZERO));
        let (rings, producers) = made.map(|(ring, producer, _)| (ring, producer)).unzip();
        (Self { rings, tiles }, producers)
    }

    fn readers(&self) -> Vec<Reader> {
        let rings = self.rings.iter();
        rings
            .map(|ring| ring.attach(true, 1, ReaderLedger::default()).unwrap())
            .collect()
    }

    /// Creates a gather of the shares to `target` with one method for each share.
    fn gather(
        &self,
        (target, producer): (&Ring, Producer),
        tile: Option<Tile>,
        overflow: Overflow,
        method: impl Fn(usize, &Ring, &Ring) -> Box<dyn CopyMethod>,
    ) -> (Gather, CopyLedger) {
        let ledger = CopyLedger::default();
        let shares = self
            .readers()
            .into_iter()
            .enumerate()
            .map(|(i, reader)| Share {
                reader,
                method: method(i, &self.rings[i], target),
                tile: self.tiles.as_ref().map(|tiles| tiles[i].clone()),
            });
        let joins = tile.map_or(Joins::Frames, |target| Joins::Tiles {
            matrix: MATRIX,
            target,
        });
        let gather = Gather::new(
            shares.collect(),
            producer,
            ledger.clone(),
            joins,
            (overflow, MissingFill::Cpu),
            &tuning(4),
            Arc::default(),
        );
        (gather, ledger)
    }
}

fn by_cpu(_: usize, from: &Ring, to: &Ring) -> Box<dyn CopyMethod> {
    between(from.region(), to.region(), 4).unwrap().unwrap()
}

/// Creates the copies from `source` to its shares.
fn scatter(source: &Ring, shares: &Shares, producers: Vec<Producer>) -> Vec<CopyEngineThread> {
    let count = producers.len();
    let copies = producers.into_iter().enumerate().map(|(index, producer)| {
        let selection = match &shares.tiles {
            None => Selection::Turns { index, count },
            Some(tiles) => Selection::Tile {
                matrix: MATRIX,
                tile: tiles[index].clone(),
            },
        };
        let method = by_cpu(0, source, &shares.rings[index]);
        let reader = source.attach(true, 1, ReaderLedger::default()).unwrap();
        let pair = (reader, producer);
        let mut thread = CopyEngineThread::new(method, tuning(2), Arc::default());
        let ledger = CopyLedger::default();
        thread.add(RingCopy::selecting(
            pair,
            ledger,
            512,
            selection,
            Overflow::Wait,
        ));
        thread
    });
    copies.collect()
}

/// Reads the frames that are ready, and returns their metadata and bytes.
fn read(reader: &mut Reader) -> Vec<(FrameMeta, Vec<u8>, u64)> {
    let Some(lease) = reader.poll(usize::MAX) else {
        return Vec::new();
    };
    let frames = lease.iter();
    frames
        .map(|frame| {
            let words = frame.present().words();
            let word = words.first().copied().unwrap_or(0);
            (*frame.meta(), frame.bytes().unwrap().to_vec(), word)
        })
        .collect()
}

/// Sends `frames` frames through shares, optionally through other shares, to one ring. Returns what arrives there.
fn through(
    frames: u64,
    (count, tiles): (usize, Option<Vec<Tile>>),
    turned: Option<Vec<Tile>>,
    order: &[u8],
) -> Vec<(FrameMeta, Vec<u8>, u64)> {
    let (source, mut input, _) = ring("source", BYTES, Fill::ZERO);
    let (shares, producers) = Shares::new(count, tiles);
    let mut threads: Vec<Box<dyn CopyThread>> = Vec::new();
    let scattered = scatter(&source, &shares, producers).into_iter();
    threads.extend(scattered.map(|thread| Box::new(thread) as _));
    let (target, producer, _) = ring("target", BYTES, Fill::ZERO);
    let mut reader = target.attach(true, 1, ReaderLedger::default()).unwrap();
    let tile = shares.tiles.as_ref().map(|_| MATRIX.whole());
    let last = if let Some(tiles) = turned {
        let (others, producers) = Shares::new(tiles.len(), Some(tiles.clone()));
        for (i, producer) in producers.into_iter().enumerate() {
            let to = (&others.rings[i], producer);
            let tile = Some(tiles[i].clone());
            threads.push(Box::new(shares.gather(to, tile, Overflow::Wait, by_cpu).0));
        }
        others
    } else {
        shares
    };
    let (gather, ledger) = last.gather((&target, producer), tile, Overflow::Wait, by_cpu);
    threads.push(Box::new(gather));
    let (mut made, mut got) = (0, Vec::new());
    let mut turns = order.iter().cycle();
    while let Some(turn) = turns.next()
        && !reader.is_finished()
    {
        if made < frames {
            made += u64::from(put(&mut input, whole(made, BYTES), &content(made)));
        }
        if made == frames {
            input.close();
        }
        // One thread is ahead of the others.
        if let Some(thread) = threads.get_mut(usize::from(*turn)) {
            thread.step().unwrap();
        }
        threads.retain_mut(|thread| thread.step().unwrap() != Step::Finished);
        got.extend(read(&mut reader));
    }
    got.extend(read(&mut reader));
    let report = CopyReport::of(&ledger, "shares", "target");
    assert_eq!(
        (report.frames, report.failed, report.pending),
        (frames, 0, 0)
    );
    got
}

fn assert_same(got: &[(FrameMeta, Vec<u8>, u64)], frames: u64) {
    assert_eq!(got.len() as u64, frames);
    for (n, (meta, bytes, _)) in (0..).zip(got) {
        assert_eq!((meta.sequence, meta.length), (n, BYTES));
        assert_eq!(*bytes, content(n), "frame {n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_of_several_memories_are_in_order_again(
        frames in 0..40u64,
        count in 1..5usize,
        order in proptest::collection::vec(any::<u8>(), 1..20),
    ) {
        let got = through(frames, (count, None), None, &order);
        assert_same(&got, frames);
        for (meta, _, word) in got {
            prop_assert_eq!((meta.packets_per_frame, meta.arrived), (70, 69));
            prop_assert_eq!(word, u64::MAX - meta.sequence);
        }
    }

    #[test]
    fn corner_turns_lose_no_byte(
        frames in 0..20u64,
        (from, to) in (1..4usize, prop::sample::select(vec![1, 2, 3, 4])),
        is_column in any::<bool>(),
        order in proptest::collection::vec(any::<u8>(), 1..20),
    ) {
        let (a, b) = if is_column { (columns(from), rows(to.min(3))) } else { (rows(from), columns(to)) };
        let got = through(frames, (from, Some(a.clone())), None, &order);
        assert_same(&got, frames);
        let got = through(frames, (from, Some(a)), Some(b), &order);
        assert_same(&got, frames);
    }
}

#[test]
fn missing_shares_are_filled_and_marked() {
    let tiles = columns(2);
    let (shares, mut producers) = Shares::new(2, Some(tiles.clone()));
    let (target, producer, _) = ring("target", BYTES, Fill::byte(0xee));
    let mut reader = target.attach(true, 1, ReaderLedger::default()).unwrap();
    let to = (&target, producer);
    let (mut gather, _) = shares.gather(to, Some(MATRIX.whole()), Overflow::Wait, by_cpu);
    let put_part = |producers: &mut Vec<Producer>, share: usize, frame: u64| {
        let bytes = part(&content(frame), &tiles[share]);
        assert!(put(
            &mut producers[share],
            whole(frame, bytes.len()),
            &bytes
        ));
    };
    for frame in [0, 1, 3] {
        put_part(&mut producers, 0, frame);
    }
    put_part(&mut producers, 1, 0);
    gather.step().unwrap();
    // Frame 1 waits until it is certain that its second share is missing.
    assert_eq!(read(&mut reader).len(), 1);
    put_part(&mut producers, 1, 2);
    gather.step().unwrap();
    let got = read(&mut reader);
    let filled = |frame: u64, missing: usize| {
        let mut bytes = content(frame);
        for row in bytes.chunks_mut(MATRIX.row_bytes) {
            row[tiles[missing].columns.clone()].fill(0xee);
        }
        bytes
    };
    assert_eq!(got[0].0.sequence, 1);
    assert_eq!(got[0].1, filled(1, 1));
    assert!(got[0].0.is_incomplete());
    assert_eq!(got[1].1, filled(2, 0));
    // The second share ends.
    producers.truncate(1);
    gather.step().unwrap();
    let got = read(&mut reader);
    assert_eq!(got[0].1, filled(3, 1));
    drop(producers);
    assert_eq!(gather.step().unwrap(), Step::Finished);
}

#[test]
fn slow_shares_are_late_if_they_may_not_block() {
    let tiles = rows(2);
    let (shares, mut producers) = Shares::new(2, Some(tiles.clone()));
    let (target, producer, _) = ring("target", BYTES, Fill::ZERO);
    let mut reader = target.attach(true, 1, ReaderLedger::default()).unwrap();
    let to = (&target, producer);
    let (mut gather, _) = shares.gather(to, Some(MATRIX.whole()), Overflow::Discard, by_cpu);
    let mut put_part = |share: usize, frame: u64| {
        let bytes = part(&content(frame), &tiles[share]);
        assert!(put(
            &mut producers[share],
            whole(frame, bytes.len()),
            &bytes
        ));
    };
    let mut sequences = Vec::new();
    for frame in 0..SLOTS as u64 / 2 {
        put_part(0, frame);
        gather.step().unwrap();
        sequences.extend(read(&mut reader).iter().map(|(meta, ..)| meta.sequence));
    }
    assert_eq!(
        sequences,
        [0],
        "one frame went on when the ring was half full"
    );
    // The late share of frame 0 is discarded, and frame 1 is complete.
    put_part(1, 0);
    put_part(1, 1);
    gather.step().unwrap();
    let got = read(&mut reader);
    assert_eq!((got[0].0.sequence, got[0].0.is_incomplete()), (1, false));
    assert_eq!(got[0].1, content(1));
}

#[test]
fn failed_device_loses_only_its_share() {
    let (shares, mut producers) = Shares::new(2, Some(rows(2)));
    let (target, producer, _) = ring("target", BYTES, Fill::ZERO);
    let mut reader = target.attach(true, 1, ReaderLedger::default()).unwrap();
    let devices = [Device::default(), Device::default()];
    let method = |i: usize, _: &Ring, _: &Ring| Box::new(devices[i].clone()) as _;
    let to = (&target, producer);
    let (mut gather, ledger) = shares.gather(to, Some(MATRIX.whole()), Overflow::Discard, method);
    let mut put_frame = |frame: u64| {
        for (producer, tile) in producers.iter_mut().zip(rows(2)) {
            let bytes = part(&content(frame), &tile);
            assert!(put(producer, whole(frame, bytes.len()), &bytes));
        }
    };
    put_frame(0);
    gather.step().unwrap();
    put_frame(1);
    gather.step().unwrap();
    assert!(devices[0].finish(DONE) && devices[1].finish(DONE));
    gather.step().unwrap();
    assert_eq!(read(&mut reader).len(), 1);
    // The second device fails while frame 1 is copied.
    assert!(devices[1].finish(FAILED));
    gather.step().unwrap();
    put_frame(2);
    gather.step().unwrap();
    assert!(
        read(&mut reader).is_empty(),
        "the copy of the first device is still in flight"
    );
    assert!(devices[0].finish(DONE));
    gather.step().unwrap();
    assert!(devices[0].finish(DONE));
    gather.step().unwrap();
    let got = read(&mut reader);
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].0.sequence, got[0].0.is_incomplete()), (2, true));
    assert_eq!(got[0].1[..BYTES / 2], content(2)[..BYTES / 2]);
    assert!(got[0].1[BYTES / 2..].iter().all(|byte| *byte == 0));
    let report = CopyReport::of(&ledger, "shares", "target");
    assert_eq!((report.started, report.frames, report.failed), (3, 2, 1));
    drop(producers);
    assert_eq!(gather.step().unwrap(), Step::Finished);
}

#[test]
fn failure_ends_a_gather_that_must_not_lose_frames() {
    let (shares, mut producers) = Shares::new(2, None);
    let (target, producer, _) = ring("target", BYTES, Fill::ZERO);
    let devices = [Device::default(), Device::default()];
    let method = |i: usize, _: &Ring, _: &Ring| Box::new(devices[i].clone()) as _;
    let (mut gather, ledger) = shares.gather((&target, producer), None, Overflow::Wait, method);
    for frame in 0..4u64 {
        let share = usize::from(frame % 2 == 1);
        assert!(put(
            &mut producers[share],
            whole(frame, BYTES),
            &content(frame)
        ));
    }
    gather.step().unwrap();
    assert!(devices[0].finish(FAILED));
    assert!(gather.step().is_err());
    while devices[0].finish(FAILED) || devices[1].finish(DONE) {}
    drop(producers);
    while !gather.discard() {}
    let report = CopyReport::of(&ledger, "shares", "target");
    assert_eq!(report.started, report.failed);
    assert_eq!((report.frames, report.pending), (0, 0));
}

/// A copy method that records how many calls it gets.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<std::sync::atomic::AtomicUsize>);

impl CopyMethod for Counted {
    unsafe fn copy(&self, _: u64, _: u64, _: Rows) -> Result<(), StagingError> {
        Ok(())
    }

    unsafe fn copy_block(
        &self,
        _: u64,
        _: u64,
        _: crate::gpu::driver::Block,
    ) -> Result<(), StagingError> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn record_event(&self) -> Result<Completion, StagingError> {
        Ok(Completion::Immediate)
    }
}

#[test]
fn ready_frames_are_copied_together() {
    let (shares, mut producers) = Shares::new(2, None);
    let (target, producer, _) = ring("target", BYTES, Fill::ZERO);
    let counted = Counted::default();
    let method = |_: usize, _: &Ring, _: &Ring| Box::new(counted.clone()) as _;
    let (mut gather, _) = shares.gather((&target, producer), None, Overflow::Wait, method);
    for frame in 0..4u64 {
        let share = usize::from(frame % 2 == 1);
        assert!(put(
            &mut producers[share],
            whole(frame, BYTES),
            &content(frame)
        ));
    }
    gather.burst = 4;
    gather.step().unwrap();
    assert_eq!(counted.0.load(std::sync::atomic::Ordering::Relaxed), 2);
}

#[test]
fn slow_target_discards_frames_of_one_share_only() {
    let (source, mut input, of_source) = ring("source", BYTES, Fill::ZERO);
    let (shares, mut producers) = Shares::new(2, None);
    let read_by = ReaderLedger::default();
    let reader = source.attach(true, 1, read_by.clone()).unwrap();
    let (index, count) = (1, 2);
    // The share has a reader that never reads.
    let _blocks = shares.rings[1]
        .attach(true, 1, ReaderLedger::default())
        .unwrap();
    let selection = Selection::Turns { index, count };
    let pair = (reader, producers.remove(1));
    let ledger = CopyLedger::default();
    let copy = RingCopy::selecting(pair, ledger.clone(), 4096, selection, Overflow::Discard);
    let method = by_cpu(0, &source, &shares.rings[1]);
    let mut thread = CopyEngineThread::new(method, tuning(2), Arc::default());
    thread.add(copy);
    for frame in 0..100u64 {
        assert!(
            put(&mut input, whole(frame, BYTES), &content(frame)),
            "frame {frame} is blocked"
        );
        thread.step().unwrap();
    }
    let report = ReaderReport::of(&read_by, "source", &of_source);
    let copied = CopyReport::of(&ledger, "source", "share1");
    assert_eq!(copied.frames, SLOTS as u64);
    // Each second frame belongs to the share, also the last one.
    let own = 50 - report.pending.div_ceil(2);
    assert_eq!(report.discarded, own - copied.frames);
    assert_eq!(report.read + report.discarded + report.pending, 100);
}
