//! Calls of the CUDA driver (`libcuda.so.1`), which is opened at run time by `cudarc`.
//!
//! `cudarc` panics where the library or a symbol is missing. So nothing here may be called before
//! [`is_complete`] has answered, and what newer drivers alone have goes through [`symbol`].

use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
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

/// Devices there are.
pub fn device_count() -> Result<i32, Code> {
    let mut count = 0;
    // SAFETY: a place for one integer.
    check(unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    Ok(count)
}

/// The handle of the device with this ordinal.
pub fn device(ordinal: i32) -> Result<Handle, Code> {
    let mut handle = 0;
    // SAFETY: a place for one handle.
    check(unsafe { sys::cuDeviceGet(&raw mut handle, ordinal) })?;
    Ok(handle)
}

/// The name of a device.
pub fn device_name(device: Handle) -> Result<String, Code> {
    text(128, |text, bytes| {
        // SAFETY: `text` has room for `bytes` characters.
        unsafe { sys::cuDeviceGetName(text, bytes, device) }
    })
}

/// The PCI address of a device, as `0000:3b:00.0`.
pub fn pci_address(device: Handle) -> Result<String, Code> {
    text(32, |text, bytes| {
        // SAFETY: `text` has room for `bytes` characters.
        unsafe { sys::cuDeviceGetPCIBusId(text, bytes, device) }
    })
    .map(|address| address.to_ascii_lowercase())
}

fn text(
    bytes: c_int,
    call: impl FnOnce(*mut c_char, c_int) -> sys::CUresult,
) -> Result<String, Code> {
    let mut text = vec![0_u8; usize::try_from(bytes).unwrap_or(0)];
    check(call(text.as_mut_ptr().cast(), bytes))?;
    Ok(CStr::from_bytes_until_nul(&text)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned())
}

/// The UUID of a device.
pub fn device_uuid(device: Handle) -> Result<[u8; 16], Code> {
    let mut uuid = MaybeUninit::<sys::CUuuid>::zeroed();
    // SAFETY: a place for one UUID; any bytes are one.
    let uuid = unsafe {
        check(sys::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), device))?;
        uuid.assume_init()
    };
    Ok(uuid.bytes.map(|byte| byte.cast_unsigned()))
}

/// An attribute of a device.
pub fn attribute(device: Handle, attribute: Attribute) -> Result<i32, Code> {
    let mut value = 0;
    // SAFETY: a place for one integer.
    check(unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
    Ok(value)
}

/// Bytes of a device's memory.
pub fn total_memory(device: Handle) -> Result<usize, Code> {
    let mut bytes = 0;
    // SAFETY: a place for one size.
    check(unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, device) })?;
    Ok(bytes)
}

/// Takes a share in a device's primary context, which all libraries of the process use, until the process ends.
pub fn retain_context(device: Handle) -> Result<Context, Code> {
    let mut context = ptr::null_mut();
    // SAFETY: a place for one pointer.
    check(unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
    Ok(context)
}

/// Makes a context the calling thread's.
///
/// # Safety
/// The context is retained.
pub unsafe fn set_context(context: Context) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuCtxSetCurrent(context) })
}

/// Waits until all work of the current context is done.
pub fn synchronize() -> Result<(), Code> {
    // SAFETY: no requirement; without a context it fails.
    check(unsafe { sys::cuCtxSynchronize() })
}

/// Free and total bytes of the current context's device.
pub fn memory_info() -> Result<(usize, usize), Code> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: places for two sizes.
    check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}

/// Plain device memory, in the current context.
pub fn allocate(bytes: usize) -> Result<u64, Code> {
    let mut address = 0;
    // SAFETY: a place for one address.
    check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
    Ok(address)
}

/// Frees plain device memory.
///
/// # Safety
/// `address` came from [`allocate`] and nothing uses the memory any more.
pub unsafe fn free(address: u64) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemFree_v2(address) })
}

fn properties(device: Handle, rdma: bool, shareable: bool) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: if shareable {
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
        },
        location: location(device),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

const fn location(device: Handle) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

/// What sizes of [`create`] must be a multiple of.
pub fn granularity(device: Handle, rdma: bool, shareable: bool) -> Result<usize, Code> {
    let mut bytes = 0;
    let properties = properties(device, rdma, shareable);
    let flag = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: a place for one size and properties that live through the call.
    check(unsafe {
        sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, flag)
    })?;
    Ok(bytes)
}

/// Physical memory of a device, without an address yet; with `rdma` network cards may be given it, with
/// `shareable` other processes.
pub fn create(
    device: Handle,
    bytes: usize,
    rdma: bool,
    shareable: bool,
) -> Result<Allocation, Code> {
    let mut allocation = 0;
    let properties = properties(device, rdma, shareable);
    // SAFETY: a place for one handle and properties that live through the call.
    check(unsafe { sys::cuMemCreate(&raw mut allocation, bytes, &raw const properties, 0) })?;
    Ok(allocation)
}

