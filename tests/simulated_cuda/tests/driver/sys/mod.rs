//! Calls of the driver's functions for tests, through the bindings that daq uses.

use cudarc::driver::sys::{
    CUcontext, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use std::sync::Arc;

/// Calls a function of the driver and returns its code.
#[macro_export]
macro_rules! cu {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY:
        // - Pointers in tests are created from references to values of the types in the signature, or are null, which
        //   the simulated driver rejects.
        // - The memory of a copy exists until the test has waited for the copy.
        // - Every returned code is a value of the enumeration.
        #[allow(clippy::macro_metavars_in_unsafe, reason = "all tests of the driver's functions use this macro")]
        let code = unsafe { cudarc::driver::sys::$name($($argument),*) };
        code as i32
    }};
}

/// Calls a function of the driver, which must succeed.
#[macro_export]
macro_rules! ok {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::cu!($name($($argument),*)), 0, stringify!($name))
    };
}

/// Calls a function of the driver, which must return a code; the text says why.
#[macro_export]
macro_rules! fails {
    ($name:ident($($argument:expr),* $(,)?) => $code:expr $(, $why:literal)?) => {
        assert_eq!($crate::cu!($name($($argument),*)), $code, concat!(stringify!($name) $(, ": ", $why)?))
    };
}

/// Makes the context of a device current.
pub fn context(ordinal: i32) -> CUcontext {
    ok!(cuInit(0));
    let mut context = std::ptr::null_mut();
    ok!(cuDevicePrimaryCtxRetain(&raw mut context, ordinal));
    ok!(cuCtxSetCurrent(context));
    context
}

/// Returns the properties for memory of the virtual memory API.
pub fn properties() -> CUmemAllocationProp {
    // SAFETY: the structure is plain data, for which zero is valid; its enumerations are set immediately below.
    let mut properties: CUmemAllocationProp = unsafe {
        let mut zeros = std::mem::MaybeUninit::<CUmemAllocationProp>::zeroed();
        (*zeros.as_mut_ptr()).type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        (*zeros.as_mut_ptr()).location = location();
        zeros.assume_init()
    };
    properties.requestedHandleTypes =
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.allocFlags.gpuDirectRDMACapable = 1;
    properties
}

/// Returns the location of the first device.
pub fn location() -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: 0,
    }
}

/// Returns read and write access for the first device.
pub fn access() -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// Reads a byte at any address.
pub fn dereference(address: u64) -> u8 {
    // SAFETY: the access is deliberately invalid. Tests check that the CPU cannot access a device address; the process
    // is killed.
    unsafe { (address as *const u8).read_volatile() }
}

/// A gate that blocks a stream: a host function that returns once the gate is open.
pub mod gate {
    use std::ffi::c_void;
    use std::sync::{Condvar, Mutex};

    static IS_OPEN: Mutex<bool> = Mutex::new(false);
    static CHANGED: Condvar = Condvar::new();

    /// Waits until the gate is open.
    pub unsafe extern "C" fn pass(_: *mut c_void) {
        let is_open = IS_OPEN.lock().unwrap();
        drop(CHANGED.wait_while(is_open, |is_open| !*is_open).unwrap());
    }

    /// Closes the gate.
    pub fn shut() {
        *IS_OPEN.lock().unwrap() = false;
    }

    /// Opens the gate.
    pub fn open() {
        *IS_OPEN.lock().unwrap() = true;
        CHANGED.notify_all();
    }
}

/// Reads a mapped file.
pub fn mapped(file: i32, bytes: usize) -> Vec<u8> {
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;
    // SAFETY: the driver has passed ownership of the descriptor to the caller, who passes it to this function.
    let file = unsafe { std::fs::File::from_raw_fd(file) };
    let mut read = vec![0; bytes];
    file.read_exact_at(&mut read, 0).unwrap();
    read
}

/// Launches the kernel that copies `bytes` bytes.
pub fn launch(
    stream: &Arc<CudaStream>,
    copy: &CudaFunction,
    to: &mut CudaSlice<u32>,
    from: &CudaSlice<u32>,
    bytes: u64,
) -> Result<(), DriverError> {
    let mut builder = stream.launch_builder(copy);
    builder.arg(to).arg(from).arg(&bytes);
    // SAFETY: the arguments match the kernel's parameters, and both slices contain `bytes` bytes.
    unsafe { builder.launch(LaunchConfig::for_num_elems(32)) }.map(|_| ())
}
