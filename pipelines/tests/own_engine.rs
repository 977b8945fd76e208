//! A complete DMA engine in one file, with an emulated device to test it. `docs/src/hardware/write-an-engine.md` shows
//! parts of this file, and a test checks that both are equal.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]
#![allow(
    clippy::struct_excessive_bools,
    reason = "the state of a card has many bits"
)]

use daq_core::config::{Diagnostics, Document};
use daq_core::dma::{
    ArmError, CompletionOrder, Completions, DmaDevice, Done, Engine, EngineError, EngineInfo,
    QuiesceTimeout, SlotLimits, Slots,
};
use daq_core::ledger::CounterFile;
use daq_core::plan::{Config, PlanContext, resolve};
use daq_core::topology::Topology;
use daq_drivers::fpga::device::{Device, GONE, halves};
use daq_drivers::fpga::engines::{
    NoKeys, Opening, check_slots, now, quiesce_timeout, unfit, wait_until,
};
use daq_drivers::fpga::register_table::Window;
use daq_drivers::fpga::transports::emulated::{EmulatedOptions, FaultKind};
use daq_drivers::fpga::{EngineEntry, FpgaEngine, FpgaSource};
use daq_emulators::faults::Faults;
use daq_emulators::pattern::{Pattern, verify};
use daq_emulators::stream::{Ready, Stream};
use daq_emulators::vfio_user::Server;
use daq_emulators::{EmulatedDevice, EmulatedDeviceEntry, Host, Identity, Step, in_process};
use daq_pipelines::runtime::{Options, Pipeline};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Registers in BAR 0, from the documentation of the device.
mod register {
    use daq_drivers::fpga::register_table::{Field, Register};

    /// Identifier; reads as [`super::TOY`].
    pub const ID: Register = Register::read_only("id", 0x00);
    /// Address of a slot, low half.
    pub const LOW: Register = Register::write_only("low", 0x04);
    /// Address of a slot, high half. A write adds the slot to the device's list.
    pub const PUSH: Register = Register::write_only("push", 0x08);
    /// Size of a slot in bytes.
    pub const BYTES: Register = Register::write_only("bytes", 0x0c);
    /// 1 starts the engine with a count of 0. 0 stops it after the current slot and clears its list.
    pub const RUN: Register = Register::write_only("run", 0x10);
    /// Reads as 1 while the engine writes.
    pub const BUSY: Register = Register::read_only("busy", 0x14);
    /// A write adds this number of slots to those that may be filled.
    pub const CREDIT: Register = Register::write_only("credit", 0x18);
    /// The state of the engine. It keeps its value when the engine stops.
    pub const STATUS: Register = Register::read_only("status", 0x1c);
    /// Field of [`STATUS`]: number of slots filled since the last start, modulo 256.
    pub const FILLED: Field = Field::bits(0, 8);
    /// Field of [`STATUS`]: the FIFO in front of the engine has overflowed, and the engine has stopped.
    pub const OVERFLOW: Field = Field::bits(8, 1);
}

const TOY: u32 = 0x7079_0001;
/// Timeout to stop an engine that was left running.
const LEFT_RUNNING: Duration = Duration::from_millis(100);

struct Toy {
    device: Arc<dyn DmaDevice>,
    registers: Window,
    slot_bytes: usize,
    /// The last value that was read of the field `FILLED`.
    filled: u32,
    /// Number of slots that may be filled but are not filled yet.
    credits: u32,
    /// Number of filled slots that were not reported yet.
    finished: u32,
}

impl FpgaEngine for Toy {
    const INFO: EngineInfo = EngineInfo {
        name: "toy",
        summary: "an engine to learn from",
        limits: SlotLimits {
            alignment: 64,
            max_slot: 1 << 20,
            max_slots: 64,
            preferred: 4096,
        },
        faults: &["overflow"],
        supports_backpressure: true,
        order: CompletionOrder::HostMemory,
    };

    type Keys = NoKeys;

    fn recognises(device: &dyn Device) -> bool {
        device.identity().vendor == 0x7079
    }

