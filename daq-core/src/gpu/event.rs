//! Work on a GPU whose end can be queried.

use crate::gpu::driver::CudaError;

/// Work on a device that a lease waits for.
pub trait Event: Send + Sync {
    /// Whether the work is done, or never will be because the device failed; never blocks.
    fn is_done(&self) -> bool;

    /// Why the device failed before the work was done; `None` while it is not known to have.
    fn failure(&self) -> Option<CudaError> {
        None
    }
}
