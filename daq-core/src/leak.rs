//! Leaking memory that a device may still access.
//!
//! A device that does not stop may access its memory at any later time, so that this memory must never be freed or
//! reused. The same steps apply to all devices:
//! 1. The owner of the device stops it. If this fails, the owner disables and resets the device, if possible. All memory
//!    is then freed as usual.
//! 2. If the device cannot be reset, the owner marks a GPU as hung
//!    ([`Device::mark_hung`](crate::gpu::driver::Device::mark_hung)), so that nothing waits for it any more.
//! 3. The owner passes all memory and all driver objects that the device may still use to [`leak`], or calls `leak` of
//!    the type that owns them.
//! 4. The owner logs an error that names the memory. The memory is freed when the process exits.

/// Leaks `memory`, because a device may still access it. A shared owner passes a clone of its `Arc`.
#[expect(clippy::mem_forget, reason = "leaking is the purpose")]
pub fn leak<T>(memory: T) {
    std::mem::forget(memory);
}
