//! Calls of the CUDA driver (`libcuda.so.1`), which is opened at run time.
//!
//! `cudarc` finds the library and declares its types; the functions are those of [`driver`], and what newer drivers
//! alone have goes through [`symbol`]. Where the library or a function is missing, calls return
//! [`NOT_FOUND`](driver::NOT_FOUND); [`is_present`] and [`missing_symbol`] say which.

mod copy;
mod device;
mod driver;
mod import;
mod memory;
mod module;
mod stream;

pub use copy::*;
pub use device::*;
pub use import::*;
pub use memory::*;
pub use module::*;
pub use stream::*;

use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

pub use cudarc::driver::sys::{
    CUcontext as Context, CUdevice as Handle, CUdevice_attribute as Attribute, CUevent as RawEvent,
    CUfunction as RawFunction, CUgraph as RawRecording, CUgraphExec as RawGraph,
    CUmemGenericAllocationHandle as Allocation, CUmodule as RawModule, CUstream as RawStream,
};

/// A result code other than success, as the driver numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

/// `CUDA_ERROR_NOT_FOUND`: no such function, kernel or variable.
pub const NOT_FOUND: Code = Code(driver::NOT_FOUND);

/// `CUDA_ERROR_INVALID_VALUE`: an argument that is not what the driver expects.
pub const INVALID_VALUE: Code = Code(1);

/// `CUDA_ERROR_INVALID_IMAGE`: no device code, or not all of it.
pub const INVALID_IMAGE: Code = Code(200);

/// `CUDA_ERROR_ILLEGAL_STATE`: what is asked for cannot be now.
pub const ILLEGAL_STATE: Code = Code(401);

/// `CUDA_ERROR_NOT_READY`: work is still under way.
pub const NOT_READY: Code = Code(600);

/// Whether the library can be opened.
pub fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opening libcuda runs its initialisers, which have no requirement on the process.
    *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

/// The first function that every supported driver has and this one lacks.
pub fn missing_symbol() -> Option<&'static str> {
    let is_missing = |name: &str| {
        // SAFETY: the symbol is only looked up, never called or read through this type.
        unsafe { symbol::<*const c_void>(name) }.is_none()
    };
    driver::NAMES.iter().find(|name| is_missing(name)).copied()
}

/// A function that not every driver has; `None` without the library, too.
///
/// # Safety
/// `F` is the type of the C function called `name`, as NVIDIA declares it, with integers in the place of the
/// enumerations that it returns.
pub unsafe fn symbol<F: Copy>(name: &str) -> Option<F> {
    // `cudarc` would panic.
    if !is_present() {
        return None;
    }
    // SAFETY: the type is right by the caller's contract, and the library is never closed.
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

/// The name and the description that the driver gives a code; empty where it knows none.
pub fn describe(code: Code) -> (String, String) {
    (
        description(driver::cuGetErrorName, code),
        description(driver::cuGetErrorString, code),
    )
}

fn description(describe: unsafe fn(c_uint, *mut *const c_char) -> c_uint, code: Code) -> String {
    let mut text = ptr::null();
    // SAFETY: a pointer to one pointer; a code that is not known returns an error.
    if unsafe { describe(code.0, &raw mut text) } != 0 || text.is_null() {
        return String::new();
    }
    // SAFETY: a NUL-terminated static string of the driver, as the call succeeded.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// `cuInit`.
pub fn init() -> Result<(), Code> {
    // SAFETY: no requirement.
    check(unsafe { driver::cuInit(0) })
}

/// The CUDA version that the driver supports: 1000 × major + 10 × minor. May be asked before `init`.
pub fn driver_version() -> Result<i32, Code> {
    let mut version = 0;
    // SAFETY: a pointer to one integer.
    check(unsafe { driver::cuDriverGetVersion(&raw mut version) })?;
    Ok(version)
}
