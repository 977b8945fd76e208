//! Why copies stop.

use crate::gpu::bar_mapping::BarMappingError;
use crate::gpu::driver::CudaError;

/// Why a GPU takes no more copies, or gives none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StagingError {
    /// The driver says so.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The CPU cannot store to its memory any more.
    #[error(transparent)]
    BarMapping(#[from] BarMappingError),
}
