//! Events: the completion of work on a GPU.

use crate::gpu::driver::CudaError;

/// The completion of work on a device, for which a lease waits.
pub trait Event: Send + Sync {
    /// Whether the work is done, or can no longer be done because the device failed. Never blocks.
    fn is_done(&self) -> bool;

    /// Returns the device failure that occurred before the work was done; `None` if no failure is known.
    fn failure(&self) -> Option<CudaError> {
        None
    }
}
