//! The driver's functions as tests call them, through the bindings that daq uses.

use cudarc::driver::sys::{
    CUcontext, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use std::sync::Arc;

/// Calls a function of the driver; its code.
#[macro_export]
macro_rules! cu {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers in tests are made from references to values of the types in the signature or are null,
        // which the simulated driver refuses; memory of copies outlives the wait for them. Every code that it
        // returns is one of the enumeration.
        #[allow(clippy::macro_metavars_in_unsafe, reason = "tests of the driver's functions are all like this")]
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

/// Makes the context of a device current.
pub fn context(ordinal: i32) -> CUcontext {
    ok!(cuInit(0));
    let mut context = std::ptr::null_mut();
    ok!(cuDevicePrimaryCtxRetain(&raw mut context, ordinal));
    ok!(cuCtxSetCurrent(context));
    context
}

/// What memory for virtual memory management is asked for.
pub fn properties() -> CUmemAllocationProp {
    // SAFETY: the structure is plain data, for which zeros are values; its enumerations are set at once.
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

/// The first device.
pub fn location() -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: 0,
    }
}

/// Reading and writing by the first device.
pub fn access() -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// Reads a byte through its address, whatever that is.
pub fn dereference(address: u64) -> u8 {
    // SAFETY: none; this is how a test sees that a device address leads nowhere: the process dies here.
    unsafe { (address as *const u8).read_volatile() }
}

/// A gate that is shut until it is opened: a function for a stream to call.
pub mod gate {
    use std::ffi::c_void;
    use std::sync::{Condvar, Mutex};

    static IS_OPEN: Mutex<bool> = Mutex::new(false);
    static CHANGED: Condvar = Condvar::new();

    /// Returns when the gate is open.
    pub unsafe extern "C" fn pass(_: *mut c_void) {
        let is_open = IS_OPEN.lock().unwrap();
        drop(CHANGED.wait_while(is_open, |is_open| !*is_open).unwrap());
    }

    /// Shuts the gate.
    pub fn shut() {
        *IS_OPEN.lock().unwrap() = false;
    }

    /// Opens the gate.
    pub fn open() {
        *IS_OPEN.lock().unwrap() = true;
        CHANGED.notify_all();
    }
}

/// The bytes of a file that `mmap` shows.
pub fn mapped(file: i32, bytes: usize) -> Vec<u8> {
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;
    // SAFETY: the driver has given the descriptor to the caller, who gives it to this function.
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
    // SAFETY: these are the kernel's parameters, and both slices hold `bytes` bytes.
    unsafe { builder.launch(LaunchConfig::for_num_elems(32)) }.map(|_| ())
}
