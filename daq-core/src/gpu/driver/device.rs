//! A GPU and this process's context on it.

use super::error::{CudaError, Doing};
use super::probe::{NoCuda, probe};
use crate::sys::cuda::{self, Attribute, Code, Context, Handle};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The capabilities of a device that daq uses.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each field is an independent attribute of the device"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Major and minor compute capability.
    pub capability: (i32, i32),
    /// Number of multiprocessors.
    pub multiprocessors: i32,
    /// Maximum number of threads per multiprocessor.
    pub threads_per_multiprocessor: i32,
    /// Maximum size of dynamic shared memory per block in bytes, if requested explicitly.
    pub max_shared: i32,
    /// Number of copy engines.
    pub copy_engines: i32,
    /// Whether virtual memory management is supported, which is required for RDMA and for sharing memory.
    pub vmm: bool,
    /// Whether memory can be exported as a file descriptor.
    pub posix_fd: bool,
    /// Whether other PCIe devices can read and write the device's memory (attribute 116).
    pub rdma: bool,
    /// Whether memory can be exported as a dma-buf (attribute 124).
    pub dma_buf: bool,
    /// Whether the host can flush writes of other devices (attribute 117, bit 0).
    pub flush: bool,
    /// Which readers see writes of other devices in order without a flush: 0 no reader, 100 this context, 200 all
    /// devices (attribute 118).
    pub write_ordering: i32,
}

/// The link over which a GPU accesses the memory of another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerLink {
    /// NVLink, directly or through switches.
    NvLink,
    /// PCIe.
    Pcie,
}

impl fmt::Display for PeerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NvLink => "NVLink",
            Self::Pcie => "PCIe",
        })
    }
}

/// The identity of a GPU, which is known without a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    handle: Handle,
    /// CUDA device ordinal.
    pub ordinal: u32,
    /// Name, such as `NVIDIA H200`.
    pub name: String,
    /// UUID in the form that nvidia-smi prints.
    pub uuid: String,
    /// PCI address, such as `0000:3b:00.0`.
    pub pci: String,
    /// Size of the GPU's memory in bytes.
    pub memory: usize,
    /// Capabilities.
    pub attributes: Attributes,
}

impl Identity {
    fn new(ordinal: u32) -> Result<Self, Code> {
        let handle = cuda::device(i32::try_from(ordinal).unwrap_or(i32::MAX))?;
        Ok(Self {
            handle,
            ordinal,
            name: cuda::device_name(handle)?,
            uuid: uuid(cuda::device_uuid(handle)?),
            pci: cuda::pci_address(handle)?,
            memory: cuda::total_memory(handle)?,
            attributes: attributes(handle),
        })
    }

    /// Whether this GPU can write memory of `peer`, and whether it then uses NVLink; `None` if it cannot. Memory that
    /// another GPU accesses must be mapped from a physical allocation.
    pub fn link_to(&self, peer: &Self) -> Option<PeerLink> {
        let can_access = peer.attributes.vmm
            && self.ordinal != peer.ordinal
            && cuda::can_access_peer(self.handle, peer.handle).unwrap_or(false);
        can_access.then(|| match cuda::has_peer_atomics(self.handle, peer.handle) {
            Ok(true) => PeerLink::NvLink,
            Ok(false) | Err(_) => PeerLink::Pcie,
        })
    }

    /// Returns all GPUs that are visible to CUDA in this process, in the order of their ordinals. GPUs that do not
    /// respond are left out.
    pub fn all() -> Result<Vec<Self>, NoCuda> {
        let found = probe()?;
        Ok((0..found.devices)
            .filter_map(|ordinal| {
                Self::new(ordinal)
                    .inspect_err(|code| tracing::warn!("cuda:{ordinal} does not respond: {code:?}"))
                    .ok()
            })
            .collect())
    }
}

