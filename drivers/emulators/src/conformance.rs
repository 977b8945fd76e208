//! A conformance suite for DMA engines, which drives an engine on an emulated device in this process.
//!
//! ```text
//! use daq_drivers::fpga::engines::xdma::Xdma;
//! daq_emulators::engine_conformance!(Xdma, daq_emulators::DEVICES[0]);
//! ```
//! The macro creates the tests of this module for one engine and one emulated device. The device must fill its slots
//! with the words of [`Pattern::Counter`], as [`Stream`](crate::stream::Stream) creates them, and must follow the
//! [`EmulatedOptions`] `packet`, `packets` and, if it is free-running, `rate` and `fifo`. A test of a fault that the
//! device cannot inject (`stuck`, `remove`) passes without a check.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "panicking is how tests report"
)]

use crate::pattern::{self, Pattern};
use daq_core::dma::{Completions, DmaMap, Done, EngineError, Running, SlotLayout, Stopped};
use daq_core::entry::Registry;
use daq_core::region::{HostOptions, Region};
use daq_core::units::{BitRate, ByteSize};
use daq_drivers::fpga::device::Device;
use daq_drivers::fpga::transports::emulated::{EmulatedDeviceEntry, EmulatedOptions};
use daq_drivers::fpga::{EngineEntry, FpgaEngine, FpgaSource};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Creates the tests of [`conformance`](crate::conformance) for the engine type `$engine` on the emulated device of the
/// entry `$device`. `$keys` are further keys of the source.
#[macro_export]
macro_rules! engine_conformance {
    (@tests $engine:ty, $device:expr, $keys:expr, $($test:ident)*) => {$(
        #[test]
        fn $test() {
            $crate::conformance::$test::<$engine>(const { &$device }, $keys);
        }
    )*};
    ($engine:ty, $device:expr) => {
        $crate::engine_conformance!($engine, $device, "");
    };
    ($engine:ty, $device:expr, $keys:expr) => {
        $crate::engine_conformance!(@tests $engine, $device, $keys,
            frames_arrive_in_order
            short_packets_arrive
            packet_longer_than_slot_is_split
            fault_is_named_and_engine_restarts
            all_slots_are_credited_at_once
            engine_waits_for_credits
            slow_reader_loses_counted_frames
            silent_stream_is_stopped
            stuck_device_is_stopped
            removed_device_is_gone
            engine_restarts_a_hundred_times
        );
    };
}

/// Number of slots and size of a slot in bytes.
const RING: (usize, usize) = (8, 4096);
/// Time after which an operation counts as hanging.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Time in which an engine without credits must not write.
const QUIET: Duration = Duration::from_millis(20);
/// Rate in bits per second of the stream of a free-running engine, and the size of its FIFO.
const RATE: f64 = 8e7;
const FIFO: u64 = 1 << 28;
/// Content of slots that were not written.
const UNWRITTEN: u8 = 0xa5;

/// An engine on an emulated device, with a ring.
struct Bench {
    device: Arc<dyn Device>,
    region: Arc<Region>,
    layout: SlotLayout,
    stopped: Option<Stopped>,
    /// Number of kinds of faults that the engine reports.
    faults: usize,
    has_credits: bool,
}

/// A running engine.
struct Run<'a> {
    bench: &'a Bench,
    running: Running,
    completions: Completions,
    first: usize,
    /// Number of transfers that were reported or skipped.
    transfers: u64,
    overrun: u64,
}

/// A completed transfer with the bytes that it wrote; `None` if they may have been overwritten.
type Frame = (Done, Option<Vec<u8>>);

impl Bench {
    fn new<E: FpgaEngine>(
        device: &'static EmulatedDeviceEntry,
        keys: &str,
        options: EmulatedOptions,
    ) -> Self {
        Self::with_ring::<E>(device, keys, options, RING)
    }

