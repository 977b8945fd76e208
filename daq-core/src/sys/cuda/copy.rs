//! Copies and fills.

use super::{Code, RawStream, check, driver, symbol};
use cudarc::driver::sys;
use std::ffi::c_uint;
use std::ptr;

/// Copies host memory to the device. `from` may be changed once this returns, although the bytes may not have arrived
/// yet.
///
/// # Safety
/// `bytes` bytes at `to` are device memory that nothing else uses.
pub unsafe fn copy_in(to: u64, from: &[u8]) -> Result<(), Code> {
    // SAFETY: by the caller's contract; `from` has its stated length.
    check(unsafe { driver::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()) })
}

/// Copies device memory to the host and waits.
///
/// # Safety
/// `to.len()` bytes at `from` are device memory.
pub unsafe fn copy_out(to: &mut [u8], from: u64) -> Result<(), Code> {
    // SAFETY: by the caller's contract; `to` has its stated length.
    check(unsafe { driver::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()) })
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
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) })
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
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream) })
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
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemcpyDtoDAsync_v2(to, from, bytes, stream) })
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
    // SAFETY: by the caller's contract; `copy` lives through the call.
    check(unsafe { driver::cuMemcpy2DAsync_v2(&raw const copy, stream) })
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
    // SAFETY: by the caller's contract; `copy` lives through the call.
    check(unsafe { driver::cuMemcpy2DAsync_v2(&raw const copy, stream) })
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
    // attributes counts from the first copy on, and the copies by the caller's contract.
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
    Some(check(code))
}

/// Sets bytes of device memory and waits.
///
/// # Safety
/// `bytes` bytes at `address` are device memory that nothing else uses.
pub unsafe fn fill(address: u64, byte: u8, bytes: usize) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemsetD8_v2(address, byte, bytes) })
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
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemsetD8Async(address, byte, bytes, stream) })
}
