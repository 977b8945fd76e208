use super::*;
use crate::frame::{Flags, FrameMeta};
use crate::gpu::Event;
use crate::gpu::bar_mapping::BarMappingError;
use crate::gpu::driver::{CudaError, Rows};
use crate::ledger::{CopyLedger, CopyReport, ReaderLedger, RingLedger};
use crate::notify::{Notifier, Wait};
use crate::region::{HostOptions, Placement, Region};
use crate::ring::{Completion, Producer, Reader, Ring, RingOptions};
use proptest::prelude::*;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod stores;

const SLOT: usize = 192;
const PENDING: u32 = 0;
pub(super) const DONE: u32 = 1;
pub(super) const FAILED: u32 = 2;

#[derive(Debug, Default)]
struct FakeEvent(AtomicU32);

fn fault() -> CudaError {
    CudaError {
        what: "copying".to_owned(),
        code: 719,
        name: "CUDA_ERROR_LAUNCH_FAILED".to_owned(),
        detail: String::new(),
    }
}

impl Event for FakeEvent {
    fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire) != PENDING
    }

    fn failure(&self) -> Option<CudaError> {
        (self.0.load(Ordering::Acquire) == FAILED).then(fault)
    }
}

/// A copy of rows: target address, source address, rows.
type Copy = (u64, u64, Rows);

#[derive(Debug, Default)]
struct Queue {
    /// Copies that belong to the next event.
    open: Vec<Copy>,
    marked: Vec<(Vec<Copy>, Arc<FakeEvent>)>,
    /// Size in bytes of each started copy.
    sizes: Vec<usize>,
    refuses: bool,
}

/// A simulated device. It reads the source and copies only when a test calls [`finish`](Self::finish).
#[derive(Clone, Debug, Default)]
pub(super) struct Device(Arc<Mutex<Queue>>);

impl Device {
    /// Completes the oldest copy with the result `how`. Returns false if no copy is in flight.
    pub(super) fn finish(&self, how: u32) -> bool {
        let mut queue = self.0.lock().unwrap();
        if queue.marked.is_empty() {
            return false;
        }
        let (copies, fake_event) = queue.marked.remove(0);
        for (to, from, rows) in copies.into_iter().filter(|_| how == DONE) {
            for row in 0..rows.count {
                let at = |address: u64| {
                    std::ptr::with_exposed_provenance_mut::<u8>(
                        usize::try_from(address).unwrap() + row * rows.pitch,
                    )
                };
                // SAFETY: the ring copy guarantees that both ranges are alive, and that nothing else writes them until the
                // event is done.
                unsafe { at(from).copy_to_nonoverlapping(at(to), rows.bytes) };
            }
        }
        fake_event.0.store(how, Ordering::Release);
        true
    }

    fn in_flight(&self) -> usize {
        self.0.lock().unwrap().marked.len()
    }
}

impl CopyMethod for Device {
    unsafe fn copy(&self, to: u64, from: u64, rows: Rows) -> Result<(), StagingError> {
        let mut queue = self.0.lock().unwrap();
        if queue.refuses {
            return Err(fault().into());
        }
        queue.open.push((to, from, rows));
        queue.sizes.push(rows.bytes * rows.count);
        Ok(())
    }

    fn record_event(&self) -> Result<Completion, StagingError> {
        let mut queue = self.0.lock().unwrap();
        let fake_event = Arc::new(FakeEvent::default());
        let copies = std::mem::take(&mut queue.open);
        queue.marked.push((copies, fake_event.clone()));
        Ok(Completion::Event(fake_event))
    }
}

/// The memory of a ring that the CPU stores to, and the offset and size of each store.
#[derive(Clone, Debug)]
struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    stored: Arc<Mutex<Vec<(usize, usize)>>>,
    lost: Arc<AtomicBool>,
}

// SAFETY: only the ring copy that owns this value writes the memory, and tests read only leased frames.
unsafe impl Send for Memory {}