    fn open(opening: &Opening<NoKeys>) -> Result<Self, EngineError> {
        let device = opening.device.clone();
        let registers = Window::new(&device.registers(0)?, 0);
        let id = registers.read(register::ID);
        if id != TOY {
            let read = registers.describe(register::ID, id);
            return Err(unfit(
                device.name(),
                format!("{read}; a toy has {TOY:#010x}"),
            ));
        }
        Ok(Self {
            registers,
            slot_bytes: 0,
            filled: 0,
            credits: 0,
            finished: 0,
            device: device.as_dma(),
        })
    }
}

impl Toy {
    fn gone(&self) -> EngineError {
        let device = self.device.name().to_owned();
        EngineError::Gone { device }
    }

    /// Stops the engine and waits until no write is in flight. Returns false after a timeout.
    fn stop(&self, timeout: Duration) -> bool {
        self.registers.write(register::RUN, 0);
        wait_until(timeout, || {
            matches!(self.registers.read(register::BUSY), 0 | GONE)
        })
    }

    /// Reads the device and records the finished slots. Returns whether the engine has stopped with an error.
    fn read_progress(&mut self) -> Result<bool, EngineError> {
        let status = self.registers.read(register::STATUS);
        if status == GONE {
            return Err(self.gone());
        }
        let filled = register::FILLED.of(status);
        // The engine has at most 64 credits, so an 8-bit count does not wrap between two polls. The number of filled slots
        // is limited to the credits, whatever the register reads.
        let new = (filled.wrapping_sub(self.filled) & 0xff).min(self.credits);
        self.filled = (self.filled + new) & 0xff;
        self.credits -= new;
        self.finished += new;
        Ok(register::OVERFLOW.of(status) != 0)
    }
}

// SAFETY: the list of the device has the addresses and the size of the slots, and is written only by `arm`, after the
// device has stopped. `arm` starts the device as its last step. `quiesce` stops the device, which clears its list, and
// waits until the device is idle.
unsafe impl Engine for Toy {
    fn info(&self) -> &'static EngineInfo {
        &Self::INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        check_slots(self.device.name(), slots, &self.caps(), 64).map_err(ArmError::Stopped)?;
        // A killed process may have left the engine running.
        if !self.stop(LEFT_RUNNING) {
            let why = "the engine is busy before it was started: reset the card";
            return Err(ArmError::Stopped(unfit(self.device.name(), why)));
        }
        if self.registers.read(register::ID) == GONE {
            return Err(ArmError::Stopped(self.gone()));
        }
        let (bytes, _) = halves(slots.bytes as u64);
        self.registers.write(register::BYTES, bytes);
        // The device fills its list from the beginning, so the first slot must be first in the list.
        for address in slots.in_order() {
            let (low, high) = halves(address);
            self.registers.write(register::LOW, low);
            self.registers.write(register::PUSH, high);
        }
        self.slot_bytes = slots.bytes;
        (self.filled, self.credits, self.finished) = (0, 0, 0);
        self.registers.write(register::RUN, 1);
        Ok(())
    }

    fn credit(&mut self, slots: u32) {
        self.credits += slots;
        self.registers.write(register::CREDIT, slots);
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        let has_overflowed = self.read_progress()?;
        self.poll_stopped(done)?;
        if has_overflowed && self.finished == 0 && done.as_slice().is_empty() {
            return Err(EngineError::Faulted {
                device: self.device.name().to_owned(),
                engine: Self::INFO.name,
                faults: vec![Self::INFO.faults[0]],
            });
        }
        Ok(())
    }

    fn poll_stopped(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        while self.finished > 0
            && done.push(Done {
                length: self.slot_bytes,
                timestamp: now(),
                ..Done::default()
            })
        {
            self.finished -= 1;
        }
        Ok(())
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        if !self.stop(timeout) {
            return Err(quiesce_timeout(self, timeout));
        }
        // A removed device has filled no more slots.
        let _ = self.read_progress();
        Ok(())
    }
}

/// The registry line of the engine.
static ENGINE: EngineEntry = EngineEntry::of::<Toy>();