/// Gives physical memory back once nothing is mapped to it.
///
/// # Safety
/// `allocation` came from [`create`] and is not used again.
pub unsafe fn release(allocation: Allocation) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemRelease(allocation) })
}

/// A range of device addresses.
pub fn reserve_addresses(bytes: usize) -> Result<u64, Code> {
    let mut address = 0;
    // SAFETY: a place for one address.
    check(unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) })?;
    Ok(address)
}

/// Gives a range of addresses back.
///
/// # Safety
/// The range is one of [`reserve_addresses`] and nothing is mapped in it.
pub unsafe fn free_addresses(address: u64, bytes: usize) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemAddressFree(address, bytes) })
}

/// Maps physical memory at an address and opens it to the device.
///
/// # Safety
/// The range is reserved, nothing is mapped in it, and the allocation has `bytes` bytes.
pub unsafe fn map(
    device: Handle,
    address: u64,
    bytes: usize,
    allocation: Allocation,
) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemMap(address, bytes, 0, allocation, 0) })?;
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the range was mapped just now; `access` lives through the call.
    let opened = check(unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) });
    if opened.is_err() {
        // SAFETY: mapped just above and used by nobody.
        unsafe { unmap(address, bytes) }?;
    }
    opened
}

/// Undoes [`map`].
///
/// # Safety
/// The range is one that was mapped and no work uses it.
pub unsafe fn unmap(address: u64, bytes: usize) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemUnmap(address, bytes) })
}

/// A file descriptor through which another process can map the memory.
///
/// # Safety
/// `allocation` is alive and was created shareable.
pub unsafe fn export(allocation: Allocation) -> Result<OwnedFd, Code> {
    let mut fd: RawFd = -1;
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: a place for one descriptor, which is what this kind of handle is.
    check(unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), allocation, kind, 0) })?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pins host memory for all contexts, so that copies from and to it run at full rate and beside the CPU.
///
/// # Safety
/// `bytes` bytes at `address` are mapped and stay so until [`unregister_host`].
pub unsafe fn register_host(address: *mut u8, bytes: usize) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe {
        sys::cuMemHostRegister_v2(address.cast(), bytes, sys::CU_MEMHOSTREGISTER_PORTABLE)
    })
}

/// Undoes [`register_host`].
///
/// # Safety
/// The memory is registered and no copy uses it.
pub unsafe fn unregister_host(address: *mut u8) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemHostUnregister(address.cast()) })
}

/// Copies host memory to the device and waits.
///
/// # Safety
/// `bytes` bytes at `to` are device memory that nothing else uses.
pub unsafe fn copy_in(to: u64, from: &[u8]) -> Result<(), Code> {
    // SAFETY: by the caller's word; `from` is as long as it says.
    check(unsafe { sys::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()) })
}

/// Copies device memory to the host and waits.
///
/// # Safety
/// `to.len()` bytes at `from` are device memory.
pub unsafe fn copy_out(to: &mut [u8], from: u64) -> Result<(), Code> {
    // SAFETY: by the caller's word; `to` is as long as it says.
    check(unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()) })
}

/// Copies host memory to the device on a stream.
///
/// # Safety
/// Both ranges are alive, and neither is written nor, at the target, read until the stream has passed this.
pub unsafe fn copy_in_async(
    to: u64,
    from: *const u8,
    bytes: usize,
    stream: RawStream,
) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) })
}

/// Copies device memory to the host on a stream.
///
/// # Safety
/// As for [`copy_in_async`].
pub unsafe fn copy_out_async(
    to: *mut u8,
    from: u64,
    bytes: usize,
    stream: RawStream,
) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream) })
}

/// Copies device memory to device memory on a stream.
///
/// # Safety
/// As for [`copy_in_async`].
pub unsafe fn copy_within_async(
    to: u64,
    from: u64,
    bytes: usize,
    stream: RawStream,
) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream) })
}

/// Rows of equal length at equal distance, the same on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Rows.
    pub count: usize,
    /// Bytes of a row.
    pub bytes: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
}

/// Copies rows of host memory to the device on a stream.
///
/// # Safety
/// As for [`copy_in_async`], for every row.
pub unsafe fn copy_rows_in_async(
    to: u64,
    from: *const u8,
    rows: Rows,
    stream: RawStream,
) -> Result<(), Code> {
    let copy = sys::CUDA_MEMCPY2D {
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: from.cast(),
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: to,
        ..plane(rows)
    };
    // SAFETY: by the caller's word; `copy` lives through the call.
    check(unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream) })
}

