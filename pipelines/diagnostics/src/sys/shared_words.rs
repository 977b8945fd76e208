//! Host or GPU memory that network cards read and write, accessed in words.

use daq_core::gpu::driver::{CudaError, Device, Stream};
use daq_core::region::{HostOptions, Placement, Region, RegionError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words copied from or to a GPU per step.
const PIECE: usize = 128 << 10;
const WORD: usize = size_of::<u64>();

/// Memory whose words the CPU can read and write, in host or GPU memory.
#[derive(Debug)]
pub(crate) struct SharedWords {
    region: Arc<Region>,
    /// Stream and pinned memory for copies from and to GPU memory.
    copies: Option<(Stream, Arc<Region>)>,
}

impl SharedWords {
    /// Allocates at least `bytes` zeroed bytes in host memory, or on `gpu`.
    pub(crate) fn new(gpu: Option<&'static Device>, bytes: usize) -> Result<Self, RegionError> {
        let options = HostOptions {
            lock: true,
            ..HostOptions::default()
        };
        let Some(device) = gpu else {
            return Ok(Self {
                region: Region::host(bytes, options)?,
                copies: None,
            });
        };
        let bounce = Region::host(PIECE * WORD, options)?;
        bounce.pin(device)?;
        Ok(Self {
            region: Region::cuda(device, bytes)?,
            copies: Some((Stream::new(device, 1)?, bounce)),
        })
    }

    pub(crate) const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where the memory is allocated.
    pub(crate) fn placement(&self) -> Placement {
        self.region.placement()
    }

    /// Stores `words` at word index `at`.
    ///
    /// # Panics
    /// If they exceed the memory.
    pub(crate) fn store(&self, at: usize, words: &[u64]) -> Result<(), CudaError> {
        self.check(at, words.len());
        let Some((stream, bounce)) = &self.copies else {
            store(&self.region, at, words);
            return Ok(());
        };
        for (i, piece) in words.chunks(PIECE).enumerate() {
            store(bounce, 0, piece);
            let to = self.region.address().addr().get() + (at + i * PIECE) * WORD;
            // SAFETY: the pinned memory has room for a piece and is used only here, between two waits for its stream.
            // The target is inside the region, as just checked, and `self` keeps the region; no reference is made.
            unsafe {
                stream.copy_in(to as u64, bounce.address().as_ptr(), piece.len() * WORD)?;
            }
            stream.synchronize()?;
        }
        Ok(())
    }

    /// Loads `count` words at word index `at`.
    ///
    /// # Panics
    /// If they exceed the memory.
    pub(crate) fn load(&self, at: usize, count: usize) -> Result<Vec<u64>, CudaError> {
        self.check(at, count);
        let Some((stream, bounce)) = &self.copies else {
            return Ok(load(&self.region, at, count));
        };
        let mut words = Vec::with_capacity(count);
        while words.len() < count {
            let piece = (count - words.len()).min(PIECE);
            let from = self.region.address().addr().get() + (at + words.len()) * WORD;
            // SAFETY: as in `store`, in the opposite direction.
            unsafe {
                stream.copy_out(bounce.address().as_ptr(), from as u64, piece * WORD)?;
            }
            stream.synchronize()?;
            words.extend(load(bounce, 0, piece));
        }
        Ok(words)
    }

    fn check(&self, at: usize, count: usize) {
        let end = at.checked_add(count).and_then(|end| end.checked_mul(WORD));
        assert!(
            end.is_some_and(|end| end <= self.region.bytes()),
            "{count} words at {at} of {} bytes",
            self.region.bytes()
        );
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if let Some((stream, _)) = &self.copies {
            // After an error, copies may still be in flight.
            let _ = stream.synchronize();
        }
    }
}

/// Returns word `at` of host memory.
fn word(region: &Region, at: usize) -> &AtomicU64 {
    assert!(
        region.placement() == Placement::Host && (at + 1) * WORD <= region.bytes(),
        "word {at} of {} bytes",
        region.bytes()
    );
    // SAFETY: the word is inside host memory, as just checked, and aligned, because regions begin at pages; the region
    // is borrowed as long as the result. Concurrent writers are a network card, or an emulated device that uses atomic
    // or plain stores and whose completion is polled before these words are read.
    unsafe { region.address().cast::<AtomicU64>().add(at).as_ref() }
}

fn store(region: &Region, at: usize, words: &[u64]) {
    for (i, value) in words.iter().enumerate() {
        word(region, at + i).store(*value, Ordering::Release);
    }
}

fn load(region: &Region, at: usize, count: usize) -> Vec<u64> {
    (at..at + count)
        .map(|at| word(region, at).load(Ordering::Acquire))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_words_round_trip() {
        let shared = SharedWords::new(None, 4096).unwrap();
        shared.store(3, &[7, 8]).unwrap();
        assert_eq!(shared.load(2, 4).unwrap(), [0, 7, 8, 0]);
    }

    #[test]
    #[should_panic(expected = "2 words at 511")]
    fn shared_words_outside_are_rejected() {
        let shared = SharedWords::new(None, 4096).unwrap();
        let _ = shared.load(511, 2);
    }
}
