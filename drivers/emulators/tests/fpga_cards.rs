//! FPGA engines on emulated devices, which are implemented independently of the engines.

use daq_core::dma::{Completions, DmaMap, EngineError, Running, SlotLayout, Stopped};
use daq_core::entry::Registry;
use daq_core::region::{HostOptions, Region};
use daq_drivers::fpga::device::Device;
use daq_drivers::fpga::transports::{self, Open};
use daq_drivers::fpga::{
    ENGINES, ENTRY, FpgaEngine, FpgaSource, engines::litepcie::Writer, engines::xdma::Xdma,
};
use daq_emulators::DEVICES;
use daq_emulators::pattern::{self, Pattern};
use daq_emulators::xdma::ERRORS;
use daq_testkit::assert_contains;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SLOTS: usize = 8;
const BYTES: usize = 4096;
/// Time after which an operation counts as hanging.
const TIMEOUT: Duration = Duration::from_mins(1);

fn registry() -> Registry {
    Registry::default().with_all(ENGINES).with_all(DEVICES)
}

struct Bench {
    device: Arc<dyn Device>,
    region: Arc<Region>,
    idle: Option<Stopped>,
}

impl Bench {
    /// Creates an engine from the configuration `keys`, and a ring for it.
    fn new(keys: &str) -> Self {
        let source = FpgaSource::<Xdma>::from_text(keys, &registry()).unwrap();
        let directory = Path::new("");
        let registry = registry();
        let open = Open {
            directory,
            registry: &registry,
            emulated_options: source.config.emulated.as_ref(),
        };
        let device = transports::open(&source.config.device, &open).unwrap();
        let engine = Box::new(source.open(device.clone(), directory).unwrap());
        let options = HostOptions {
            shared: true,
            ..HostOptions::default()
        };
        let region = Region::host(SLOTS * BYTES, options).unwrap();
        let map = DmaMap::new(device.clone().as_dma(), region.clone()).unwrap();
        Self {
            device,
            region,
            idle: Some(Stopped::new(engine, map)),
        }
    }

    fn arm(&mut self, first: usize, doorbell: Option<Arc<DmaMap>>) -> Running {
        self.try_arm(first, doorbell).unwrap()
    }

    fn try_arm(
        &mut self,
        first: usize,
        doorbell: Option<Arc<DmaMap>>,
    ) -> Result<Running, EngineError> {
        let idle = self.idle.take().unwrap();
        let layout = SlotLayout {
            slots: SLOTS,
            stride: BYTES,
            bytes: BYTES,
        };
        idle.start(layout, first, doorbell)
            .map_err(|refused| refused.error)
    }

    fn stop(&mut self, armed: Running) {
        let idle = armed.stop(TIMEOUT).unwrap();
        assert_eq!(idle.quiesce_timeout(), None);
        self.idle = Some(idle);
    }

    /// Returns the contents of a slot.
    fn slot(&self, slot: usize) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        let file = self.region.file().unwrap();
        rustix::io::pread(file, &mut bytes, (slot * BYTES) as u64).unwrap();
        bytes
    }
}

/// Polls until a transfer is finished or the engine fails.
fn next(armed: &mut Running, done: &mut Completions) -> Result<(), EngineError> {
    loop {
        done.clear(SLOTS);
        armed.poll(done)?;
        if !done.as_slice().is_empty() || done.overrun() > 0 {
            return Ok(());
        }
        if !armed.wait(Duration::from_millis(1))? {
            std::thread::yield_now();
        }
    }
}

fn completions() -> Completions {
    Completions::new(SLOTS, Xdma::INFO.faults.len())
}

mod xdma {
    daq_emulators::engine_conformance!(super::Xdma, daq_emulators::DEVICES[0]);
}

mod xdma_with_interrupts {
    daq_emulators::engine_conformance!(
        super::Xdma,
        daq_emulators::DEVICES[0],
        "channel = 2\ncompletion = \"interrupt\""
    );
}

mod xdma_without_credits {
    daq_emulators::engine_conformance!(super::Xdma, daq_emulators::DEVICES[0], "credits = false");
}

mod litepcie {
    daq_emulators::engine_conformance!(super::Writer, daq_emulators::DEVICES[1]);
}

#[test]
fn xdma_packet_length_is_reported() {
    let mut bench = Bench::new("device = \"emulated:xdma\"\nemulated = { packet = \"5 KiB\" }");
    let mut armed = bench.arm(0, None);
    armed.credit(8);
    let (mut lengths, mut done) = (Vec::new(), completions());
    while lengths.len() < 6 {
        next(&mut armed, &mut done).unwrap();
        lengths.extend(done.as_slice().iter().map(|done| done.length));
    }
    assert_eq!(lengths[..6], [4096, 1024, 4096, 1024, 4096, 1024]);
    bench.stop(armed);
}