/// Copies rows of device memory to the host on a stream.
///
/// # Safety
/// As for [`copy_in_async`], for every row.
pub unsafe fn copy_rows_out_async(
    to: *mut u8,
    from: u64,
    rows: Rows,
    stream: RawStream,
) -> Result<(), Code> {
    let copy = sys::CUDA_MEMCPY2D {
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: from,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: to.cast(),
        ..plane(rows)
    };
    // SAFETY: by the caller's word; `copy` lives through the call.
    check(unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream) })
}

const fn plane(rows: Rows) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: ptr::null(),
        srcDevice: 0,
        srcArray: ptr::null_mut(),
        srcPitch: rows.pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: ptr::null_mut(),
        dstDevice: 0,
        dstArray: ptr::null_mut(),
        dstPitch: rows.pitch,
        WidthInBytes: rows.bytes,
        Height: rows.count,
    }
}

/// Begins many copies with one call, where the driver has such a call (CUDA 12.8 and newer); `None` where not.
///
/// # Safety
/// As for [`copy_in_async`], for every pair; either side may be the host's or the device's. The three lists are
/// equally long.
pub unsafe fn copy_batch_async(
    to: &mut [u64],
    from: &mut [u64],
    bytes: &mut [usize],
    stream: RawStream,
) -> Option<Result<(), Code>> {
    type First = unsafe extern "C" fn(
        *mut u64,
        *mut u64,
        *mut usize,
        usize,
        *mut sys::CUmemcpyAttributes,
        *mut usize,
        usize,
        *mut usize,
        RawStream,
    ) -> c_uint;
    type Second = unsafe extern "C" fn(
        *mut u64,
        *mut u64,
        *mut usize,
        usize,
        *mut sys::CUmemcpyAttributes,
        *mut usize,
        usize,
        RawStream,
    ) -> c_uint;
    // SAFETY: the attributes are integers and enumerations that have a zero.
    let mut attributes: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
    attributes.srcAccessOrder = sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    let (count, mut index, mut failed) = (to.len(), 0, 0);
    // SAFETY: this is how the two versions are declared; lists and attributes live through the call, one set of
    // attributes counts from the first copy on, and the copies are the caller's word.
    let code = unsafe {
        if let Some(call) = symbol::<Second>("cuMemcpyBatchAsync_v2") {
            call(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                bytes.as_mut_ptr(),
                count,
                &raw mut attributes,
                &raw mut index,
                1,
                stream,
            )
        } else {
            symbol::<First>("cuMemcpyBatchAsync")?(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                bytes.as_mut_ptr(),
                count,
                &raw mut attributes,
                &raw mut index,
                1,
                &raw mut failed,
                stream,
            )
        }
    };
    Some(if code == 0 { Ok(()) } else { Err(Code(code)) })
}

/// Sets bytes of device memory and waits.
///
/// # Safety
/// `bytes` bytes at `address` are device memory that nothing else uses.
pub unsafe fn fill(address: u64, byte: u8, bytes: usize) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemsetD8_v2(address, byte, bytes) })
}

/// Sets bytes of device memory on a stream.
///
/// # Safety
/// As for the target of [`copy_in_async`].
pub unsafe fn fill_async(
    address: u64,
    byte: u8,
    bytes: usize,
    stream: RawStream,
) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuMemsetD8Async(address, byte, bytes, stream) })
}

/// A stream that does not wait for the default stream.
pub fn create_stream() -> Result<RawStream, Code> {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
    // SAFETY: a place for one pointer.
    check(unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
    Ok(stream)
}

/// Ends a stream; what is on it is still done.
///
/// # Safety
/// The stream came from [`create_stream`] and is not used again.
pub unsafe fn destroy_stream(stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuStreamDestroy_v2(stream) })
}

/// Waits until everything on a stream is done.
///
/// # Safety
/// The stream is alive.
pub unsafe fn synchronize_stream(stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuStreamSynchronize(stream) })
}

/// Begins to record what is put on a stream instead of doing it.
///
/// # Safety
/// The stream is alive and nothing is being recorded on it.
pub unsafe fn begin_capture(stream: RawStream) -> Result<(), Code> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })
}

/// Ends recording and makes what was recorded ready to be put on streams as one.
///
/// # Safety
/// Recording was begun on the stream.
pub unsafe fn end_capture(stream: RawStream) -> Result<RawGraph, Code> {
    let mut graph = ptr::null_mut();
    // SAFETY: by the caller's word; a place for one pointer.
    check(unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) })?;
    let mut ready = ptr::null_mut();
    // SAFETY: the graph was made just now; a place for one pointer.
    let result = check(unsafe { sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0) });
    // SAFETY: the graph is not used again; what was made of it stands for itself.
    check(unsafe { sys::cuGraphDestroy(graph) })?;
    result.map(|()| ready)
}

