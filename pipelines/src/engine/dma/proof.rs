//! The proof of a path: the first transfer must have written exactly what it says.
//!
//! ```text
//!   slot N-1          slot 0 (the first)            slot 1
//!   sentinels         payload │ sentinels           sentinels        after one transfer that went right
//! ```
//! What lies on a GPU is read by a kernel there: it is kernels that are to find the bytes. Only slots that no other
//! transfer can have reached are looked at.

use super::DmaError;
use super::port::Port;
use crate::sys::device_code;
use daq_core::cuda::{Argument, Device, Function, Grid, Module, Stream};
use daq_core::dma::{Seen, Sentinel};
use daq_core::mapped::{Backend, Mapped, Writer};
use daq_core::region::Placement;
use daq_core::ring::{Event, Producer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The device code, as PTX for compute capability 7.0.
pub(crate) const CODE: &[u8] = include_bytes!("ptx/proof.ptx");
/// How long the kernel may take.
const PATIENCE: Duration = Duration::from_secs(5);
const BLOCKS: u32 = 32;
const THREADS: u32 = 256;

/// A kernel that counts sentinels.
struct OnGpu {
    function: Function,
    stream: Stream,
    /// What it found: words not written, words touched.
    found: Arc<Mapped>,
    device: &'static Device,
}

/// Looks at the first transfer.
pub(super) struct Prover {
    sentinel: Sentinel,
    gpu: Option<OnGpu>,
    slots: usize,
    stride: usize,
    /// Whether no slot but the first can have been written.
    alone: bool,
}

impl Prover {
    /// Makes what the look needs.
    pub(super) fn new(port: &Port, producer: &Producer) -> Result<Self, DmaError> {
        let gpu = match port.region().map(|region| region.placement()) {
            Some(Placement::Cuda(ordinal)) => {
                let device = Device::open(ordinal)?;
                let module: Arc<Module> = device_code::built_in(device, "proof", CODE)?;
                let found = Mapped::new(device, 4096, Writer::Bell, &Backend::ALL)
                    .map_err(daq_core::region::RegionError::from)?;
                Some(OnGpu {
                    function: module.function("daq_proof")?,
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
            alone: port.is_holdable(),
        })
    }

    /// The slots that are looked at, beginning with the one that is written first.
    fn slots(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        let neighbours = if self.alone { 2 } else { 0 };
        let (slots, last) = (self.slots, (first + self.slots - 1) % self.slots);
        [first, (first + 1) % slots, last]
            .into_iter()
            .take(1 + neighbours)
            .take(slots)
    }

    /// Whether sentinels lie in `slot` before the first transfer, which an engine that cannot be held may have overtaken
    /// before it is looked at: any slot can be the one that is seen first then.
    fn is_laid(&self, slot: usize) -> bool {
        !self.alone || self.slots(0).any(|looked| looked == slot)
    }

    /// Lays sentinels where the first transfer may be seen, and around.
    pub(super) fn lay(&self, port: &Port) -> Result<(), DmaError> {
        let Some(region) = port.region() else {
            return Ok(());
        };
        for slot in (0..self.slots).filter(|slot| self.is_laid(*slot)) {
            if !self.sentinel.lay(region, slot * self.stride, self.stride) {
                return Err(DmaError::Unbelievable(
                    "the slots lie where the CPU cannot store, so the path cannot be proved"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Looks at what became of them, `written` bytes of `first` having been told as written.
    pub(super) fn look(
        &mut self,
        port: &Port,
        first: usize,
        written: usize,
    ) -> Result<Seen, DmaError> {
        let Some(region) = port.region() else {
            return Ok(Seen::default());
        };
        let mut all = Seen::default();
        for slot in self.slots(first) {
            let (offset, bytes) = (slot * self.stride, self.stride);
            let written = if slot == first { written } else { 0 };
            let seen = match &self.gpu {
                Some(gpu) => gpu.look(
                    self.sentinel,
                    region.address().as_ptr().addr(),
                    offset,
                    bytes,
                    written,
                )?,
                None => self
                    .sentinel
                    .look(region, offset, bytes, written)
                    .unwrap_or_default(),
            };
            all = all + seen;
        }
        Ok(all)
    }
}

impl OnGpu {
    fn look(
        &self,
        sentinel: Sentinel,
        base: usize,
        offset: usize,
        bytes: usize,
        written: usize,
    ) -> Result<Seen, DmaError> {
        let lost = |error| DmaError::Carry(daq_core::dma::CarryError::Mapped(error));
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
        let mark = self.stream.mark()?;
        let start = Instant::now();
        while !mark.is_done() {
            std::thread::yield_now();
            if start.elapsed() > PATIENCE {
                return Err(daq_core::dma::CarryError::Hung {
                    device: self.device.name(),
                    waited: PATIENCE,
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