    fn with_ring<E: FpgaEngine>(
        entry: &'static EmulatedDeviceEntry,
        keys: &str,
        mut options: EmulatedOptions,
        (slots, bytes): (usize, usize),
    ) -> Self {
        let registry = Registry::default()
            .with(const { &EngineEntry::of::<E>() })
            .with(entry);
        let name = (entry.name, E::INFO.name);
        let keys = format!(
            "device = \"emulated:{}\"\nengine = \"{}\"\n{keys}",
            name.0, name.1
        );
        let source = FpgaSource::<E>::from_text(&keys, &registry).unwrap();
        let has_credits = E::supports_backpressure(&source.keys);
        if !has_credits {
            options.rate = Some(BitRate(RATE));
            options.fifo = Some(ByteSize(FIFO));
        }
        let device = crate::in_process::open((entry.build)(&options).unwrap()).unwrap();
        let engine = Box::new(source.open(device.clone(), Path::new("")).unwrap());
        let shared = HostOptions {
            shared: true,
            ..HostOptions::default()
        };
        let region = Region::host(slots * bytes, shared).unwrap();
        let map = DmaMap::new(device.clone().as_dma(), region.clone()).unwrap();
        Self {
            device,
            region,
            layout: SlotLayout {
                slots,
                stride: bytes,
                bytes,
            },
            faults: engine.info().faults.len(),
            stopped: Some(Stopped::new(engine, map)),
            has_credits,
        }
    }

    fn try_start(&mut self, first: usize) -> Result<Run<'_>, EngineError> {
        let stopped = self.stopped.take().unwrap();
        let running = stopped
            .start(self.layout, first, None)
            .map_err(|refused| refused.error)?;
        Ok(Run {
            completions: Completions::new(64, self.faults),
            bench: self,
            running,
            first,
            transfers: 0,
            overrun: 0,
        })
    }

    fn start(&mut self, first: usize) -> Run<'_> {
        self.try_start(first).unwrap()
    }

    /// Keeps the engine and the memory for the next start.
    fn keep(&mut self, stopped: Stopped) {
        self.stopped = Some(stopped);
    }

    fn read(&self, slot: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        let offset = (slot * self.layout.stride) as u64;
        rustix::io::pread(self.region.file().unwrap(), &mut read, offset).unwrap();
        read
    }
}

impl Run<'_> {
    fn credit(&mut self, slots: usize) {
        self.running.credit(u32::try_from(slots).unwrap());
    }

    /// Polls once, and returns the completed transfers.
    fn poll(&mut self) -> Result<Vec<Frame>, EngineError> {
        self.completions.clear(64);
        self.running.poll(&mut self.completions)?;
        self.overrun += self.completions.overrun();
        self.transfers += self.completions.overrun();
        let slots = self.bench.layout.slots as u64;
        let mut frames = Vec::new();
        for (done, n) in self.completions.as_slice().iter().zip(self.transfers..) {
            assert!(done.length <= self.bench.layout.bytes, "{done:?}");
            let slot = usize::try_from((self.first as u64 + n) % slots).unwrap();
            frames.push((*done, Some(self.bench.read(slot, done.length))));
        }
        if !self.bench.has_credits {
            let overwritten = self.running.overwritten()?;
            for ((_, bytes), n) in frames.iter_mut().zip(self.transfers..) {
                if n < overwritten {
                    *bytes = None;
                }
            }
        }
        self.transfers += frames.len() as u64;
        Ok(frames)
    }

    /// Polls until a transfer has completed, for at most `limit`.
    fn next_within(&mut self, limit: Duration) -> Result<Vec<Frame>, EngineError> {
        let start = Instant::now();
        loop {
            let frames = self.poll()?;
            if !frames.is_empty() || start.elapsed() >= limit {
                return Ok(frames);
            }
            if !self.running.wait(Duration::from_millis(1))? {
                std::thread::yield_now();
            }
        }
    }

    /// Returns at least one completed transfer.
    fn next(&mut self) -> Result<Vec<Frame>, EngineError> {
        let frames = self.next_within(TIMEOUT)?;
        assert!(
            !frames.is_empty(),
            "no transfer has completed within {TIMEOUT:?}"
        );
        Ok(frames)
    }

    /// Receives at least `count` frames, returns each slot to the engine, and verifies every byte. The frames must
    /// continue the stream without a gap, or, after lost frames, later in the stream.
    fn verify(&mut self, count: usize) {
        let (mut seen, mut at) = (0, None);
        while seen < count {
            for (done, bytes) in self.next().unwrap() {
                assert_eq!(done.is_bad, done.length == 0);
                self.credit(1);
                let Some(bytes) = bytes.filter(|bytes| bytes.len() >= 8) else {
                    at = at.map(|at| at + done.length as u64);
                    continue;
                };
                let here = u64::from_le_bytes(bytes[..8].try_into().unwrap()) * 8;
                let lost = self.overrun > 0 && !self.bench.has_credits;
                assert!(
                    at.is_none_or(|at| here == at || lost && here > at),
                    "frame {seen} starts at byte {here} of the stream, expected {at:?}"
                );
                assert_eq!(pattern::verify(Pattern::Counter, 0, here, &bytes), None);
                at = Some(here + done.length as u64);
                seen += 1;
            }
        }
    }

    fn stop(self) -> Stopped {
        self.running.stop(TIMEOUT).unwrap()
    }
}

