//! The synchronisation primitives of the data path. With `--cfg loom`, the primitives of loom replace them.
//!
//! Contains only the primitives that rings and reorder windows use to pass memory between threads. Counters (see
//! [`crate::ledger`]) need no ordering and use `std`.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

/// An `UnsafeCell` of `std` with the closure interface of loom.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Wraps `value`.
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer for reading.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer for writing.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Hints to the processor, or loom's scheduler, that this thread waits for another.
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