/// The registry line of the emulated device.
static DEVICE: EmulatedDeviceEntry = EmulatedDeviceEntry {
    name: "toy",
    summary: "the device of the toy engine",
    faults: FAULTS,
    check_sequence: |_, _| Ok(()),
    build: |options| Ok(Box::new(EmulatedToy::new(options)?)),
    open: in_process::open,
};

const FAULTS: &[FaultKind] = &[
    ("overflow", "status bit 8: the FIFO has overflowed"),
    ("stuck", "the engine hangs until a reset"),
    ("remove", "the card is removed"),
];

/// The emulated device. It fills each slot with the next bytes of its stream.
struct EmulatedToy {
    options: EmulatedOptions,
    stream: Stream,
    faults: Faults,
    transfers: u64,
    slots: Vec<u64>,
    low: u32,
    bytes: u32,
    runs: bool,
    credits: u32,
    filled: u32,
    has_overflowed: bool,
    is_stuck: bool,
    is_removed: bool,
}

impl EmulatedToy {
    fn new(options: &EmulatedOptions) -> Result<Self, String> {
        options.check(FAULTS)?;
        Ok(Self::after_power_on(options, Faults::new(options)))
    }

    fn after_power_on(options: &EmulatedOptions, faults: Faults) -> Self {
        Self {
            options: options.clone(),
            stream: Stream::new(options),
            faults,
            transfers: 0,
            slots: Vec::new(),
            low: 0,
            bytes: 0,
            runs: false,
            credits: 0,
            filled: 0,
            has_overflowed: false,
            is_stuck: false,
            is_removed: false,
        }
    }
}

impl EmulatedDevice for EmulatedToy {
    fn identity(&self) -> Identity {
        Identity {
            ids: [0x7079, 1, 0, 0],
            class: 0x11_8000,
            bars: [4096, 0, 0, 0, 0, 0],
            vectors: 0,
        }
    }

    fn read(&mut self, _: usize, offset: u64) -> u32 {
        match offset {
            _ if self.is_removed => u32::MAX,
            0x00 => 0x7079_0001,
            0x14 => self.is_stuck.into(),
            0x1c => self.filled & 0xff | u32::from(self.has_overflowed) << 8,
            _ => 0,
        }
    }

    fn write(&mut self, _: usize, offset: u64, value: u32, _: &dyn Host) {
        match offset {
            0x04 => self.low = value,
            0x08 => self
                .slots
                .push(u64::from(value) << 32 | u64::from(self.low)),
            0x0c => self.bytes = value,
            0x10 if value == 1 => (self.runs, self.filled, self.has_overflowed) = (true, 0, false),
            0x10 => {
                (self.runs, self.credits) = (false, 0);
                self.slots.clear();
            }
            0x18 if self.runs => self.credits += value,
            _ => {}
        }
    }

    fn reset(&mut self) {
        let faults = std::mem::take(&mut self.faults);
        *self = Self::after_power_on(&self.options.clone(), faults);
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        self.is_removed |= self.faults.take("remove", self.transfers);
        self.is_stuck |= self.faults.take("stuck", self.transfers);
        self.has_overflowed |= self.faults.take("overflow", self.transfers);
        if self.is_removed {
            return Step::Removed;
        }
        let may_run = self.runs && self.credits > 0 && !self.is_stuck && !self.has_overflowed;
        if !may_run || self.slots.is_empty() {
            return Step::Idle;
        }
        let (mut frame, mut filled) = (vec![0; self.bytes as usize], 0);
        while filled < frame.len() {
            match self.stream.ready(Instant::now()) {
                Ready::Data => filled += self.stream.take(&mut frame[filled..]).0,
                Ready::After(time) => return Step::After(time),
                Ready::Ended => return Step::Idle,
            }
        }
        let slot = self.slots[self.filled as usize % self.slots.len()];
        host.write(slot, &frame).unwrap();
        self.filled += 1;
        self.credits -= 1;
        self.transfers += 1;
        Step::Busy
    }
}

mod conformance {
    daq_emulators::engine_conformance!(super::Toy, super::DEVICE);
}

