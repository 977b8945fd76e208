//! CUDA calls for copies and fills.

use super::{Code, RawStream, check, driver, symbol};
use cudarc::driver::sys;
use std::ffi::c_uint;
use std::ptr;

/// Copies host memory to the device. `from` may be changed after this function has returned, although the bytes may not
/// have arrived yet.
///
/// # Safety
/// `from.len()` bytes at `to` must be device memory that nothing else uses.
pub(crate) unsafe fn copy_in(to: u64, from: &[u8]) -> Result<(), Code> {
    // SAFETY: the caller guarantees the requirements, and `from` is a slice of the given length.
    check(unsafe { driver::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()) })
}

/// Copies device memory to the host and waits for the end of the copy.
///
/// # Safety
/// `to.len()` bytes at `from` must be device memory.
pub(crate) unsafe fn copy_out(to: &mut [u8], from: u64) -> Result<(), Code> {
    // SAFETY: the caller guarantees the requirements, and `to` is a slice of the given length.
    check(unsafe { driver::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()) })
}

/// Copies host memory to the device on a stream.
///
/// # Safety
/// Both ranges must stay allocated until the stream has completed the copy. Until then, nothing else may write
/// the source, or read or write the target.
pub(crate) unsafe fn copy_in_async(
    to: u64,
    from: *const u8,
    bytes: usize,
    stream: RawStream,
) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) })
}

/// Copies device memory to the host on a stream.
///
/// # Safety
/// The requirements of [`copy_in_async`] apply.
pub(crate) unsafe fn copy_out_async(
    to: *mut u8,
    from: u64,
    bytes: usize,
    stream: RawStream,
) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream) })
}

/// Copies device memory to device memory on a stream.
///
/// # Safety
/// The requirements of [`copy_in_async`] apply.
pub(crate) unsafe fn copy_within_async(
    to: u64,
    from: u64,
    bytes: usize,
    stream: RawStream,
) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemcpyDtoDAsync_v2(to, from, bytes, stream) })
}

/// Rows of equal length at equal distances, with the same arrangement at source and target.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Number of rows.
    pub count: usize,
    /// Length of a row in bytes.
    pub bytes: usize,
    /// Distance between the starts of neighbouring rows in bytes.
    pub pitch: usize,
}

impl Rows {
    /// Largest pitch in bytes that CUDA accepts: `CU_DEVICE_ATTRIBUTE_MAX_PITCH` is this value on all GPUs.
    pub const MAX_PITCH: usize = (1 << 31) - 1;

    /// Returns one row of `bytes` bytes.
    pub const fn one(bytes: usize) -> Self {
        Self {
            count: 1,
            bytes,
            pitch: bytes,
        }
    }

    /// Whether no bytes lie between the rows.
    pub const fn is_contiguous(&self) -> bool {
        self.count <= 1 || self.pitch == self.bytes
    }

    /// Returns the number of bytes from the start of the first row to the end of the last row.
    pub const fn extent(&self) -> usize {
        self.count.saturating_sub(1) * self.pitch + self.bytes
    }
}

/// Copies rows of host memory to the device on a stream.
///
/// # Safety
/// The requirements of [`copy_in_async`] apply to every row.
pub(crate) unsafe fn copy_rows_in_async(
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
    // SAFETY: the caller guarantees the requirements, and `copy` is alive during the call.
    check(unsafe { driver::cuMemcpy2DAsync_v2(&raw const copy, stream) })
}

/// Copies rows of device memory to the host on a stream.
///
/// # Safety
/// The requirements of [`copy_in_async`] apply to every row.
pub(crate) unsafe fn copy_rows_out_async(
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
    // SAFETY: the caller guarantees the requirements, and `copy` is alive during the call.
    check(unsafe { driver::cuMemcpy2DAsync_v2(&raw const copy, stream) })
}

/// Copies rows of device memory to device memory on a stream. The memories may belong to different devices.
///
/// # Safety
/// The requirements of [`copy_in_async`] apply to every row.
pub(crate) unsafe fn copy_rows_within_async(
    to: u64,
    from: u64,
    rows: Rows,
    stream: RawStream,
) -> Result<(), Code> {
    let copy = sys::CUDA_MEMCPY2D {
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: from,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: to,
        ..plane(rows)
    };
    // SAFETY: the caller guarantees the requirements, and `copy` is alive during the call.
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

/// Starts many copies with one call. Returns `None` if the driver does not have this call (before CUDA 12.8).
///
/// # Safety
/// The requirements of [`copy_in_async`] apply to every copy. Source and target may each be host or device
/// memory. The three lists must have the same length.
pub(crate) unsafe fn copy_batch_async(
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
    // SAFETY: the attributes are integers and enumerations for which zero is a valid value.
    let mut attributes: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
    attributes.srcAccessOrder = sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    let (count, mut index, mut failed) = (to.len(), 0, 0);
    // SAFETY: `First` and `Second` are the types with which NVIDIA declares the two versions. Lists and attributes are
    // alive during the call. The one set of attributes applies to all copies. The caller guarantees valid copies.
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

/// Sets `bytes` bytes of device memory to `byte`.
///
/// # Safety
/// `bytes` bytes at `address` must be device memory that nothing else uses.
pub(crate) unsafe fn fill(address: u64, byte: u8, bytes: usize) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemsetD8_v2(address, byte, bytes) })
}

/// Sets `bytes` bytes of device memory to `byte` on a stream.
///
/// # Safety
/// The requirements of [`copy_in_async`] apply to the target.
pub(crate) unsafe fn fill_async(
    address: u64,
    byte: u8,
    bytes: usize,
    stream: RawStream,
) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemsetD8Async(address, byte, bytes, stream) })
}
