//! Calls of the driver's functions for tests, through the bindings that daq uses.

use cudarc::driver::sys::{
    CUcontext, CUevent, CUfunction, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUstream,
};
use std::ffi::c_void;

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

/// Allocates device memory.
pub fn allocate(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&raw mut address, bytes));
    address
}

/// Returns the code of an allocation of device memory.
pub fn allocation_code(bytes: usize) -> i32 {
    let mut address = 0;
    cu!(cuMemAlloc_v2(&raw mut address, bytes))
}

/// Reads device memory.
pub fn read(address: u64, bytes: usize) -> Vec<u8> {
    let mut to = vec![0; bytes];
    ok!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), address, bytes));
    to
}

/// Registers host memory with the driver.
pub fn register(memory: &[u8]) {
    let address = memory.as_ptr().cast_mut().cast();
    ok!(cuMemHostRegister_v2(address, memory.len(), 0));
}

/// Creates a stream.
pub fn stream() -> CUstream {
    let mut stream = std::ptr::null_mut();
    ok!(cuStreamCreate(&raw mut stream, 1));
    stream
}

/// Creates an event.
pub fn event(flags: u32) -> CUevent {
    let mut event = std::ptr::null_mut();
    ok!(cuEventCreate(&raw mut event, flags));
    event
}

/// Launches a kernel and returns the code.
pub fn launch(
    function: CUfunction,
    [x, y]: [u32; 2],
    [width, height]: [u32; 2],
    shared: u32,
    stream: CUstream,
    values: &[u64],
) -> i32 {
    let pointers = values
        .iter()
        .map(|value| std::ptr::from_ref(value).cast_mut().cast());
    let mut pointers: Vec<*mut c_void> = pointers.collect();
    let (values, none) = (pointers.as_mut_ptr(), std::ptr::null_mut());
    cu!(cuLaunchKernel(
        function, x, y, 1, width, height, 1, shared, stream, values, none
    ))
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