/// Puts a graph on a stream.
///
/// # Safety
/// Both are alive, and everything that the graph touches is.
pub unsafe fn launch_graph(graph: RawGraph, stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuGraphLaunch(graph, stream) })
}

/// Frees a graph.
///
/// # Safety
/// The graph came from [`end_capture`] and is not used again.
pub unsafe fn destroy_graph(graph: RawGraph) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuGraphExecDestroy(graph) })
}

/// An event; without `timed` it tells no time and costs less.
pub fn create_event(timed: bool) -> Result<RawEvent, Code> {
    let mut event = ptr::null_mut();
    let flags = if timed {
        sys::CUevent_flags::CU_EVENT_DEFAULT
    } else {
        sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
    };
    // SAFETY: a place for one pointer.
    check(unsafe { sys::cuEventCreate(&raw mut event, flags as c_uint) })?;
    Ok(event)
}

/// Frees an event.
///
/// # Safety
/// The event came from [`create_event`] and is not used again.
pub unsafe fn destroy_event(event: RawEvent) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuEventDestroy_v2(event) })
}

/// Puts an event on a stream: it is done when everything before it is.
///
/// # Safety
/// Both are alive.
pub unsafe fn record_event(event: RawEvent, stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuEventRecord(event, stream) })
}

/// Whether an event is done; the error is that of the work before it.
///
/// # Safety
/// The event is alive.
pub unsafe fn query_event(event: RawEvent) -> Result<bool, Code> {
    // SAFETY: by the caller's word.
    match check(unsafe { sys::cuEventQuery(event) }) {
        Ok(()) => Ok(true),
        Err(NOT_READY) => Ok(false),
        Err(code) => Err(code),
    }
}

/// Milliseconds between two events.
///
/// # Safety
/// Both events are alive.
pub unsafe fn elapsed(start: RawEvent, end: RawEvent) -> Result<f32, Code> {
    type Elapsed = unsafe extern "C" fn(*mut f32, RawEvent, RawEvent) -> c_uint;
    static ELAPSED: std::sync::OnceLock<Option<Elapsed>> = std::sync::OnceLock::new();
    // `cudarc` binds the successor, which drivers before 12.8 do not have.
    // SAFETY: this is how the function is declared; its result is an enumeration of C.
    let Some(call) = ELAPSED.get_or_init(|| unsafe { symbol("cuEventElapsedTime") }) else {
        return Err(Code(500));
    };
    let mut milliseconds = 0.0;
    // SAFETY: by the caller's word; a place for one number.
    match unsafe { call(&raw mut milliseconds, start, end) } {
        0 => Ok(milliseconds),
        code => Err(Code(code)),
    }
}

/// Loads device code; where that fails, what the driver's compiler says is in `log`.
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
    // SAFETY: `image` by the caller's word; two options with two values, and `log` is as long as is said.
    check(unsafe {
        sys::cuModuleLoadDataEx(
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
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuModuleUnload(module) })
}

/// A kernel of a module.
///
/// # Safety
/// The module is alive.
pub unsafe fn function(module: RawModule, name: &CStr) -> Result<RawFunction, Code> {
    let mut function = ptr::null_mut();
    // SAFETY: by the caller's word; a place for one pointer.
    check(unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) })?;
    Ok(function)
}

/// Address and bytes of a variable of a module.
///
/// # Safety
/// The module is alive.
pub unsafe fn global(module: RawModule, name: &CStr) -> Result<(u64, usize), Code> {
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: by the caller's word; places for an address and a size.
    check(unsafe {
        sys::cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, name.as_ptr())
    })?;
    Ok((address, bytes))
}

/// Lets a kernel use up to `bytes` of dynamic shared memory a block.
///
/// # Safety
/// The function's module is alive.
pub unsafe fn allow_shared(function: RawFunction, bytes: i32) -> Result<(), Code> {
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuFuncSetAttribute(function, attribute, bytes) })
}

/// The most threads a block that a kernel can be launched with.
///
/// # Safety
/// The function's module is alive.
pub unsafe fn most_threads(function: RawFunction) -> Result<i32, Code> {
    let mut threads = 0;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    // SAFETY: by the caller's word; a place for one integer.
    check(unsafe { sys::cuFuncGetAttribute(&raw mut threads, attribute, function) })?;
    Ok(threads)
}

/// Blocks of a kernel that one multiprocessor can hold at a time.
///
/// # Safety
/// The function's module is alive.
pub unsafe fn blocks_a_multiprocessor(
    function: RawFunction,
    threads: i32,
    shared: usize,
) -> Result<i32, Code> {
    let mut blocks = 0;
    // SAFETY: by the caller's word; a place for one integer.
    check(unsafe {
        sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, function, threads, shared)
    })?;
    Ok(blocks)
}

/// Puts a kernel on a stream.
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
    // SAFETY: by the caller's word.
    check(unsafe {
        sys::cuLaunchKernel(
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
