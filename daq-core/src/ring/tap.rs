//! Taps: observers of a ring that the producer does not notice.

use super::Shared;
use super::scratch::Scratch;
use crate::frame::{FrameMeta, Present};
use crate::gpu::driver::{CudaError, Device, Stream};
use crate::leak::leak;
use crate::region::Placement;
use crate::sync::{Arc, Ordering};
use std::fmt;

/// Maximum number of frames that one call copies until a copy is intact. A copy fails if the producer goes once around
/// the ring while the frame is copied.
const MAX_ATTEMPTS: usize = 4;

/// Copies the newest frames of a ring to private memory.
///
/// A tap is not a reader: it has no entry in the ledger, applies no backpressure and cannot be overrun. It returns the
/// newest frame at the time of each call, and skips the frames before.
pub struct Tap {
    shared: Arc<Shared>,
    scratch: Scratch,
    /// The stream that copies from a ring on a GPU.
    stream: Option<Stream>,
    /// Frames before this one were returned or skipped.
    next: u64,
}

impl Tap {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, CudaError> {
        let stream = match shared.region.placement() {
            Placement::Host => None,
            Placement::Cuda(ordinal) => Some(Stream::new(Device::open(ordinal)?, 1)?),
        };
        Ok(Self {
            scratch: Scratch::new(&shared, 1),
            shared,
            stream,
            next: 0,
        })
    }

    /// Returns an intact copy of the newest frame. Returns `None` if no frame was published since the last call, or if
    /// the producer overwrites frames faster than they are copied. For a ring on a GPU, waits for the copy.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn newest(&mut self) -> Result<Option<TapFrame<'_>>, CudaError> {
        for _ in 0..MAX_ATTEMPTS {
            let published = self.shared.state.published.load(Ordering::Acquire);
            if published <= self.next {
                return Ok(None);
            }
            let index = published - 1;
            if self.copy(index)? {
                self.next = published;
                return Ok(Some(TapFrame {
                    index,
                    frame: self.scratch.frame(0, self.shared.options.slot_bytes),
                }));
            }
        }
        Ok(None)
    }

    /// Lets [`newest`](Self::newest) return a frame again that it has returned before.
    pub const fn rewind(&mut self) {
        self.next = 0;
    }

    /// Copies frame `index`; returns whether the copy is intact.
    fn copy(&mut self, index: u64) -> Result<bool, CudaError> {
        let Some(stream) = &self.stream else {
            return Ok(self.scratch.take(&self.shared, 0, index));
        };
        let from = self.shared.address_of(index).addr() as u64;
        let target = self.scratch.take_record(&self.shared, 0, index);
        // SAFETY: the source is inside a slot of the region that `shared` keeps alive, and `target` is private memory
        // that lives until the copy has ended below, or is leaked. The producer may write the slot meanwhile; the copy is then
        // discarded, and no reference to device memory exists.
        unsafe { stream.copy_out(target.as_mut_ptr(), from, target.len()) }?;
        if let Err(error) = stream.synchronize() {
            // The GPU may still write the copy.
            let new = Scratch::new(&self.shared, 1);
            leak(std::mem::replace(&mut self.scratch, new));
            return Err(error);
        }
        Ok(self.shared.is_intact(index))
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap")
            .field("ring", &self.shared.options.name)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// A private copy of one frame.
#[derive(Clone, Copy, Debug)]
pub struct TapFrame<'a> {
    index: u64,
    frame: super::Frame<'a>,
}

impl<'a> TapFrame<'a> {
    /// Returns the number of the frame, counted from the creation of the ring.
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// Returns the metadata of the frame.
    pub const fn meta(&self) -> &FrameMeta {
        self.frame.meta()
    }

    /// Returns the payload.
    pub fn bytes(&self) -> &'a [u8] {
        self.frame.bytes().unwrap_or_default()
    }

    /// Returns which packets of the frame arrived.
    pub fn present(&self) -> Present<'a> {
        self.frame.present()
    }
}
