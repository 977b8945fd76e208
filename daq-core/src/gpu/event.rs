//! Work on a GPU whose end can be queried.

use crate::gpu::driver::CudaError;

/// Work on a device that a lease waits for.
pub trait Event: Send + Sync {
    /// Whether the work is done, or never will be because the device failed. Never blocks.
    fn is_done(&self) -> bool;

    /// Why the device failed before the work was done; `None` if no failure is known.
    fn failure(&self) -> Option<CudaError> {
        None
    }
}