fn packets(bytes: u64) -> EmulatedOptions {
    EmulatedOptions {
        packet: Some(ByteSize(bytes)),
        ..EmulatedOptions::default()
    }
}

fn with_fault(
    device: &'static EmulatedDeviceEntry,
    fault: &str,
    transfer: u64,
) -> Option<EmulatedOptions> {
    device.faults.iter().find(|(name, _)| *name == fault)?;
    Some(EmulatedOptions {
        faults: vec![format!("{fault}@{transfer}").parse().unwrap()],
        ..EmulatedOptions::default()
    })
}

/// Every byte of a long run is in its slot, in order.
pub fn frames_arrive_in_order<E: FpgaEngine>(device: &'static EmulatedDeviceEntry, keys: &str) {
    let mut bench = Bench::new::<E>(device, keys, EmulatedOptions::default());
    let mut run = bench.start(0);
    run.credit(RING.0);
    run.verify(1000);
    assert!(run.stop().quiesce_timeout().is_none());
}

/// Packets shorter than a slot arrive with their length, or several in one slot.
pub fn short_packets_arrive<E: FpgaEngine>(device: &'static EmulatedDeviceEntry, keys: &str) {
    let mut bench = Bench::new::<E>(device, keys, packets(1024));
    let mut run = bench.start(1);
    run.credit(RING.0);
    run.verify(50);
}

/// A packet longer than a slot continues in the next slot.
pub fn packet_longer_than_slot_is_split<E: FpgaEngine>(
    device: &'static EmulatedDeviceEntry,
    keys: &str,
) {
    let mut bench = Bench::new::<E>(device, keys, packets(5 << 10));
    let mut run = bench.start(2);
    run.credit(RING.0);
    run.verify(50);
}

/// Each fault that the device can inject is reported by one of the engine's names or causes no error. Afterwards the
/// engine starts again.
pub fn fault_is_named_and_engine_restarts<E: FpgaEngine>(
    device: &'static EmulatedDeviceEntry,
    keys: &str,
) {
    for (fault, _) in device.faults {
        if matches!(*fault, "stuck" | "remove") {
            continue;
        }
        let options = with_fault(device, fault, 5).unwrap();
        let mut bench = Bench::new::<E>(device, keys, options);
        let mut run = bench.start(0);
        run.credit(RING.0);
        while run.transfers < 20 {
            match run.next_within(Duration::from_secs(2)) {
                Ok(frames) if frames.is_empty() => break,
                Ok(frames) => run.credit(frames.len()),
                Err(EngineError::Faulted { faults, .. }) => {
                    let is_named = |name: &&str| E::INFO.faults.contains(name);
                    assert!(faults.iter().all(is_named), "{fault}: {faults:?}");
                    break;
                }
                Err(error) => panic!("{fault}: {error}"),
            }
        }
        let stopped = run.stop();
        bench.device.reset().unwrap();
        bench.keep(stopped);
        let mut run = bench.start(2);
        run.credit(2);
        run.next().unwrap();
    }
}

/// The engine accepts credits for the maximum number of slots at once.
pub fn all_slots_are_credited_at_once<E: FpgaEngine>(
    device: &'static EmulatedDeviceEntry,
    keys: &str,
) {
    let slots = E::INFO.limits.max_slots.min(1024);
    let ring = (slots, E::INFO.limits.alignment.max(8));
    let mut bench = Bench::with_ring::<E>(device, keys, EmulatedOptions::default(), ring);
    if !bench.has_credits {
        return;
    }
    let mut run = bench.start(0);
    run.credit(slots);
    while run.transfers < slots as u64 {
        run.next().unwrap();
    }
    assert!(run.next_within(QUIET).unwrap().is_empty());
}

