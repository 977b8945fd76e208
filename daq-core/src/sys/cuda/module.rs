//! Device code.

use super::{Code, RawFunction, RawModule, RawStream, check, driver, symbol};
use cudarc::driver::sys;
use std::ffi::{CStr, c_uint, c_void};
use std::ptr;

/// Loads device code; on failure `log` has the output of the driver's compiler.
///
/// # Safety
/// `image` is PTX that ends in NUL, or a whole cubin.
pub unsafe fn load_module(image: &[u8], log: &mut [u8]) -> Result<RawModule, Code> {
    let mut module = ptr::null_mut();
    let mut options = [
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values: [*mut c_void; 2] = [
        log.as_mut_ptr().cast(),
        // The driver takes numbers in place of pointers here.
        ptr::without_provenance_mut(log.len()),
    ];
    // SAFETY: `image` by the caller's contract; two options with two values, and `log` has the stated length.
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
/// The module came from [`load_module`] and nothing of it is used again.
pub unsafe fn unload_module(module: RawModule) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuModuleUnload(module) })
}

/// A kernel of a module.
///
/// # Safety
/// The module is alive.
pub unsafe fn function(module: RawModule, name: &CStr) -> Result<RawFunction, Code> {
    let mut function = ptr::null_mut();
    // SAFETY: by the caller's contract; a pointer to one pointer.
    check(unsafe { driver::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) })?;
    Ok(function)
}

/// Address and bytes of a variable of a module.
///
/// # Safety
/// The module is alive.
pub unsafe fn global(module: RawModule, name: &CStr) -> Result<(u64, usize), Code> {
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: by the caller's contract; pointers to an address and a size.
    check(unsafe {
        driver::cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, name.as_ptr())
    })?;
    Ok((address, bytes))
}

/// Lets a kernel use up to `bytes` of dynamic shared memory a block.
///
/// # Safety
/// The function's module is alive.
pub unsafe fn allow_shared(function: RawFunction, bytes: i32) -> Result<(), Code> {
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuFuncSetAttribute(function, attribute, bytes) })
}

/// The maximum number of threads per block that a kernel can be launched with.
///
/// # Safety
/// The function's module is alive.
pub unsafe fn max_threads(function: RawFunction) -> Result<i32, Code> {
    let mut threads = 0;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    // SAFETY: by the caller's contract; a pointer to one integer.
    check(unsafe { driver::cuFuncGetAttribute(&raw mut threads, attribute, function) })?;
    Ok(threads)
}

/// Offset and bytes of the parameter of a kernel with this index, as [`INVALID_VALUE`](super::INVALID_VALUE) where it
/// has fewer; `None` where the driver has no such call (before CUDA 12.4).
///
/// # Safety
/// The function's module is alive.
pub unsafe fn parameter(
    function: RawFunction,
    index: usize,
) -> Option<Result<(usize, usize), Code>> {
    type Call = unsafe extern "C" fn(RawFunction, usize, *mut usize, *mut usize) -> c_uint;
    // SAFETY: this is how the function is declared.
    let call = unsafe { symbol::<Call>("cuFuncGetParamInfo") }?;
    let (mut offset, mut bytes) = (0, 0);
    // SAFETY: the function by the caller's contract; pointers to two sizes.
    let code = unsafe { call(function, index, &raw mut offset, &raw mut bytes) };
    Some(check(code).map(|()| (offset, bytes)))
}

/// Loads a kernel's code where the driver has put that off, which it can from CUDA 12.4 on.
///
/// # Safety
/// The function's module is alive.
pub unsafe fn load_function(function: RawFunction) -> Result<(), Code> {
    type Call = unsafe extern "C" fn(RawFunction) -> c_uint;
    // SAFETY: this is how the function is declared.
    match unsafe { symbol::<Call>("cuFuncLoad") } {
        // SAFETY: by the caller's contract.
        Some(call) => check(unsafe { call(function) }),
        None => Ok(()),
    }
}

/// Blocks of a kernel that one multiprocessor can hold at a time.
///
/// # Safety
/// The function's module is alive.
pub unsafe fn blocks_per_multiprocessor(
    function: RawFunction,
    threads: i32,
    shared: usize,
) -> Result<i32, Code> {
    let mut blocks = 0;
    // SAFETY: by the caller's contract; a pointer to one integer.
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
/// All handles are alive; `parameters` point to values of the types that the kernel declares, as many as it
/// declares; everything that the kernel touches through them stays alive until the stream has passed this.
pub unsafe fn launch(
    function: RawFunction,
    blocks: [u32; 3],
    threads: [u32; 3],
    shared: u32,
    stream: RawStream,
    parameters: &mut [*mut c_void],
) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
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