impl Memory {
    fn of(ring: &Ring) -> Self {
        Self {
            base: ring.region().address(),
            bytes: ring.region().bytes(),
            stored: Arc::default(),
            lost: Arc::default(),
        }
    }

    fn stored(&self) -> Vec<(usize, usize)> {
        std::mem::take(&mut self.stored.lock().unwrap())
    }
}

impl CopyMethod for Memory {
    fn division(&self) -> Division {
        Division::Lines
    }

    unsafe fn copy(&self, to: u64, from: u64, rows: Rows) -> Result<(), StagingError> {
        if self.lost.load(Ordering::Relaxed) {
            return Err(lost());
        }
        let offset = usize::try_from(to).unwrap() - self.base.addr().get();
        assert!(
            offset + rows.extent() <= self.bytes,
            "the store is outside the memory"
        );
        self.stored.lock().unwrap().push((offset, rows.bytes));
        let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(from).unwrap());
        // SAFETY: the range is inside the region, which the ring keeps alive. The slots are reserved.
        unsafe {
            self.base
                .add(offset)
                .as_ptr()
                .copy_from_nonoverlapping(from, rows.bytes);
        };
        Ok(())
    }

    fn record_event(&self) -> Result<Completion, StagingError> {
        Ok(Completion::Immediate)
    }
}

fn lost() -> StagingError {
    let (offset, bytes, have) = (0, 0, 0);
    BarMappingError::Outside {
        offset,
        bytes,
        have,
    }
    .into()
}

/// Creates a copy engine thread without ring copies over a simulated device.
fn thread(
    chunk: usize,
    depth: usize,
    cpu_store_threshold: usize,
) -> (Device, CopyEngineThread, Arc<Notifier>) {
    let (device, notifier) = (Device::default(), Arc::new(Notifier::default()));
    let tuning = Tuning {
        cpu_store_threshold,
        chunk,
        depth,
        rate: 1e9,
        overhead: Duration::ZERO,
    };
    let copy_engine = CopyEngineThread::new(Box::new(device.clone()), tuning, notifier.clone());
    (device, copy_engine, notifier)
}

/// Creates a copy engine thread with one ring copy.
fn fixture(
    slots: (usize, usize),
    chunk: usize,
    depth: usize,
    cpu_store_threshold: usize,
) -> (Device, CopyEngineThread, Ends) {
    let (device, mut copy_engine, notifier) = thread(chunk, depth, cpu_store_threshold);
    let ends = Ends::new(slots, chunk, &mut copy_engine, &notifier);
    (device, copy_engine, ends)
}

fn ring(
    name: &str,
    slots: usize,
    placement: Placement,
    notifier: &Arc<Notifier>,
) -> (Ring, Producer) {
    let options = RingOptions {
        packets_per_frame: 70,
        notifiers: vec![notifier.clone()],
        ..RingOptions::new(name, slots, SLOT)
    };
    let region = match placement {
        Placement::Host => Region::host(options.region_bytes(), HostOptions::default()).unwrap(),
        gpu @ Placement::Cuda(_) => Region::fake(options.region_bytes(), gpu),
    };
    Ring::new(region, options, RingLedger::default()).unwrap()
}

/// The source's producer and the target's reader of a ring copy between two rings.
struct Ends {
    source: Producer,
    target: Ring,
    reader: Reader,
    ledger: CopyLedger,
    /// The ledger of the source's reader.
    read: ReaderLedger,
    /// The target's memory, to which the CPU stores frames below the threshold.
    memory: Memory,
    made: u64,
    seen: u64,
}

/// Returns the expected bytes of frame `n`.
fn content(n: u64) -> Vec<u8> {
    let length = usize::try_from(n * 37 % (SLOT as u64 + 1)).unwrap();
    (0..length as u64)
        .map(|i| u8::try_from((n + i * 3) % 251).unwrap())
        .collect()
}

fn meta(n: u64) -> FrameMeta {
    FrameMeta {
        packets_per_frame: 70,
        arrived: 60,
        flags: Flags::INCOMPLETE,
        epoch: 3,
        ..FrameMeta::whole(n, content(n).len())
    }
}

