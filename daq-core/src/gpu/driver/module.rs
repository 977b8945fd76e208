//! Device code: modules, and the functions in them.

use super::arguments::{Argument, Declared, MAX_ARGUMENTS, mismatch};
use super::device::Device;
use super::error::{CudaError, Doing};
use super::image;
use super::stream::Stream;
use crate::sys::cuda::{self, RawFunction, RawModule};
use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;

/// Maximum bytes of the driver's compiler log.
const LOG_BYTES: usize = 8192;

/// Loaded device code.
pub struct Module {
    device: &'static Device,
    raw: RawModule,
    name: String,
}

/// A module handle that is passed to the code that unloads it.
struct Raw(RawModule);

// SAFETY: the driver lets any thread unload a module.
unsafe impl Send for Raw {}

impl Raw {
    fn get(self) -> RawModule {
        self.0
    }
}

// SAFETY: the driver lets any thread use a module; it is unloaded once, by the last owner.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads PTX (text) or a cubin (ELF), named `name` in messages.
    ///
    /// # Safety
    /// Launching its kernels is safe from here on, under these promises of the caller:
    /// - Its kernels access only memory that their arguments point to, as their documentation says.
    /// - Users of the module launch them with the arguments that they declare, in number and type (which is checked
    ///   if the driver knows it), and with values in the documented ranges.
    /// - Memory whose address is an argument stays allocated until the stream has passed the launch. Meanwhile
    ///   nothing else writes what the kernel reads, or reads or writes what it writes. A launch that is
    ///   [recorded](Stream::record) counts as one launch for each replay of its graph.
    pub unsafe fn load(
        device: &'static Device,
        name: &str,
        image: &[u8],
    ) -> Result<Arc<Self>, CudaError> {
        let what = || format!("loading the code of {name} on cuda:{}", device.ordinal());
        image::check(image)
            .map_err(|why| CudaError::new(what(), cuda::INVALID_IMAGE).with_detail(why))?;
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
        // SAFETY: a whole cubin, as just checked, or text that ends in NUL.
        let raw = unsafe { cuda::load_module(image, &mut log) }
            .doing(what)
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
        // A kernel that is loaded only at its first launch would wait for persistent kernels.
        // SAFETY: as above.
        unsafe { cuda::load_function(raw) }.doing(what)?;
        // SAFETY: as above.
        let declared = Declared::ask(|index| unsafe { cuda::parameter(raw, index) });
        Ok(Function {
            module: self.clone(),
            raw,
            name: name.into(),
            declared: declared.map(Arc::new),
        })
    }

    /// Address and size of the variable called `name`; `None` if there is none.
    pub fn global(&self, name: &str) -> Result<Option<(u64, usize)>, CudaError> {
        self.device.enter()?;
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded as long as `self` lives.
        match unsafe { cuda::global(self.raw, &symbol) } {
            Ok(found) => Ok(Some(found)),
            Err(cuda::NOT_FOUND) => Ok(None),
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
        // SAFETY: the variable has this size and lives as long as the module.
        unsafe { cuda::copy_out(&mut value, address) }
            .doing(|| format!("reading variable `{name}` of {}", self.name))?;
        Ok(Some(value))
    }

    /// Writes the variable called `name` and waits; returns false if there is none.
    ///
    /// # Panics
    /// If `value` is longer than the variable.
    pub fn write_global(&self, name: &str, value: &[u8]) -> Result<bool, CudaError> {
        let Some((address, bytes)) = self.global(name)? else {
            return Ok(false);
        };
        assert!(value.len() <= bytes, "the variable is shorter");
        // SAFETY: the variable has at least this size and lives as long as the module.
        unsafe { cuda::copy_in(address, value) }
            .doing(|| format!("writing variable `{name}` of {}", self.name))?;
        // The call may return before the bytes have arrived.
        self.device.synchronize()?;
        Ok(true)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let raw = Raw(self.raw);
        self.device.free("a module", move || {
            // SAFETY: loaded in `load`; every function keeps its module alive, so none is left.
            let _ = unsafe { cuda::unload_module(raw.get()) };
        });
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The number of blocks and threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z, each at least 1.
    pub blocks: [u32; 3],
    /// Threads per block in x, y and z, each at least 1, in total at most 1024.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
}

impl Grid {
    /// A grid of `blocks` blocks of `threads` threads in one dimension.
    pub const fn line(blocks: u32, threads: u32) -> Self {
        Self {
            blocks: [blocks, 1, 1],
            threads: [threads, 1, 1],
            shared: 0,
        }
    }
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    raw: RawFunction,
    name: Arc<str>,
    /// `None` if the driver cannot report them.
    declared: Option<Arc<Declared>>,
}

// SAFETY: a function is a handle into its module, which is kept alive; the driver lets any thread launch it.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Allows blocks up to `bytes` of dynamic shared memory; required for more than 48 KiB.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        self.module.device.enter()?;
        // SAFETY: the module is alive.
        unsafe { cuda::allow_shared(self.raw, i32::try_from(bytes).unwrap_or(i32::MAX)) }
            .doing(|| format!("giving {} {bytes} bytes of shared memory", self.module.name))
    }

    /// Maximum number of threads per block.
    pub fn max_threads(&self) -> Result<u32, CudaError> {
        self.module.device.enter()?;
        // SAFETY: the module is alive.
        unsafe { cuda::max_threads(self.raw) }
            .map(|threads| u32::try_from(threads).unwrap_or(0))
            .doing(|| format!("asking for the threads of {}", self.module.name))
    }

    /// Number of blocks of `grid` that the device can run concurrently.
    pub fn concurrent_blocks(&self, grid: &Grid) -> Result<u32, CudaError> {
        let multiprocessors = self.module.device.attributes().multiprocessors;
        Ok(self.resident_blocks(grid)? * multiprocessors.max(0).cast_unsigned())
    }

    /// The part of a multiprocessor's threads that blocks of `grid` can occupy, 0 to 1.
    pub fn occupancy(&self, grid: &Grid) -> Result<f64, CudaError> {
        let threads: u32 = grid.threads.iter().product();
        let all = self.module.device.attributes().threads_per_multiprocessor;
        let blocks = self.resident_blocks(grid)?;
        Ok(f64::from(blocks) * f64::from(threads) / f64::from(all.max(1)))
    }

    /// Number of blocks of `grid` that one multiprocessor can hold.
    fn resident_blocks(&self, grid: &Grid) -> Result<u32, CudaError> {
        self.module.device.enter()?;
        let threads: u32 = grid.threads.iter().product();
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the module is alive.
        unsafe { cuda::blocks_per_multiprocessor(self.raw, threads, grid.shared as usize) }
            .map(|blocks| blocks.max(0).cast_unsigned())
            .doing(|| format!("asking for the occupancy of {}", self.module.name))
    }

    /// Submits the kernel to a stream.
    ///
    /// What the kernel may access, and how long that must live, was promised when its module was
    /// [loaded](Module::load).
    ///
    /// # Errors
    /// Nothing is submitted if the arguments do not match the kernel's declaration in number and size (if the driver
    /// can report it, from CUDA 12.4 on), or if there are more than 32.
    pub fn launch(
        &self,
        stream: &Stream,
        grid: &Grid,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        let what = || {
            format!(
                "launching kernel `{}` of {} on cuda:{}",
                self.name,
                self.module.name,
                stream.device().ordinal()
            )
        };
        if let Some(why) = mismatch(self.declared.as_deref(), arguments) {
            return Err(CudaError::new(what(), cuda::INVALID_VALUE).with_detail(why));
        }
        self.module.device.enter()?;
        let mut values = [0_u64; MAX_ARGUMENTS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGUMENTS];
        for ((value, pointer), argument) in values.iter_mut().zip(&mut pointers).zip(arguments) {
            *value = argument.bits();
            *pointer = std::ptr::from_mut(value).cast();
        }
        // SAFETY: module and stream are alive. Each pointer points to eight bytes, the maximum size of an argument
        // type. That the arguments match the kernel's declaration was just checked if the driver knows it, and
        // otherwise promised in `Module::load`; so was that the memory behind them lives and is left alone until the
        // stream has passed the launch.
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
        .doing(what)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("module", &self.module.name)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
