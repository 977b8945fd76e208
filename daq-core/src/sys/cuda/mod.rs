//! Calls of the CUDA driver (`libcuda.so.1`), which is opened at run time by `cudarc`.
//!
//! `cudarc` panics where the library or a symbol is missing. So nothing here may be called before
//! [`is_complete`] has answered, and what newer drivers alone have goes through [`symbol`].

mod copy;
mod device;
mod memory;
mod module;
mod stream;

pub use copy::*;
pub use device::*;
pub use memory::*;
pub use module::*;
pub use stream::*;

use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;

pub use cudarc::driver::sys::{
    CUcontext as Context, CUdevice as Handle, CUdevice_attribute as Attribute, CUevent as RawEvent,
    CUfunction as RawFunction, CUgraphExec as RawGraph, CUmemGenericAllocationHandle as Allocation,
    CUmodule as RawModule, CUstream as RawStream,
};

/// A result code other than success, as the driver numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

/// `CUDA_ERROR_NOT_READY`: work is still under way.
pub const NOT_READY: Code = Code(600);

/// Symbols that every supported driver (CUDA 12.0 and newer) has and that are called here.
const REQUIRED: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemExportToShareableHandle",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemsetD8_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Whether the library can be opened.
pub fn is_present() -> bool {
    // SAFETY: opening libcuda runs its initialisers, which have no requirement on the process.
    unsafe { sys::is_culib_present() }
}

/// The first symbol that the library lacks; it must be [present](is_present).
pub fn missing_symbol() -> Option<&'static str> {
    REQUIRED.iter().find(|name| !has_symbol(name)).copied()
}

fn has_symbol(name: &str) -> bool {
    // SAFETY: the symbol is only looked up, never called or read through this type.
    unsafe { sys::culib().get::<*const c_void>(name.as_bytes()) }.is_ok()
}

/// A function that not every driver has.
///
/// # Safety
/// `F` is the type of the C function called `name`, as NVIDIA declares it.
pub unsafe fn symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the type is right by the caller's word, and the library is never closed.
    unsafe { sys::culib().get::<F>(name.as_bytes()) }
        .ok()
        .map(|symbol| *symbol)
}

fn check(result: sys::CUresult) -> Result<(), Code> {
    match result as u32 {
        0 => Ok(()),
        code => Err(Code(code)),
    }
}

/// The name and the description that the driver gives a code; empty where it knows none.
pub fn describe(code: Code) -> (String, String) {
    (
        description("cuGetErrorName", code),
        description("cuGetErrorString", code),
    )
}

fn description(call: &str, code: Code) -> String {
    // `cudarc` declares the code as an enumeration, which a newer driver's codes need not be in.
    type Describe = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;
    // SAFETY: this is how both functions are declared; an enumeration of C is an integer.
    let Some(describe) = (unsafe { symbol::<Describe>(call) }) else {
        return String::new();
    };
    let mut text = ptr::null();
    // SAFETY: a place for one pointer; a code that is not known is answered by an error.
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
    // SAFETY: no requirement but the library's presence.
    check(unsafe { sys::cuInit(0) })
}

/// The CUDA version that the driver supports: 1000 × major + 10 × minor. May be asked before `init`.
pub fn driver_version() -> Result<i32, Code> {
    let mut version = 0;
    // SAFETY: a place for one integer.
    check(unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    Ok(version)
}
