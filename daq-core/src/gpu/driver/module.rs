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

/// Maximum size of the driver's compiler log in bytes.
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
// SAFETY: the driver lets several threads use a module at the same time.
unsafe impl Sync for Module {}

impl Module {
    /// Loads PTX (text) or a cubin (ELF). Messages refer to this code as `name`.
    ///
    /// # Safety
    /// Launching the module's kernels is a safe function. Therefore the caller of `load` must guarantee:
    /// - The kernels access only memory that their arguments point to, as documented for each kernel.
    /// - Users of the module launch the kernels with arguments of the declared number and types (which is checked if
    ///   the driver reports the declaration), and with values in the documented ranges.
    /// - Memory whose address is an argument stays allocated until the stream has completed the launch. Meanwhile,
    ///   nothing else writes memory that the kernel reads, or accesses memory that the kernel writes. A launch that is
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
        // SAFETY: the image is a complete cubin, as just checked, or text that ends in NUL.
        let raw = unsafe { cuda::load_module(image, &mut log) }
            .doing(what)
            .map_err(|error| {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                match String::from_utf8_lossy(&log[..end]).trim() {
                    "" => error,
                    output => error.with_detail(output),
                }
            })?;
        Ok(Arc::new(Self {
            device,
            raw,
            name: name.to_owned(),
        }))
    }

    /// Returns the device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Returns the kernel with the name `name`.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        self.device.enter()?;
        let what = || format!("looking for kernel `{name}` in {}", self.name);
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded as long as `self` lives.
        let raw = unsafe { cuda::function(self.raw, &symbol) }.doing(what)?;
        // Load the kernel now. Loading it at its first launch would wait for the end of persistent kernels.
        // SAFETY: the function was found in the loaded module just above.
        unsafe { cuda::load_function(raw) }.doing(what)?;
        // SAFETY: the function was found in the loaded module just above.
        let declared = Declared::ask(|index| unsafe { cuda::parameter(raw, index) });
        Ok(Function {
            module: self.clone(),
            raw,
            name: name.into(),
            declared: declared.map(Arc::new),
        })
    }

    /// Returns the address and the size in bytes of the variable `name`; `None` if the module has no such variable.
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

    /// Reads the whole variable `name` and waits for the end of the copy; `None` if the module has no such variable.
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

    /// Writes the variable `name` and waits for the end of the copy; returns false if the module has no such variable.
    ///
    /// # Panics
    /// If `value` is longer than the variable.
    pub fn write_global(&self, name: &str, value: &[u8]) -> Result<bool, CudaError> {
        let Some((address, bytes)) = self.global(name)? else {
            return Ok(false);
        };
        assert!(
            value.len() <= bytes,
            "the value is larger than the variable"
        );
        // SAFETY: the variable has at least this size and lives as long as the module.
        unsafe { cuda::copy_in(address, value) }
            .doing(|| format!("writing variable `{name}` of {}", self.name))?;
        // The copy may return before the bytes have arrived.
        self.device.synchronize()?;
        Ok(true)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let raw = Raw(self.raw);
        self.device.free("a module", move || {
            // SAFETY: the module was loaded in `load`. Every function keeps its module alive, so no function of the
            // module exists any more.
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
    /// Number of blocks in x, y and z, each at least 1.
    pub blocks: [u32; 3],
    /// Number of threads per block in x, y and z, each at least 1. Their product is at most 1024.
    pub threads: [u32; 3],
    /// Size of dynamic shared memory per block in bytes.
    pub shared: u32,
}

impl Grid {
    /// Creates a one-dimensional grid of `blocks` blocks with `threads` threads each.
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
    /// The declared parameters; `None` if the driver cannot report them.
    declared: Option<Arc<Declared>>,
}

// SAFETY: a function is a handle into its module, which is kept alive; the driver lets any thread launch it.
unsafe impl Send for Function {}
// SAFETY: the driver lets several threads launch a function at the same time.
unsafe impl Sync for Function {}

impl Function {
    /// Allows blocks to use up to `bytes` bytes of dynamic shared memory; required for more than 48 KiB.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        self.module.device.enter()?;
        // SAFETY: the function keeps its module alive.
        unsafe { cuda::allow_shared(self.raw, i32::try_from(bytes).unwrap_or(i32::MAX)) }.doing(
            || {
                format!(
                    "setting the dynamic shared memory of {} to {bytes} bytes",
                    self.module.name
                )
            },
        )
    }

    /// Returns the maximum number of threads per block.
    pub fn max_threads(&self) -> Result<u32, CudaError> {
        self.module.device.enter()?;
        // SAFETY: the function keeps its module alive.
        unsafe { cuda::max_threads(self.raw) }
            .map(|threads| u32::try_from(threads).unwrap_or(0))
            .doing(|| {
                format!(
                    "querying the maximum number of threads per block of {}",
                    self.module.name
                )
            })
    }

    /// Returns the number of blocks of `grid` that the device can run concurrently.
    pub fn concurrent_blocks(&self, grid: &Grid) -> Result<u32, CudaError> {
        let multiprocessors = self.module.device.attributes().multiprocessors;
        Ok(self.resident_blocks(grid)? * multiprocessors.max(0).cast_unsigned())
    }

    /// Returns the fraction of a multiprocessor's threads that blocks of `grid` can occupy, 0 to 1.
    pub fn occupancy(&self, grid: &Grid) -> Result<f64, CudaError> {
        let threads: u32 = grid.threads.iter().product();
        let all = self.module.device.attributes().threads_per_multiprocessor;
        let blocks = self.resident_blocks(grid)?;
        Ok(f64::from(blocks) * f64::from(threads) / f64::from(all.max(1)))
    }

    /// Returns the number of blocks of `grid` that one multiprocessor can hold.
    fn resident_blocks(&self, grid: &Grid) -> Result<u32, CudaError> {
        self.module.device.enter()?;
        let threads: u32 = grid.threads.iter().product();
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function keeps its module alive.
        unsafe { cuda::blocks_per_multiprocessor(self.raw, threads, grid.shared as usize) }
            .map(|blocks| blocks.max(0).cast_unsigned())
            .doing(|| format!("querying the occupancy of {}", self.module.name))
    }

    /// Submits the kernel to a stream.
    ///
    /// The requirements on the memory that the kernel accesses were guaranteed when its module was
    /// [loaded](Module::load).
    ///
    /// # Errors
    /// If there are more than 64 arguments, or if their number or sizes do not match the kernel's declaration.
    /// Drivers before CUDA 12.4 do not report the declaration, so it is not checked. After an error, nothing is
    /// submitted.
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
        // SAFETY: module and stream are alive. Each pointer refers to eight bytes, the maximum size of an argument. The
        // arguments match the kernel's declaration: this was just checked if the driver reports the declaration, and
        // otherwise guaranteed by the caller of `Module::load`. That caller also guarantees that the memory stays
        // allocated and that nothing else accesses it until the stream has completed the launch.
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
