//! Verification of a data path: the first transfer must write exactly the reported bytes.
//!
//! ```text
//!   slot N-1          slot 0 (the first)            slot 1
//!   sentinels         payload │ sentinels           sentinels        after a correct transfer
//! ```
//! A kernel on the GPU checks GPU memory, because kernels must see the data. If persistent kernels leave no room for
//! this kernel, the CPU checks the memory instead. Only slots that no other transfer can have written are checked.

use super::DmaError;
use super::port::Port;
use crate::kernels::VERIFICATION;
use crate::kernels::sys::device_code;
use daq_core::dma::{BounceCopyError, Seen, Sentinel};
use daq_core::gpu::Event;
use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::gpu::driver::{Argument, Device, Function, Grid, Module, Stream};
use daq_core::gpu::{Backend, Writer};
use daq_core::region::Placement;
use daq_core::ring::Producer;
use daq_core::staging::StagingError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout of the verification kernel.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum share of a GPU that persistent kernels may occupy. Above this share, the verification kernel might not fit
/// on the GPU.
const MAX_OCCUPANCY: f64 = 0.75;
const BLOCKS: u32 = 32;
const THREADS: u32 = 256;

/// Number of sentinel words that changed or did not change, in the written slot and in its neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inspection {
    pub(super) own: Seen,
    pub(super) neighbours: Seen,
}

impl Inspection {
    /// Returns whether exactly the expected words changed.
    pub(super) const fn is_exact(self) -> bool {
        self.own.is_exact() && self.neighbours.is_exact()
    }
}

/// The kernel that counts sentinels.
struct OnGpu {
    function: Function,
    stream: Stream,
    /// Results of the kernel: the number of words not overwritten, then the number of words overwritten by mistake.
    found: Arc<BarMapping>,
    device: &'static Device,
}

/// Verifies the first transfer.
pub(super) struct Verifier {
    sentinel: Sentinel,
    gpu: Option<OnGpu>,
    slots: usize,
    stride: usize,
    /// Whether the engine supports backpressure. Such an engine was given only one slot, and all other slots must be
    /// unchanged.
    has_single_slot: bool,
}

impl Verifier {
    /// Creates the resources for the verification.
    pub(super) fn new(
        port: &Port,
        producer: &Producer,
        backends: &[Backend],
    ) -> Result<Self, DmaError> {
        let gpu = match port.region().map(|region| region.placement()) {
            Some(Placement::Cuda(ordinal)) => {
                let device = Device::open(ordinal)?;
                let module: Arc<Module> = device_code::built_in(device, &VERIFICATION, &[])?;
                let found = BarMapping::new(device, 4096, Writer::Doorbell, backends)
                    .map_err(daq_core::region::RegionError::from)?;
                Some(OnGpu {
                    function: module.function("daq_verify")?,
                    stream: Stream::new(device, 2)?,
                    found,
                    device,
                })
            }
            _ => None,
        };
        let seed = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        Ok(Self {
            sentinel: Sentinel::new(seed ^ u64::from(std::process::id()) << 40),
            gpu,
            slots: producer.options().slots,
            stride: producer.options().stride(),
            has_single_slot: port.supports_backpressure(),
        })
    }

    /// Writes sentinels to all slots, because a free-running engine can write its first transfer to any slot.
    pub(super) fn lay(&self, port: &Port) -> Result<(), DmaError> {
        let laid = port
            .region()
            .is_some_and(|region| self.sentinel.lay(region, 0, self.slots * self.stride));
        if laid {
            return Ok(());
        }
        Err(DmaError::Unbelievable(format!(
            "the CPU cannot write to the slots of {}, so the data path cannot be verified; set path = \"staged\"",
            port.name()
        )))
    }

    /// Checks the sentinels of slot `slot`. The device reported that it wrote `written` bytes to this slot. `is_first`
    /// is true for the first checked transfer. Returns `None` if the transfer is too short for a check.
    pub(super) fn inspect(
        &self,
        port: &Port,
        slot: usize,
        written: usize,
        is_first: bool,
    ) -> Result<Option<Inspection>, DmaError> {
        if written < size_of::<u64>() {
            return Ok(None);
        }
        let own = self.inspect_slot(port, slot, written)?;
        let mut neighbours = Seen::default();
        // If the engine was given only one slot, the neighbouring slots must be unchanged.
        if self.has_single_slot {
            let (next, last) = (
                (slot + 1) % self.slots,
                (slot + self.slots - 1) % self.slots,
            );
            neighbours = neighbours + self.inspect_slot(port, next, 0)?;
            if is_first && last != next {
                neighbours = neighbours + self.inspect_slot(port, last, 0)?;
            }
        }
        Ok(Some(Inspection { own, neighbours }))
    }

    fn inspect_slot(&self, port: &Port, slot: usize, written: usize) -> Result<Seen, DmaError> {
        let gone =
            || DmaError::Unbelievable(format!("the CPU cannot read the slots of {}", port.name()));
        let region = port.region().ok_or_else(gone)?;
        // If the engine may write beyond the end of the frame, only whole words of the frame are checked.
        let bytes = if port.writes_past_length() && written > 0 {
            written / 8 * 8
        } else {
            self.stride
        };
        let offset = slot * self.stride;
        match &self.gpu {
            // If a persistent kernel leaves no room for another kernel, the CPU reads the slot over the bus.
            Some(gpu) if gpu.device.share() <= MAX_OCCUPANCY => {
                let base = region.address().as_ptr().addr();
                gpu.inspect(self.sentinel, base, offset, bytes, written)
            }
            _ => self
                .sentinel
                .inspect(region, offset, bytes, written)
                .ok_or_else(gone),
        }
    }
}

impl OnGpu {
    fn inspect(
        &self,
        sentinel: Sentinel,
        base: usize,
        offset: usize,
        bytes: usize,
        written: usize,
    ) -> Result<Seen, DmaError> {
        let lost = |error| BounceCopyError::from(StagingError::from(error));
        self.found.copy_to(0, &[0; 16]).map_err(lost)?;
        let count = |value: usize| Argument::U64(value as u64);
        self.function.launch(
            &self.stream,
            &Grid::line(BLOCKS, THREADS),
            &[
                count(base + offset),
                count(bytes),
                count(written),
                Argument::U64(sentinel.seed()),
                count(offset / 8),
                Argument::U64(self.found.address()),
            ],
        )?;
        let mark = self.stream.record_event()?;
        let start = Instant::now();
        while !mark.is_done() {
            std::thread::yield_now();
            if start.elapsed() > VERIFY_TIMEOUT {
                return Err(BounceCopyError::Hung {
                    device: self.device.name(),
                    waited: VERIFY_TIMEOUT,
                }
                .into());
            }
        }
        if let Some(error) = mark.failure() {
            return Err(error.into());
        }
        let mut found = [0; 16];
        self.found.copy_from(0, &mut found).map_err(lost)?;
        let word = |i: usize| {
            found[8 * i..8 * i + 8]
                .try_into()
                .map_or(u64::MAX, u64::from_le_bytes)
        };
        Ok(Seen {
            unwritten: word(0),
            touched: word(1),
        })
    }
}
