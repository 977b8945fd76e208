//! Counts allocations. A test binary selects the allocator:
//!
//! ```no_run
//! use daq_testkit::allocations::{ObservedAllocator, count_on_thread};
//!
//! #[global_allocator]
//! static ALLOCATOR: ObservedAllocator = ObservedAllocator::new(count_on_thread);
//! ```

pub use crate::sys::ObservedAllocator;

use std::cell::Cell;

thread_local! {
    /// Number of allocations by this thread. It is const and has no destructor, so counting does not allocate.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Counts an allocation of the calling thread.
pub fn count_on_thread() {
    // The thread-local counter no longer exists while a thread ends; such allocations are not counted.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

/// Returns the number of allocations of the calling thread.
pub fn of_thread() -> u64 {
    COUNT.get()
}
