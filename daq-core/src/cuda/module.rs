//! Device code: modules, and the functions in them.

use super::device::Device;
use super::error::{CudaError, Doing};
use super::stream::Stream;
use crate::sys::cuda::{self, RawFunction, RawModule};
use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;

/// Bytes of the driver's compiler log that are kept.
const LOG_BYTES: usize = 8192;
/// Most parameters of a kernel.
const MOST_ARGUMENTS: usize = 32;

/// Loaded device code.
pub struct Module {
    device: &'static Device,
    raw: RawModule,
    name: String,
}

// SAFETY: the driver lets any thread use a module; it is unloaded once, by the last owner.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads PTX (text) or a cubin (ELF) called `name` in messages.
    ///
    /// # Safety
    /// Its kernels touch nothing but memory that their arguments lead to, as their documentation says. From here
    /// on launching them is safe.
    pub unsafe fn load(
        device: &'static Device,
        name: &str,
        image: &[u8],
    ) -> Result<Arc<Self>, CudaError> {
        device.enter()?;
        let mut ended;
        let image = if image.starts_with(b"\x7fELF") || image.ends_with(&[0]) {
            image
        } else {
            ended = image.to_vec();
            ended.push(0);
            &ended
        };
        let mut log = vec![0; LOG_BYTES];
        // SAFETY: a whole cubin, or text that ends in NUL.
        let raw = unsafe { cuda::load_module(image, &mut log) }
            .doing(|| format!("loading the code of {name} on cuda:{}", device.ordinal()))
            .map_err(|error| {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                match String::from_utf8_lossy(&log[..end]).trim() {
                    "" => error,
                    said => error.with_detail(said),
                }
            })?;
        Ok(Arc::new(Self {
            device,
            raw,
            name: name.to_owned(),
        }))
    }

    /// The device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// The kernel called `name`.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        self.device.enter()?;
        let what = || format!("looking for kernel `{name}` in {}", self.name);
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded as long as `self` lives.
        let raw = unsafe { cuda::function(self.raw, &symbol) }.doing(what)?;
        Ok(Function {
            module: self.clone(),
            raw,
        })
    }

    /// Address and bytes of the variable called `name`; `None` if there is none.
    pub fn global(&self, name: &str) -> Result<Option<(u64, usize)>, CudaError> {
        self.device.enter()?;
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded as long as `self` lives.
        match unsafe { cuda::global(self.raw, &symbol) } {
            Ok(found) => Ok(Some(found)),
            Err(cuda::Code(500)) => Ok(None),
            Err(code) => Err(CudaError::new(
                format!("looking for variable `{name}` in {}", self.name),
                code,
            )),
        }
    }

    /// Reads the whole variable called `name` and waits; `None` if there is none.
    pub fn read_global(&self, name: &str) -> Result<Option<Vec<u8>>, CudaError> {
        let Some((address, bytes)) = self.global(name)? else {
            return Ok(None);
        };
        let mut value = vec![0; bytes];
        // SAFETY: the variable has so many bytes and lives as long as the module.
        unsafe { cuda::copy_out(&mut value, address) }
            .doing(|| format!("reading variable `{name}` of {}", self.name))?;
        Ok(Some(value))
    }

    /// Writes the variable called `name` and waits; false if there is none.
    ///
    /// # Panics
    /// If `value` is longer than the variable.
    pub fn write_global(&self, name: &str, value: &[u8]) -> Result<bool, CudaError> {
        let Some((address, bytes)) = self.global(name)? else {
            return Ok(false);
        };
        assert!(value.len() <= bytes, "the variable is shorter");
        // SAFETY: the variable has at least so many bytes and lives as long as the module.
        unsafe { cuda::copy_in(address, value) }
            .doing(|| format!("writing variable `{name}` of {}", self.name))?;
        // The call may return before the bytes are there.
        self.device.synchronize()?;
        Ok(true)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: loaded in `load`; every function keeps its module alive, so none is left.
            let _ = unsafe { cuda::unload_module(self.raw) };
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z, each at least 1.
    pub blocks: [u32; 3],
    /// Threads of a block in x, y and z, each at least 1, together at most 1024.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory a block.
    pub shared: u32,
}

