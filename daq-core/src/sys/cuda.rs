//! Calls of the CUDA driver (`libcuda.so.1`), which is loaded at run time.
//!
//! `cudarc` finds the library and declares its types. The functions are declared in [`driver`]. Functions that only
//! newer drivers have are looked up with [`symbol`]. If the library or a function is missing, calls return
//! [`NOT_FOUND`](driver::NOT_FOUND); [`is_present`] and [`missing_symbol`] report which of the two is missing.

mod block;
mod copy;
mod device;
mod driver;
mod import;
mod memory;
mod module;
mod stream;

pub use block::*;
pub use copy::*;
pub(crate) use device::*;
pub(crate) use import::*;
pub(crate) use memory::*;
pub(crate) use module::*;
pub(crate) use stream::*;

use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

pub(crate) use cudarc::driver::sys::{
    CUcontext as Context, CUdevice as Handle, CUdevice_attribute as Attribute, CUevent as RawEvent,
    CUfunction as RawFunction, CUgraph as RawRecording, CUgraphExec as RawGraph,
    CUmemGenericAllocationHandle as Allocation, CUmodule as RawModule, CUstream as RawStream,
};

/// The driver's result code of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub u32);

/// `CUDA_ERROR_NOT_FOUND`: a function, kernel or variable does not exist.
pub(crate) const NOT_FOUND: Code = Code(driver::NOT_FOUND);

/// `CUDA_ERROR_INVALID_VALUE`: an argument is not valid.
pub(crate) const INVALID_VALUE: Code = Code(1);

/// `CUDA_ERROR_INVALID_IMAGE`: the image is not device code, or is incomplete.
pub(crate) const INVALID_IMAGE: Code = Code(200);

/// `CUDA_ERROR_ILLEGAL_STATE`: the call is not possible in the current state.
pub(crate) const ILLEGAL_STATE: Code = Code(401);

/// `CUDA_ERROR_NOT_READY`: the work is not complete.
pub(crate) const NOT_READY: Code = Code(600);

/// `CUDA_ERROR_NOT_SUPPORTED`: the driver or the device does not support the call.
pub(crate) const NOT_SUPPORTED: Code = Code(801);

/// Whether the library can be opened.
pub(crate) fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opening libcuda runs its initialisers, which have no requirement on the process.
    *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

/// Returns the first function that every supported driver has but this driver lacks; `None` if no function is missing.
pub(crate) fn missing_symbol() -> Option<&'static str> {
    let is_missing = |name: &str| {
        // SAFETY: the symbol is only looked up, never called or read through this type.
        unsafe { symbol::<*const c_void>(name) }.is_none()
    };
    driver::NAMES.iter().find(|name| is_missing(name)).copied()
}

/// Looks up a function that not every driver has. Returns `None` if the function or the library is missing.
///
/// # Safety
/// `F` must be the type of the C function called `name` as NVIDIA declares it, except that returned enumerations are
/// integers.
pub(crate) unsafe fn symbol<F: Copy>(name: &str) -> Option<F> {
    // `cudarc` would panic without the library.
    if !is_present() {
        return None;
    }
    // SAFETY: the caller guarantees the correct type, and the library is never closed.
    unsafe { sys::culib().get::<F>(name.as_bytes()) }
        .ok()
        .map(|symbol| *symbol)
}

const fn check(result: c_uint) -> Result<(), Code> {
    match result {
        0 => Ok(()),
        code => Err(Code(code)),
    }
}

/// Returns the driver's name and description of a code; empty texts for an unknown code.
pub(crate) fn describe(code: Code) -> (String, String) {
    (
        description(driver::cuGetErrorName, code),
        description(driver::cuGetErrorString, code),
    )
}

fn description(describe: unsafe fn(c_uint, *mut *const c_char) -> c_uint, code: Code) -> String {
    let mut text = ptr::null();
    // SAFETY: the result pointer refers to one writable pointer. For an unknown code, the call returns an error.
    if unsafe { describe(code.0, &raw mut text) } != 0 || text.is_null() {
        return String::new();
    }
    // SAFETY: the call succeeded, so the pointer refers to a NUL-terminated static string of the driver.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Initialises the driver (`cuInit`).
pub(crate) fn init() -> Result<(), Code> {
    // SAFETY: the call has no requirements.
    check(unsafe { driver::cuInit(0) })
}

/// Returns the CUDA version that the driver supports: 1000 × major + 10 × minor. May be called before `init`.
pub(crate) fn driver_version() -> Result<i32, Code> {
    let mut version = 0;
    // SAFETY: the result pointer refers to one writable integer.
    check(unsafe { driver::cuDriverGetVersion(&raw mut version) })?;
    Ok(version)
}
