//! CUDA calls for device code.

use super::{Code, RawFunction, RawModule, RawStream, check, driver, symbol};
use cudarc::driver::sys;
use std::ffi::{CStr, c_uint, c_void};
use std::ptr;

/// Loads device code. After a failure, `log` contains the output of the driver's compiler.
///
/// # Safety
/// `image` must be PTX that ends in NUL, or a complete cubin.
pub(crate) unsafe fn load_module(image: &[u8], log: &mut [u8]) -> Result<RawModule, Code> {
    let mut module = ptr::null_mut();
    let mut options = [
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values: [*mut c_void; 2] = [
        log.as_mut_ptr().cast(),
        // For this option, the driver expects a number instead of a pointer.
        ptr::without_provenance_mut(log.len()),
    ];
    // SAFETY: the caller guarantees a valid image. There are two options with two values, and `log` has the given
    // length.
    check(unsafe {
        driver::cuModuleLoadDataEx(
            &raw mut module,
            image.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    })?;
    Ok(module)
}

/// Unloads device code.
///
/// # Safety
/// The module must come from [`load_module`]. The module and its functions must not be used again.
pub(crate) unsafe fn unload_module(module: RawModule) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuModuleUnload(module) })
}

/// Returns a kernel of a module.
///
/// # Safety
/// The module must be alive.
pub(crate) unsafe fn function(module: RawModule, name: &CStr) -> Result<RawFunction, Code> {
    let mut function = ptr::null_mut();
    // SAFETY: the caller guarantees the requirements; the result pointer refers to one writable pointer.
    check(unsafe { driver::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) })?;
    Ok(function)
}

/// Returns the address and the size in bytes of a variable of a module.
///
/// # Safety
/// The module must be alive.
pub(crate) unsafe fn global(module: RawModule, name: &CStr) -> Result<(u64, usize), Code> {
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the caller guarantees the requirements; the result pointers refer to a writable address and size.
    check(unsafe {
        driver::cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, name.as_ptr())
    })?;
    Ok((address, bytes))
}

/// Allows a kernel to use up to `bytes` bytes of dynamic shared memory per block.
///
/// # Safety
/// The function's module must be alive.
pub(crate) unsafe fn allow_shared(function: RawFunction, bytes: i32) -> Result<(), Code> {
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuFuncSetAttribute(function, attribute, bytes) })
}

/// Returns the maximum number of threads per block with which a kernel can be launched.
///
/// # Safety
/// The function's module must be alive.
pub(crate) unsafe fn max_threads(function: RawFunction) -> Result<i32, Code> {
    let mut threads = 0;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    // SAFETY: the caller guarantees the requirements; the result pointer refers to one writable integer.
    check(unsafe { driver::cuFuncGetAttribute(&raw mut threads, attribute, function) })?;
    Ok(threads)
}

/// Returns the offset and the size in bytes of a kernel's parameter with this index. If the kernel has fewer
/// parameters, the error is [`INVALID_VALUE`](super::INVALID_VALUE). Returns `None` if the driver does not have this
/// call (before CUDA 12.4).
///
/// # Safety
/// The function's module must be alive.
pub(crate) unsafe fn parameter(
    function: RawFunction,
    index: usize,
) -> Option<Result<(usize, usize), Code>> {
    type Call = unsafe extern "C" fn(RawFunction, usize, *mut usize, *mut usize) -> c_uint;
    // SAFETY: `Call` is the type with which NVIDIA declares the function.
    let call = unsafe { symbol::<Call>("cuFuncGetParamInfo") }?;
    let (mut offset, mut bytes) = (0, 0);
    // SAFETY: the caller guarantees a valid function. The result pointers refer to two writable sizes.
    let code = unsafe { call(function, index, &raw mut offset, &raw mut bytes) };
    Some(check(code).map(|()| (offset, bytes)))
}

/// Loads a kernel's code if the driver has deferred the loading (CUDA 12.4 and newer).
///
/// # Safety
/// The function's module must be alive.
pub(crate) unsafe fn load_function(function: RawFunction) -> Result<(), Code> {
    type Call = unsafe extern "C" fn(RawFunction) -> c_uint;
    // SAFETY: `Call` is the type with which NVIDIA declares the function.
    match unsafe { symbol::<Call>("cuFuncLoad") } {
        // SAFETY: the caller guarantees all requirements of this call.
        Some(call) => check(unsafe { call(function) }),
        None => Ok(()),
    }
}

/// Returns the number of a kernel's blocks that one multiprocessor can hold at a time.
///
/// # Safety
/// The function's module must be alive.
pub(crate) unsafe fn blocks_per_multiprocessor(
    function: RawFunction,
    threads: i32,
    shared: usize,
) -> Result<i32, Code> {
    let mut blocks = 0;
    // SAFETY: the caller guarantees the requirements; the result pointer refers to one writable integer.
    check(unsafe {
        driver::cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &raw mut blocks,
            function,
            threads,
            shared,
        )
    })?;
    Ok(blocks)
}

/// Submits a kernel to a stream.
///
/// # Safety
/// All handles must be alive. `parameters` must point to values whose number and types match the kernel's
/// declaration. All memory that the kernel accesses through them must stay allocated until the stream has completed the
/// kernel.
pub(crate) unsafe fn launch(
    function: RawFunction,
    blocks: [u32; 3],
    threads: [u32; 3],
    shared: u32,
    stream: RawStream,
    parameters: &mut [*mut c_void],
) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe {
        driver::cuLaunchKernel(
            function,
            blocks[0],
            blocks[1],
            blocks[2],
            threads[0],
            threads[1],
            threads[2],
            shared,
            stream,
            parameters.as_mut_ptr(),
            ptr::null_mut(),
        )
    })
}
