//! Emulated devices for measurements: one that runs in another process, and one that records timestamps.

use crate::bench::BenchError;
use daq_core::config::Problem;
use daq_core::dma::FrameSequence;
use daq_core::entry::{EngineRequirements, SourceContext, SourceSpec};
use daq_core::layout::Layout;
use daq_core::reorder::Geometry;
use daq_core::source::{Producers, SourceError};
use daq_drivers::fpga::FpgaSource;
use daq_drivers::fpga::engines::xdma::Xdma;
use daq_emulators::{EmulatedDevice, Fault, Host, Identity, Step, in_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A child process that runs `daq emulate xdma` and ends when its first client disconnects.
pub(super) struct DeviceProcess(Child);

impl DeviceProcess {
    /// Starts the process. Returns when the process listens at `socket`.
    pub(super) fn start(socket: &Path) -> Result<Self, BenchError> {
        let failed = |why: String| BenchError::Thread(format!("cannot start `daq emulate`: {why}"));
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let child = Command::new(program)
            .args(["emulate", "xdma", "--once", "--socket"])
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut served = Self(child);
        let is_ready = served.0.stdout.take().is_some_and(|stdout| {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.any(|line| line.starts_with("listening on "))
        });
        if is_ready {
            Ok(served)
        } else {
            Err(failed(
                "the process ended before it opened its socket".to_owned(),
            ))
        }
    }

    /// Returns the process ID as text, for paths below `/proc`.
    pub(super) fn process(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for DeviceProcess {
    fn drop(&mut self) {
        // The process has already ended if a client connected and disconnected.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The times at which the last bytes of the transfers' payloads were written, one per transfer.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(Arc<Mutex<Vec<Instant>>>);

impl Marks {
    /// Reserves memory for `count` timestamps, so that the measurement allocates no memory.
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(Vec::with_capacity(count))))
    }

    fn add(&self) {
        let now = Instant::now();
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(now);
    }

    /// Removes and returns all timestamps in the order of the transfers.
    pub(super) fn take(&self) -> Vec<Instant> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An emulated XDMA device that records a timestamp after the last byte of each payload, before it reports completion.
struct TimedDevice {
    card: Box<dyn EmulatedDevice>,
    marks: Marks,
}

/// The host interface of a device that records timestamps.
struct TimedHost<'a> {
    host: &'a dyn Host,
    marks: &'a Marks,
}

/// Size in bytes of the result that XDMA writes after a transfer's payload. Every piece of a payload is larger, so the
/// size identifies the result.
const RESULT_BYTES: usize = 8;

impl Host for TimedHost<'_> {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() == RESULT_BYTES {
            self.marks.add();
        }
        self.host.write(address, bytes)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.host.read(address, bytes)
    }

    fn interrupt(&self, vector: u16) {
        self.host.interrupt(vector);
    }
}

impl EmulatedDevice for TimedDevice {
    fn identity(&self) -> Identity {
        self.card.identity()
    }

    fn read(&mut self, bar: usize, offset: u64) -> u32 {
        self.card.read(bar, offset)
    }

    fn write(&mut self, bar: usize, offset: u64, value: u32, host: &dyn Host) {
        let marks = &self.marks;
        self.card
            .write(bar, offset, value, &TimedHost { host, marks });
    }

    fn reset(&mut self) {
        self.card.reset();
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        let marks = &self.marks;
        self.card.step(&TimedHost { host, marks })
    }
}

/// A source of the plan whose device records timestamps.
pub(super) struct TimedSource {
    pub(super) planned: Box<dyn SourceSpec>,
    pub(super) source: Arc<FpgaSource<Xdma>>,
    pub(super) marks: Marks,
}

impl SourceSpec for TimedSource {
    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem> {
        self.planned.geometry(slot_bytes)
    }

    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        self.planned.layout(geometry)
    }

    fn supports_backpressure(&self) -> bool {
        self.planned.supports_backpressure()
    }

    fn engine(&self) -> Option<EngineRequirements> {
        self.planned.engine()
    }

    fn frame_sequence(&self) -> Option<FrameSequence> {
        self.planned.frame_sequence()
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let failed = |why: String| SourceError::new(self.source.config.device.to_string(), why);
        let options = self.source.config.emulated.clone().unwrap_or_default();
        let card = daq_emulators::build("xdma", &options).map_err(failed)?;
        let marks = self.marks.clone();
        let device = in_process::open(Box::new(TimedDevice { card, marks }))
            .map_err(|error| failed(error.to_string()))?;
        let engine = self.source.open(device, &context.directory);
        let engine = Box::new(engine.map_err(|error| failed(error.to_string()))?);
        Ok(Producers::Engine(engine))
    }
}
