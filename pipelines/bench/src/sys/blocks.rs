//! Copies of rows between the memories of GPUs, without rings.

use daq_core::gpu::driver::{Block, Pitch};
use daq_core::region::{Region, RegionError};
use daq_core::ring::Completion;
use daq_core::staging::{CopyMethod, StagingError, between};
use std::sync::Arc;

/// A stream that copies from one region to another.
#[derive(Debug)]
pub(crate) struct Blocks {
    method: Box<dyn CopyMethod>,
    from: Arc<Region>,
    to: Arc<Region>,
}

impl Blocks {
    /// Creates a stream with at most `depth` recorded ends in use. Returns `None` if no method copies between the regions.
    pub(crate) fn new(
        from: &Arc<Region>,
        to: &Arc<Region>,
        depth: usize,
    ) -> Result<Option<Self>, RegionError> {
        let method = between(from, to, depth)?;
        Ok(method.map(|method| Self {
            method,
            from: from.clone(),
            to: to.clone(),
        }))
    }

    /// Starts a copy from offset `from` of the source to offset `to` of the target.
    ///
    /// # Panics
    /// If the block exceeds a region.
    pub(crate) fn begin(&self, to: usize, from: usize, block: Block) -> Result<(), StagingError> {
        let start = |region: &Region, at: usize, pitch: Pitch| {
            let rows = (block.rows - 1) * pitch.row;
            let end = at + (block.slices - 1) * pitch.slice + rows + block.width;
            assert!(end <= region.bytes(), "the block exceeds the region");
            region.address().as_ptr() as u64 + at as u64
        };
        let (to, from) = (
            start(&self.to, to, block.to),
            start(&self.from, from, block.from),
        );
        // SAFETY: the block is inside both regions, as just checked. They are freed after all copies have ended. The
        // contents of the regions are read when no copy is in flight.
        unsafe { self.method.copy_block(to, from, block) }
    }

    /// Records the end of all copies started so far.
    pub(crate) fn record_event(&self) -> Result<Completion, StagingError> {
        self.method.record_event()
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // After an error, copies may still be in flight.
        self.method.settle();
    }
}