fn uuid(bytes: [u8; 16]) -> String {
    use std::fmt::Write as _;
    let mut text = "GPU".to_owned();
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A GPU and this process's context on it, which all threads share.
pub struct Device {
    identity: Identity,
    context: Context,
    hung: AtomicBool,
}

// SAFETY: any number of threads may use a primary context at the same time; the handle is a number. The other fields
// never change or are atomic.
unsafe impl Send for Device {}
// SAFETY: any number of threads may use a primary context at the same time, and the fields never change or are atomic.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device with this ordinal. The first call takes up to a few seconds. The process keeps the context on
    /// the device until the process ends.
    ///
    /// # Errors
    /// If CUDA is not available, the error has code 3 and the reason as its detail.
    pub fn open(ordinal: u32) -> Result<&'static Self, CudaError> {
        static OPEN: Mutex<BTreeMap<u32, &'static Device>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.get(&ordinal) {
            return Ok(device);
        }
        let device: &'static Self = Box::leak(Box::new(Self::new(ordinal)?));
        open.insert(ordinal, device);
        Ok(device)
    }

    fn new(ordinal: u32) -> Result<Self, CudaError> {
        let what = || format!("opening cuda:{ordinal}");
        if let Err(missing) = probe() {
            return Err(CudaError {
                what: what(),
                code: 3,
                name: "no CUDA".to_owned(),
                detail: missing.to_string(),
            });
        }
        let identity = Identity::new(ordinal).doing(what)?;
        let context = cuda::retain_context(identity.handle).doing(what)?;
        Ok(Self {
            identity,
            context,
            hung: AtomicBool::new(false),
        })
    }

    /// Returns the identity of the device.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the CUDA device ordinal.
    pub const fn ordinal(&self) -> u32 {
        self.identity.ordinal
    }

    /// Returns the name, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.identity.name
    }

    /// Returns the free memory of the device in bytes.
    pub(crate) fn free_memory(&self) -> Result<usize, CudaError> {
        self.enter()?;
        cuda::memory_info()
            .map(|(free, _)| free)
            .doing(|| format!("querying the free memory of cuda:{}", self.identity.ordinal))
    }

    /// Returns the capabilities of the device.
    pub const fn attributes(&self) -> &Attributes {
        &self.identity.attributes
    }

    /// Waits until all work of this process on the device is done.
    ///
    /// # Errors
    /// Returns code 401 while a [persistent kernel](Self::add_persistent_kernel) runs on the device, because
    /// the call would wait for the end of this kernel.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let what = || format!("waiting for cuda:{}", self.identity.ordinal);
        let Some(_waiting) = self.waiting() else {
            return Err(CudaError::new(what(), cuda::ILLEGAL_STATE).with_detail(
                "a persistent kernel runs on this GPU, and the call would wait until that kernel ends",
            ));
        };
        self.enter()?;
        cuda::synchronize().doing(what)
    }

    /// Whether a flush is required so that kernels see writes of other devices that the host has detected. Returns
    /// `Some(false)` if no flush is required, `Some(true)` if a [flush](Self::flush_writes) is required, and `None` if
    /// the device guarantees no order.
    pub fn needs_flush(&self) -> Option<bool> {
        /// The scope in which writes are ordered for the owner of the memory
        /// (`CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`).
        const OWNER: i32 = 100;
        let attributes = self.attributes();
        match attributes.write_ordering {
            OWNER.. => Some(false),
            _ if attributes.flush => Some(true),
            _ => None,
        }
    }

    /// Makes all earlier writes of other devices visible to kernels that are notified afterwards.
    pub fn flush_writes(&self) -> Result<(), CudaError> {
        self.enter()?;
        cuda::flush_writes().doing(|| {
            format!(
                "flushing what other devices wrote to cuda:{}",
                self.identity.ordinal
            )
        })
    }

    /// Marks the device as hung: its work will not finish, and no function waits for this work any more.
    ///
    /// Freeing memory that the device still uses would wait for that work forever. Therefore, after this call, dropped
    /// objects of the device (memory, pinned host memory, modules, streams, events, graphs) are not freed. The driver
    /// frees them when the process ends. Calls are not rejected; the caller must not submit more work to the device.
    pub fn mark_hung(&self) {
        self.hung.store(true, Ordering::Release);
    }

    /// Whether the device was [marked as hung](Self::mark_hung).
    pub fn is_hung(&self) -> bool {
        self.hung.load(Ordering::Acquire)
    }

    /// Enters the context to free an object, which messages call `what`. Returns false if this is impossible, or if the
    /// object must not be freed because the device is [hung](Self::mark_hung).
    pub(super) fn enter_to_free(&self, what: &str) -> bool {
        if self.is_hung() {
            tracing::debug!(
                "{what} of cuda:{} is not freed, because the GPU hangs; the driver frees it when this process exits",
                self.identity.ordinal
            );
            return false;
        }
        self.enter()
            .inspect_err(|error| tracing::debug!("freeing {what}: {error}"))
            .is_ok()
    }

    /// Returns the UUID, by which other libraries identify the device.
    pub(crate) fn uuid(&self) -> Result<[u8; 16], CudaError> {
        cuda::device_uuid(self.handle())
            .doing(|| format!("querying the UUID of cuda:{}", self.ordinal()))
    }

    pub(super) const fn handle(&self) -> Handle {
        self.identity.handle
    }

    /// Makes the context current for the calling thread. Costs nothing if the context is already current.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        thread_local! {
            static CURRENT: Cell<Context> = const { Cell::new(std::ptr::null_mut()) };
        }
        CURRENT.with(|current| {
            if current.get() == self.context {
                return Ok(());
            }
            // SAFETY: the context is retained and never released.
            unsafe { cuda::set_context(self.context) }
                .doing(|| format!("entering the context of cuda:{}", self.identity.ordinal))?;
            current.set(self.context);
            Ok(())
        })
    }
}

fn attributes(handle: Handle) -> Attributes {
    // If the driver does not know an attribute, the device does not have the capability.
    let value = |attribute| cuda::attribute(handle, attribute).unwrap_or(0);
    let has = |attribute| value(attribute) != 0;
    Attributes {
        capability: (
            value(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            value(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ),
        multiprocessors: value(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        threads_per_multiprocessor: value(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
        ),
        max_shared: value(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        copy_engines: value(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
        vmm: has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
        posix_fd: has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
        rdma: has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
        dma_buf: has(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
        flush: value(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) & 1 != 0,
        write_ordering: value(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
