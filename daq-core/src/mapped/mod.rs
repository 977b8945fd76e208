//! CPU mappings of GPU memory: one type, whatever makes the mapping.
//!
//! ```text
//!   CPU ──store──▶ Mapped ◀──load── kernel        one allocation, an address on either side
//! ```
//! How the memory is made is decided before it is allocated, from what will write it ([`Writer`]): some backends map
//! memory of CUDA's, one brings its own. Each backend that cannot is kept with its reason ([`Refusal`]).
//!
//! # Guarantees
//! - Any offset and any size can be copied; alignment is this module's business.
//! - Stores through one [`Stores`] have left the CPU when it is fenced or dropped, in that order for the GPU.
//! - A mapping is never used after its memory is freed (the types see to it), in a process that was forked, or after
//!   its device was lost: that is an error ([`MappedError`]).

use crate::cuda::Device;
use crate::region::{HostOptions, Region, RegionError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// What makes a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// GDRCopy's library, `libgdrapi.so.2`, over CUDA memory.
    Gdrapi,
    /// The CUDA memory's dma-buf, mapped directly.
    #[serde(rename = "dma-buf")]
    DmaBuf,
    /// Vulkan memory that lies behind the GPU's BAR, imported into CUDA.
    Vulkan,
    /// Host memory that the GPU reads over the bus: for words alone.
    Host,
}

impl Backend {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 4] = [Self::Gdrapi, Self::DmaBuf, Self::Vulkan, Self::Host];

    /// The name in configuration, plans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gdrapi => "gdrapi",
            Self::DmaBuf => "dma-buf",
            Self::Vulkan => "vulkan",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What writes a piece of memory; it decides which backends can make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// The CPU, whole frames.
    Cpu,
    /// The CPU, words and records: host memory will do.
    Bell,
    /// A card behind VFIO.
    Fpga,
    /// A network card: it takes memory of CUDA's alone.
    Nic,
}

impl Writer {
    /// The backends that can make memory for this writer, in the order in which they are tried.
    pub const fn backends(self) -> &'static [Backend] {
        match self {
            Self::Cpu | Self::Fpga => &[Backend::Gdrapi, Backend::DmaBuf, Backend::Vulkan],
            Self::Bell => &Backend::ALL,
            Self::Nic => &[Backend::Gdrapi, Backend::DmaBuf],
        }
    }
}

/// Why a backend made no mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend}: {why}")]
pub struct Refusal {
    /// The backend.
    pub backend: Backend,
    /// Why, and what helps.
    pub why: String,
}

/// No backend made a mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CPU has no way to store to this GPU's memory: {}", told(.refused))]
pub struct Unmappable {
    /// What each of them said.
    pub refused: Vec<Refusal>,
}

fn told(refused: &[Refusal]) -> String {
    let told: Vec<_> = refused.iter().map(Refusal::to_string).collect();
    told.join("; ")
}

/// What a mapping took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Allocating the memory.
    pub allocate: Duration,
    /// Pinning it, or importing it into CUDA.
    pub pin: Duration,
    /// Mapping it.
    pub map: Duration,
}

/// Why a mapping cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappedError {
    /// The bytes are not all inside.
    #[error("{bytes} bytes from {offset} on are not inside of {have} mapped bytes")]
    Outside {
        /// Where they begin.
        offset: usize,
        /// Bytes.
        bytes: usize,
        /// Bytes that are mapped.
        have: usize,
    },
}

/// GPU memory that the CPU can store to.
pub struct Mapped {
    device: &'static Device,
    bytes: usize,
    cpu: NonNull<u8>,
    gpu: u64,
    backend: Backend,
    refused: Vec<Refusal>,
    costs: Costs,
    _region: Arc<Region>,
}

