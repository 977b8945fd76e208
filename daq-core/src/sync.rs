//! The synchronisation primitives of the data path. With `--cfg loom`, the primitives of loom replace them.
//!
//! Contains only the primitives that rings and reorder windows use to pass memory between threads. Counters (see
//! [`crate::ledger`]) need no ordering and use `std`.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Hints to the processor, or loom's scheduler, that this thread waits for another.
#[inline]
pub(crate) fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