impl Ends {
    /// Creates the ends of a ring copy that `make` creates.
    fn with<T>(
        slots: (usize, usize),
        notifier: &Arc<Notifier>,
        make: impl FnOnce(Reader, Producer, CopyLedger, Option<Box<dyn CopyMethod>>) -> T,
    ) -> (T, Self) {
        let (from, source) = ring("from", slots.0, Placement::Host, notifier);
        let (target, producer) = ring("to", slots.1, Placement::Cuda(0), notifier);
        let (ledger, read) = (CopyLedger::default(), ReaderLedger::default());
        let reader = target.attach(true, 1, ReaderLedger::default()).unwrap();
        let copied = from.attach(true, 1, read.clone()).unwrap();
        let memory = Memory::of(&target);
        let stores = Some(Box::new(memory.clone()) as _);
        let made = make(copied, producer, ledger.clone(), stores);
        let ends = Self {
            memory,
            source,
            target,
            reader,
            ledger,
            read,
            made: 0,
            seen: 0,
        };
        (made, ends)
    }

    fn new(
        slots: (usize, usize),
        chunk: usize,
        copy_engine: &mut CopyEngineThread,
        notifier: &Arc<Notifier>,
    ) -> Self {
        let (ring_copy, ends) = Self::with(slots, notifier, |reader, producer, ledger, stores| {
            RingCopy::chunked(reader, producer, ledger, chunk, stores)
        });
        copy_engine.add(ring_copy);
        ends
    }

    fn make(&mut self, frames: usize) {
        let mut slots = self.source.reserve(frames);
        while slots.remaining() > 0 {
            let bytes = content(self.made);
            slots.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(&bytes);
            slots.finish_with(meta(self.made), &[u64::MAX ^ self.made, 0b10_0101]);
            self.made += 1;
        }
        slots.publish();
    }

    /// Checks the frames that have arrived. The target is host memory that simulates GPU memory, so the test can read
    /// its bytes.
    fn take(&mut self, max: usize) {
        let Some(lease) = self.reader.poll(max) else {
            return;
        };
        for frame in lease.iter() {
            assert_eq!(*frame.meta(), meta(self.seen));
            assert_eq!(frame.present().words(), [u64::MAX ^ self.seen, 0b10_0101]);
            assert_eq!(frame.bytes(), None, "the CPU must not read GPU memory");
            let wanted = content(self.seen);
            // SAFETY: the frame is leased, and its memory is mapped in this process.
            let bytes = unsafe { std::slice::from_raw_parts(frame.address(), wanted.len()) };
            assert_eq!(bytes, wanted, "frame {}", self.seen);
            self.seen += 1;
        }
    }

    fn balances(&self) {
        let ledger = &self.ledger;
        let settled = ledger.frames.get() + ledger.failed.get();
        assert!(ledger.started.get() >= settled);
        assert_eq!(self.target.published(), ledger.frames.get());
        let classes: u64 = CopyReport::of(ledger, "", "").sizes.iter().sum();
        assert_eq!(classes, ledger.copies.get());
    }
}