#[test]
fn other_device_is_rejected_with_its_id() {
    let xdma = daq_emulators::build("xdma", &EmulatedOptions::default()).unwrap();
    let device = in_process::open(xdma).unwrap();
    let keys = "device = \"vfio-user:toy.sock\"\nengine = \"toy\"";
    let registry = daq_pipelines::registry().with(&ENGINE);
    let source = FpgaSource::<Toy>::from_text(keys, &registry).unwrap();
    let error = source.open(device, Path::new("")).err().unwrap();
    assert!(error.to_string().contains("\"id\" at 0x0 reads"), "{error}");
}

/// Runs the toy engine from its device to a file. The device is either emulated in this process, or served over
/// vfio-user.
fn run_pipeline(device: &str, directory: &Path) {
    const FRAMES: u64 = 300;
    let registry = daq_pipelines::registry().with(&ENGINE).with(&DEVICE);
    let text = format!(
        "[source.card]\ndriver = \"fpga\"\ndevice = \"{device}\"\nengine = \"toy\"\nring = \"raw\"\n\
         sequence = {{ offset = 0, bytes = 8, endian = \"little\", step = 512 }}\n\
         [ring.raw]\nmemory = \"host\"\nslot = 4096\nslots = 16\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"frames\"\n"
    );
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", &text, &mut diagnostics);
    let config = Config::read(&document, &registry, "toy", &mut diagnostics);
    let context = PlanContext {
        directory: directory.to_owned(),
        ..PlanContext::default()
    };
    let plan = resolve(&config, &Topology::detect(), &context, &mut diagnostics);
    let plan = plan.unwrap_or_else(|| panic!("{}", diagnostics.render(document.sources(), false)));
    let options = Options {
        profiles: std::collections::BTreeMap::new(),
        startup: std::sync::Arc::default(),
        directory: directory.to_owned(),
        counter_file: CounterFile::in_memory(),
        history: None,
        drain: Duration::from_secs(10),
    };
    let pipeline = Pipeline::start(&config, &plan, &options).unwrap();
    let start = Instant::now();
    while pipeline.published("raw").unwrap() < FRAMES {
        assert!(start.elapsed() < Duration::from_mins(1), "no frames arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    pipeline.stop();
    let (report, failures) = pipeline.finish();
    assert_eq!((report.violations(), failures), (Vec::new(), Vec::new()));
    let source = &report.sources["card"];
    assert!(source.delivered >= FRAMES && source.lost_total() == 0);
    let data = std::fs::read_dir(directory.join("frames"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|end| end == "sigmf-data"));
    let bytes = std::fs::read(data.unwrap()).unwrap();
    assert!(bytes.len() as u64 >= FRAMES * 4096);
    assert_eq!(verify(Pattern::Counter, 0, 0, &bytes), None);
}

#[test]
fn toy_engine_runs_in_a_pipeline() {
    let directory = tempfile::tempdir().unwrap();
    run_pipeline("emulated:toy", directory.path());
}

#[test]
fn toy_device_is_served_to_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("toy.sock");
    let server = Server::bind(&socket).unwrap();
    let (stop, _signal) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let card = (DEVICE.build)(&EmulatedOptions::default()).unwrap();
            server.serve(card, stop.as_fd(), true).unwrap();
        });
        run_pipeline("vfio-user:toy.sock", directory.path());
    });
}

/// Returns the Rust code blocks of the Markdown text `text`.
fn blocks(text: &str) -> Vec<&str> {
    let rest = text.split("```rust\n").skip(1);
    rest.map(|rest| rest.split_once("```").unwrap().0).collect()
}

#[test]
fn guide_contains_this_code() {
    let guide = include_str!("../../docs/src/hardware/write-an-engine.md");
    let lines = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect()
    };
    let here = lines(include_str!("own_engine.rs"));
    let blocks = blocks(guide);
    assert!(blocks.len() >= 7, "{} blocks", blocks.len());
    for block in blocks {
        let block = lines(block);
        assert!(
            here.windows(block.len()).any(|window| window == block),
            "the guide contains code that pipelines/tests/own_engine.rs does not contain:\n{}",
            block.join("\n")
        );
    }
}
