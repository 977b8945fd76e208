//! Host or GPU memory that network cards read and write. The CPU accesses this memory in words of 8 bytes.

use daq_core::gpu::driver::{CudaError, Device, Stream};
use daq_core::region::{HostOptions, Placement, Region, RegionError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of words that are copied from or to a GPU per step.
const PIECE: usize = 128 << 10;
const WORD: usize = size_of::<u64>();

/// Memory on the host or on a GPU whose words the CPU can read and write.
#[derive(Debug)]
pub(crate) struct SharedWords {
    region: Arc<Region>,
    /// CUDA stream and pinned memory for copies from and to GPU memory; `None` for host memory.
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
    /// If the words exceed the memory.
    pub(crate) fn store(&self, at: usize, words: &[u64]) -> Result<(), CudaError> {
        self.check(at, words.len());
        let Some((stream, bounce)) = &self.copies else {
            store(&self.region, at, words);
            return Ok(());
        };
        for (i, piece) in words.chunks(PIECE).enumerate() {
            store(bounce, 0, piece);
            let to = self.region.address().addr().get() + (at + i * PIECE) * WORD;
            // SAFETY:
            // - The pinned memory has room for a piece. It is used only here, between two waits for its stream.
            // - The target is inside the region, as checked above, and `self` keeps the region. No reference to it
            //   exists.
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
    /// If the words exceed the memory.
    pub(crate) fn load(&self, at: usize, count: usize) -> Result<Vec<u64>, CudaError> {
        self.check(at, count);
        let Some((stream, bounce)) = &self.copies else {
            return Ok(load(&self.region, at, count));
        };
        let mut words = Vec::with_capacity(count);
        while words.len() < count {
            let piece = (count - words.len()).min(PIECE);
            let from = self.region.address().addr().get() + (at + words.len()) * WORD;
            // SAFETY: the same invariants hold as in `store`, with source and target exchanged.
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
            "{count} words at word {at} exceed the region of {} bytes",
            self.region.bytes()
        );
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if let Some((stream, _)) = &self.copies {
            // After an error, copies may still be in flight, so wait for them before the memory is freed.
            let _ = stream.synchronize();
        }
    }
}

/// Returns the word with index `at` of host memory.
fn word(region: &Region, at: usize) -> &AtomicU64 {
    assert!(
        region.placement() == Placement::Host && (at + 1) * WORD <= region.bytes(),
        "word {at} is outside the host memory of {} bytes",
        region.bytes()
    );
    // SAFETY:
    // - The word is inside host memory, as checked above, and it is aligned, because regions begin at a page.
    // - The region is borrowed for as long as the result.
    // - Concurrent writers are a network card, or an emulated device that uses atomic or plain stores. Its completion
    //   is polled before these words are read.
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
    #[should_panic(expected = "2 words at word 511")]
    fn shared_words_outside_are_rejected() {
        let shared = SharedWords::new(None, 4096).unwrap();
        let _ = shared.load(511, 2);
    }
}