proptest! {
    #[test]
    fn frames_are_copied_intact_and_in_order(
        slots in (2_usize..9, 2_usize..9),
        chunk in 1_usize..5,
        depth in 1_usize..4,
        cpu_store_threshold in prop::sample::select(vec![0, SLOT / 2, SLOT, 2 * SLOT, usize::MAX]),
        script in prop::collection::vec((0_usize..6, 0_u8..4), 1..80),
    ) {
        let (device, mut copy_engine, mut ends) = fixture(slots, chunk * SLOT, depth, cpu_store_threshold);
        for (count, what) in script {
            match what {
                0 => ends.make(count),
                1 => { device.finish(DONE); }
                2 => ends.take(count),
                _ => { copy_engine.step().unwrap(); }
            }
            prop_assert!(device.in_flight() <= depth);
            ends.balances();
        }
        // The remaining frames arrive after the device has completed all copies. Then the target closes.
        let Ends { source, reader, seen, made, ledger, target, read, memory } = ends;
        drop(source);
        let mut rest = Ends { source: ring("none", 2, Placement::Host, &Arc::default()).1, reader, seen, made, ledger, target, read, memory };
        while copy_engine.step().unwrap() != Step::Finished {
            device.finish(DONE);
            rest.take(usize::MAX);
        }
        rest.take(usize::MAX);
        prop_assert_eq!(rest.seen, rest.made);
        prop_assert!(rest.reader.is_finished());
        prop_assert_eq!(rest.read.read.get(), rest.made);
        prop_assert_eq!(rest.ledger.started.get(), rest.made);
        let stored = rest.ledger.stored.get();
        prop_assert!(stored <= rest.made);
        match cpu_store_threshold {
            0 => prop_assert_eq!(stored, 0),
            usize::MAX => prop_assert_eq!(stored, rest.made),
            _ => {}
        }
    }
}

#[test]
fn ready_frames_are_batched_behind_copies_in_flight() {
    let (device, mut copy_engine, mut ends) = fixture((64, 64), 1 << 20, 2, 0);
    // Some of the frames 5 to 9 fill most of their slot and others little of it. All frames of a burst are copied
    // together.
    for frames in [1, 1, 3, 9] {
        ends.make(frames);
        copy_engine.step().unwrap();
    }
    // Two copies are in flight, and twelve frames wait until another copy can start.
    assert_eq!(device.in_flight(), 2);
    assert_eq!(ends.ledger.started.get(), 2);
    device.finish(DONE);
    copy_engine.step().unwrap();
    assert_eq!((device.in_flight(), ends.ledger.started.get()), (2, 14));
    assert_eq!(ends.ledger.frames.get(), 1);
    while device.finish(DONE) {}
}

#[test]
fn ring_copies_are_served_in_turn() {
    let (device, mut copy_engine, notifier) = thread(2 * SLOT, 1, 0);
    let mut ring_copies: Vec<_> = (0..3)
        .map(|_| Ends::new((32, 32), 2 * SLOT, &mut copy_engine, &notifier))
        .collect();
    ring_copies[0].make(30);
    ring_copies[1].make(30);
    ring_copies[2].make(4);
    let mut served = Vec::new();
    for _ in 0..8 {
        let before: Vec<_> = ring_copies
            .iter()
            .map(|ring_copy| ring_copy.ledger.started.get())
            .collect();
        copy_engine.step().unwrap();
        let at = ring_copies
            .iter()
            .zip(&before)
            .position(|(ring_copy, before)| ring_copy.ledger.started.get() > *before);
        served.push(at.unwrap());
        assert!(device.finish(DONE));
    }
    assert_eq!(served, [0, 1, 2, 0, 1, 2, 0, 1]);
}

#[test]
fn small_ring_copy_is_served_beside_saturated_one() {
    let (device, mut copy_engine, notifier) = thread(2 * SLOT, 4, 0);
    let mut ring_copies: Vec<_> = (0..2)
        .map(|_| Ends::new((64, 64), 2 * SLOT, &mut copy_engine, &notifier))
        .collect();
    ring_copies[1].make(1);
    for _ in 0..20 {
        ring_copies[0].make(64);
        copy_engine.step().unwrap();
        device.finish(DONE);
        ring_copies[0].take(usize::MAX);
    }
    assert_eq!(ring_copies[1].ledger.started.get(), 1);
    while device.finish(DONE) {}
}

#[test]
fn reader_without_guarantee_sees_frames_of_busy_copy() {
    for slots in [2, 8, 32] {
        let (device, mut copy_engine, mut ends) = fixture((64, slots), 1 << 20, 8, 0);
        let (ledger, mut seen) = (ReaderLedger::default(), 0);
        let mut idle = ends.target.attach(false, 1, ledger.clone()).unwrap();
        for _ in 0..200 {
            ends.make(64);
            copy_engine.step().unwrap();
            device.finish(DONE);
            copy_engine.step().unwrap();
            seen += idle.poll(usize::MAX).map_or(0, |lease| lease.len());
            ends.take(usize::MAX);
        }
        assert!(seen > 0, "{slots} slots, overrun {}", ledger.overrun.get());
        while device.finish(DONE) {}
    }
}