/// An engine with backpressure fills only credited slots, and loses nothing while it waits.
pub fn engine_waits_for_credits<E: FpgaEngine>(device: &'static EmulatedDeviceEntry, keys: &str) {
    let mut bench = Bench::new::<E>(device, keys, EmulatedOptions::default());
    if !bench.has_credits {
        return;
    }
    let unwritten = [UNWRITTEN; RING.1];
    for slot in 0..RING.0 {
        let offset = (slot * RING.1) as u64;
        rustix::io::pwrite(bench.region.file().unwrap(), &unwritten, offset).unwrap();
    }
    let mut run = bench.start(1);
    assert!(
        run.next_within(QUIET).unwrap().is_empty(),
        "the engine has no credit"
    );
    run.credit(3);
    while run.transfers < 3 {
        run.next().unwrap();
    }
    assert!(
        run.next_within(QUIET).unwrap().is_empty(),
        "the engine has no credit left"
    );
    for slot in (0..RING.0).filter(|slot| !(1..4).contains(slot)) {
        assert_eq!(
            run.bench.read(slot, RING.1),
            unwritten,
            "slot {slot} has no credit"
        );
    }
    run.credit(RING.0);
    run.verify(20);
}

/// A free-running engine counts the frames that it overwrote before they were read.
pub fn slow_reader_loses_counted_frames<E: FpgaEngine>(
    device: &'static EmulatedDeviceEntry,
    keys: &str,
) {
    let mut bench = Bench::new::<E>(device, keys, EmulatedOptions::default());
    if bench.has_credits {
        return;
    }
    let mut run = bench.start(3);
    while run.overrun == 0 {
        std::thread::sleep(QUIET);
        run.next().unwrap();
    }
    run.verify(50);
}

/// The engine stops while the stream is silent, and reports all frames of the stream exactly once.
pub fn silent_stream_is_stopped<E: FpgaEngine>(device: &'static EmulatedDeviceEntry, keys: &str) {
    let options = EmulatedOptions {
        packets: Some(3),
        ..EmulatedOptions::default()
    };
    let mut bench = Bench::new::<E>(device, keys, options);
    let mut run = bench.start(0);
    run.credit(RING.0);
    while run.transfers < 2 {
        run.next().unwrap();
    }
    run.next_within(QUIET).unwrap();
    let seen = run.transfers;
    let mut stopped = run.running.stop(QUIET).unwrap();
    let mut done = Completions::new(64, E::INFO.faults.len());
    stopped.poll(&mut done).unwrap();
    assert_eq!(seen + done.as_slice().len() as u64, 3);
    bench.keep(stopped);
}

/// An engine whose device hangs is stopped by a reset of the device, and works again afterwards.
pub fn stuck_device_is_stopped<E: FpgaEngine>(device: &'static EmulatedDeviceEntry, keys: &str) {
    let Some(options) = with_fault(device, "stuck", 4) else {
        return;
    };
    let mut bench = Bench::new::<E>(device, keys, options);
    let mut run = bench.start(0);
    run.credit(RING.0);
    while run.transfers < 3 {
        run.next().unwrap();
    }
    let stopped = run.running.stop(QUIET).unwrap();
    bench.device.reset().unwrap();
    bench.keep(stopped);
    let mut run = bench.start(0);
    run.credit(RING.0);
    run.next().unwrap();
}

/// An engine whose device was removed reports this, and can be stopped.
pub fn removed_device_is_gone<E: FpgaEngine>(device: &'static EmulatedDeviceEntry, keys: &str) {
    let Some(options) = with_fault(device, "remove", 20) else {
        return;
    };
    let mut bench = Bench::new::<E>(device, keys, options);
    let error = match bench.try_start(0) {
        Ok(mut run) => {
            run.credit(RING.0);
            let error = loop {
                match run.next() {
                    Ok(frames) => run.credit(frames.len()),
                    Err(error) => break error,
                }
            };
            assert!(run.stop().quiesce_timeout().is_none());
            error
        }
        // A free-running device may be removed before the engine is armed.
        Err(error) => error,
    };
    assert!(matches!(error, EngineError::Gone { .. }), "{error}");
}

/// The engine starts a hundred times, each time at another slot, and loses nothing.
pub fn engine_restarts_a_hundred_times<E: FpgaEngine>(
    device: &'static EmulatedDeviceEntry,
    keys: &str,
) {
    let mut bench = Bench::new::<E>(device, keys, EmulatedOptions::default());
    for start in 0..100 {
        let mut run = bench.start(start % RING.0);
        run.credit(RING.0);
        run.verify(20);
        let stopped = run.stop();
        assert!(stopped.quiesce_timeout().is_none());
        bench.keep(stopped);
    }
}
