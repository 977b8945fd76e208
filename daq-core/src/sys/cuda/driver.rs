//! The functions of the driver's library, as NVIDIA declares them, except that results are integers. A driver that is
//! newer than the bindings can return codes that are not valid values of their enumeration.

#![expect(non_snake_case, reason = "the names are those of the library")]
#![expect(
    clippy::too_many_arguments,
    reason = "the parameters are those of the library's functions"
)]

use super::symbol;
use cudarc::driver::sys;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

/// `CUDA_ERROR_NOT_FOUND`, which is also the result for a function that the library lacks.
pub(super) const NOT_FOUND: c_uint = 500;

/// Defines a function for each name, which looks up the library's function on first use, and the list of names.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        /// Names of all functions. Every supported driver (CUDA 12.0 and newer) has them.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            /// # Safety
            /// The arguments must meet the requirements of NVIDIA's documentation.
            pub(super) unsafe fn $name($($argument: $kind),*) -> c_uint {
                type Call = unsafe extern "C" fn($($kind),*) -> c_uint;
                static CALL: OnceLock<Option<Call>> = OnceLock::new();
                // SAFETY: NVIDIA declares the function with this type; a C enumeration is an integer.
                match CALL.get_or_init(|| unsafe { symbol(stringify!($name)) }) {
                    // SAFETY: the caller guarantees all requirements of this call.
                    Some(call) => unsafe { call($($argument),*) },
                    None => NOT_FOUND,
                }
            }
        )*
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(driver_version: *mut c_int);
    cuDeviceGet(device: *mut sys::CUdevice, ordinal: c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, room: c_int, device: sys::CUdevice);
    cuDeviceGetUuid_v2(uuid: *mut sys::CUuuid, device: sys::CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: sys::CUdevice_attribute, device: sys::CUdevice);
    cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, device: sys::CUdevice);
    cuDeviceCanAccessPeer(can_access: *mut c_int, device: sys::CUdevice, peer: sys::CUdevice);
    cuDeviceGetP2PAttribute(value: *mut c_int, attribute: sys::CUdevice_P2PAttribute, from: sys::CUdevice, to: sys::CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: sys::CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, device: sys::CUdevice);
    cuCtxSetCurrent(context: sys::CUcontext);
    cuCtxSynchronize();
    cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut sys::CUdeviceptr, bytes: usize);
    cuMemFree_v2(address: sys::CUdeviceptr);
    cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const sys::CUmemAllocationProp, option: sys::CUmemAllocationGranularity_flags);
    cuMemCreate(handle: *mut sys::CUmemGenericAllocationHandle, size: usize, properties: *const sys::CUmemAllocationProp, flags: c_ulonglong);
    cuMemRelease(handle: sys::CUmemGenericAllocationHandle);
    cuMemAddressReserve(address: *mut sys::CUdeviceptr, size: usize, alignment: usize, near: sys::CUdeviceptr, flags: c_ulonglong);
    cuMemAddressFree(address: sys::CUdeviceptr, size: usize);
    cuMemMap(address: sys::CUdeviceptr, size: usize, offset: usize, handle: sys::CUmemGenericAllocationHandle, flags: c_ulonglong);
    cuMemUnmap(address: sys::CUdeviceptr, size: usize);
    cuMemSetAccess(address: sys::CUdeviceptr, size: usize, access: *const sys::CUmemAccessDesc, count: usize);
    cuMemExportToShareableHandle(shareable_handle: *mut c_void, handle: sys::CUmemGenericAllocationHandle, handle_type: sys::CUmemAllocationHandleType, flags: c_ulonglong);
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: sys::CUdeviceptr, size: usize, kind: c_uint, flags: c_ulonglong);
    cuPointerSetAttribute(value: *const c_void, attribute: c_uint, address: sys::CUdeviceptr);
    cuImportExternalMemory(memory: *mut sys::CUexternalMemory, about: *const sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
    cuExternalMemoryGetMappedBuffer(address: *mut sys::CUdeviceptr, memory: sys::CUexternalMemory, about: *const sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC);
    cuDestroyExternalMemory(memory: sys::CUexternalMemory);
    cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister(address: *mut c_void);
    cuMemcpyHtoD_v2(dst_device: sys::CUdeviceptr, src_host: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: sys::CUdeviceptr, bytes: usize);
    cuMemcpyHtoDAsync_v2(dst_device: sys::CUdeviceptr, src_host: *const c_void, bytes: usize, stream: sys::CUstream);
    cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream);
    cuMemcpyDtoDAsync_v2(dst_device: sys::CUdeviceptr, src_device: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream);
    cuMemcpy2DAsync_v2(copy: *const sys::CUDA_MEMCPY2D, stream: sys::CUstream);
    cuMemcpy3DAsync_v2(copy: *const sys::CUDA_MEMCPY3D, stream: sys::CUstream);
    cuMemsetD8_v2(dst_device: sys::CUdeviceptr, byte: c_uchar, bytes: usize);
    cuMemsetD8Async(dst_device: sys::CUdeviceptr, byte: c_uchar, bytes: usize, stream: sys::CUstream);
    cuMemsetD2D8Async(dst_device: sys::CUdeviceptr, pitch: usize, byte: c_uchar, width: usize, rows: usize, stream: sys::CUstream);
    cuMemsetD2D32Async(dst_device: sys::CUdeviceptr, pitch: usize, word: c_uint, words: usize, rows: usize, stream: sys::CUstream);
    cuStreamCreate(stream: *mut sys::CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: sys::CUstream);
    cuStreamSynchronize(stream: sys::CUstream);
    cuStreamBeginCapture_v2(stream: sys::CUstream, mode: sys::CUstreamCaptureMode);
    cuStreamEndCapture(stream: sys::CUstream, graph: *mut sys::CUgraph);
    cuGraphInstantiateWithFlags(graph_exec: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: c_ulonglong);
    cuGraphLaunch(graph_exec: sys::CUgraphExec, stream: sys::CUstream);
    cuGraphExecDestroy(graph_exec: sys::CUgraphExec);
    cuGraphDestroy(graph: sys::CUgraph);
    cuEventCreate(event: *mut sys::CUevent, flags: c_uint);
    cuEventDestroy_v2(event: sys::CUevent);
    cuEventRecord(event: sys::CUevent, stream: sys::CUstream);
    cuEventQuery(event: sys::CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, start: sys::CUevent, end: sys::CUevent);
    cuModuleLoadDataEx(module: *mut sys::CUmodule, image: *const c_void, num_options: c_uint, options: *mut sys::CUjit_option, option_values: *mut *mut c_void);
    cuModuleUnload(module: sys::CUmodule);
    cuModuleGetFunction(function: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char);
    cuModuleGetGlobal_v2(address: *mut sys::CUdeviceptr, bytes: *mut usize, module: sys::CUmodule, name: *const c_char);
    cuFuncGetAttribute(value: *mut c_int, attribute: sys::CUfunction_attribute, function: sys::CUfunction);
    cuFuncSetAttribute(function: sys::CUfunction, attribute: sys::CUfunction_attribute, value: c_int);
    cuLaunchKernel(function: sys::CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared: c_uint, stream: sys::CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks: *mut c_int, function: sys::CUfunction, block_size: c_int, shared: usize);
    cuGetErrorName(error: c_uint, text: *mut *const c_char);
    cuGetErrorString(error: c_uint, text: *mut *const c_char);
}