#[test]
fn frames_without_payload_are_not_copied() {
    let (device, mut copy_engine, mut ends) = fixture((8, 8), 1 << 20, 1, 0);
    let mut slots = ends.source.reserve(2);
    slots.finish(FrameMeta::whole(0, 0));
    slots.finish(FrameMeta::whole(1, 0));
    slots.publish();
    copy_engine.step().unwrap();
    device.finish(DONE);
    copy_engine.step().unwrap();
    assert_eq!(ends.target.published(), 2);
    assert_eq!(device.0.lock().unwrap().sizes, [0; 0]);
}

#[test]
fn copy_completed_after_failed_copy_is_not_published() {
    let (device, mut copy_engine, mut ends) = fixture((32, 32), 2 * SLOT, 3, 0);
    ends.make(6);
    copy_engine.step().unwrap();
    assert_eq!(device.in_flight(), 3);
    device.finish(FAILED);
    assert_eq!(copy_engine.step(), Err(fault().into()));
    device.finish(DONE);
    device.finish(DONE);
    copy_engine.discard();
    assert_eq!((ends.target.published(), ends.ledger.failed.get()), (0, 6));
}

#[test]
fn short_frames_are_copied_without_padding() {
    let (device, mut copy_engine, mut ends) = fixture((64, 64), 1 << 20, 1, 0);
    let mut slots = ends.source.reserve(8);
    for n in 0..8 {
        slots.bytes_mut().unwrap()[..16].fill(7);
        slots.finish(FrameMeta::whole(n, 16));
    }
    slots.publish();
    copy_engine.step().unwrap();
    device.finish(DONE);
    copy_engine.step().unwrap();
    assert_eq!(ends.ledger.bytes.get(), 8 * 16);
    assert_eq!(ends.target.published(), 8);
}

#[test]
fn device_failure_loses_copies_in_flight_and_publishes_nothing() {
    for refused in [false, true] {
        let (device, mut copy_engine, mut ends) = fixture((32, 32), 2 * SLOT, 2, 0);
        ends.make(10);
        copy_engine.step().unwrap();
        device.finish(DONE);
        if refused {
            device.0.lock().unwrap().refuses = true;
        } else {
            device.finish(FAILED);
        }
        assert_eq!(copy_engine.step(), Err(fault().into()));
        // One of the copies was rejected or has failed. The other copies may end in any way.
        while device.finish(FAILED) {}
        ends.make(3);
        assert!(!copy_engine.discard(), "the source has not ended");
        let Ends {
            source,
            ledger,
            read,
            target,
            ..
        } = ends;
        drop(source);
        assert!(copy_engine.discard());
        assert_eq!((ledger.frames.get(), target.published()), (2, 2));
        assert_eq!(ledger.started.get(), 2 + ledger.failed.get());
        assert_eq!(
            read.read.get() + read.discarded.get(),
            13,
            "refused {refused}"
        );
    }
}

#[test]
fn wait_ends_on_frame_copy_or_timeout() {
    for policy in [Wait::Busy, Wait::Adaptive] {
        let (device, mut copy_engine, mut ends) = fixture((8, 8), 1 << 20, 1, 0);
        copy_engine.wait(policy, Duration::from_millis(1));
        ends.make(1);
        copy_engine.wait(policy, Duration::from_mins(10));
        assert_eq!(copy_engine.step(), Ok(Step::Busy));
        copy_engine.wait(policy, Duration::from_millis(1));
        device.finish(DONE);
        copy_engine.wait(policy, Duration::from_mins(10));
        assert_eq!(copy_engine.step(), Ok(Step::Busy));
        drop(ends);
        copy_engine.wait(policy, Duration::from_mins(10));
        assert_eq!(copy_engine.step(), Ok(Step::Finished));
    }
}
