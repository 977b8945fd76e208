//! The only unsafe code of the fixtures.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, which calls a function at every allocation.
#[derive(Debug)]
pub struct ObservedAllocator {
    observe: fn(),
}

impl ObservedAllocator {
    /// Creates an allocator that calls `observe`, which must not allocate.
    pub const fn new(observe: fn()) -> Self {
        Self { observe }
    }
}

// SAFETY: every call is passed unchanged to the system's allocator, which satisfies the contract of `GlobalAlloc`.
unsafe impl GlobalAlloc for ObservedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.observe)();
        // SAFETY: the caller satisfies the contract of `alloc`, which is also that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: `System` returned `address` with this `layout`, because this allocator only forwards its calls.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        (self.observe)();
        // SAFETY: `System` returned `address` with this `layout`, because this allocator only forwards its calls.
        unsafe { System.realloc(address, layout, bytes) }
    }
}
