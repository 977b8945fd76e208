//! A GPU and the context that this process has on it.

use super::error::{CudaError, Doing};
use super::probe::{NoCuda, probe};
use crate::sys::cuda::{self, Attribute, Code, Context, Handle};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a device can do, as far as it matters here.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an attribute of the device"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Major and minor compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Threads that a multiprocessor can hold.
    pub threads_per_multiprocessor: i32,
    /// Bytes of shared memory that a block can have if it asks.
    pub max_shared: i32,
    /// Copy engines.
    pub copy_engines: i32,
    /// Virtual memory management: memory that can carry the RDMA flag and be shared.
    pub vmm: bool,
    /// Memory can be exported as a file descriptor.
    pub posix_fd: bool,
    /// Other PCIe devices can read and write its memory (attribute 116).
    pub rdma: bool,
    /// Memory can be exported as a dma-buf (attribute 124).
    pub dma_buf: bool,
    /// Whether the host can flush writes of other devices (attribute 117, bit 0).
    pub flush: bool,
    /// For whom writes of other devices are ordered without a flush: 0 nobody, 100 this context, 200 all devices
    /// (attribute 118).
    pub write_ordering: i32,
}

/// Who a GPU is; known without a context on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    handle: Handle,
    /// CUDA's number of the device.
    pub ordinal: u32,
    /// Its name, as in `NVIDIA H200`.
    pub name: String,
    /// Its UUID in the form that nvidia-smi prints.
    pub uuid: String,
    /// Its PCI address, as in `0000:3b:00.0`.
    pub pci: String,
    /// Bytes of its memory.
    pub memory: usize,
    /// What it can do.
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

    /// All GPUs that CUDA shows to this process, by ordinal; one that does not answer is left out.
    pub fn all() -> Result<Vec<Self>, NoCuda> {
        let found = probe()?;
        Ok((0..found.devices)
            .filter_map(|ordinal| {
                Self::new(ordinal)
                    .inspect_err(|code| tracing::warn!("cuda:{ordinal} does not answer: {code:?}"))
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

/// A GPU with this process's context on it, shared by all threads.
pub struct Device {
    identity: Identity,
    context: Context,
    hung: AtomicBool,
}

// SAFETY: a primary context may be made current on, and used from, any number of threads at a time; the handle is
// a number. The other fields never change or are atomic.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The device with this ordinal. Takes up to a few seconds the first time; from then on the process keeps its
    /// context on the device until it ends.
    ///
    /// # Errors
    /// Where there is no CUDA the error carries code 3 and the reason as its detail.
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

    /// Who it is.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// CUDA's number of the device.
    pub const fn ordinal(&self) -> u32 {
        self.identity.ordinal
    }

    /// Its name, as in `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.identity.name
    }

    /// Free bytes of its memory now.
    pub fn free_memory(&self) -> Result<usize, CudaError> {
        self.enter()?;
        cuda::memory_info()
            .map(|(free, _)| free)
            .doing(|| format!("asking cuda:{} for its free memory", self.identity.ordinal))
    }

    /// What it can do.
    pub const fn attributes(&self) -> &Attributes {
        &self.identity.attributes
    }

    /// Waits until all work of this process on the device is done.
    ///
    /// # Errors
    /// Code 401 while a kernel [stays](Self::add_persistent_kernel) on the device: its end would be waited for.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let what = || format!("waiting for cuda:{}", self.identity.ordinal);
        let Some(_waiting) = self.waiting() else {
            return Err(CudaError::new(what(), cuda::ILLEGAL_STATE)
                .with_detail("a kernel stays on it, whose end would be waited for"));
        };
        self.enter()?;
        cuda::synchronize().doing(what)
    }

    /// Whether kernels see what other devices have written once the host knows of it: by themselves, after a
    /// [flush](Self::flush_writes) (`Some(true)`), or not at all (`None`).
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

    /// Makes what other devices have written so far visible to kernels that are told of it afterwards.
    pub fn flush_writes(&self) -> Result<(), CudaError> {
        self.enter()?;
        cuda::flush_writes().doing(|| {
            format!(
                "flushing what other devices wrote to cuda:{}",
                self.identity.ordinal
            )
        })
    }

    /// Says that work on the device hangs and that nobody waits for it any more.
    ///
    /// Freeing what the device still uses would wait for that work, for ever. So from here on, until the process
    /// ends, what is dropped of the device (memory, pinned host memory, modules, streams, marks, graphs) is left to
    /// the driver instead, which takes it back with the process. Nothing is refused: who has given a device up puts
    /// no more work on it.
    pub fn mark_hung(&self) {
        self.hung.store(true, Ordering::Release);
    }

    /// Whether the device was [given up](Self::mark_hung).
    pub fn is_hung(&self) -> bool {
        self.hung.load(Ordering::Acquire)
    }

    /// Enters the context so that something can be freed, which `what` names in messages; false where that cannot be,
    /// or must not be tried because the device was [given up](Self::mark_hung).
    pub(super) fn enter_to_free(&self, what: &str) -> bool {
        if self.is_hung() {
            tracing::debug!(
                "{what} of cuda:{} is left to the driver",
                self.identity.ordinal
            );
            return false;
        }
        self.enter()
            .inspect_err(|error| tracing::debug!("freeing {what}: {error}"))
            .is_ok()
    }

    /// Its UUID, by which other libraries know it.
    pub(crate) fn uuid(&self) -> Result<[u8; 16], CudaError> {
        cuda::device_uuid(self.handle())
            .doing(|| format!("asking cuda:{} who it is", self.ordinal()))
    }

    pub(super) const fn handle(&self) -> Handle {
        self.identity.handle
    }

    /// Makes the context the calling thread's. Costs nothing where it is already.
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
    // An attribute that a driver does not know is one that its device does not have.
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
