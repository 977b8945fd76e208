//! Describes one method to map GPU memory.

use super::Verdict;
use super::report::{Entry, Outcome};
use crate::fixture::Echo;
use crate::sys::transfer::Transfer;
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::{BarMapping, Refusal};
use daq_core::gpu::driver::{Backing, Device};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Size in bytes of the mapping that each target keeps.
pub(super) const KEPT: usize = 64 << 10;

/// Kind of memory that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// A plain CUDA allocation.
    Plain,
    /// CUDA virtual memory that is mapped from a physical allocation.
    Virtual,
    /// Memory that the backend allocates.
    Own,
}

impl Memory {
    /// Returns the kinds of memory that a backend can map.
    pub(super) const fn of(backend: Backend) -> &'static [Self] {
        match backend {
            Backend::Gdrapi | Backend::DmaBuf => &[Self::Plain, Self::Virtual],
            Backend::Vulkan | Backend::Host => &[Self::Own],
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "cuMemAlloc",
            Self::Virtual => "cuMemCreate",
            Self::Own => "backend's own",
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One method to map GPU memory: a backend and a kind of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    pub(super) device: &'static Device,
    pub(super) backend: Backend,
    pub(super) memory: Memory,
}

impl Method {
    /// Maps at least `bytes` bytes.
    pub(super) fn map(self, bytes: usize) -> Result<Arc<BarMapping>, Refusal> {
        let attributes = self.device.attributes();
        let backing = match self.memory {
            Memory::Own => return BarMapping::with(self.device, bytes, self.backend),
            Memory::Plain => Backing::Plain,
            Memory::Virtual if !attributes.vmm => {
                return Err(Refusal {
                    backend: self.backend,
                    why: "the GPU or its driver does not support virtual memory management"
                        .to_owned(),
                });
            }
            Memory::Virtual => Backing::Mapped {
                rdma: attributes.rdma,
                shareable: attributes.posix_fd,
            },
        };
        BarMapping::with_backing(self.device, bytes, self.backend, backing)
    }

    pub(super) fn entry(self, check: &'static str, outcome: Outcome) -> Entry {
        Entry {
            check,
            subject: vec![
                ("backend", self.backend.to_string()),
                ("memory", self.memory.to_string()),
            ],
            outcome,
            found: None,
        }
    }
}

/// A mapping method that works, with the resources that the checks need.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) method: Method,
    /// A mapping that is created before the first check and kept until the last check.
    pub(super) kept: Arc<BarMapping>,
    pub(super) transfer: Transfer,
    pub(super) echo: Echo,
    /// Maximum time for a kernel to stop.
    pub(super) limit: Duration,
}

impl Target {
    /// Creates the resources for the checks. If the method does not work, returns the reason.
    pub(super) fn new(method: Method, limit: Duration) -> Result<Self, String> {
        let kept = method.map(KEPT).map_err(|refusal| refusal.why)?;
        Ok(Self {
            method,
            kept,
            transfer: Transfer::new(method.device).map_err(|error| error.to_string())?,
            echo: Echo::new(method.device).map_err(|error| error.to_string())?,
            limit,
        })
    }

    /// Reads bytes of a mapping through CUDA.
    pub(super) fn read(
        &self,
        mapped: &BarMapping,
        offset: usize,
        bytes: usize,
    ) -> Result<Vec<u8>, Verdict> {
        let mut read = vec![0; bytes];
        self.transfer.read(mapped, offset, &mut read)?;
        Ok(read)
    }
}
