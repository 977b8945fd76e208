//! CUDA calls for devices and contexts.

use super::{Attribute, Code, Context, Handle, check, driver};
use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::MaybeUninit;
use std::ptr;

/// Returns the number of devices.
pub(crate) fn device_count() -> Result<i32, Code> {
    let mut count = 0;
    // SAFETY: the result pointer refers to one writable integer.
    check(unsafe { driver::cuDeviceGetCount(&raw mut count) })?;
    Ok(count)
}

/// Returns the handle of the device with this ordinal.
pub(crate) fn device(ordinal: i32) -> Result<Handle, Code> {
    let mut handle = 0;
    // SAFETY: the result pointer refers to one writable handle.
    check(unsafe { driver::cuDeviceGet(&raw mut handle, ordinal) })?;
    Ok(handle)
}

/// Returns the name of a device.
pub(crate) fn device_name(device: Handle) -> Result<String, Code> {
    text(128, |text, bytes| {
        // SAFETY: `text` has room for `bytes` characters.
        unsafe { driver::cuDeviceGetName(text, bytes, device) }
    })
}

/// Returns the PCI address of a device, such as `0000:3b:00.0`.
pub(crate) fn pci_address(device: Handle) -> Result<String, Code> {
    text(32, |text, bytes| {
        // SAFETY: `text` has room for `bytes` characters.
        unsafe { driver::cuDeviceGetPCIBusId(text, bytes, device) }
    })
    .map(|address| address.to_ascii_lowercase())
}

fn text(bytes: c_int, call: impl FnOnce(*mut c_char, c_int) -> c_uint) -> Result<String, Code> {
    let mut text = vec![0_u8; usize::try_from(bytes).unwrap_or(0)];
    check(call(text.as_mut_ptr().cast(), bytes))?;
    Ok(CStr::from_bytes_until_nul(&text)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned())
}

/// Returns the UUID of a device.
pub(crate) fn device_uuid(device: Handle) -> Result<[u8; 16], Code> {
    let mut uuid = MaybeUninit::<sys::CUuuid>::zeroed();
    // SAFETY: the result pointer refers to one writable UUID, for which any bytes are valid.
    let uuid = unsafe {
        check(driver::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), device))?;
        uuid.assume_init()
    };
    Ok(uuid.bytes.map(i8::cast_unsigned))
}

/// Returns the value of a device attribute.
pub(crate) fn attribute(device: Handle, attribute: Attribute) -> Result<i32, Code> {
    let mut value = 0;
    // SAFETY: the result pointer refers to one writable integer.
    check(unsafe { driver::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
    Ok(value)
}

/// Whether a device can access the memory of another device.
pub(crate) fn can_access_peer(device: Handle, peer: Handle) -> Result<bool, Code> {
    let mut can_access = 0;
    // SAFETY: the result pointer refers to one writable integer.
    check(unsafe { driver::cuDeviceCanAccessPeer(&raw mut can_access, device, peer) })?;
    Ok(can_access != 0)
}

/// Whether atomic operations of a device on the memory of another device are executed natively. This is the case over
/// NVLink, and not over PCIe.
pub(crate) fn has_peer_atomics(device: Handle, peer: Handle) -> Result<bool, Code> {
    let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let mut value = 0;
    // SAFETY: the result pointer refers to one writable integer.
    check(unsafe { driver::cuDeviceGetP2PAttribute(&raw mut value, attribute, device, peer) })?;
    Ok(value != 0)
}

/// Returns the size of a device's memory in bytes.
pub(crate) fn total_memory(device: Handle) -> Result<usize, Code> {
    let mut bytes = 0;
    // SAFETY: the result pointer refers to one writable size.
    check(unsafe { driver::cuDeviceTotalMem_v2(&raw mut bytes, device) })?;
    Ok(bytes)
}

/// Retains a device's primary context, which all libraries of the process use, until the process ends.
pub(crate) fn retain_context(device: Handle) -> Result<Context, Code> {
    let mut context = ptr::null_mut();
    // SAFETY: the result pointer refers to one writable pointer.
    check(unsafe { driver::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
    Ok(context)
}

/// Makes a context current for the calling thread.
///
/// # Safety
/// The context must be retained.
pub(crate) unsafe fn set_context(context: Context) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuCtxSetCurrent(context) })
}

/// Waits until all work of the current context is done.
pub(crate) fn synchronize() -> Result<(), Code> {
    // SAFETY: the call has no requirements; without a current context it returns an error.
    check(unsafe { driver::cuCtxSynchronize() })
}

/// Makes earlier writes of other devices to the memory of the current context's device visible to this device
/// (`CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, `…_TO_OWNER`).
pub(crate) fn flush_writes() -> Result<(), Code> {
    const CURRENT_CONTEXT: u32 = 0;
    const TO_OWNER: u32 = 100;
    // SAFETY: the call has no requirements; without a current context it returns an error.
    check(unsafe { driver::cuFlushGPUDirectRDMAWrites(CURRENT_CONTEXT, TO_OWNER) })
}

/// Returns the free and the total memory of the current context's device in bytes.
pub(crate) fn memory_info() -> Result<(usize, usize), Code> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the result pointers refer to two writable sizes.
    check(unsafe { driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}