#[test]
fn xdma_completed_count_is_written_to_doorbell() {
    let mut bench = Bench::new("device = \"emulated:xdma\"");
    let options = HostOptions {
        shared: true,
        ..HostOptions::default()
    };
    let doorbell = Region::host(4096, options).unwrap();
    let map = Arc::new(DmaMap::new(bench.device.clone().as_dma(), doorbell.clone()).unwrap());
    for _ in 0..3 {
        let mut armed = bench.arm(0, Some(map.clone()));
        assert_eq!(armed.caps().doorbell_bits, 24);
        armed.credit(5);
        let (mut seen, mut done) = (0, completions());
        while seen < 5 {
            next(&mut armed, &mut done).unwrap();
            seen += done.as_slice().len();
        }
        bench.stop(armed);
        let mut count = [0; 4];
        rustix::io::pread(doorbell.file().unwrap(), &mut count, 0).unwrap();
        assert_eq!(u32::from_le_bytes(count) & 0xff_ffff, 5);
        rustix::io::pwrite(doorbell.file().unwrap(), &[0; 4], 0).unwrap();
    }
}

#[test]
fn xdma_without_credits_counts_overrun() {
    let mut bench = Bench::new(
        "device = \"emulated:xdma\"\ncredits = false\nemulated = { rate = \"100 MB/s\" }",
    );
    let mut armed = bench.arm(3, None);
    assert!(!armed.caps().supports_backpressure);
    let (mut at, mut good, mut done) = (0_u64, 0, completions());
    let mut last = None;
    while good < 200 {
        next(&mut armed, &mut done).unwrap();
        at += done.overrun();
        let frames: Vec<_> = (at..)
            .take(done.as_slice().len())
            .map(|n| bench.slot(usize::try_from((3 + n) % SLOTS as u64).unwrap()))
            .collect();
        // Only frames that cannot have been overwritten while they were copied are valid.
        let overwritten = armed.overwritten().unwrap();
        for bytes in frames {
            if at >= overwritten {
                // A stream with a rate loses whole packets of 4 KiB if the reader is slow, so the data within a frame
                // is contiguous.
                let here = u64::from_le_bytes(bytes[..8].try_into().unwrap()) * 8;
                assert!(here >= at * BYTES as u64 && last.is_none_or(|last| here > last));
                assert_eq!(pattern::verify(Pattern::Counter, 0, here, &bytes), None);
                last = Some(here);
                good += 1;
            }
            at += 1;
        }
    }
    bench.stop(armed);
}

#[test]
fn device_errors_are_named() {
    for (fault, _) in ERRORS {
        let mut bench = Bench::new(&format!(
            "device = \"emulated:xdma\"\nemulated = {{ faults = [\"{fault}@5\"] }}"
        ));
        let mut armed = bench.arm(0, None);
        armed.credit(8);
        let (mut seen, mut done) = (0, completions());
        let error = loop {
            match next(&mut armed, &mut done) {
                Ok(()) => seen += done.as_slice().len(),
                Err(error) => break error,
            }
        };
        assert_eq!(seen, 5, "{fault}: earlier transfers are reported first");
        let EngineError::Faulted { faults, .. } = error else {
            panic!("{fault}: {error}");
        };
        assert_eq!(faults, [fault]);
        // The engine works again after the fault.
        bench.stop(armed);
        let mut armed = bench.arm(2, None);
        armed.credit(1);
        next(&mut armed, &mut done).unwrap();
        assert_eq!(done.as_slice().len(), 1);
        bench.stop(armed);
    }
}

#[test]
fn quiesce_timeout_disables_bus_mastering() {
    let mut bench = Bench::new("device = \"emulated:xdma\"\nemulated = { faults = [\"stuck@3\"] }");
    let mut armed = bench.arm(0, None);
    armed.credit(8);
    let (mut seen, mut done) = (0, completions());
    while seen < 3 {
        next(&mut armed, &mut done).unwrap();
        seen += done.as_slice().len();
    }
    let idle = armed.stop(Duration::from_millis(20)).unwrap();
    assert!(idle.quiesce_timeout().is_some());
    // After a reset the device works again.
    bench.device.reset().unwrap();
    bench.idle = Some(idle);
    let mut armed = bench.arm(0, None);
    armed.credit(1);
    next(&mut armed, &mut done).unwrap();
    bench.stop(armed);
}

#[test]
fn sequence_format_not_sent_by_emulated_device_is_rejected() {
    let found = |device: &str, rest: &str| {
        let text = format!(
            "device = \"emulated:{device}\"\nsequence = {{ offset = 0, bytes = 8, endian = \"little\"{rest} }}"
        );
        let source = daq_testkit::source::spec_in(
            &registry(),
            &ENTRY,
            &format!("[source.adc]\ndriver = \"fpga\"\nring = \"raw\"\n{text}"),
        )
        .unwrap();
        source
            .frames(4096)
            .map(|_| ())
            .map_err(|problem| problem.to_string())
    };
    let card = |options: &str| format!(" }}\nemulated = {{ {options}");
    let sound = "packet = 4096, pattern = \"sequence\"";
    for device in ["xdma", "litepcie"] {
        assert_eq!(found(device, &card(sound)), Ok(()));
        assert_eq!(
            found(device, ", step = 512"),
            Ok(()),
            "the words contain consecutive numbers"
        );
        for wrong in [
            "packet = 8192, pattern = \"sequence\"",
            "packet = 4104, pattern = \"sequence\"",
            "packet = 4096",
        ] {
            let error = found(device, &card(wrong)).unwrap_err();
            assert_contains!(error => "do not contain consecutive sequence numbers");
        }
    }
    let short = card("packet = 1024, pattern = \"sequence\"");
    assert_eq!(
        found("xdma", &short),
        Ok(()),
        "each transfer ends with a packet"
    );
    assert!(found("litepcie", &short).is_err());
}
