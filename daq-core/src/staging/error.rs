//! Errors that stop copies.

use crate::gpu::bar_mapping::BarMappingError;
use crate::gpu::driver::CudaError;

/// The error of failed copies to or from a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StagingError {
    /// A call of the CUDA driver failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The CPU can no longer store to the GPU's memory.
    #[error(transparent)]
    BarMapping(#[from] BarMappingError),
}