impl Grid {
    /// `blocks` blocks of `threads` threads in a row.
    pub const fn line(blocks: u32, threads: u32) -> Self {
        Self {
            blocks: [blocks, 1, 1],
            threads: [threads, 1, 1],
            shared: 0,
        }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// `unsigned int`.
    U32(u32),
    /// `int`.
    I32(i32),
    /// `unsigned long long`, and every pointer to device memory.
    U64(u64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
}

impl Argument {
    /// The bytes, in the first of eight, as a little-endian device reads them.
    const fn bits(self) -> u64 {
        match self {
            Self::U32(value) => value as u64,
            Self::I32(value) => value.cast_unsigned() as u64,
            Self::U64(value) => value,
            Self::F32(value) => value.to_bits() as u64,
            Self::F64(value) => value.to_bits(),
        }
    }
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    raw: RawFunction,
}

// SAFETY: a function is a handle into its module, which is kept alive; the driver lets any thread launch it.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Lets blocks use up to `bytes` of dynamic shared memory; more than 48 KiB must be asked for.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        self.module.device.enter()?;
        // SAFETY: the module is alive.
        unsafe { cuda::allow_shared(self.raw, i32::try_from(bytes).unwrap_or(i32::MAX)) }
            .doing(|| format!("giving {} {bytes} bytes of shared memory", self.module.name))
    }

    /// The most threads of a block.
    pub fn most_threads(&self) -> Result<u32, CudaError> {
        self.module.device.enter()?;
        // SAFETY: the module is alive.
        unsafe { cuda::most_threads(self.raw) }
            .map(|threads| u32::try_from(threads).unwrap_or(0))
            .doing(|| format!("asking for the threads of {}", self.module.name))
    }

    /// The part of a multiprocessor's threads that blocks of `grid` can keep occupied, 0 to 1.
    pub fn occupancy(&self, grid: &Grid) -> Result<f64, CudaError> {
        let device = self.module.device;
        device.enter()?;
        let threads: u32 = grid.threads.iter().product();
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the module is alive.
        let blocks =
            unsafe { cuda::blocks_a_multiprocessor(self.raw, threads, grid.shared as usize) }
                .doing(|| format!("asking for the occupancy of {}", self.module.name))?;
        let all = f64::from(device.attributes().threads_a_multiprocessor.max(1));
        Ok(f64::from(blocks) * f64::from(threads) / all)
    }

    /// Puts the kernel on a stream.
    ///
    /// What the kernel may touch is what its module promised when it was loaded; its arguments must be those that
    /// it declares, in number and type.
    ///
    /// # Panics
    /// With more than 32 arguments.
    pub fn launch(
        &self,
        stream: &Stream,
        grid: &Grid,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        assert!(
            arguments.len() <= MOST_ARGUMENTS,
            "a kernel with {} arguments",
            arguments.len()
        );
        self.module.device.enter()?;
        let mut values = [0_u64; MOST_ARGUMENTS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        for ((value, pointer), argument) in values.iter_mut().zip(&mut pointers).zip(arguments) {
            *value = argument.bits();
            *pointer = std::ptr::from_mut(value).cast();
        }
        // SAFETY: module and stream are alive; each pointer leads to eight bytes, at least as many as the declared
        // type has. What the kernel does with them is the promise made in `Module::load`.
        unsafe {
            cuda::launch(
                self.raw,
                grid.blocks,
                grid.threads,
                grid.shared,
                stream.raw(),
                &mut pointers[..arguments.len()],
            )
        }
        .doing(|| {
            format!(
                "launching {} on cuda:{}",
                self.module.name,
                stream.device().ordinal()
            )
        })
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("module", &self.module.name)
            .finish_non_exhaustive()
    }
}