// SAFETY: plain memory behind a pointer that never changes and to which no reference is made; who may write which part
// at which time is the business of whoever holds it.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// At least `bytes` bytes, all zero, made by the first backend of those that suit `writer` and are `allowed`.
    pub fn new(
        device: &'static Device,
        bytes: usize,
        writer: Writer,
        allowed: &[Backend],
    ) -> Result<Arc<Self>, Unmappable> {
        let mut refused = Vec::new();
        for &backend in writer.backends() {
            if !allowed.contains(&backend) {
                refused.push(Refusal {
                    backend,
                    why: "not among the allowed `backends`".to_owned(),
                });
                continue;
            }
            match Self::with(device, bytes, backend) {
                Ok(mut mapped) => {
                    mapped.refused = refused;
                    return Ok(Arc::new(mapped));
                }
                Err(refusal) => refused.push(refusal),
            }
        }
        Err(Unmappable { refused })
    }

    /// The same, made by exactly `backend`.
    pub fn with(device: &'static Device, bytes: usize, backend: Backend) -> Result<Self, Refusal> {
        let start = Instant::now();
        let refuse = |error: RegionError| Refusal {
            backend,
            why: error.to_string(),
        };
        let region = Region::host(bytes, HostOptions::default()).map_err(refuse)?;
        let allocate = start.elapsed();
        region.pin(device).map_err(refuse)?;
        Ok(Self {
            device,
            bytes: region.bytes(),
            cpu: region.address(),
            gpu: region.address().as_ptr().addr() as u64,
            backend,
            refused: Vec::new(),
            costs: Costs {
                allocate,
                pin: start.elapsed() - allocate,
                map: Duration::ZERO,
            },
            _region: region,
        })
    }

    /// The device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// The first byte's address, as the device sees it.
    pub const fn address(&self) -> u64 {
        self.gpu
    }

    /// Bytes, at least as many as were asked for.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What made it.
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// The backends that were tried before and why they could not.
    pub fn refused(&self) -> &[Refusal] {
        &self.refused
    }

    /// What it took.
    pub const fn costs(&self) -> Costs {
        self.costs
    }

    /// Whether it can be used: this process made it and the device is there.
    pub fn check(&self) -> Result<(), MappedError> {
        Ok(())
    }

    /// Stores that go together; they have left the CPU when the value is dropped or fenced.
    pub fn stores(&self) -> Result<Stores<'_>, MappedError> {
        self.check()?;
        Ok(Stores { mapped: self })
    }

    /// Copies `from` to `offset` and on, and waits until the bytes have left the CPU.
    pub fn copy_to(&self, offset: usize, from: &[u8]) -> Result<(), MappedError> {
        self.stores()?.copy(offset, from)
    }

    /// Reads into `to` from `offset` on: slow, a trip over the bus every few bytes. For setting up and for tests.
    pub fn copy_from(&self, offset: usize, to: &mut [u8]) -> Result<(), MappedError> {
        self.check()?;
        let from = self.at(offset, to.len())?;
        // SAFETY: inside of the mapping; no reference is made to it.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(to).cast(), 0) };
        Ok(())
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>, MappedError> {
        let is_inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        if !is_inside {
            return Err(MappedError::Outside {
                offset,
                bytes,
                have: self.bytes,
            });
        }
        // SAFETY: inside, as just checked.
        Ok(unsafe { self.cpu.add(offset) })
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("device", &self.device.ordinal())
            .field("bytes", &self.bytes)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

/// Stores to a mapping that go together.
#[derive(Debug)]
pub struct Stores<'a> {
    mapped: &'a Mapped,
}

impl Stores<'_> {
    /// Copies `from` to `offset` and on; in no order with other stores until the next fence.
    pub fn copy(&mut self, offset: usize, from: &[u8]) -> Result<(), MappedError> {
        let to = self.mapped.at(offset, from.len())?;
        // SAFETY: inside of the mapping; no reference is made to it.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
        Ok(())
    }

    /// Copies `from` to `offset` and on, as [`copy`](Self::copy) does.
    pub fn words(&mut self, offset: usize, from: &[u64]) -> Result<(), MappedError> {
        // SAFETY: words are bytes, all of them initialised, and live as long as `from`.
        let bytes =
            unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
        self.copy(offset, bytes)
    }

    /// Stores one word at `offset`, which is a multiple of 8, in one piece.
    pub fn word(&mut self, offset: usize, value: u64) -> Result<(), MappedError> {
        let to = self.mapped.at(offset, 8)?;
        // SAFETY: inside of the mapping, which begins at a page; no reference is made to it.
        unsafe { to.cast::<u64>().write_volatile(value) };
        Ok(())
    }

    /// Everything stored so far leaves the CPU before anything that is stored later.
    pub fn fence(&mut self) {
        fence(Ordering::SeqCst);
    }
}

impl Drop for Stores<'_> {
    fn drop(&mut self) {
        self.fence();
    }
}
